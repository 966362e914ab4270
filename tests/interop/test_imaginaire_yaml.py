"""imaginaire's YAML files: what is read of them, and what is refused or named."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gans.published import HD_PATCH, PIX2PIXHD_PATCH, UNIT_PATCH
from tests.gans.published import PUBLISHED as COUNTED
from tests.interop.imaginaire_files import ALONE, PERCEPTUAL, PUBLISHED, changed, published, small, written
from triptych.core.errors import ConfigError
from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.discriminators import ResidualDiscriminatorConfig
from triptych.gans.funit import FUNITConfig, FUNITDiscriminatorConfig, FUNITGeneratorConfig
from triptych.gans.init import InitConfig
from triptych.gans.instance_features import FeatureEncoderConfig
from triptych.gans.munit import MUNITConfig, MUNITGeneratorConfig
from triptych.gans.pix2pixhd import Pix2PixHDConfig, Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEConfig, SPADEDiscriminatorConfig, SPADEGeneratorConfig
from triptych.gans.unit import UNITConfig, UNITGeneratorConfig
from triptych.interop.imaginaire.experiment import read_experiment
from triptych.interop.imaginaire.yaml_file import MOST_BYTES, YamlFile, parsed_yaml, read_yaml
from triptych.nn.feature_networks import FeatureNetwork
from triptych.recipes.catalogue import load_recipe


def read(values: dict[str, Any]) -> Any:
    return read_experiment(YamlFile(values))


def refused(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        read(values)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# Reading


def test_numbers_and_words() -> None:
    text = "a: 1e-4\nb: {c: 1e9, d: [1, 2.5]}\ne: 256, 512\nf: -1.5E+3\ng: 2020-01-01\nh: .5e1\ni: none\nj: ~\nk: True\nl: .5\nm: 1e\n"
    assert parsed_yaml(text) == {
        "a": 0.0001,
        "b": {"c": 1e9, "d": [1, 2.5]},
        "e": "256, 512",
        "f": -1500.0,
        "g": "2020-01-01",
        "h": 5.0,
        "i": "none",
        "j": None,
        "k": True,
        "l": 0.5,
        "m": "1e",
    }
    assert parsed_yaml("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: *x")["y"] == {"a": 1, "b": 3}


def bomb() -> str:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]
    return "\n".join(lines)


def merging_bomb() -> str:
    lines = ["a0: &a0 {" + ", ".join(f"k{k}: 1" for k in range(20)) + "}"]
    lines += [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 10)}], x{k}: 1}}" for k in range(1, 9)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# nothing", "the file is empty"),
        ("[1]", "the file holds [1], expected settings by name"),
        ("3", "the file holds 3, expected settings"),
        ("a: !!python/object/apply:os.system ['echo x']", "line 1: could not determine a constructor for the tag"),
        ("a: 1\nb: !!python/name:os.system", "line 2: could not determine a constructor for the tag"),
        ("a: !mine 3", "line 1: could not determine a constructor"),
        ("a: &a [*a]", "an alias stands for something that contains it"),
        ("a: &a {b: *a}", "an alias stands for something that contains it"),
        ("a: 1\nb:\n  c: 1\n  c: 2", "line 4: c stands twice in one table"),
        ("1: 2", "line 1: got '1' as a key, expected a name"),
        ("? [1]\n: 2", "got a list or table as a key"),
        ("a: [1", "line 1: "),
        ("a: *b", "found undefined alias"),
        ("a: \x00", "the file is not YAML"),
        ("a: !!int x", "the file is not YAML"),
        ("a: !!timestamp abc", "the file is not YAML"),
        ("a: 1\n---\nb: 2", "line 2: expected a single document in the stream, but found another document"),
        ("[" * 5000, "nested too deeply"),
        (bomb(), "holds more than 50,000 values"),
        (merging_bomb(), "holds more than 50,000 values"),
        ("a: \t- b", "line 1: while scanning for the next token, found character"),
        ("roots: *.jpg", "line 1: while scanning an alias, expected alphabetic or numeric character, but found '.'"),
        ("on: 1", "line 1: got 'on' as a key, expected a name; write one that YAML takes for a value in quotation marks"),
        ("a: 1\nb: 0x" + "f" * 5000, "line 2: got a number of 5,002 digits, expected 200 at most"),
        ("a: " + ":".join("1" * 101), "line 1: got a number of 201 digits"),
        ("a: 1\n" + "k" * 201 + ": 1", "line 2: got a name of 201 characters, expected 200 at most"),
        ("a: &a " + "y" * 5000 + "\nb: [" + "*a, " * 1000 + "]", "holds more than 50,000 values"),
    ],
    ids=lambda text: text[:40],
)
def test_texts_that_are_no_settings(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parsed_yaml(text)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_long_text_that_begins_like_a_number_takes_no_time() -> None:
    text, before = "1" * 60_000 + "x", time.process_time()
    assert parsed_yaml(f"a: {text}") == {"a": text}
    assert time.process_time() - before < 3, "seconds; a pattern that tries every way to cut the digits in two takes half a minute"


def test_the_longest_names_and_numbers() -> None:
    assert parsed_yaml(f"{'k' * 200}: {'1' * 200}") == {"k" * 200: int("1" * 200)}


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "big.yaml").write_bytes(b"a: 1\n" + b"#" * MOST_BYTES)
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe\n")
    for name, message in (
        ("none.yaml", "there is no file"),
        (".", "is a folder"),
        ("big.yaml", "cannot read .*: larger than 1,000,000 bytes"),
        ("pipe.yaml", "cannot read .*: not a regular file but a pipe"),
        ("x" * 300, "cannot read .*: File name too long"),
        ("bytes.yaml", "not YAML"),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            read_yaml(tmp_path / name)
        assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_lies_over_the_defaults(tmp_path: Path) -> None:
    file = read_yaml(written(tmp_path / "a.yaml", {"gen_opt": {"lr": 0.5, "lr_policy": {"gamma": 0.1}}, "trainer": None, "x": [1]}))
    optimizer = file.settings.inside("gen_opt")
    assert (optimizer.factor("lr", 0), optimizer.factor("eps", 0), optimizer.inside("lr_policy").factor("gamma", 1)) == (0.5, 1e-8, 0.1)
    assert file.settings.inside("trainer").number("gen_step", 7) == 1
    assert file.settings.inside("dis_opt").factor("lr", 0) == 1e-4
    assert YamlFile({"gen_opt": {"lr": None}}).settings.inside("gen_opt").factor("lr") == 1e-4, "what is empty leaves the default"


# The published files


def test_the_published_files_describe_the_published_networks() -> None:
    networks = {
        "spade": (SPADEGeneratorConfig(), SPADEDiscriminatorConfig()),
        "pix2pixHD": (Pix2PixHDGeneratorConfig(), PIX2PIXHD_PATCH),
        "unit": (UNITGeneratorConfig(), UNIT_PATCH),
        "munit": (MUNITGeneratorConfig(), ResidualDiscriminatorConfig()),
        "funit": (FUNITGeneratorConfig(), FUNITDiscriminatorConfig()),
        "coco_funit": (COCOFUNITGeneratorConfig(), FUNITDiscriminatorConfig()),
    }
    assert set(networks) == set(PUBLISHED)
    for name, (generator, discriminator) in networks.items():
        model: Any = read(published(name)).model
        assert model.generator == generator and model.discriminator == discriminator, name


@pytest.mark.parametrize(
    ("model", "generator", "discriminator"),
    [
        ("spade", "spade G", "spade D"),
        ("pix2pixHD", "pix2pixHD 1k G", "pix2pixHD 1k D"),
        ("unit", "unit G", "unit D"),
        ("munit", "munit G", "munit D"),
        ("funit", "funit G", "funit D 149"),
        ("coco_funit", "coco-funit G", "coco-funit D mammals"),
    ],
)
def test_the_models_have_the_published_numbers_of_parameters(model: str, generator: str, discriminator: str) -> None:
    experiment = read(published(model))
    with torch.device("meta"):
        built = experiment.model.build(experiment.data.spec)
    for part, name in (("generator", generator), ("discriminator", discriminator)):
        assert sum(p.numel() for p in getattr(built, part).parameters()) == COUNTED[name].parameters


def test_spade() -> None:
    experiment = read(published("spade"))
    model = experiment.model
    assert isinstance(model, SPADEConfig)
    assert (model.adversarial.kind, model.adversarial_weight, model.feature_matching_weight, model.perceptual_weight) == (
        "hinge",
        1,
        10,
        10,
    )
    assert model.kl_weight == pytest.approx(0.2) and model.l1_weight == 0, "summed over the four images of a GPU there"
    assert (model.discriminator_rate, model.initial) == (4, InitConfig(kind="xavier", gain=0.02))
    assert model.perceptual.compared == tuple(PERCEPTUAL["layers"]) and model.perceptual.layer_weights == tuple(PERCEPTUAL["weights"])
    assert model.positive_conditions and model.augment == () and (model.discriminator_steps, model.generator_steps) == (1, 1)
    data = experiment.data
    assert data.label_channels == 185 and data.label_parts == "seg_maps 184, edge_maps 1"
    assert (data.config.maps, data.config.num_classes, data.config.dont_care) == (("seg_maps",), (183,), True)
    assert (data.config.conditions, data.config.instances, data.config.target) == (("edge_maps",), None, "images")
    assert data.config.nearest == ("edge_maps",) and [entry.nearest for entry in data.spec.inputs] == [False, True]
    assert (data.config.crop, data.config.resize, data.config.scale, data.config.flip) == ("random", 256, 0.2, True)
    assert data.spec.height_and_width == (256, 256) and data.train_root == "dataset/train" and data.val_root is None
    train, optim, log = experiment.schedule.configs(processes=8, num_images=3210)
    epoch = 100 * 32  # whole batches of 32
    assert (train.batch_size, train.total_images, train.checkpoint_every, train.validate_every) == (32, 400 * epoch, 5 * epoch, 5 * epoch)
    assert (train.sample_every, log.every, train.precision) == (5000 * 32, 100 * 32, "float32")
    assert (train.ema_rates, train.ema_warmup, train.ema_start, train.statistics_batches) == ((0.9999,), False, 32_000, 30)
    assert (optim.name, optim.learning_rate, optim.betas, optim.eps) == ("adam", 1e-4, (0.0, 0.999), 1e-8)
    assert (optim.schedule, optim.decay_every, optim.decay_factor) == ("step", 400 * epoch, 0.1)
    assert experiment.warnings == []
    (line,) = experiment.notes
    assert line.startswith("settings without a meaning here: ") and "gen.version" in line and "inference_args" in line


def test_pix2pixhd() -> None:
    experiment = read(published("pix2pixHD"))
    assert isinstance(experiment.model, Pix2PixHDConfig) and experiment.data.label_channels == 36
    assert experiment.data.config.instances == "instance_maps" and experiment.data.config.conditions == ()
    assert experiment.data.spec.height_and_width == (512, 1024) and experiment.data.config.resize == 512
    assert [entry.name for entry in experiment.data.spec.inputs] == ["seg_maps", "instance_maps"]
    train, optim, _ = experiment.schedule.configs(processes=1, num_images=100)
    assert train.ema_rates == (0.999,) and train.statistics_batches == 0
    assert (experiment.data.config.dont_care, experiment.data.config.blank) == (False, True), "pixels of no class are 0 in all channels"
    assert experiment.data.spec.inputs[0].blank and not experiment.warnings
    assert optim.betas == (0.5, 0.999) and optim.decay_every == 100 * 100
    finer = {"gen": {"local_enhancer": {"num_enhancers": 1}}, "dis": {"num_discriminators": 3}}
    model: Any = read(published("pix2pixHD", **finer)).model
    assert model.generator == Pix2PixHDGeneratorConfig(num_enhancers=1) and model.discriminator.num_discriminators == 3
    encoder = {"gen": {"enc": {"num_feat_channels": 4, "num_filters": 8, "num_downsamples": 2, "num_clusters": 5}}}
    model = read(published("pix2pixHD", **encoder)).model
    assert model.generator.encoder == FeatureEncoderConfig(num_features=4, num_filters=8, num_downsamples=2, num_clusters=5)


def test_unit_and_munit() -> None:
    experiment = read(published("unit"))
    model = experiment.model
    assert isinstance(model, UNITConfig) and model.adversarial.kind == "least_square" and model.perceptual_weight == 0
    assert (model.image_recon_weight, model.cycle_weight, model.translation.direction) == (1, 1, "a-to-b")
    assert (experiment.data.config.a, experiment.data.config.b) == ("images_a", "images_b")
    train, optim, _ = experiment.schedule.configs(processes=1, num_images=None)
    assert train.total_images == 500_000 and train.ema_rates == ()
    assert optim.schedule == "constant", "the length of an epoch is unknown"
    _, counted, _ = experiment.schedule.configs(processes=1, num_images=1200)
    assert (counted.schedule, counted.decay_every, counted.decay_factor) == ("step", 120_000, 0.5)
    assert all(name in experiment.notes[0] for name in ("gen.all_res", "trainer.perceptual_loss.fp16", "image_display_iter"))

    experiment = read(published("munit"))
    model = experiment.model
    assert isinstance(model, MUNITConfig) and model.translation.direction == "a-to-b" and not model.gan_recon
    assert read(published("munit", inference_args={"a2b": False})).model.translation.direction == "b-to-a"
    assert (model.image_recon_weight, model.content_recon_weight, model.style_recon_weight, model.cycle_weight) == (0.1, 1, 1, 0)
    assert model.initial == InitConfig(kind="orthogonal", gain=1.0) and model.discriminator_rate == 4
    train, optim, _ = experiment.schedule.configs(processes=2, num_images=None)
    assert train.precision == "bf16" and train.loss_scale == 2.0**16
    assert train.loss_scale_growth == pytest.approx(1 / 2000)
    assert (train.total_images, optim.schedule) == (200_000 * 32, "constant")
    assert not experiment.schedule.uses_epochs and "trainer.loss_weight.gp" in experiment.notes[0]
    assert [line.split(":")[0] for line in experiment.warnings] == ["data.train.augmentations.resize_h_w", "trainer.amp_config.enabled"]
    more = {"kl": 0.5, "style_recon_within": 2, "content_recon_within": 3, "consistency_reg": 4}
    model = read(published("munit", trainer={"loss_weight": more, "gan_recon": True})).model
    assert isinstance(model, MUNITConfig)
    assert (model.kl_weight, model.style_recon_within_weight, model.content_recon_within_weight) == (8, 2, 3)
    assert model.consistency_weight == 4 and model.gan_recon
    patches: Any = read(published("munit", dis={"patch_wise": True, "num_filters": None, "max_num_filters": None, "num_layers": None}))
    assert patches.model.discriminator == HD_PATCH
    residual: Any = read(published("unit", dis={"patch_dis": False, "num_filters": 8, "max_num_filters": 16, "num_layers": 7})).model
    assert residual.discriminator == ResidualDiscriminatorConfig(num_filters=8, max_num_filters=16, num_layers=7)


def test_funit_and_coco_funit() -> None:
    for name, count in (("funit", 149), ("coco_funit", 305)):
        experiment = read(published(name))
        model = experiment.model
        assert isinstance(model, FUNITConfig) and model.initial.kind == "none"
        assert (model.feature_matching_weight, model.image_recon_weight) == (1, 0.1)
        assert experiment.data.spec.num_classes == count and experiment.data.config.validation_fraction == 0
        assert (experiment.data.config.resize, experiment.data.config.scale) == (270, 0.1)
        train, optim, _ = experiment.schedule.configs(processes=8, num_images=None)
        assert (optim.decay_every, optim.decay_factor) == (100_000 * 64, 0.5)
        assert train.total_images == 150_000 * 64 and train.ema_rates == (0.999,)
    common = read(published("funit", common={"num_classes": 119}, dis={"num_classes": None}))
    assert common.data.spec.num_classes == 119
    assert all("common" not in line for line in common.notes + common.warnings)
    assert all(read(published(name, gen={"num_mlp_blocks": 5})).model.generator.mlp_layers == 4 for name in ("funit", "coco_funit"))
    assert read(published("munit", gen={"num_mlp_blocks": 5})).model.generator.mlp_layers == 5


# Training


def test_steps_schedules_and_averages() -> None:
    values = published(
        "unit",
        max_iter=1e9,
        max_epoch=10,
        metrics_iter=7,
        snapshot_save_epoch=2,
        trainer={"dis_step": 3, "gen_step": 2, "model_average_config": {"enabled": True, "g_smooth_img": 100}, "aug_policy": ""},
        data={"train": {"batch_size": 5}},
        gen_opt={"clip_grad_norm": 2, "lr_policy": {"type": "linear", "decay_start": 2, "decay_end": 6, "decay_target": 0.1}},
        dis_opt={"clip_grad_norm": 2, "lr_policy": {"type": "linear", "decay_start": 2, "decay_end": 6, "decay_target": 0.1}},
    )
    experiment = read(values)
    (line,) = experiment.warnings
    assert line.startswith("trainer.gen_step: the average moves once in an iteration here")
    assert (experiment.model.discriminator_steps, experiment.model.generator_steps) == (3, 2)
    train, optim, log = experiment.schedule.configs(processes=2, num_images=95)
    iteration, epoch = 30, 90  # three steps of 5 images in two processes
    assert (train.batch_size, train.total_images, train.checkpoint_every) == (10, 10 * epoch, 2 * epoch)
    assert train.validate_every == 7 * iteration and train.ema_rates == ((0.5**0.1) ** 2,)
    assert train.ema_start == 500 * iteration, "it counts the steps of the generator, of which there are two"
    assert log.every == 50 * iteration and optim.clip_norm == 2
    assert (optim.schedule, optim.decay_start, optim.decay_end, optim.decay_to) == ("linear", 2 * epoch, 6 * epoch, 0.1)
    few, _, _ = experiment.schedule.configs(processes=2, num_images=3)
    assert few.total_images == 10 * iteration, "an epoch is one iteration at least"
    endless, _, _ = read(published("unit", max_iter=None, data={"train": {"batch_size": 5}})).schedule.configs(processes=1, num_images=9)
    assert endless.total_images == 5 * 10**9


def test_the_shorter_of_iterations_and_epochs_counts() -> None:
    experiment = read(published("unit", max_epoch=2, snapshot_save_epoch=1))
    train, _, _ = experiment.schedule.configs(processes=1, num_images=1000)
    assert (train.total_images, train.checkpoint_every) == (2000, 1000)


def test_sizes_of_images() -> None:
    def cut(**augmentations: Any) -> Any:
        values = published("spade")
        values["data"]["train"]["augmentations"] = augmentations
        return read(values).data.config

    plain = cut(random_crop_h_w=[128, 192])
    assert (plain.image_size, plain.width, plain.resize, plain.crop, plain.scale) == (128, 192, 128, "random", 0.0)
    assert not plain.flip
    tall = cut(resize_smallest_side=256, random_crop_h_w="512, 256")
    assert (tall.image_size, tall.width, tall.resize) == (512, 256, 512), "the setting here is the height"
    centre = cut(resize_smallest_side="300", center_crop_h_w=256)
    assert (centre.crop, centre.resize, centre.scale, centre.width) == ("center", 300, None, None)
    assert cut(resize_h_w="256, 256").resize is None
    assert cut().image_size == 256 and cut(random_crop_h_w=1).image_size == 1
    for side, resolution in ((511, 256), (512, 512), (1023, 512), (1024, 1024)):
        crop = {"resize_smallest_side": None, "random_crop_h_w": f"{side}, {side}"}
        assert read(published("spade", data={"train": {"augmentations": crop}})).model.generator.resolution == resolution


def test_sizes_of_images_where_the_file_says_nothing() -> None:
    silent = {model: changed(values, {"data": {"train": {"augmentations": None}}}) for model, values in PUBLISHED.items()}
    sizes = {model: read(values).data.config.image_size for model, values in silent.items()}
    assert sizes == {"spade": 256, "pix2pixHD": 512, "unit": 512, "munit": 256, "funit": 256, "coco_funit": 256}


def test_the_size_of_the_generators_images_is_that_of_the_data() -> None:
    """The setting that names it is known, and not used."""
    sized = read(published("spade", gen={"out_image_small_side_size": 999}))
    assert sized.data.spec == read(published("spade")).data.spec and not [line for line in sized.warnings if "small_side" in line]


def test_a_rate_that_falls_by_nothing_is_constant() -> None:
    policy = {"lr_policy": {"iteration_mode": False, "type": "step", "step_size": 3, "gamma": 1}}
    schedule = read(published("unit", gen_opt=policy, dis_opt=policy)).schedule
    assert not schedule.uses_epochs and schedule.configs(processes=1, num_images=9)[1].schedule == "constant"


def test_workers_are_those_of_the_file() -> None:
    """Where it says 0 or nothing, they are chosen here."""
    assert [read(published("spade", data={"num_workers": count})).data.config.workers for count in (3, 0, None)] == [3, None, None]


def test_kinds_of_labels() -> None:
    values = published("spade", data={"input_types": {"images": {"num_channels": 1}, "seg_maps": {}, "photos": {"normalize": True}}})
    values["data"] |= {"input_labels": ["seg_maps", "photos"], "one_hot_num_classes": {"seg_maps": 4}, "use_dont_care": {"seg_maps": False}}
    experiment = read(values)
    assert experiment.data.label_channels == 4 + 3 and experiment.data.spec.channels == 1 and not experiment.data.positive_conditions
    values = published("spade", data={"one_hot_num_classes": 7, "input_labels": ["seg_maps"], "use_dont_care": None})
    assert read(values).data.label_channels == 7
    assert read(published("spade", gen={"style_dims": None, "style_enc": None})).model.generator.style_dims is None


def with_types(model: str, *, labels: list[str], types: dict[str, dict[str, Any]], **data: Any) -> dict[str, Any]:
    """The file with other types of data, of which these are the labels."""
    return published(model, data={"input_types": types, "input_labels": labels, **data})


def test_images_among_the_labels_are_resized_as_the_file_says() -> None:
    ways = {"edges": {"is_mask": True}, "lines": {"interpolator": "NEAREST"}, "photos": {"interpolator": "BICUBIC"}, "drawings": {}}
    experiment = read(with_types("spade", labels=["seg_maps", *ways], types={"images": {}, "seg_maps": {"is_mask": True}, **ways}))
    assert experiment.data.config.nearest == ("edges", "lines")
    assert [entry.nearest for entry in experiment.data.spec.inputs] == [False, True, True, False, False]
    (line,) = experiment.notes
    assert "interpolator" not in line, "it is used"


def test_channels_are_those_of_the_images_to_be_made() -> None:
    types: dict[str, Any] = {"images_of_last_year": {"num_channels": 3}, "photos": {"num_channels": 1}, "seg_maps": {"is_mask": True}}
    experiment = read(with_types("spade", labels=["seg_maps"], types=types, input_image=["photos"]))
    assert experiment.data.spec.channels == experiment.data.config.channels == 1 and experiment.data.config.target == "photos"
    two = {"image_masks": {"num_channels": 3}, "winter_a": {"num_channels": 1}, "summer_b": {"num_channels": 1}}
    domains = read(published("unit", data={"input_types": two})).data
    assert (domains.config.a, domains.config.b, domains.spec.channels) == ("winter_a", "summer_b", 1)
    assert domains.spec.inputs[0].channels == 1
    few = {"image_masks": {"num_channels": 3}, "images_content": {"num_channels": 1}, "images_style": {"num_channels": 1}}
    spec = read(published("funit", data={"input_types": few})).data.spec
    assert spec.channels == spec.inputs[0].channels == 1 and spec.num_classes == spec.inputs[1].num_classes == 149


def test_whether_class_maps_have_a_channel_for_other_pixels() -> None:
    def classes(**flags: Any) -> Any:
        types: dict[str, Any] = {"images": {}, "seg_maps": {"is_mask": True}, "parts": {"is_mask": True}, "edges": {}}
        for name, flag in flags.items():
            types[name]["use_dont_care"] = flag
        counts = {"seg_maps": 4, "parts": 3}
        return with_types("spade", labels=["seg_maps", "parts", "edges"], types=types, one_hot_num_classes=counts, use_dont_care=None)

    one = read(classes(seg_maps=True, parts=True)).data
    assert one.label_channels == 5 + 4 + 3 and one.config.dont_care and not one.config.blank
    other = read(classes(edges=True)).data
    assert other.label_channels == 4 + 3 + 3 and other.config.blank and not other.config.dont_care, "an image has no classes"
    told = "data.use_dont_care: got seg_maps true, parts false, expected the same for all class maps, which share data.dont_care here"
    assert refused(classes(seg_maps=True)) == told
    assert refused(changed(classes(), {"data": {"use_dont_care": {"seg_maps": True, "edges": True}}})) == told
    assert read(changed(classes(seg_maps=True), {"data": {"use_dont_care": True}})).data.config.dont_care, "that of all counts"


def test_the_name_says_which_map_is_that_of_instances() -> None:
    def instances(name: str, **settings: Any) -> Any:
        types = {"images": {}, "seg_maps": {"is_mask": True}, name: {"num_channels": 1, **settings}}
        return read(with_types("pix2pixHD", labels=["seg_maps", name], types=types))

    for experiment, line in (
        (instances("instance_maps", is_mask=True), None),
        (instances("instances"), "data.input_types.instances.is_mask: false, but the name of instances says that it is the map of inst"),
        (instances("objects", is_mask=True), "data.input_types.objects.is_mask: true, so objects is taken for the map of instances, th"),
    ):
        assert experiment.data.config.instances is not None and experiment.data.config.conditions == ()
        assert [warning.startswith(line) for warning in experiment.warnings] == ([] if line is None else [True])
    edges = instances("edges")
    assert edges.data.config.instances is None and edges.data.config.conditions == ("edges",) and not edges.warnings


def test_pairs_are_trained_as_their_recipes_are() -> None:
    modes = {name: read(published(name)).schedule.configs(processes=1, num_images=None)[0].compile for name in PUBLISHED}
    assert modes == {name: "off" if name in ("spade", "pix2pixHD") else "auto" for name in PUBLISHED}
    assert {load_recipe(name).train.compile for name in ("spade-coco256", "pix2pixhd-cityscapes")} == {"off"}


# What is refused or named


@pytest.mark.parametrize(
    ("model", "changes", "line"),
    [
        ("spade", {"gen": {"type": None}}, "gen.type: missing, expected imaginaire.generators.NAME with NAME one of spade, pix2pixHD"),
        (
            "spade",
            {"gen": {"type": "imaginaire.generators.gancraft"}},
            "gen.type: got 'imaginaire.generators.gancraft', expected one that ends",
        ),
        ("spade", {"gen": {"type": "mine.generators.spade"}}, "gen.type: got 'mine.generators.spade', expected one that begins with"),
        (
            "spade",
            {"dis": {"type": "mine.multires_patch"}},
            "dis.type: got 'mine.multires_patch', expected one that begins with 'imaginaire.'",
        ),
        ("spade", {"gen": {"num_labels": 3}}, "gen.num_labels: got 3, but data.input_labels have 185 channels (seg_maps 184, edge_maps 1)"),
        ("pix2pixHD", {"data": None}, "data.input_labels: missing: the types of data that images are made from"),
        ("unit", {"data": None, "trainer": {"loss_weight": None}}, "trainer.loss_weight: missing, expected the weights of the losses"),
        (
            "unit",
            {"trainer": {"perceptual_loss": None, "perceptual_mode": "vgg_face", "loss_weight": {"perceptual": 1}}},
            "trainer.perceptual_loss.mode: got 'vgg_face', expected one of 'vgg19'",
        ),
        ("spade", {"dis": {"type": "imaginaire.discriminators.munit"}}, "dis.type: got 'imaginaire.discriminators.munit', which is no"),
        ("spade", {"gen": 3}, "gen: got 3, expected a table of settings"),
        ("spade", {"trainer": [1]}, "trainer: got [1], expected a table of settings"),
        ("spade", {"data": {"train": "x"}}, "data.train: got 'x', expected a table"),
        ("spade", {"gen": {"num_filters": 0}}, "gen.num_filters: got 0, expected a positive whole number"),
        ("spade", {"gen": {"num_filters": 10**9}}, "gen.num_filters: got 1000000000, expected a whole number from 0 to 10000"),
        ("spade", {"gen": {"num_filters": "many"}}, "gen.num_filters: got 'many', expected a whole number"),
        (
            "munit",
            {"gen": {"weight_norm_type": "weight_demod"}},
            "gen.weight_norm_type: got 'weight_demod', expected one of 'none', 'spectral'",
        ),
        ("spade", {"gen": {"style_enc": {"weight_norm_type": "none"}}}, "gen.style_enc.weight_norm_type: got 'none', expected that of the"),
        ("spade", {"gen": {"style_enc": {"kernel_size": 5}}}, "gen.style_enc.kernel_size: got 5, expected that of the generator, 3"),
        ("spade", {"gen": {"global_adaptive_norm_type": "pixel"}}, "gen.global_adaptive_norm_type: got 'pixel', expected one of 'none'"),
        ("pix2pixHD", {"gen": {"padding_mode": "zeros"}}, "gen.padding_mode: got 'zeros', expected 'reflect'"),
        (
            "pix2pixHD",
            {"dis": {"activation_norm_params": {"affine": False}}},
            "dis.activation_norm_params.affine: got False, expected True",
        ),
        ("pix2pixHD", {"gen": {"global_generator": {"num_downsamples": 40}}}, "gen.global_generator.num_downsamples: got 40, expected"),
        ("munit", {"gen": {"pre_act": "yes"}}, "gen.pre_act: got 'yes', expected true or false"),
        ("munit", {"dis": {"patch_wise": 1}}, "dis.patch_wise: got 1, expected true or false"),
        ("spade", {"trainer": {"init": None}}, "trainer.init: missing, expected type (xavier"),
        ("spade", {"trainer": {"init": {"type": "kaiming_linear"}}}, "trainer.init.type: got 'kaiming_linear', expected one of 'xavier'"),
        ("spade", {"trainer": {"init": {"gain": 0}}}, "trainer.init.gain: got 0, expected a positive number"),
        ("spade", {"trainer": {"gan_mode": "logistic"}}, "trainer.gan_mode: got 'logistic', expected one of 'hinge'"),
        ("spade", {"trainer": {"loss_weight": {"gan": -1}}}, "trainer.loss_weight.gan: got -1, expected a number of at least 0"),
        ("spade", {"trainer": {"loss_weight": {"gan": "x"}}}, "trainer.loss_weight.gan: got 'x', expected a number"),
        ("unit", {"trainer": {"loss_weight": None}}, "trainer.loss_weight: missing, expected the weights of the losses by name"),
        ("spade", {"trainer": {"perceptual_loss": {"mode": "vgg_face_dag"}}}, "trainer.perceptual_loss.mode: got 'vgg_face_dag', expected"),
        ("spade", {"trainer": {"perceptual_loss": {"mode": "robust_resnet50"}}}, "trainer.perceptual_loss.mode: got 'robust_resnet50'"),
        (
            "spade",
            {"trainer": {"perceptual_loss": {"criterion": "info_nce"}}},
            "trainer.perceptual_loss.criterion: got 'info_nce', expected",
        ),
        ("spade", {"trainer": {"perceptual_loss": {"weights": [1]}}}, "trainer.perceptual_loss.weights: got 1.0, expected 5 numbers"),
        ("spade", {"trainer": {"perceptual_loss": {"layers": ["relu_9_1"]}}}, "trainer.perceptual_loss.layers: got relu_9_1"),
        (
            "spade",
            {"trainer": {"perceptual_loss": {"layers": []}}},
            "trainer.perceptual_loss.layers: got nothing, expected at least one name",
        ),
        ("munit", {"trainer": {"aug_policy": "color,rotation"}}, "trainer.aug_policy: got 'color,rotation', expected some of color"),
        ("munit", {"trainer": {"aug_policy": "color,color"}}, "trainer.aug_policy: got 'color,color', expected each name once"),
        ("spade", {"trainer": {"model_average_config": {"beta": 1}}}, "trainer.model_average_config.beta: got 1, expected a number from 0"),
        ("funit", {"common": []}, "dis.common: got [], expected a table of settings"),
        ("munit", {"trainer": {"gan_recon": 3}}, "trainer.gan_recon: got 3, expected true or false"),
        ("unit", {"inference_args": {"a2b": 3}}, "inference_args.a2b: got 3, expected true or false"),
        ("spade", {"trainer": {"dis_step": 0}}, "trainer.dis_step: got 0, expected a whole number from 1 to 100"),
        ("spade", {"gen_opt": {"type": "madam"}}, "gen_opt.type: got 'madam', expected one of 'adam'"),
        ("spade", {"dis_opt": {"type": "sgd"}}, "dis_opt.type: got 'sgd', expected one of 'adam'"),
        ("spade", {"gen_opt": {"lr": 0}}, "gen_opt.lr: got 0, expected a positive number"),
        ("spade", {"gen_opt": {"lr": "1e-4x"}}, "gen_opt.lr: got '1e-4x', expected a number"),
        ("spade", {"gen_opt": {"adam_beta1": 1}}, "gen_opt.adam_beta1: got 1, expected a number from 0 to below 1"),
        ("spade", {"gen_opt": {"lr_policy": {"type": "cosine"}}}, "gen_opt.lr_policy.type: got 'cosine', expected one of 'step'"),
        ("spade", {"gen_opt": {"lr_policy": {"gamma": 0}}}, "gen_opt.lr_policy.gamma: got 0, expected more than 0"),
        ("spade", {"gen_opt": {"lr_policy": {"type": "linear"}}}, "gen_opt.lr_policy.decay_end: got 0, expected more than decay_start, 0"),
        ("spade", {"max_iter": 0}, "max_iter: got 0, expected a whole number from 1"),
        ("spade", {"max_epoch": 1.5}, "max_epoch: got 1.5, expected a whole number"),
        (
            "spade",
            {"data": {"type": "imaginaire.datasets.paired_few_shot_videos"}},
            "data.type: got 'paired_few_shot_videos', expected one that ends in paired_im",
        ),
        (
            "unit",
            {"data": {"type": "imaginaire.datasets.paired_images"}},
            "data.type: got 'paired_images', expected one that ends in unpaired",
        ),
        ("spade", {"data": {"input_types": "images"}}, "data.input_types: got 'images', expected a list with the settings"),
        ("spade", {"data": {"input_types": [["images"]]}}, "data.input_types: got [['images']], expected a list"),
        ("spade", {"data": {"input_labels": []}}, "data.input_labels: missing: the types of data that images are made from"),
        (
            "spade",
            {"data": {"input_labels": ["seg_map"]}},
            "data.input_labels: got 'seg_map', which is none of data.input_types; did you mean",
        ),
        ("spade", {"data": {"input_labels": ["edge_maps", "seg_maps"]}}, "data.input_labels: got edge_maps, seg_maps, expected class maps"),
        ("spade", {"data": {"input_image": ["images", "seg_maps"]}}, "data.input_image: got ['images', 'seg_maps'], expected one"),
        ("spade", {"data": {"one_hot_num_classes": 5}}, "data.one_hot_num_classes: got 5, expected a number for each class map"),
        ("spade", {"data": {"one_hot_num_classes": {"seg_maps": 0}}}, "data.one_hot_num_classes.seg_maps: got 0, expected a whole number"),
        (
            "unit",
            {"data": {"input_types": {"images_a": {"num_channels": 1}, "images_b": {}}}},
            "data.input_types.images_b.num_channels: got 3, expected 1, as images_a has: the images of a run",
        ),
        ("spade", {"data": {"train": {"roots": [3]}}}, "data.train.roots: got [3], expected a list of folders"),
        ("spade", {"data": {"train": {"roots": False}}}, "data.train.roots: got False, expected a list of folders"),
        (
            "spade",
            {"data": {"input_labels": ["seg_maps", "seg_maps"]}},
            "data.input_labels: got ['seg_maps', 'seg_maps'], expected seg_maps on",
        ),
        (
            "spade",
            {"data": {"input_labels": ["seg_maps", "images"]}},
            "data.input_labels: got ['seg_maps', 'images'], expected other types of",
        ),
        ("unit", {"data": {"input_types": [{"images_a": {}}, {"images_a": {}}]}}, "data.input_types.images_a: given twice, expected once"),
        ("unit", {"data": {"input_types": [{"../a": {}}]}}, "data.input_types: got '../a', expected names of folders, without a slash"),
        ("unit", {"gen_opt": {"lr": 10**400}}, "gen_opt.lr: got 1000"),
        ("unit", {"gen_opt": {"lr": 1e-320}}, "dis_opt.lr: got inf, expected a positive number"),
        ("spade", {"data": {"train": {"batch_size": 0}}}, "data.train.batch_size: got 0, expected a whole number from 1"),
        (
            "spade",
            {"data": {"train": {"augmentations": {"random_crop_h_w": "a, b"}}}},
            "data.train.augmentations.random_crop_h_w: got 'a, b'",
        ),
        ("spade", {"data": {"train": {"augmentations": {"random_crop_h_w": []}}}}, "data.train.augmentations.random_crop_h_w: got []"),
        (
            "spade",
            {"data": {"train": {"augmentations": {"resize_h_w": 9}}}},
            "data.train.augmentations.resize_h_w: given beside resize_sma",
        ),
        (
            "unit",
            {"data": {"train": {"augmentations": {"random_crop_h_w": "64, 96"}}}},
            "data.train.augmentations.random_crop_h_w: got 64, 96",
        ),
        (
            "spade",
            {"data": {"train": {"augmentations": {"random_scale_limit": -1}}}},
            "data.train.augmentations.random_scale_limit: got -1",
        ),
    ],
)
def test_mistakes(model: str, changes: dict[str, Any], line: str) -> None:
    assert refused(published(model, **changes)).startswith(line)


@pytest.mark.parametrize(
    ("model", "changes", "line"),
    [
        ("spade", {"trainer": {"los_weight": 1}}, 'unknown setting trainer.los_weight is not used; did you mean "loss_weight"?'),
        (
            "spade",
            {"trainer": {"loss_weight": {"feature_matchng": 1}}},
            "unknown setting trainer.loss_weight.feature_matchng is not used; did",
        ),
        ("spade", {"max_epochs": 3}, 'unknown setting max_epochs is not used; did you mean "max_epoch"?'),
        (
            "spade",
            {"data": {"input_types": [{"images": {"exts": "png"}}, *PUBLISHED["spade"]["data"]["input_types"][1:]]}},
            "unknown setting d",
        ),
        ("spade", {"zzz": {"a": 1}}, "unknown setting zzz is not used"),
        ("munit", {"gen": {"style_enc": {"num_filters": 3}}}, "unknown setting gen.style_enc is not used"),
        ("unit", {"trainer": {"gan_relativistic": True}}, "trainer.gan_relativistic: the original ignores it in unit"),
        ("spade", {"trainer": {"aug_policy": "color"}}, "trainer.aug_policy: the original ignores it in spade"),
        ("spade", {"trainer": {"type": "imaginaire.trainers.unit"}}, "trainer.type: got 'imaginaire.trainers.unit'; the run is trained as"),
        ("spade", {"trainer": {"type": "mine.trainers.spade"}}, "trainer.type: got 'mine.trainers.spade'; the run is trained as spade"),
        ("spade", {"trainer": {"perceptual_mode": "vgg16"}}, "trainer.perceptual_mode: got 'vgg16', but trainer.perceptual_loss.mode says"),
        ("spade", {"dis_opt": {"adam_beta1": 0.5}}, "dis_opt.adam_beta1, adam_beta2: other than that of gen_opt"),
        ("spade", {"dis_opt": {"lr_policy": {"gamma": 0.9}}}, "dis_opt.lr_policy: other than that of gen_opt"),
        ("spade", {"gen_opt": {"skip_grad": True}}, "gen_opt.skip_grad: a step whose gradient"),
        ("spade", {"trainer": {"model_average_config": {"remove_sn": False}}}, "trainer.model_average_config.remove_sn: averages here"),
        ("munit", {"trainer": {"amp_config": {"backoff_factor": 0.9}}}, "trainer.amp_config.backoff_factor: got 0.9"),
        ("spade", {"data": {"train": {"roots": ["a", "b"]}}}, "data.train.roots: only the first of 2 folders is used, a"),
        ("spade", {"data": {"train": {"dataset_type": "object_store"}}}, "data.train.dataset_type: an object store is not read"),
        ("spade", {"data": {"train": {"augmentations": {"rotate": 10}}}}, "data.train.augmentations.rotate: not done here"),
        (
            "spade",
            {"data": {"train": {"augmentations": {"random_crop_h_w": None, "random_scale_limit": 0.2}}}},
            "data.train.augmentations.random_scale_limit: not done without random_crop_h_w",
        ),
        (
            "spade",
            {"data": {"input_types": {"images": {"pre_aug_ops": "a.b::c"}, "seg_maps": {}, "edge_maps": {}}}},
            "data.input_types.images.pre",
        ),
        (
            "spade",
            {"data": {"input_types": {"images": {}, "seg_maps": {}, "edge_maps": {"computed_on_the_fly": True}}}},
            "data.input_types.edge_maps.computed_on_the_fly: nothing is computed",
        ),
        (
            "pix2pixHD",
            {
                "data": {
                    "input_types": {"images": {}, "seg_maps": {"num_channels": 35, "is_mask": True}, "instance_maps": {"num_channels": 1}}
                }
            },
            "data.input_types.instance_maps.is_mask: false, but the name of instance_maps says that it is the map of instances",
        ),
    ],
)
def test_what_is_not_used_or_means_something_else_is_named(model: str, changes: dict[str, Any], line: str) -> None:
    warnings = read(published(model, **changes)).warnings
    assert any(warning.startswith(line) for warning in warnings), warnings
    assert all("\n" not in warning for warning in warnings)


def test_keys_with_dots_lead_into_no_section() -> None:
    line = "unknown setting {} is not used: a name has no dots; the settings of a section stand below its name, indented"
    flat = read(published("spade") | {"gen.num_filters": 8, "cudnn.benchmark": 1})
    assert flat.warnings == [line.format("gen.num_filters"), line.format("cudnn.benchmark")] and flat.model.generator.num_filters == 128
    assert read(published("spade", gen={"style_enc.num_filters": 3})).warnings == [line.format("gen.style_enc.num_filters")]
    types = {"images": {}, "seg.maps": {"is_mask": True, "num_channels": 1}}
    assert not read(with_types("spade", labels=["seg.maps"], types=types, one_hot_num_classes={"seg_maps": None, "seg.maps": 3})).warnings


def test_of_many_unknown_settings_the_first_are_named() -> None:
    warnings = read(published("unit") | {f"zz{k:02}": k for k in range(23)}).warnings
    assert warnings[-2:] == ["unknown setting zz19 is not used", "3 further unknown settings are not used"] and len(warnings) == 21
    assert read(published("unit") | {f"zz{k:02}": k for k in range(20)}).warnings[-1] == "unknown setting zz19 is not used"


def test_relativistic_losses_and_augmentation() -> None:
    assert read(published("spade", trainer={"gan_relativistic": True})).model.adversarial.relativistic
    model = read(published("munit", trainer={"aug_policy": "color, translation,cutout", "gan_mode": "softplus"})).model
    assert model.augment == ("color", "translation", "cutout") and model.adversarial.kind == "non_saturated"
    init = {"type": "kaiming", "gain": 0.5, "bias": {"type": "normal", "gain": 0.25}}
    assert read(published("munit", trainer={"init": init})).model.initial == InitConfig(
        kind="kaiming", gain=0.5, bias="normal", bias_gain=0.25
    )


def test_a_perceptual_loss_without_weight_is_not_looked_at() -> None:
    odd = {"perceptual_loss": {"mode": "vgg_face_dag", "layers": ["x"]}}
    assert read(published("unit", trainer=odd)).model.perceptual_weight == 0
    one = read(
        published("unit", trainer={"perceptual_loss": {"layers": None, "weights": 0.5, "resize": True}, "loss_weight": {"perceptual": 2}})
    )
    perceptual: Any = one.model.perceptual
    assert perceptual.compared == ("relu_4_1",) and perceptual.layer_weights == (0.5,) and one.model.perceptual_weight == 2
    assert perceptual.resize == 224 and read(published("spade")).model.perceptual.resize is None


def test_all_networks_of_the_perceptual_loss_see_what_the_original_shows_them() -> None:
    settings = {"perceptual_loss": {"mode": "inception_v3", "layers": ["pool_1"]}, "loss_weight": {"perceptual": 1}}
    model: Any = read(published("unit", trainer=settings)).model
    assert FeatureNetwork("inception_v3", layers=("pool_1",)).preprocessing == "symmetric"
    assert FeatureNetwork("inception_v3", layers=("pool_1",), preprocessing=model.perceptual.preprocessing).preprocessing == "imagenet"


def test_other_names_of_the_perceptual_loss() -> None:
    """trainer.perceptual_mode and trainer.perceptual_layers, as the files of UNIT and MUNIT have them."""
    alias = {"perceptual_loss": None, "perceptual_mode": "vgg16", "perceptual_layers": ["relu_1_2", "relu_2_2"]}
    for kind in ("unit", "munit"):
        experiment = read(published(kind, trainer=alias | {"loss_weight": {"perceptual": 2}}))
        perceptual: Any = experiment.model.perceptual
        assert perceptual.network == "vgg16" and perceptual.compared == ("relu_1_2", "relu_2_2")
        assert not any("perceptual" in line for line in experiment.warnings)
        off = read(published(kind, trainer=alias))
        assert not any("perceptual" in line for line in (*off.warnings, *off.notes))


def test_weights_of_the_norms_may_have_a_norm_of_their_own() -> None:
    experiment = read(published("spade", gen={"activation_norm_params": {"weight_norm_type": ""}}))
    generator: Any = experiment.model.generator
    assert (generator.weight_norm, generator.norm_weight_norm) == ("spectral", "none")
    with torch.device("meta"):
        names = set(experiment.model.build(experiment.data.spec).state_dict())
    layers = "generator.spade_generator.up_0a.conv_block_0.layers"
    assert {
        f"{layers}.conv.weight_orig",
        f"{layers}.norm.mlps.0.0.layers.conv.weight",
        f"{layers}.norm.gammas.0.layers.conv.weight",
    } <= names
    assert "generator.spade_generator.cbn_up_0a.layers.norm.fc_gamma.layers.conv.weight" in names
    same: Any = read(published("spade")).model.generator
    assert same.norm_weight_norm is None


def test_a_file_without_data_is_one_for_translation() -> None:
    experiment = read(ALONE)
    assert experiment.data.assumed and experiment.data.label_channels == 184
    assert experiment.model.discriminator == SPADEConfig().discriminator
    assert (experiment.data.spec.height_and_width, experiment.data.config.num_classes) == ((512, 512), (184,))
    generator: Any = experiment.model.generator
    assert (generator.resolution, generator.output_multiplier) == (512, 0.5)
    assert [line.partition(":")[0] for line in experiment.warnings] == ["data", "trainer.loss_weight"]
    assert "unknown" not in str(experiment.warnings)
    assert (experiment.model.feature_matching_weight, experiment.model.initial) == (10, SPADEConfig().initial)
    silent = read(changed(ALONE, {"gen": {"num_labels": None, "out_image_small_side_size": None}}))
    assert silent.data.label_channels == 0 and silent.data.spec.height_and_width == (256, 256)


def test_small_files_make_models() -> None:
    for name in PUBLISHED:
        experiment = read(small(name))
        with torch.device("meta"):
            experiment.model.build(experiment.data.spec)


ODD: list[Any] = [None, [], {}, "", "x" * 5000, 10**400, -1, 0, 1.5, 1e30, float("nan"), True, [None], [{}], {"a": [1]}, [[1]]]


SECTIONS = ("gen", "dis", "trainer", "data", "gen_opt", "dis_opt")
"""Of a file: what an error names stands there, and is no setting of ours."""


def places(values: dict[str, Any], *way: str) -> list[tuple[str, ...]]:
    """The way to every key of a file."""
    found = []
    for key, value in values.items():
        found.append((*way, key))
        found += places(value, *way, key) if isinstance(value, dict) else []
    return found


@pytest.mark.parametrize("model", PUBLISHED)
def test_whatever_stands_anywhere_is_taken_or_refused_in_a_line(model: str) -> None:
    for way in places(published(model)):
        for odd in ODD:
            values = published(model)
            inner = values
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = odd
            try:
                experiment = read(values)
                experiment.schedule.configs(processes=2, num_images=7)
            except ConfigError as error:
                assert "\n" not in str(error) and len(str(error)) < 600, (way, odd)
                assert error.setting.partition(".")[0] in {way[0], *SECTIONS}, (way, odd)
