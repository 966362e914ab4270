"""imaginaire's YAML files as settings of ours: the model, its data, and how it is trained.

    plan = plan_of(read_yaml("config.yaml"))
    plan.model, plan.data.spec, plan.schedule.train(processes=8, epoch_images=None)

The original counts in iterations of a batch on each GPU, and in epochs; here all is counted in images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.gans.augmentation import Change
from triptych.gans.funit import FUNITConfig
from triptych.gans.init import InitConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import GANConfig
from triptych.gans.munit import MUNITConfig, MUNITTranslationConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.gans.pix2pixhd import Pix2PixHDConfig
from triptych.gans.spade import SPADEConfig
from triptych.gans.unit import UNITConfig
from triptych.gans.unpaired_base import DirectionConfig
from triptych.interop.imaginaire.data import PlannedData, planned_data, unsaid_data
from triptych.interop.imaginaire.keys import unasked
from triptych.interop.imaginaire.networks import planned_discriminator, planned_generator
from triptych.interop.imaginaire.reading import OWN, ModelType, Settings, model_types
from triptych.interop.imaginaire.schedule import Schedule, planned_schedule
from triptych.interop.imaginaire.yaml_file import YamlFile

_GAN_MODES = {mode: mode for mode in ("hinge", "least_square", "non_saturated", "wasserstein")} | {"softplus": "non_saturated"}
_INITIAL = ("xavier", "xavier_uniform", "kaiming", "orthogonal", "normal", "none")
_NETWORKS = ("vgg19", "vgg16", "alexnet", "inception_v3", "resnet50")
_CHANGES = ("color", "translation", "translation_scale", "cutout")
_DEFAULT_LAYER = "relu_4_1"

_PAIRED = {"adversarial_weight": "gan", "feature_matching_weight": "feature_matching", "perceptual_weight": "perceptual", "l1_weight": "l1"}
_UNPAIRED = {"adversarial_weight": "gan", "image_recon_weight": "image_recon", "cycle_weight": "cycle_recon"}
_UNPAIRED |= {"perceptual_weight": "perceptual"}
_WEIGHTS: dict[ModelType, dict[str, str]] = {
    "spade": _PAIRED,
    "pix2pixHD": _PAIRED,
    "unit": _UNPAIRED,
    "munit": {
        **_UNPAIRED,
        "content_recon_weight": "content_recon",
        "style_recon_weight": "style_recon",
        "style_recon_within_weight": "style_recon_within",
        "content_recon_within_weight": "content_recon_within",
        "consistency_weight": "consistency_reg",
    },
    "funit": {"adversarial_weight": "gan", "feature_matching_weight": "feature_matching", "image_recon_weight": "image_recon"},
}
_WEIGHTS["coco_funit"] = _WEIGHTS["funit"]
"""Our settings, and the names of the weights there."""

_ALLOWED = "imaginaire.generators.NAME with NAME one of spade, pix2pixHD, unit, munit, funit, coco_funit"


@dataclass(frozen=True)
class Plan:
    """What a YAML file says."""

    kind: ModelType
    model: GANConfig
    data: PlannedData
    schedule: Schedule
    no_discriminator: bool = False
    "Whether the file says of no discriminator what it is, so that it is one of the published configuration."
    warnings: list[str] = field(default_factory=list)
    "What the user should know: settings that are unknown, or mean something else here."
    notes: list[str] = field(default_factory=list)
    "Settings that have no meaning here, in a line or two."


def plan_of(file: YamlFile) -> Plan:
    """What the file says. Raises ConfigError, naming the setting, for what is wrong or not here."""
    settings = file.settings
    kind, no_discriminator = _kind(settings)
    trainer, gen, dis = settings.inside("trainer"), settings.inside("gen"), settings.inside("dis")
    own = dis if not no_discriminator else Settings({}, "dis", dis.asked)
    warnings: list[str] = []
    if kind == "spade" and not file.given.get("data"):
        data = unsaid_data(gen)
    else:
        data = planned_data(kind, settings.inside("data"), num_classes=_num_classes(kind, own))
        if kind == "spade":
            _check_label_channels(gen, data)
    generator = planned_generator(kind, gen, short_side=min(data.spec.height_and_width))
    discriminator = planned_discriminator(kind, own)
    schedule = planned_schedule(settings)
    model = _model(kind, settings, generator, discriminator, data, schedule, warnings)
    _check_trainer(kind, trainer, warnings)
    unknown, notes = unasked(file.given, settings.asked)
    every = [*data.warnings, *warnings, *schedule.warnings, *unknown]
    return Plan(kind, model, data, schedule, no_discriminator, every, notes)


def _kind(settings: Settings) -> tuple[ModelType, bool]:
    """The model, and whether no discriminator is described."""
    gen, dis = settings.inside("gen"), settings.inside("dis")
    given = gen.value("type")
    if given is None:
        raise ConfigError("gen.type", f"missing, expected {_ALLOWED}")
    judge = dis.value("type")
    none = judge is None or (isinstance(judge, str) and judge.rpartition(".")[2] == "dummy")
    kinds = model_types({"gen": {"type": given}} if none else {"gen": {"type": given}, "dis": {"type": judge}})
    same = {"coco_funit": "funit"}
    if same.get(kinds["gen"], kinds["gen"]) != same.get(kinds["dis"], kinds["dis"]):
        raise ConfigError("dis.type", f"got {judge!r}, which is no discriminator of {given!r}")
    return kinds["gen"], none


def _check_label_channels(gen: Settings, data: PlannedData) -> None:
    gen.value("out_image_small_side_size")  # told by the data
    channels = gen.number("num_labels", data.label_channels)
    if channels != data.label_channels:
        reason = f"got {channels}, but data.input_labels have {data.label_channels} channels ({data.label_parts})"
        raise ConfigError(gen.name("num_labels"), reason)


def _num_classes(kind: ModelType, dis: Settings) -> int | None:
    if kind not in ("funit", "coco_funit"):
        return None
    common = dis.inside("common")
    own = dis.number("num_classes", 0, least=0) or common.number("num_classes", 0, least=0)
    return own or None


def _model(
    kind: ModelType,
    settings: Settings,
    generator: Config,
    discriminator: Config,
    data: PlannedData,
    schedule: Schedule,
    warnings: list[str],
) -> GANConfig:
    trainer = settings.inside("trainer")
    weights = trainer.inside("loss_weight")
    told = bool(weights.values)
    if not told and not data.unsaid:
        raise ConfigError("trainer.loss_weight", "missing, expected the weights of the losses by name (gan, ...)")
    if not told:
        warnings.append("trainer.loss_weight: missing; where this run is trained on, it has the losses of the published SPADE")
    values: dict[str, Any] = {
        "generator": generator,
        "discriminator": discriminator,
        "adversarial": _adversarial(kind, trainer, warnings),
        "discriminator_steps": schedule.discriminator_steps,
        "generator_steps": schedule.generator_steps,
        "discriminator_rate": schedule.discriminator_rate,
        "augment": _changes(kind, trainer, warnings),
        **({} if data.unsaid and trainer.value("init") is None else {"initial": _initial(trainer)}),
        **({ours: weights.factor(theirs, 0.0, least=0) for ours, theirs in _WEIGHTS[kind].items()} if told else {}),
    }
    if kind in ("spade", "munit") and told:
        # Summed over the batch of a GPU there, averaged here.
        values["kl_weight"] = weights.factor("kl", 0.0, least=0) * schedule.batch
    if "perceptual_weight" in values:
        values["perceptual"] = _perceptual(trainer, warnings, needed=values["perceptual_weight"] > 0)
    inference = settings.inside("inference_args")
    try:
        return _of_kind(kind, values, trainer, inference, data)
    except ConfigError as error:
        raise ConfigError(f"trainer.loss_weight.{_WEIGHTS[kind].get(error.setting, error.setting)}", error.reason) from None


def _of_kind(kind: ModelType, values: dict[str, Any], trainer: Settings, inference: Settings, data: PlannedData) -> GANConfig:
    match kind:
        case "spade":
            return SPADEConfig(**values, positive_conditions=data.positive_conditions)
        case "pix2pixHD":
            return Pix2PixHDConfig(**values, positive_conditions=data.positive_conditions)
        case "unit":
            return UNITConfig(**values, translation=DirectionConfig(direction=_direction(inference)))
        case "munit":
            return MUNITConfig(
                **values,
                gan_recon=trainer.flag("gan_recon", False),
                translation=MUNITTranslationConfig(direction=_direction(inference)),
            )
        case "funit" | "coco_funit":
            return FUNITConfig(**values)


def _direction(inference: Settings) -> Any:
    return "a-to-b" if inference.flag("a2b", True) else "b-to-a"


def _adversarial(kind: ModelType, trainer: Settings, warnings: list[str]) -> AdversarialConfig:
    mode, relativistic = trainer.choice("gan_mode", "hinge", _GAN_MODES), trainer.flag("gan_relativistic", False)
    if relativistic and kind not in ("spade", "pix2pixHD"):
        warnings.append(f"trainer.gan_relativistic: the original ignores it in {kind}; so does this run (--model.adversarial.relativistic)")
        relativistic = False
    return AdversarialConfig(kind=cast(Any, _GAN_MODES[mode]), relativistic=relativistic)


def _changes(kind: ModelType, trainer: Settings, warnings: list[str]) -> tuple[Change, ...]:
    """Of differentiable augmentation."""
    text = trainer.text("aug_policy", "")
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _CHANGES:
            raise ConfigError("trainer.aug_policy", f"got {text!r}, expected some of {', '.join(_CHANGES)}, separated by commas")
    if len(set(names)) != len(names):
        raise ConfigError("trainer.aug_policy", f"got {text!r}, expected each name once")
    if names and kind in ("spade", "pix2pixHD", "unit"):
        warnings.append(f"trainer.aug_policy: the original ignores it in {kind}; so does this run (--model.augment {' '.join(names)})")
        return ()
    return tuple(cast(Any, names))


def _initial(trainer: Settings) -> InitConfig:
    if trainer.value("init") is None:
        raise ConfigError("trainer.init", f"missing, expected type ({', '.join(_INITIAL)}) and gain")
    init = trainer.inside("init")
    kind, gain, bias = init.choice("type", "none", _INITIAL), init.factor("gain", 0.02), init.inside("bias")
    biases = {"normal": "normal", "none": "zero"}[bias.choice("type", "none", ("normal", "none"))]
    spread = bias.factor("gain", 0.5)
    for name, value in (("trainer.init.gain", gain), ("trainer.init.bias.gain", spread)):
        if value <= 0:
            raise ConfigError(name, f"got {value:g}, expected a positive number")
    return InitConfig(kind=kind, gain=gain, bias=cast(Any, biases), bias_gain=spread)


def _with_aliases(trainer: Settings, given: Settings, warnings: list[str]) -> Settings:
    """The section with what the trainer itself says of the perceptual loss, where the section is silent."""
    values = dict(given.values)
    for key in ("mode", "layers"):
        alias = trainer.value(f"perceptual_{key}")
        if values.get(key) is None:
            values[key] = alias
        elif alias not in (None, values[key]):
            warnings.append(f"trainer.perceptual_{key}: got {alias!r}, but {given.name(key)} says {values[key]!r}, which is used")
    return Settings(values, given.section, given.asked)


def _perceptual(trainer: Settings, warnings: list[str], *, needed: bool) -> PerceptualConfig:
    """The perceptual loss; one without weight is not looked at."""
    given = trainer.inside("perceptual_loss")
    given = _with_aliases(trainer, given, warnings if needed else [])
    if not needed:
        given = Settings(dict.fromkeys(given.values), given.section, given.asked)
    network = given.choice("mode", "vgg19", _NETWORKS)
    criterion = given.choice("criterion", "l1", ("l1", "l2"))
    layers, weights = given.value("layers"), given.value("weights")
    if needed and layers is None and weights is not None and not isinstance(weights, list):
        layers = _DEFAULT_LAYER
    names = [layers] if isinstance(layers, str) else layers
    factors = weights if isinstance(weights, list) else None if weights is None else [weights]
    values: dict[str, Any] = {"network": network, "criterion": criterion, "num_scales": given.number("num_scales", 1, most=8)}
    if given.flag("resize", False):
        values["resize"] = 224
    if needed:
        names = [_DEFAULT_LAYER] if names is None else names
        values |= {"layers": names, "layer_weights": [1.0] * len(names) if factors is None and isinstance(names, list) else factors}
    try:
        return PerceptualConfig.from_dict(values)
    except ConfigError as error:
        name = {"layer_weights": "weights", "network": "mode"}.get(error.setting, error.setting)
        raise ConfigError(given.name(name), error.reason) from None


def _check_trainer(kind: ModelType, trainer: Settings, warnings: list[str]) -> None:
    """Notes what of the trainer is another than the original's of this model."""
    given = trainer.value("type")
    own = given.rpartition(".")[2] if isinstance(given, str) else given
    outside = isinstance(given, str) and "." in given and not given.startswith(OWN)
    if own is not None and (outside or own not in (kind, "funit" if kind == "coco_funit" else kind)):
        warnings.append(f"trainer.type: got {given!r}; the run is trained as {kind}, which gen.type says")
