"""Networks of timm and torchvision on small images."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torchvision_stub
from models import Case

TIMM: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4},
    "cait_xxs24_224": {"img_size": 64, "depth": 2},
    "coat_lite_tiny": {"img_size": 64},
    "coatnet_nano_rw_224": {"img_size": 64},
    "convit_tiny": {"img_size": 64, "depth": 3},
    "convnextv2_atto": {},
    "crossvit_tiny_240": {"size": 240},
    "cspresnet50": {},
    "davit_tiny": {"size": 64, "embed_dims": (24, 48), "depths": (1, 1), "num_heads": (2, 4)},
    "deit3_small_patch16_224": {"img_size": 64, "depth": 2},
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2, 2)},
    "dla34": {},
    "dm_nfnet_f0": {"size": 64},
    "dpn68": {},
    "ecaresnet26t": {},
    "edgenext_xx_small": {},
    "efficientformer_l1": {"size": 224},
    "efficientnet_b0": {},
    "efficientvit_b0": {},
    "efficientvit_m0": {"size": 224},
    "ese_vovnet19b_dw": {},
    "fastvit_t8": {},
    "gcvit_xxtiny": {"size": 224},
    "gernet_s": {},
    "ghostnet_050": {},
    "gmlp_s16_224": {"img_size": 64},
    "hardcorenas_a": {},
    "hgnet_tiny": {},
    "hrnet_w18_small": {},
    "inception_next_atto": {},
    "inception_v3": {"size": 96},
    "lambda_resnet26t": {"size": 128},
    "levit_128s": {"size": 224},
    "maxvit_nano_rw_256": {"img_size": 64},
    "mixnet_s": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small": {},
    "mobileone_s0": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "mvitv2_tiny": {"img_size": 64},
    "nest_tiny": {"size": 224},
    "pit_ti_224": {"size": 224},
    "poolformer_s12": {},
    "pvt_v2_b0": {},
    "rdnet_tiny": {},
    "regnetx_002": {},
    "regnety_002": {},
    "repghostnet_050": {},
    "repvgg_a0": {},
    "repvit_m0_9": {},
    "res2net50_14w_8s": {},
    "resmlp_12_224": {"img_size": 64},
    "resnest14d": {},
    "resnet18": {},
    "resnetv2_50": {},
    "rexnet_100": {},
    "sequencer2d_s": {"img_size": 64, "layers": (1, 1, 1, 1)},
    "seresnext26d_32x4d": {},
    "swin_tiny_patch4_window7_224": {
        "img_size": 56,
        "size": 56,
        "embed_dim": 24,
        "depths": (2, 2),
        "num_heads": (2, 4),
    },
    "swinv2_tiny_window8_256": {"img_size": 64, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
    "tf_efficientnetv2_b0": {},
    "tf_efficientnet_lite0": {},
    "tiny_vit_5m_224": {"size": 224},
    "tnt_s_patch16_224": {"img_size": 64, "depth": 2},
    "tresnet_m": {},
    "twins_svt_small": {"size": 224},
    "visformer_tiny": {"size": 224},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "volo_d1_224": {"img_size": 64},
    "xception41": {},
    "xcit_nano_12_p16_224": {"size": 64},
}
TORCHVISION: dict[str, dict[str, Any]] = {
    "convnext_tiny": {},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None},
    "efficientnet_v2_s": {},
    "fcn_resnet50": {"weights_backbone": None},
    "googlenet": {"init_weights": False, "aux_logits": False},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
    "mnasnet0_5": {},
    "mobilenet_v2": {},
    "shufflenet_v2_x0_5": {},
    "squeezenet1_1": {},
    "swin_v2_t": {},
}
NAMES = (*(f"timm.{name}" for name in TIMM), *(f"torchvision.{name}" for name in TORCHVISION))


def build(name: str) -> Case:
    """The network of that name on two images of 64 x 64 pixels, or as large as it asks for."""
    torchvision_stub.install()
    library, _, stem = name.partition(".")
    options = dict((TIMM if library == "timm" else TORCHVISION)[stem])
    size = options.pop("size", options.get("img_size", 64))
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "timm":
            import timm

            model = timm.create_model(stem, pretrained=False, num_classes=10, **options)
        else:
            import torchvision

            lookup: Any = getattr(torchvision.models, stem, None) or getattr(torchvision.models.segmentation, stem)
            model = lookup(weights=None, **options)
    return Case(model.eval(), (torch.randn(2, 3, size, size),), {}, None)
