"""Lets torchvision, timm and transformers be imported beside a CPU build of torch.

PyPI's torchvision carries an extension built for CUDA's torch. Beside another torch it does not load, and `import torchvision`
then fails for want of the operators that the extension would have registered. No model here calls them: it is enough to declare them.

As a program, `make setup` runs it: where torchvision does not load, programs of that environment get it by `import torchvision` as usual.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_LIBRARY: list[Any] = []  # a Library takes its operators away when it is collected

_ROIS = "Tensor rois, float spatial_scale"
_POOL = "SymInt pooled_height, SymInt pooled_width"
_SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, "
    "SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, {_ROIS}, {_POOL}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_ROIS}, {_POOL}) -> (Tensor, Tensor)",
    f"ps_roi_align(Tensor input, {_ROIS}, {_POOL}, int sampling_ratio) -> (Tensor, Tensor)",
    f"ps_roi_pool(Tensor input, {_ROIS}, {_POOL}) -> (Tensor, Tensor)",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_ROIS}, {_POOL}, {_SIZES}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, {_POOL}, {_SIZES}) -> Tensor",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"{_POOL}, int sampling_ratio, {_SIZES}) -> Tensor",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"{_POOL}, {_SIZES}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "_interpolate_bilinear2d_aa(Tensor input, SymInt[] output_size, bool align_corners) -> Tensor",
    "_interpolate_bicubic2d_aa(Tensor input, SymInt[] output_size, bool align_corners) -> Tensor",
    "_cuda_version() -> int",
)


def install() -> None:
    """Make `import torchvision` work: declare its operators, unless its own extension has done so."""
    if _LIBRARY or "torchvision" in sys.modules:
        return
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, ImportError, OSError):
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        declare()


def declare() -> None:
    """Make torchvision's operators known, without kernels."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _LIBRARY.append(library)


class Declares:
    """Stands before the other finders of modules: declares the operators when torchvision is about to be imported and its extension does not load."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Nothing is found here; the next finder is asked."""
        if name != "torchvision" or _LIBRARY:
            return None
        spec = PathFinder.find_spec(name)
        if spec is None or spec.origin is None:
            return None
        import torch

        for extension in Path(spec.origin).parent.glob("_C*.so"):
            try:
                torch.ops.load_library(str(extension))
            except OSError:
                return declare()


def main() -> None:
    """Where torchvision does not load, have every program of this environment begin with `Declares` among its finders."""
    if subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False).returncode == 0:
        return
    folder = Path(sysconfig.get_paths()["purelib"])
    shutil.copyfile(__file__, folder / "torchvision_stub.py")
    line = "import sys, torchvision_stub; sys.meta_path.insert(0, torchvision_stub.Declares())\n"
    (folder / "torchvision_stub.pth").write_text(line)


if __name__ == "__main__":
    main()
