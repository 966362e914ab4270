"""The files of weights that OpenAI published, each with the flags that it needs: 15 of guided-diffusion, 8 of improved-diffusion.

https://github.com/openai/guided-diffusion and https://github.com/openai/improved-diffusion (READMEs and model card: the weights are for
research). A file is recognised by its name, or, when it was renamed, by the shapes of its tensors. Files of the same shapes differ only in
their training, and sample by the same flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.interop.flags import Value
from triptych.interop.guided_diffusion.configs import NUM_CLASSES
from triptych.interop.guided_diffusion.flags import Kind, Program, flag_table
from triptych.interop.guided_diffusion.shapes import Shape, read_shape
from triptych.interop.guided_diffusion.weights import disagreements


@dataclass(frozen=True)
class Published:
    """A published file: what it is called, how its network and diffusion are described, and the recipe that trains the like."""

    name: str
    program: Program
    kind: Kind
    flags: Mapping[str, Value] = field(hash=False)
    recipe: str | None
    "Name of a recipe; None: there is none of this network."


_STEPS = {"timestep_respacing": "250"}  # the READMEs sample with it, LSUN apart
_GUIDED = {"learn_sigma": True, "resblock_updown": True, "attention_resolutions": "32,16,8", "use_fp16": True} | _STEPS
_LARGE = _GUIDED | {"image_size": 256, "num_channels": 256, "num_head_channels": 64}
_LSUN = _LARGE | {"dropout": 0.1, "timestep_respacing": ""}
_COSINE = {"noise_schedule": "cosine"}
_PLAIN = {"rescale_learned_sigmas": False, "rescale_timesteps": False}
_IMPROVED = {"learn_sigma": True, "diffusion_steps": 4000, "num_res_blocks": 3} | _STEPS
_IMPROVED_64 = _IMPROVED | _COSINE | {"image_size": 64, "num_channels": 128}
_IMPROVED_CIFAR = _IMPROVED | _COSINE | {"image_size": 32, "num_channels": 128, "dropout": 0.3}
_IMPROVED_LSUN = {"learn_sigma": True, "use_scale_shift_norm": False, "attention_resolutions": "16"} | _PLAIN | _STEPS
_IMPROVED_LSUN |= {"image_size": 256, "num_channels": 128, "num_res_blocks": 2, "num_heads": 1}


def _guided(name: str, recipe: str, base: Mapping[str, Value], **flags: Value) -> Published:
    return Published(name, "guided-diffusion", "diffusion", {**base, **flags}, recipe)


def _upsampler(name: str, recipe: str, **flags: Value) -> Published:
    return Published(name, "guided-diffusion", "super-resolution", {**_GUIDED, "num_channels": 192, "class_cond": True, **flags}, recipe)


def _classifier(size: int, **flags: Value) -> Published:
    flags = {"image_size": size, "classifier_use_fp16": True, **flags}
    return Published(f"{size}x{size}_classifier.pt", "guided-diffusion", "classifier", flags, f"classifier-imagenet{size}")


def _improved(name: str, base: Mapping[str, Value], *, recipe: str | None = None, kind: Kind = "diffusion", **flags: Value) -> Published:
    return Published(name, "improved-diffusion", kind, {**base, **flags}, recipe)


_SMALLEST = _GUIDED | _COSINE | {"num_channels": 192, "num_head_channels": 64, "num_res_blocks": 3, "use_new_attention_order": True}
PUBLISHED = (
    _guided("64x64_diffusion.pt", "adm-imagenet64", _SMALLEST, image_size=64, class_cond=True, dropout=0.1),
    _guided("128x128_diffusion.pt", "adm-imagenet128", _GUIDED, image_size=128, class_cond=True, num_channels=256),
    _guided("256x256_diffusion.pt", "adm-imagenet256", _LARGE, class_cond=True),
    _guided("256x256_diffusion_uncond.pt", "adm-imagenet256-uncond", _LARGE),
    _guided("512x512_diffusion.pt", "adm-imagenet512", _LARGE, image_size=512, class_cond=True, use_fp16=False),
    _upsampler("64_256_upsampler.pt", "adm-upsample-64-256", large_size=256, small_size=64),
    _upsampler(
        "128_512_upsampler.pt", "adm-upsample-128-512", large_size=512, small_size=128, num_head_channels=64, attention_resolutions="32,16"
    ),
    _guided("lsun_bedroom.pt", "adm-lsun-bedroom", _LSUN),
    _guided("lsun_cat.pt", "adm-lsun-cat", _LSUN),
    _guided("lsun_horse.pt", "adm-lsun-horse", _LSUN),
    _guided("lsun_horse_nodropout.pt", "adm-lsun-horse", _LSUN, dropout=0.0),
    _classifier(64, classifier_depth=4, noise_schedule="cosine"),
    _classifier(128),
    _classifier(256),
    _classifier(512),
    _improved("imagenet64_uncond_100M_1500K.pt", _IMPROVED_64, recipe="adm-imagenet64-uncond"),
    _improved("cifar10_uncond_50M_500K.pt", _IMPROVED_CIFAR, recipe="adm-cifar10"),
    _improved("imagenet64_cond_270M_250K.pt", _IMPROVED_64 | _PLAIN, recipe="adm-imagenet64-improved", num_channels=192, class_cond=True),
    _improved(
        "upsample_cond_500K.pt",
        _IMPROVED | _PLAIN | {"num_channels": 192, "num_res_blocks": 2, "class_cond": True, "noise_schedule": "linear"},
        recipe="adm-upsample-64-256-improved",
        kind="super-resolution",
        large_size=256,
        small_size=64,
    ),
    _improved("lsun_uncond_100M_1200K_bs128.pt", _IMPROVED_LSUN, recipe="adm-lsun-bedroom-improved"),
    _improved("lsun_uncond_100M_2400K_bs64.pt", _IMPROVED_LSUN, recipe="adm-lsun-bedroom-improved"),
    _improved("imagenet64_uncond_vlb_100M_1500K.pt", _IMPROVED_64, recipe="adm-imagenet64-uncond-vlb", use_kl=True),
    _improved("cifar10_uncond_vlb_50M_500K.pt", _IMPROVED_CIFAR, recipe="adm-cifar10-vlb", use_kl=True),
)
"""Every published file. Before a model of the same shapes stands the one that a renamed file is taken for."""


@dataclass(frozen=True)
class Recognised:
    """A published file, and how sure that is."""

    published: Published
    by_name: bool
    others: tuple[str, ...]
    "Names of the files that have the same shapes, where it was not known by its name."

    @property
    def line(self) -> str:
        """What was recognised, in one line."""
        if self.by_name:
            return f"the published {self.published.name}"
        if not self.others:
            return f"the published {self.published.name}, by its shapes"
        others = ", ".join(self.others)
        return f"taken for the published {self.published.name} (the same shapes: {others}; they differ in their training)"


def recognise(weights: Mapping[str, Tensor], name: str | None = None) -> Recognised | None:
    """The published file of that name, or with those shapes, or None. Raises CheckpointError where the name has another network."""
    shapes = {depth: read_shape(weights, depth=depth) for depth in (2, 4)}  # a classifier's depth may not be certain
    fitting = [published for published in PUBLISHED if any(_fits(published, shape) for shape in shapes.values())]
    namesake = next((published for published in PUBLISHED if published.name == Path(name or "").name), None)
    if namesake in fitting and namesake is not None:
        return Recognised(namesake, True, ())
    if fitting:
        return Recognised(fitting[0], False, tuple(published.name for published in fitting[1:]))
    if namesake is not None:
        shape = shapes[2]
        wrong = disagreements(shape, namesake.flags, namesake.program) if shape.kind == namesake.kind else [f"it is a {shape.kind} network"]
        reason = "; ".join(wrong) or f"it is of {shape.num_classes} classes"
        raise CheckpointError(f"{name} has the name of a published file, but not its network ({reason}); give its flags")
    return None


def _fits(published: Published, shape: Shape) -> bool:
    classed = published.kind == "classifier" or bool(published.flags.get("class_cond"))
    if shape.kind != published.kind or shape.channels != 3 or shape.num_classes != (NUM_CLASSES if classed else None):
        return False
    assert published.flags.keys() <= flag_table(published.kind, published.program).keys()
    return not disagreements(shape, published.flags, published.program)
