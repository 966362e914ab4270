"""imaginaire's YAML files as an experiment: the model, its data, and how it is trained.

    experiment = read_experiment(read_yaml("config.yaml"))
    experiment.model, experiment.data.spec, experiment.schedule.configs(processes=8, num_images=None)

The original counts in iterations of a batch on each GPU, and in epochs; here all is counted in images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast, get_args

from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.given import shown
from triptych.data.clips import ClipDataConfig
from triptych.gans.augmentation import Change
from triptych.gans.clip_base import ClipGANConfig, ClipTranslationConfig
from triptych.gans.fs_vid2vid import FewShotTranslationConfig, FewShotVid2VidConfig
from triptych.gans.funit import FUNITConfig
from triptych.gans.init import InitConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import GANConfig
from triptych.gans.munit import MUNITConfig
from triptych.gans.paired_base import PairedGANConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.gans.pix2pixhd import Pix2PixHDConfig
from triptych.gans.spade import SPADEConfig
from triptych.gans.unit import UNITConfig
from triptych.gans.unpaired_base import UnpairedConfig
from triptych.gans.vid2vid import Vid2VidConfig
from triptych.gans.wc_vid2vid import WCVid2VidConfig
from triptych.interop.imaginaire.data import Dataset, data_without_section, read_data
from triptych.interop.imaginaire.few_shot_video import described_few_shot
from triptych.interop.imaginaire.networks import discriminator_config, generator_config
from triptych.interop.imaginaire.reading import MODEL_TYPES, VIDEO, ModelType, Settings, is_foreign, model_types
from triptych.interop.imaginaire.schedule import Schedule, batch_size, read_schedule
from triptych.interop.imaginaire.video import described_discriminator, described_generator
from triptych.interop.imaginaire.yaml_file import YamlFile

_GAN_MODES = {mode: mode for mode in ("hinge", "least_square", "non_saturated", "wasserstein")} | {"softplus": "non_saturated"}
_INITIAL = ("xavier", "xavier_uniform", "kaiming", "orthogonal", "normal", "none")
_NETWORKS = ("vgg19", "vgg16", "alexnet", "inception_v3", "resnet50")
_CHANGES: tuple[Change, ...] = get_args(Change)
_DEFAULT_LAYER = "relu_4_1"
_FINETUNING = 100
"""Steps on references before frames are made, of a file that asks for them and says no number."""

_MODELS: dict[ModelType, type[GANConfig]] = {
    "spade": SPADEConfig,
    "pix2pixHD": Pix2PixHDConfig,
    "unit": UNITConfig,
    "munit": MUNITConfig,
    "funit": FUNITConfig,
    "coco_funit": FUNITConfig,
    "vid2vid": Vid2VidConfig,
    "fs_vid2vid": FewShotVid2VidConfig,
    "wc_vid2vid": WCVid2VidConfig,
}
_LOSSES = {"adversarial_weight": "gan", "cycle_weight": "cycle_recon", "consistency_weight": "consistency_reg"}
_LOSSES |= {"l1_weight": "L1", "temporal_weight": "temporal_gan"}
"""Our settings of weights whose loss has another name in `trainer.loss_weight`."""
_SETTINGS = {"discriminator_steps": "trainer.dis_step", "generator_steps": "trainer.gen_step", "discriminator_rate": "dis_opt.lr"}
_SETTINGS |= {"augment": "trainer.aug_policy"}
"""The other settings of ours that a file decides and a model may refuse."""


@dataclass(frozen=True)
class Experiment:
    """What a YAML file says."""

    kind: ModelType
    model: GANConfig
    data: Dataset
    schedule: Schedule
    warnings: list[str]
    "What the user should know: settings that are unknown, or mean something else here."
    notes: list[str]
    "Settings that have no meaning here, in a line or two."


def read_experiment(file: YamlFile) -> Experiment:
    """What the file says. Raises ConfigError, naming the setting, for what is wrong or not here."""
    settings = file.settings
    kind, no_discriminator = _kind(settings)
    gen, dis, section = (settings.inside(name) for name in ("gen", "dis", "data"))
    if no_discriminator:
        dis = dis.changed({})
    if kind == "spade" and not file.given.get("data"):
        data = data_without_section(gen)
    else:
        try:
            data = read_data(kind, section, num_classes=_num_classes(dis) if kind in ("funit", "coco_funit") else None)
        except ConfigError as error:  # of what is made of the section, under our names
            raise error if "." in error.setting else error.inside("data") from None
        if kind == "spade":
            _check_label_channels(gen, data)
    networks = _networks(kind, gen, dis, data, section)
    model = _model(kind, networks, data, settings)
    _check_trainer(kind, settings.inside("trainer"))
    schedule = read_schedule(settings, model, clips=data.spec.clip_length)
    unknown, notes = file.unread()
    return Experiment(kind, model, data, schedule, [*settings.warnings, *unknown], notes)


def _kind(settings: Settings) -> tuple[ModelType, bool]:
    """The model, and whether no discriminator is described."""
    generator, discriminator = (settings.inside(section).value("type") for section in ("gen", "dis"))
    if generator is None:
        raise ConfigError("gen.type", f"missing, expected imaginaire.generators.NAME with NAME one of {', '.join(MODEL_TYPES)}")
    none = discriminator is None or (isinstance(discriminator, str) and discriminator.rpartition(".")[2] == "dummy")
    kinds = model_types({"gen": {"type": generator}, "dis": {"type": None if none else discriminator}})
    if _trainer_of(kinds["gen"]) != _trainer_of(kinds["dis"]):
        raise ConfigError("dis.type", f"got {shown(discriminator)}, which is no discriminator of {shown(generator)}")
    return kinds["gen"], none


def _trainer_of(kind: ModelType) -> ModelType:
    """COCO-FUNIT has FUNIT's discriminator, and its training; so has world-consistent vid2vid those of vid2vid."""
    return "funit" if kind == "coco_funit" else "vid2vid" if kind in VIDEO else kind


def _networks(kind: ModelType, gen: Settings, dis: Settings, data: Dataset, section: Settings) -> dict[str, Config]:
    """The generator and the discriminator; `section`: `data`, which says how many frames they see."""
    if kind not in VIDEO:
        generator = generator_config(kind, gen, short_side=min(data.spec.height_and_width))
        return {"generator": generator, "discriminator": discriminator_config(kind, dis)}
    frames = [section.number(name, 3, least=2, most=64) for name in ("num_frames_G", "num_frames_D")]
    if kind == "fs_vid2vid":
        section.require(frames[0] == 2, "num_frames_G", "2: a frame and the one before it")
        assert isinstance(data.config, ClipDataConfig)
        generator: Config = described_few_shot(gen, references=data.config.references)
    else:
        generator = described_generator(kind, gen, frames=frames[0])
    discriminator = described_discriminator(dis, frames=frames[1])
    if kind == "fs_vid2vid" and "hand" in discriminator.crops:
        raise ConfigError("dis.additional_discriminators.hand", "got a discriminator of hands, expected that of faces alone")
    return {"generator": generator, "discriminator": discriminator}


def _check_label_channels(gen: Settings, data: Dataset) -> None:
    gen.value("out_image_small_side_size")  # the data decide it
    channels = gen.number("num_labels", data.label_channels)
    if channels != data.label_channels:
        reason = f"got {channels}, but data.input_labels have {data.label_channels} channels ({data.label_parts})"
        raise ConfigError(gen.name("num_labels"), reason)


def _num_classes(dis: Settings) -> int | None:
    common = dis.inside("common")
    return dis.number("num_classes", 0, least=0) or common.number("num_classes", 0, least=0) or None


def _model(kind: ModelType, networks: Mapping[str, Config], data: Dataset, settings: Settings) -> GANConfig:
    published, trainer, inference = _MODELS[kind](), settings.inside("trainer"), settings.inside("inference_args")
    values: dict[str, Any] = {
        **networks,
        **_loss_weights(published, trainer, batch=batch_size(settings), assumed=data.assumed),
        "adversarial": _adversarial(kind, trainer),
        "augment": _changes(kind, trainer),
        "discriminator_steps": trainer.number("dis_step", most=100),
        "generator_steps": trainer.number("gen_step", most=100),
        "discriminator_rate": settings.inside("dis_opt").positive("lr") / settings.inside("gen_opt").positive("lr"),
    }
    if not data.assumed or trainer.value("init") is not None:
        values["initial"] = _initial(trainer)
    if "perceptual_weight" in values:
        values["perceptual"] = _perceptual(trainer, needed=values["perceptual_weight"] > 0)
    if isinstance(published, PairedGANConfig):
        values |= {"positive_conditions": data.positive_conditions, "positive_inputs": data.positive_inputs}
    if isinstance(published, UnpairedConfig):
        values["translation"] = replace(published.translation, direction="a-to-b" if inference.flag("a2b", True) else "b-to-a")
    if isinstance(published, MUNITConfig):
        values["gan_recon"] = trainer.flag("gan_recon", False)
    if isinstance(published, ClipGANConfig):
        few_shot = isinstance(published, FewShotVid2VidConfig)
        values["translation"] = _finetuning(inference) if few_shot else _first_frames(settings.inside("gen"))
        if few_shot:
            values |= {"people": data.people and values["flow_weight"] > 0, "hide_head": data.hide_head}
    try:
        return replace(published, **values)
    except ConfigError as error:
        theirs = _SETTINGS.get(error.setting) or f"trainer.loss_weight.{_loss(error.setting)}"
        raise ConfigError(theirs, error.reason) from None


def _first_frames(gen: Settings) -> ClipTranslationConfig:
    """How many frames of a clip a SPADE makes: those that have too few before them, where the file has one."""
    single = gen.value("single_image_model")
    if single is None:
        return ClipTranslationConfig()
    section = gen.inside("single_image_model")
    section.value("config")
    section.value("checkpoint")
    return ClipTranslationConfig(first_frames=2)


def _finetuning(inference: Settings) -> FewShotTranslationConfig:
    """The steps on references before frames are made."""
    steps = inference.number("finetune_iter", _FINETUNING, least=0)
    return FewShotTranslationConfig(finetune=steps if inference.flag("finetune", False) else 0)


def _loss(setting: str) -> str:
    return _LOSSES.get(setting, setting.removesuffix("_weight"))


def _loss_weights(published: GANConfig, trainer: Settings, *, batch: int, assumed: bool) -> dict[str, float]:
    """The weights of the losses; a file without the section `data` may leave them to the published configuration."""
    weights = trainer.inside("loss_weight")
    if not weights.values:
        if not assumed:
            raise ConfigError("trainer.loss_weight", "missing, expected the weights of the losses by name (gan, ...)")
        trainer.warn("loss_weight", "missing; where this run is trained on, it has the losses of the published SPADE")
        return {}
    settings = [field.name for field in fields(published) if field.name.endswith("_weight")]
    values = {setting: weights.factor(_loss(setting), 0.0, least=0) for setting in settings}
    if "kl_weight" in values:
        values["kl_weight"] *= batch  # summed over the batch of a GPU there, averaged here
    return values


def _adversarial(kind: ModelType, trainer: Settings) -> AdversarialConfig:
    mode, relativistic = trainer.choice("gan_mode", _GAN_MODES, "hinge"), trainer.flag("gan_relativistic")
    if relativistic and kind not in ("spade", "pix2pixHD"):
        trainer.warn("gan_relativistic", f"the original ignores it in {kind}; so does this run (--model.adversarial.relativistic)")
        relativistic = False
    return AdversarialConfig(kind=cast(Any, _GAN_MODES[mode]), relativistic=relativistic)


def _changes(kind: ModelType, trainer: Settings) -> tuple[Change, ...]:
    """Of differentiable augmentation."""
    names = [name.strip() for name in trainer.text("aug_policy").split(",") if name.strip()]
    trainer.require(set(names) <= set(_CHANGES), "aug_policy", f"some of {', '.join(_CHANGES)}, separated by commas")
    trainer.require(len(set(names)) == len(names), "aug_policy", "each name once")
    if names and kind in ("spade", "pix2pixHD", "unit"):
        trainer.warn("aug_policy", f"the original ignores it in {kind}; so does this run (--model.augment {' '.join(names)})")
        return ()
    return tuple(cast(Any, names))


def _initial(trainer: Settings) -> InitConfig:
    if trainer.value("init") is None:
        raise ConfigError("trainer.init", f"missing, expected type ({', '.join(_INITIAL)}) and gain")
    init = trainer.inside("init")
    bias = init.inside("bias")
    return InitConfig(
        kind=cast(Any, init.choice("type", _INITIAL, "none")),
        gain=init.positive("gain", 0.02),
        bias="normal" if bias.choice("type", ("normal", "none"), "none") == "normal" else "zero",
        bias_gain=bias.positive("gain", 0.5),
    )


def _perceptual(trainer: Settings, *, needed: bool) -> PerceptualConfig:
    """The perceptual loss; one without weight is not looked at."""
    section = trainer.inside("perceptual_loss")
    values = dict(section.values)
    for key in ("mode", "layers"):  # the trainer may say them itself
        alias = trainer.value(f"perceptual_{key}")
        if values.get(key) is None:
            values[key] = alias
        elif needed and alias not in (None, values[key]):
            trainer.warn(f"perceptual_{key}", f"got {shown(alias)}, but {section.name(key)} says {shown(values[key])}, which is used")
    section = section.changed(values if needed else {})
    layers, weights = section.value("layers", _DEFAULT_LAYER), section.value("weights")
    layers = [layers] if isinstance(layers, str) else layers
    if weights is None and isinstance(layers, list):
        weights = [1.0] * len(layers)
    network = section.choice("mode", _NETWORKS, "vgg19")
    values = {
        "network": network,
        "preprocessing": "imagenet" if network == "inception_v3" else None,  # the original has one for all networks
        "criterion": section.choice("criterion", ("l1", "l2"), "l1"),
        "num_scales": section.number("num_scales", 1, most=8),
        "resize": 224 if section.flag("resize", False) else PerceptualConfig().resize,
        "layers": layers,
        "layer_weights": weights if isinstance(weights, list | None) else [weights],
    }
    try:
        return PerceptualConfig.from_dict(values) if needed else PerceptualConfig()
    except ConfigError as error:
        name = {"layer_weights": "weights", "network": "mode"}.get(error.setting, error.setting)
        raise ConfigError(section.name(name), error.reason) from None


def _check_trainer(kind: ModelType, trainer: Settings) -> None:
    """Warns of a trainer that is not the original's of this model."""
    value = trainer.value("type")
    name = value.rpartition(".")[2] if isinstance(value, str) else value
    if value is not None and (is_foreign(value) or name not in (kind, _trainer_of(kind))):
        trainer.warn("type", f"got {shown(value)}; the run is trained as {kind}, which gen.type says")
