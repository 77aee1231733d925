"""Small models of some 150 architectures of transformers, timm and torchvision, in inference and training.

    python -m tests.gpu.sweep --kinds architectures,training-architectures --device cpu

`NAMES` lists them, `build` makes one. Nothing is downloaded: configurations are made small, weights are random.
"""

from __future__ import annotations

from models import Case

from . import hugging_face, images

NAMES: tuple[str, ...] = (*hugging_face.NAMES, *images.NAMES)


def build(name: str) -> Case:
    """The model of that name in eval mode with its arguments, on the CPU in float32."""
    return (hugging_face if name in hugging_face.NAMES else images).build(name)
