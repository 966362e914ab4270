"""Settings as earlier versions wrote them into config.json."""

from __future__ import annotations

from typing import Any

from triptych.data.config import read_before

EARLIER_KINDS = {
    "triptych.diffusion.adm:ADMConfig": "adm",
    "triptych.diffusion.classifier:ClassifierConfig": "classifier",
    "triptych.diffusion.super_resolution:SuperResolutionConfig": "super-resolution",
    "triptych.flows.glow:GlowConfig": "glow",
    "triptych.gans.paired:SPADEConfig": "spade",
    "triptych.gans.paired:Pix2PixHDConfig": "pix2pixhd",
    "triptych.gans.unpaired:UNITConfig": "unit",
    "triptych.gans.unpaired:MUNITConfig": "munit",
    "triptych.gans.unit:UNITGeneratorConfig": "unit",
    "triptych.gans.munit:MUNITGeneratorConfig": "munit",
    "triptych.gans.few_shot:FUNITConfig": "funit",
    "triptych.gans.funit:FUNITGeneratorConfig": "funit",
    "triptych.gans.coco_funit:COCOFUNITGeneratorConfig": "coco-funit",
    "triptych.gans.discriminators:PatchDiscriminatorConfig": "patch",
    "triptych.gans.discriminators:ResidualDiscriminatorConfig": "residual",
    "triptych.data.config:DataConfig": "images",
    "triptych.data.pairs_config:PairedDataConfig": "paired",
    "triptych.data.pairs_config:UnpairedDataConfig": "unpaired",
    "triptych.data.pairs_config:FewShotDataConfig": "few-shot",
}
"""Kinds in the config.json of versions up to 0.1.0, which named them by module, and what they are called since."""


BEFORE = {"order": "by-name"}
"""Settings of the images of a run that the config.json of versions up to 0.1.0 does not have."""


def of_now(settings: dict[str, Any]) -> dict[str, Any]:
    """The sections of a config.json, of whatever version, as this version writes them."""
    settings = _with_kinds_of_now(settings)
    return settings | {"data": {**BEFORE, **read_before(settings["data"])}} if isinstance(settings.get("data"), dict) else settings


def _with_kinds_of_now(values: Any) -> Any:
    """The same with today's names of the kinds, in all sections."""
    if not isinstance(values, dict):
        return values
    sections = {name: _with_kinds_of_now(value) for name, value in values.items()}
    kind = sections.get("kind")
    return sections | {"kind": EARLIER_KINDS[kind]} if isinstance(kind, str) and kind in EARLIER_KINDS else sections
