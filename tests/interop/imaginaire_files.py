"""YAML files in the format of imaginaire, with its published values, and checkpoints in its layout."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from triptych.core.model import Model
from triptych.gans.weight_norms import fold_spectral_norm

IMAGE = {"ext": "jpg", "num_channels": 3, "normalize": True}
MASK = {"ext": "png", "num_channels": 1, "is_mask": True, "normalize": False}


def adam(rate: float, *, beta1: float = 0.0, **policy: Any) -> dict[str, Any]:
    return {"type": "adam", "lr": rate, "adam_beta1": beta1, "adam_beta2": 0.999, "lr_policy": policy}


def train_part(batch_size: int, **augmentations: Any) -> dict[str, Any]:
    return {"train": {"roots": ["dataset/train"], "batch_size": batch_size, "augmentations": augmentations}}


PERCEPTUAL = {
    "mode": "vgg19",
    "layers": ["relu_1_1", "relu_2_1", "relu_3_1", "relu_4_1", "relu_5_1"],
    "weights": [0.03125, 0.0625, 0.125, 0.25, 1.0],
}
AVERAGE = {"enabled": True, "beta": 0.9999, "start_iteration": 1000, "num_batch_norm_estimation_iterations": 30, "remove_sn": True}
_AUTO_ENCODER = {"content_norm_type": "instance", "decoder_norm_type": "instance", "num_res_blocks": 4, "num_downsamples_content": 2}
_DOMAINS = {"type": "imaginaire.datasets.unpaired_images", "input_types": [{"images_a": IMAGE}, {"images_b": IMAGE}]}
_MUNIT_GEN = {
    "type": "imaginaire.generators.munit",
    **_AUTO_ENCODER,
    "latent_dim": 8,
    "num_filters": 64,
    "num_filters_mlp": 256,
    "num_mlp_blocks": 2,
    "num_downsamples_style": 4,
    "style_norm_type": "none",
    "weight_norm_type": "spectral",
    "pre_act": True,
}
_FUNIT = {
    "snapshot_save_iter": 5000,
    "image_save_iter": 1000,
    "logging_iter": 50,
    "max_iter": 150000,
    "trainer": {
        "type": "imaginaire.trainers.funit",
        "init": {"type": "none"},
        "gan_mode": "hinge",
        "model_average_config": AVERAGE | {"beta": 0.999},
        "amp_config": {"enabled": True},
        "loss_weight": {"gan": 1.0, "feature_matching": 1.0, "image_recon": 0.1},
    },
    "gen": {
        "type": "imaginaire.generators.funit",
        "num_filters": 64,
        "num_filters_mlp": 256,
        "style_dims": 64,
        "num_res_blocks": 2,
        "num_mlp_blocks": 3,
        "num_downsamples_style": 5,
        "num_downsamples_content": 4,
        "weight_norm_type": "",
    },
    "dis": {
        "type": "imaginaire.discriminators.funit",
        "num_classes": 149,
        "num_filters": 64,
        "max_num_filters": 1024,
        "num_layers": 6,
        "weight_norm_type": "spectral",
    },
    "gen_opt": adam(1e-4, iteration_mode=True, type="step", step_size=100000, gamma=0.5),
    "dis_opt": adam(1e-4, iteration_mode=True, type="step", step_size=100000, gamma=0.5),
    "data": {
        "type": "imaginaire.datasets.unpaired_few_shot_images",
        "input_types": [{"images_content": IMAGE}, {"images_style": IMAGE}],
        **train_part(8, resize_smallest_side=270, random_scale_limit=0.1, horizontal_flip=True, random_crop_h_w="256, 256"),
    },
}

PUBLISHED: dict[str, dict[str, Any]] = {
    "spade": {
        "snapshot_save_epoch": 5,
        "image_save_iter": 5000,
        "logging_iter": 100,
        "max_epoch": 400,
        "trainer": {
            "type": "imaginaire.trainers.spade",
            "model_average_config": AVERAGE,
            "init": {"type": "xavier", "gain": 0.02},
            "gan_mode": "hinge",
            "perceptual_loss": PERCEPTUAL,
            "loss_weight": {"gan": 1.0, "feature_matching": 10.0, "perceptual": 10.0, "kl": 0.05},
        },
        "gen": {
            "type": "imaginaire.generators.spade",
            "version": "v20",
            "style_dims": 256,
            "num_filters": 128,
            "kernel_size": 3,
            "weight_norm_type": "spectral",
            "use_posenc_in_input_layer": False,
            "global_adaptive_norm_type": "sync_batch",
            "activation_norm_params": {
                "num_filters": 128,
                "kernel_size": 5,
                "separate_projection": True,
                "activation_norm_type": "sync_batch",
                "activation_norm_params": {"affine": True},
                "weight_norm_type": "spectral",
            },
            "style_enc": {"num_filters": 64, "kernel_size": 3, "weight_norm_type": "spectral"},
        },
        "dis": {
            "type": "imaginaire.discriminators.spade",
            "kernel_size": 4,
            "num_filters": 128,
            "max_num_filters": 512,
            "num_discriminators": 2,
            "num_layers": 5,
            "activation_norm_type": "none",
            "weight_norm_type": "spectral",
        },
        "gen_opt": adam(1e-4, type="step", step_size=400, gamma=0.1),
        "dis_opt": adam(4e-4, type="step", step_size=400, gamma=0.1),
        "data": {
            "type": "imaginaire.datasets.paired_images",
            "input_types": [{"images": IMAGE}, {"seg_maps": MASK}, {"edge_maps": MASK}],
            "one_hot_num_classes": {"seg_maps": 183},
            "use_dont_care": True,
            "input_image": ["images"],
            "input_labels": ["seg_maps", "edge_maps"],
            **train_part(4, resize_smallest_side=256, random_scale_limit=0.2, horizontal_flip=True, random_crop_h_w="256, 256"),
        },
        "inference_args": {"random_style": True, "use_fixed_random_style": False, "keep_original_size": True},
    },
    "pix2pixHD": {
        "snapshot_save_epoch": 20,
        "image_save_iter": 500,
        "max_epoch": 200,
        "trainer": {
            "type": "imaginaire.trainers.pix2pixHD",
            "model_average_config": AVERAGE | {"beta": 0.999, "start_iteration": 500, "num_batch_norm_estimation_iterations": 0},
            "init": {"type": "xavier", "gain": 0.02},
            "gan_mode": "hinge",
            "perceptual_loss": PERCEPTUAL,
            "loss_weight": {"gan": 1.0, "feature_matching": 10.0, "perceptual": 10.0},
        },
        "gen": {
            "type": "imaginaire.generators.pix2pixHD",
            "activation_norm_type": "instance",
            "activation_norm_params": {"affine": True},
            "weight_norm_type": "spectral",
            "padding_mode": "reflect",
            "global_generator": {"num_filters": 64, "num_downsamples": 4, "num_res_blocks": 9},
            "local_enhancer": {"num_enhancers": 0, "num_res_blocks": 3},
        },
        "dis": {
            "type": "imaginaire.discriminators.multires_patch",
            "num_filters": 64,
            "max_num_filters": 512,
            "num_discriminators": 2,
            "num_layers": 3,
            "activation_norm_type": "instance",
            "weight_norm_type": "spectral",
        },
        "gen_opt": adam(2e-4, beta1=0.5, type="step", step_size=100, gamma=0.1),
        "dis_opt": adam(2e-4, beta1=0.5, type="step", step_size=100, gamma=0.1),
        "data": {
            "type": "imaginaire.datasets.paired_images",
            "input_types": [{"images": IMAGE}, {"seg_maps": MASK}, {"instance_maps": MASK}],
            "one_hot_num_classes": {"seg_maps": 35},
            "input_image": ["images"],
            "input_labels": ["seg_maps", "instance_maps"],
            **train_part(2, resize_smallest_side=512, random_scale_limit=0.2, horizontal_flip=True, random_crop_h_w="512, 1024"),
        },
    },
    "unit": {
        "snapshot_save_iter": 20000,
        "image_save_iter": 20000,
        "image_display_iter": 5000,
        "logging_iter": 50,
        "max_iter": 500000,
        "trainer": {
            "type": "imaginaire.trainers.unit",
            "init": {"type": "normal", "gain": 0.02},
            "gan_mode": "least_square",
            "loss_weight": {"gan": 1.0, "image_recon": 1.0, "cycle_recon": 1.0, "perceptual": 0.0},
            "perceptual_loss": {"mode": "vgg19", "layers": "relu_4_1", "fp16": False},
        },
        "gen": {
            "type": "imaginaire.generators.unit",
            **_AUTO_ENCODER,
            "num_filters": 48,
            "max_num_filters": 256,
            "weight_norm_type": "none",
            "pre_act": True,
            "all_res": True,
        },
        "dis": {
            "type": "imaginaire.discriminators.unit",
            "num_discriminators": 3,
            "kernel_size": 3,
            "num_filters": 48,
            "max_num_filters": 512,
            "num_layers": 4,
            "weight_norm_type": "spectral",
        },
        "gen_opt": adam(1e-4, type="step", step_size=100, gamma=0.5),
        "dis_opt": adam(1e-4, type="step", step_size=100, gamma=0.5),
        "data": {**_DOMAINS, **train_part(1, resize_smallest_side=512, random_scale_limit=0.2, horizontal_flip=True, random_crop_h_w=512)},
        "inference_args": {"a2b": True},
    },
    "munit": {
        "snapshot_save_iter": 5000,
        "image_save_iter": 5000,
        "max_iter": 200000,
        "trainer": {
            "type": "imaginaire.trainers.munit",
            "init": {"type": "orthogonal", "gain": 1},
            "gan_mode": "hinge",
            "amp_config": {"enabled": True},
            "model_average_config": AVERAGE,
            "loss_weight": {
                "gan": 1.0,
                "image_recon": 0.1,
                "content_recon": 1.0,
                "style_recon": 1.0,
                "perceptual": 0.0,
                "cycle_recon": 0.0,
                "gp": 0.0,
                "consistency_reg": 0.0,
            },
        },
        "gen": _MUNIT_GEN,
        "dis": {
            "type": "imaginaire.discriminators.munit",
            "patch_wise": False,
            "num_filters": 32,
            "max_num_filters": 512,
            "num_layers": 6,
            "activation_norm_type": "none",
            "weight_norm_type": "spectral",
        },
        "gen_opt": adam(1e-4, beta1=0.5, type="constant"),
        "dis_opt": adam(4e-4, beta1=0.5, type="constant"),
        "data": {**_DOMAINS, **train_part(16, resize_h_w="256, 256", horizontal_flip=True, random_crop_h_w="256, 256")},
        "inference_args": {"a2b": True, "random_style": True},
    },
    "funit": _FUNIT,
    "coco_funit": {
        **_FUNIT,
        "gen": {**_FUNIT["gen"], "type": "imaginaire.generators.coco_funit", "usb_dims": 1024},
        "dis": {**_FUNIT["dis"], "num_classes": 305},
    },
}
"""By model; SPADE on COCO-Stuff, pix2pixHD on Cityscapes at 1024x512, UNIT winter2summer, MUNIT dog2cat, FUNIT and COCO-FUNIT."""

ALONE: dict[str, Any] = {
    "trainer": {"type": "imaginaire.trainers.spade", "model_average_config": {"enabled": True}},
    "gen": {
        **PUBLISHED["spade"]["gen"],
        "num_labels": 184,
        "image_channels": 3,
        "out_image_small_side_size": 512,
        "output_multiplier": 0.5,
    },
    "dis": {"type": "imaginaire.discriminators.dummy"},
    "pretrained_weight": "a-name",
}
"""A SPADE to translate with alone, as the one of landscapes: without data, losses and a discriminator."""

_SMALL = {
    "spade": {
        "gen": {"num_filters": 4, "style_dims": 8, "activation_norm_params": {"num_filters": 8}, "style_enc": {"num_filters": 4}},
        "dis": {"num_filters": 4, "max_num_filters": 16},
        "data": {"one_hot_num_classes": {"seg_maps": 6}},
    },
    "pix2pixHD": {
        "gen": {"global_generator": {"num_filters": 4, "num_res_blocks": 2}},
        "dis": {"num_filters": 4},
        "data": {
            "one_hot_num_classes": {"seg_maps": 6},
            "train": {"augmentations": {"resize_smallest_side": 64, "random_crop_h_w": "64, 128"}},
        },
    },
    "unit": {
        "gen": {"num_filters": 4},
        "dis": {"num_filters": 4, "max_num_filters": 16},
        "data": {"train": {"augmentations": {"resize_smallest_side": 128, "random_crop_h_w": 128}}},
    },
    "munit": {"gen": {"num_filters": 4, "num_filters_mlp": 16}, "dis": {"num_filters": 4, "max_num_filters": 16}},
    "funit": {
        "gen": {"num_filters": 4, "num_filters_mlp": 16, "style_dims": 8},
        "dis": {"num_filters": 4, "max_num_filters": 32, "num_classes": 5},
        "data": {"train": {"augmentations": {"resize_smallest_side": 70, "random_crop_h_w": "64, 64"}}},
    },
}
_SMALL["coco_funit"] = {**_SMALL["funit"], "gen": {**_SMALL["funit"]["gen"], "usb_dims": 16}}


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with `changes` laid over them, section by section; a setting of None is taken out."""
    found = copy.deepcopy(dict(values))
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(found.get(name), Mapping):
            found[name] = changed(found[name], value)
        else:
            found[name] = value
    return found


def published(model: str, **changes: Any) -> dict[str, Any]:
    """The file of a model, with changes."""
    return changed(PUBLISHED[model], changes)


def small(model: str, **changes: Any) -> dict[str, Any]:
    """The same with networks of a few filters, and small images where its networks take them."""
    return changed(changed(PUBLISHED[model], _SMALL[model]), changes)


def written(path: Path, values: Mapping[str, Any]) -> Path:
    """The path of a file that holds the values."""
    path.write_text(yaml.safe_dump(dict(values)))
    return path


def checkpoint(model: Model, average: Model | None = None, *, discriminator: bool = True) -> dict[str, Any]:
    """What the original saves of a model, and of a generator's moving average; and an optimizer's state."""
    generator: Any = model.generator
    live: dict[str, Tensor] = generator.state_dict()
    if average is None:
        state = {f"module.{key}": tensor for key, tensor in live.items()}
    else:
        network: Any = average.generator
        state = {f"module.module.{key}": tensor for key, tensor in live.items()}
        state |= {f"module.averaged_model.{key}": tensor for key, tensor in fold_spectral_norm(network.state_dict()).items()}
        state["module.num_updates_tracked"] = torch.tensor(5)
    optimizer = torch.optim.Adam(generator.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    judge: Any = model.discriminator
    judged = {"net_D": {f"module.{key}": tensor for key, tensor in judge.state_dict().items()}} if discriminator else {}
    return {
        "net_G": state,
        **judged,
        "opt_G": optimizer.state_dict(),
        "sch_G": schedule.state_dict(),
        "current_epoch": 3,
        "current_iteration": 70,
    }
