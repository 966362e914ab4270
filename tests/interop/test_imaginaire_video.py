"""imaginaire's models of clips: YAML files become runs with the recipes' settings, state dicts their networks; others are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gans.published import on_meta
from tests.interop.imaginaire_files import IMAGE, MASK, changed
from tests.interop.imaginaire_videos import SINGLE, VIDEOS
from triptych.core.batch import ClipLength
from triptych.core.errors import CheckpointError, ConfigError
from triptych.data.clips import ClipDataConfig
from triptych.gans.crops import CropConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.spade import SPADEConfig, SPADEGenerator, SPADEGeneratorConfig
from triptych.gans.vid2vid import Vid2VidConfig
from triptych.gans.video_discriminators import VideoDiscriminator, VideoDiscriminatorConfig
from triptych.gans.video_networks import Vid2VidGenerator, Vid2VidGeneratorConfig, WCVid2VidGenerator, WCVid2VidGeneratorConfig
from triptych.gans.weight_norms import fold_spectral_norm
from triptych.interop.imaginaire import from_state_dict
from triptych.interop.imaginaire.experiment import Experiment, read_experiment
from triptych.interop.imaginaire.reading import Settings
from triptych.interop.imaginaire.tensors import Weights
from triptych.interop.imaginaire.video import video_discriminator
from triptych.interop.imaginaire.yaml_file import YamlFile
from triptych.recipes.config import RunConfig
from triptych.recipes.video import vid2vid_cityscapes, vid2vid_dancing, wc_vid2vid_cityscapes, wc_vid2vid_mannequin

CONFIG = {
    "gen": {"type": "imaginaire.generators.vid2vid", "flow": {"flow_output_multiplier": 7}},
    "dis": {"type": "imaginaire.discriminators.fs_vid2vid"},
}
SMALL = Vid2VidGeneratorConfig().shrunk()
SMALL = replace(SMALL, style_dims=256, flow=replace(SMALL.flow, multiplier=7.0))
PATCH = PatchDiscriminatorConfig(kernel_size=4, num_filters=4, max_num_filters=8, num_layers=2, norm="instance", weight_norm="none")


def random_network(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    network = build().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        replace(SMALL, label_input=False, style_dims=4, embedding=replace(SMALL.embedding, num_downsamples=1)),
        replace(SMALL, weight_norm="none", frames=4, spade_kernel_size=3, combined=0),
        replace(SMALL, num_downsamples=SMALL.num_layers - 1, combined=SMALL.num_layers),
    ],
)
def test_a_generator(config: Vid2VidGeneratorConfig) -> None:
    network = random_network(lambda: Vid2VidGenerator(config, label_channels=5, image_size=(16, 16)))
    made = from_state_dict({f"module.{key}": value for key, value in network.state_dict().items()}, None, CONFIG)
    assert made.kind == "vid2vid" and made.discriminator is None and made.generator is not None
    assert made.generator.network.config == config
    labels, images = torch.rand(2, config.frames, 5, 16, 16), torch.rand(2, config.frames - 1, 3, 16, 16)
    with torch.no_grad():
        found = made.generator(label=labels[:, -1], prev_labels=labels[:, :-1], prev_images=images)
        expected = network(labels[:, -1], labels[:, :-1], images)
        first = made.generator(label=labels[:, 0])
    for name, value in (("fake_images", expected.image), ("fake_flow_maps", expected.flow), ("warped_images", expected.warped)):
        torch.testing.assert_close(found[name], value)
    torch.testing.assert_close(found["fake_occlusion_masks"], expected.mask)
    assert list(first) == ["fake_images"]


def test_an_average_without_spectral_norm() -> None:
    network = random_network(lambda: Vid2VidGenerator(SMALL, label_channels=2))
    state: dict[str, Tensor] = {f"module.averaged_model.{key}": value for key, value in fold_spectral_norm(network.state_dict()).items()}
    state |= {f"module.module.{key}": value for key, value in network.state_dict().items()}
    made = from_state_dict(state | {"module.num_updates_tracked": torch.tensor(3)}, None, CONFIG)
    assert made.generator is not None and made.generator.network.config == replace(SMALL, weight_norm="none")
    label = torch.rand(1, 2, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(made.generator(label=label)["fake_images"], network(label).image)


def test_discriminators() -> None:
    config = VideoDiscriminatorConfig(patch=PATCH, temporal=replace(PATCH, num_layers=1), temporal_scales=2, temporal_frames=3)
    network = random_network(lambda: VideoDiscriminator(config, label_channels=5))
    made = from_state_dict(None, network.state_dict(), CONFIG).discriminator
    assert made is not None and list(made.network.state_dict()) == list(network.state_dict())
    label, images = torch.rand(2, 5, 32, 32), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        found, expected = made(label=label, images=images), network(images, label=label)
    for one, other in zip(found["real_outputs"], expected.outputs, strict=True):
        torch.testing.assert_close(one, other)
    crops = {"face": CropConfig(weight=10.0).shrunk(), "hand": CropConfig(weight=10.0).shrunk()}
    parts = random_network(lambda: VideoDiscriminator(replace(config, **crops), label_channels=5))
    said = {"additional_discriminators": {"face": {"loss_weight": 10}, "hand": {"loss_weight": 10.0}}}
    more = from_state_dict(None, parts.state_dict(), {**CONFIG, "dis": CONFIG["dis"] | said}).discriminator
    assert more is not None and list(more.network.state_dict()) == list(parts.state_dict())
    torch.testing.assert_close(dict(more.network.state_dict()), dict(parts.state_dict()), rtol=0, atol=0)
    shown = video_discriminator(Weights(dict(parts.state_dict())), Settings(said, "dis")).config
    assert isinstance(shown, VideoDiscriminatorConfig) and shown.crops == crops
    said = {"additional_discriminators": {"face": {"loss_weight": 0}}}
    with pytest.raises(
        ConfigError, match=r"dis.additional_discriminators.face.loss_weight: got 0, expected a positive number: the weights"
    ):
        from_state_dict(None, parts.state_dict(), {**CONFIG, "dis": CONFIG["dis"] | said})
    alone = VideoDiscriminator(replace(config, temporal_scales=0), label_channels=5)
    assert from_state_dict(None, alone.state_dict(), CONFIG).discriminator is not None


def test_what_does_not_fit_is_refused() -> None:
    state = Vid2VidGenerator(SMALL, label_channels=2).state_dict()
    with pytest.raises(CheckpointError, match="img_prev_embedding.up_0.layers.conv.bias"):
        from_state_dict({key: value for key, value in state.items() if key != "img_prev_embedding.up_0.layers.conv.bias"}, None, CONFIG)
    with pytest.raises(CheckpointError, match="the file is incomplete: it has no down_first.layers.conv.weight"):
        from_state_dict({"up_0.weight": torch.ones(1)}, None, CONFIG)
    with pytest.raises(ConfigError, match="gen.flow.flow_output_multiplier: got -1, expected a positive number"):
        from_state_dict(state, None, {"gen": CONFIG["gen"] | {"flow": {"flow_output_multiplier": -1}}})
    constant = Vid2VidGenerator(replace(SMALL, label_input=False), label_channels=2, image_size=(16, 32)).state_dict()
    with pytest.raises(CheckpointError, match="makes a first map of 32 pixels, expected a square"):
        from_state_dict(constant, None, CONFIG)


# YAML files


def read(values: dict[str, Any]) -> Experiment:
    experiment = read_experiment(YamlFile(values))
    assert not [line for line in experiment.warnings if line.startswith("unknown setting")]
    return experiment


CLIPS = {"street": 2_975, "world": 2_975, "mannequin": 3_040}
RECIPES = {"street": vid2vid_cityscapes, "world": wc_vid2vid_cityscapes, "mannequin": wc_vid2vid_mannequin}


@pytest.mark.parametrize("name", RECIPES)
def test_published_files_are_the_recipes(name: str) -> None:
    experiment, recipe, clips = read(VIDEOS[name]), RECIPES[name](), CLIPS[name]
    assert isinstance(experiment.model, Vid2VidConfig) and isinstance(recipe.model, Vid2VidConfig) and isinstance(recipe, RunConfig)
    single = 1 if name == "street" else 2
    assert experiment.model.translation.first_frames == single
    told = {"translation": recipe.model.translation, "temporal_weight": recipe.model.temporal_weight, "perceptual": recipe.model.perceptual}
    assert (seen := experiment.model.perceptual).compared == recipe.model.perceptual.compared
    assert (seen.num_scales, seen.layer_weights) == (recipe.model.perceptual.num_scales, recipe.model.perceptual.layer_weights)
    assert replace(experiment.model, **told) == recipe.model and experiment.model.temporal_weight == 0
    train, optim, log = experiment.schedule.configs(processes=8, num_images=clips)
    whole = clips // train.batch_size * train.batch_size  # of an epoch, whole batches alone are learned
    epochs = recipe.train.total_images / clips
    assert (train.total_images, train.batch_size) == (epochs * whole, recipe.train.batch_size)
    assert (train.compile, train.precision) == ("off", "float32")
    assert train.ema_rates == pytest.approx(recipe.train.ema_rates, abs=1e-4) and (name != "street" or train.ema_start == 125 * 16)
    assert bool(train.ema_rates) == bool(recipe.train.ema_rates) == (name == "street")
    assert (optim.learning_rate, optim.betas, optim.decay_factor) == (
        recipe.optim.learning_rate,
        recipe.optim.betas,
        recipe.optim.decay_factor,
    )
    assert optim.decay_every == recipe.optim.decay_every // clips * whole  # type: ignore[operator]
    data: Any = experiment.data.config
    mine: Any = recipe.data
    names = dict(zip(data.maps, mine.maps, strict=True))
    assert data.length.most == (mine.length.most if name == "street" else 100), "no length of its own: as long as the clips"
    assert data.length == replace(mine.length, double_every=None, most=data.length.most)
    lengths = experiment.schedule.lengths(data.length, processes=8, num_images=clips)
    assert lengths == replace(mine.length, double_every=mine.length.double_every // clips * whole, most=data.length.most)
    for setting in ("num_classes", "image_size", "width", "crop", "scale", "flip", "points", "conditions", "most_step"):
        assert getattr(data, setting) == getattr(mine, setting), setting
    assert set(names) == {"seg_maps"} if name != "mannequin" else names == {"seg_maps-densepose": "seg_maps-densepose"}
    assert experiment.data.label_channels == 35 and log.every == 100 * train.batch_size


def test_a_file_of_dances() -> None:
    experiment = read(VIDEOS["dancing"])
    generator = experiment.model.generator  # type: ignore[attr-defined]
    assert generator == Vid2VidGeneratorConfig(
        label_input=False, flow=replace(Vid2VidGeneratorConfig().flow, num_downsamples=3, multiplier=20)
    )
    patch = experiment.model.discriminator.patch  # type: ignore[attr-defined]
    assert (patch.num_filters, patch.num_layers, patch.weight_norm, patch.norm) == (32, 4, "spectral", "instance")
    assert experiment.data.label_channels == 27 and experiment.model.positive_conditions  # type: ignore[attr-defined]
    said = "\n".join(experiment.warnings)
    assert "additional_discriminators" not in said
    published = CropConfig(weight=10.0)
    assert experiment.model.discriminator.face == experiment.model.discriminator.hand == published  # type: ignore[attr-defined]
    assert build_meta(experiment) == (7_003_268, 124)
    assert "data.input_types.poses-openpose: limbs are read as maps here: triptych data draw" in said and "num_channels" not in said
    recipe = vid2vid_dancing()
    assert isinstance(recipe.model, Vid2VidConfig) and isinstance(experiment.model, Vid2VidConfig)
    told = {"perceptual": recipe.model.perceptual, "temporal_weight": recipe.model.temporal_weight}
    assert replace(experiment.model, **told) == recipe.model and experiment.model.perceptual.num_scales == 1
    data, mine = experiment.data.config, recipe.data
    assert isinstance(data, ClipDataConfig) and isinstance(mine, ClipDataConfig)
    assert (data.limbs, mine.limbs) == ("poses-openpose", "limbs") and data.length == replace(mine.length, double_every=None)
    for setting in ("maps", "conditions", "densepose", "drop_parts", "image_size", "width", "crop", "scale", "flip", "cut_out"):
        assert getattr(data, setting) == getattr(mine, setting), setting
    assert [entry.stored for entry in experiment.data.spec.inputs] == ["limbs"]
    train, optim, log = experiment.schedule.configs(processes=8, num_images=6_000)
    assert (train.total_images, train.batch_size, train.ema_start) == (recipe.train.total_images, 16, recipe.train.ema_start)
    assert (train.checkpoint_every, train.sample_every) == (recipe.train.checkpoint_every, recipe.train.sample_every)
    assert (optim.learning_rate, optim.betas, log) == (recipe.optim.learning_rate, recipe.optim.betas, recipe.log)
    assert experiment.schedule.lengths(data.length, processes=8, num_images=6_000) == mine.length


def test_the_first_epochs_of_single_frames() -> None:
    experiment = read(changed(VIDEOS["street"], {"single_frame_epoch": 3}))
    assert experiment.schedule.uses_epochs
    lengths = experiment.schedule.lengths(ClipLength(first=4, most=16), processes=8, num_images=2_975)
    assert lengths == ClipLength(first=4, most=16, alone=3 * 2_960, double_every=20 * 2_960)
    assert experiment.schedule.lengths(ClipLength(), processes=8, num_images=None) == ClipLength()


def test_the_command_that_draws_limbs_leaves_out_what_the_file_does() -> None:
    for setting, flag in (("remove_face_labels", "--face False"), ("basic_points_only", "--body-only")):
        said = read(changed(VIDEOS["dancing"], {"data": {"for_pose_dataset": {setting: True}}})).warnings
        assert any(f"--kind people {flag} --form limbs" in line for line in said)


def test_limbs_are_not_mirrored() -> None:
    flipped = {"data": {"train": {"augmentations": {"horizontal_flip": True}}}}
    experiment = read(changed(VIDEOS["dancing"], flipped))
    assert experiment.data.config is not None and not experiment.data.config.flip
    assert any("horizontal_flip: not done here with maps of people" in line for line in experiment.warnings)


def test_maps_with_other_channels_are_not_drawn() -> None:
    types = [{"images": IMAGE}, {"seg_maps": MASK}, {"drawn": {"num_channels": 5}}, {"limbs": {"num_channels": 27}}]
    experiment = read(changed(VIDEOS["street"], {"data": {"input_types": types, "input_labels": ["seg_maps", "limbs", "drawn"]}}))
    told = [line for line in experiment.warnings if "num_channels" in line]
    line = "data.input_types.drawn.num_channels: got 5; nothing is drawn here: where the run is trained, it takes images of 1 or 3"
    assert [each.startswith(line) for each in told] == [True] and experiment.data.label_channels == 35 + 27 + 5


def build_meta(experiment: Experiment) -> tuple[int, int]:
    """Parameters and tensors of the discriminators of the model that an experiment is."""
    discriminator = on_meta(lambda: experiment.model.build(experiment.data.spec)).discriminator
    assert isinstance(discriminator, nn.Module)
    return sum(p.numel() for p in discriminator.parameters()), len(discriminator.state_dict())


def test_discriminators_of_parts_are_read_and_others_named() -> None:
    others = {"dis": {"additional_discriminators": {"hand": {"loss_weight": 0}, "foot": {"num_filters": 3}}}}
    file = YamlFile(changed(VIDEOS["dancing"], others | {"trainer": {"perceptual_loss": {"num_scales": 1}}}))
    experiment = read_experiment(file)
    assert isinstance(experiment.model, Vid2VidConfig)
    assert list(experiment.model.discriminator.crops) == ["face"]
    assert (
        "dis.additional_discriminators: foot: not here; of parts of frames, those of face and hand alone are judged" in experiment.warnings
    )
    face = {"num_filters": 8, "num_layers": 2, "loss_weight": 3, "weight_norm_type": "", "num_discriminators": 2, "max_num_filters": 16}
    model = read(changed(VIDEOS["dancing"], {"dis": {"additional_discriminators": {"face": face}}})).model
    assert isinstance(model, Vid2VidConfig)
    patch = PatchDiscriminatorConfig(
        num_discriminators=2, kernel_size=4, num_filters=8, max_num_filters=16, num_layers=2, norm="instance", weight_norm="none"
    )
    assert model.discriminator.face == CropConfig(weight=3.0, patch=patch)
    unsaid = read(changed(VIDEOS["dancing"], {"dis": {"additional_discriminators": {"face": {"loss_weight": None}}}})).model
    assert isinstance(unsaid, Vid2VidConfig) and unsaid.discriminator.face == CropConfig(weight=1.0)


@pytest.mark.parametrize("name", SINGLE)
def test_files_of_first_frames(name: str) -> None:
    experiment = read(SINGLE[name])
    assert isinstance(experiment.model, SPADEConfig) and experiment.data.label_channels == 35
    assert experiment.model.generator == PUBLISHED_SINGLE
    mixed = ("depth_maps-megadepth", "edge_maps-hed") if name == "mannequin" else ()
    assert experiment.model.positive_inputs == mixed and not experiment.model.positive_conditions


PUBLISHED_SINGLE = SPADEGeneratorConfig(resolution=512, separate_projection=False, norm_weight_norm="none", positional_input=True)


def test_the_network_of_first_frames_has_the_published_names_and_shapes() -> None:
    network = on_meta(lambda: SPADEGenerator(PUBLISHED_SINGLE, label_channels=35))
    lines = [f"{key} {list(tensor.shape)}" for key, tensor in network.state_dict().items()]
    assert (sum(p.numel() for p in network.parameters()), len(lines)) == (411_928_326, 400)
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == DIGEST


DIGEST = "b9359fa9bc7b21a6b50bf7303e7b9212b3cd53f7fa16262c14819caabd54118d"
"""Of the names and shapes in their order."""


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        (
            "street",
            {"gen": {"type": "imaginaire.generators.fs_vid2vid"}},
            "data.type: got 'paired_videos', expected one that ends in paired_f",
        ),
        ("street", {"dis": {"type": "imaginaire.discriminators.spade"}}, "dis.type: got 'imaginaire.discriminators.spade', which is no"),
        (
            "street",
            {"data": {"type": "imaginaire.datasets.paired_images"}},
            "data.type: got 'paired_images', expected one that ends in paired",
        ),
        ("street", {"gen": {"kernel_size": 5}}, "gen.kernel_size: got 5, expected 3"),
        ("street", {"gen": {"embed": {"arch": "unet"}}}, "gen.embed.arch: got 'unet', expected 'encoderdecoder'"),
        ("street", {"gen": {"flow": {"weight_norm_type": ""}}}, "gen.flow.weight_norm_type: got '', expected 'spectral'"),
        ("street", {"gen": {"flow": {"generate_raw_output": True}}}, "gen.flow.generate_raw_output: got True, expected False"),
        (
            "street",
            {"gen": {"activation_norm_params": {"num_filters": 128}}},
            "gen.activation_norm_params.num_filters: got 128, expected 0",
        ),
        ("world", {"gen": {"activation_norm_params": {"num_filters": [0, 8, 8]}}}, "gen.activation_norm_params.num_filters: got [0, 8, 8]"),
        (
            "world",
            {"gen": {"activation_norm_params": {"num_filters": [0, 0, -1]}}},
            "gen.activation_norm_params.num_filters: got [0, 0, -1]",
        ),
        ("world", {"gen": {"guidance": {"partial_conv": True}}}, "gen.guidance.partial_conv: got True, expected False"),
        ("street", {"single_frame_epoch": -1}, "single_frame_epoch: got -1, expected a whole number"),
        ("street", {"dis": {"temporal": {"num_scales": 9}}}, "dis.temporal.num_scales: got 9, expected a whole number from 0 to 4"),
        (
            "dancing",
            {"dis": {"additional_discriminators": {"hand": {"loss_weight": -1}}}},
            "dis.additional_discriminators.hand.loss_weight: got -1, expected a number of at least 0",
        ),
        ("street", {"data": {"num_frames_G": 1}}, "data.num_frames_G: got 1, expected a whole number from 2 to 64"),
        ("street", {"trainer": {"dis_step": 2}}, "trainer.dis_step: got 2, expected 1: both take a step in each frame"),
        (
            "street",
            {"trainer": {"aug_policy": "color"}, "dis": {"temporal": {"num_scales": 1}}},
            "trainer.aug_policy: got color, expected nothing with discriminator.temporal_scales",
        ),
        ("world", {"data": {"input_types": {"points": {}, "images": {}}, "input_labels": ["points"]}}, "data.points: got 'points', expect"),
        ("street", {"gen": {"num_downsamples_img": 9}}, "gen.num_downsamples_img: got 9, expected below num_layers"),
    ],
)
def test_mistakes(name: str, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_experiment(YamlFile(changed(VIDEOS[name], changes)))
    assert str(raised.value).startswith(line)


def test_discriminators_of_several_frames() -> None:
    several = {
        "dis": {"temporal": {"num_scales": 2, "num_filters": 8}},
        "trainer": {"loss_weight": {"temporal_gan": 3.0}},
        "data": {"num_frames_D": 4},
    }
    model = read(changed(VIDEOS["street"], several)).model
    assert isinstance(model, Vid2VidConfig) and model.temporal_weight == 3
    found = model.discriminator
    assert (found.temporal_scales, found.temporal_frames, found.temporal.num_filters) == (2, 4, 8)
    alone = read(changed(VIDEOS["street"], {"dis": {"temporal": None}})).model
    assert isinstance(alone, Vid2VidConfig) and alone.discriminator.temporal_scales == 0


# World-consistent


def test_state_dicts_with_a_model_of_first_frames() -> None:
    wide = replace(WCVid2VidGeneratorConfig().shrunk(), flow=SMALL.flow, style_dims=256)
    network = random_network(lambda: WCVid2VidGenerator(wide, label_channels=2, image_size=(16, 16)))
    spade = replace(SPADEGeneratorConfig().shrunk(), positional_input=True, separate_projection=False, norm_weight_norm="none")
    single = random_network(lambda: SPADEGenerator(spade, label_channels=2))
    state = network.state_dict() | {f"single_image_model.{key}": value for key, value in single.state_dict().items()}
    config = {"gen": CONFIG["gen"] | {"type": "imaginaire.generators.wc_vid2vid"}, "dis": CONFIG["dis"]}
    made = from_state_dict({f"module.{key}": value for key, value in state.items()}, None, config)
    assert made.kind == "wc_vid2vid" and made.generator is not None and made.single_image_model is not None
    assert made.generator.network.config == wide and made.single_image_model.network.config == spade
    labels, images, guidance = torch.rand(1, 3, 2, 32, 32), torch.rand(1, 2, 3, 32, 32), torch.rand(1, 4, 32, 32)
    z = torch.randn(1, 8)
    with torch.no_grad():
        found = made.generator(label=labels[:, -1], prev_labels=labels[:, :-1], prev_images=images, guidance=guidance)
        torch.testing.assert_close(found["fake_images"], network(labels[:, -1], labels[:, :-1], images, guidance).image)
        alone = made.single_image_model(label=labels[:, 0], z=z)
        torch.testing.assert_close(alone["fake_images"], single(label=labels[:, 0], z=z).fake_images)
    assert from_state_dict(network.state_dict(), None, config).single_image_model is None
    plain = Vid2VidGenerator(SMALL, label_channels=2).state_dict()
    with pytest.raises(CheckpointError, match="it has no up_0.conv_block_0.layers.norm.mlps.2, the guidance of wc_vid2vid"):
        from_state_dict(plain, None, config)
    with pytest.raises(ConfigError, match="gen.num_layers: got 3, but the weights have 2"):
        from_state_dict(state, None, {"gen": config["gen"] | {"num_layers": 3}})


def test_guidance_without_a_hidden_layer() -> None:
    bare = replace(WCVid2VidGeneratorConfig().shrunk(), flow=SMALL.flow, style_dims=256, guidance_filters=0)
    state = random_network(lambda: WCVid2VidGenerator(bare, label_channels=2, image_size=(16, 16))).state_dict()
    made = from_state_dict(state, None, {"gen": CONFIG["gen"] | {"type": "imaginaire.generators.wc_vid2vid"}, "dis": CONFIG["dis"]})
    assert made.generator is not None and made.generator.network.config == bare
