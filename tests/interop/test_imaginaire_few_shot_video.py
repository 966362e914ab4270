"""imaginaire's few-shot vid2vid: its YAML files, and networks by the names and shapes of weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.interop.imaginaire_files import IMAGE, MASK, changed
from tests.interop.imaginaire_videos import VIDEOS
from tests.interop.test_imaginaire_video import PATCH, build_meta, random_network, read
from triptych.core.errors import CheckpointError, ConfigError
from triptych.data.clips import ClipDataConfig
from triptych.gans.crops import CropConfig
from triptych.gans.fs_vid2vid import FewShotVid2VidConfig
from triptych.gans.fs_vid2vid_networks import FewShotGenerator, FewShotGeneratorConfig
from triptych.gans.video_discriminators import VideoDiscriminator, VideoDiscriminatorConfig
from triptych.interop.imaginaire import from_state_dict
from triptych.interop.imaginaire.experiment import read_experiment
from triptych.interop.imaginaire.yaml_file import YamlFile
from triptych.recipes.video import fs_vid2vid_dancing, fs_vid2vid_faceforensics

SMALL = FewShotGeneratorConfig().shrunk()
CONFIG: dict[str, Any] = {
    "gen": {"type": "imaginaire.generators.fs_vid2vid", "flow": {"flow_output_multiplier": SMALL.flow.multiplier}},
    "dis": {"type": "imaginaire.discriminators.fs_vid2vid"},
}


@pytest.mark.parametrize(
    "config",
    [SMALL, replace(SMALL, attention=True, combined=0, weight_norm="none"), replace(SMALL, linear_layers=0, spade_kernel_size=3)],
    ids=["plain", "attention", "wide kernels"],
)
def test_a_generator(config: FewShotGeneratorConfig) -> None:
    network = random_network(lambda: FewShotGenerator(config, label_channels=5))
    state = {f"module.{key}": value for key, value in network.state_dict().items()}
    state |= {key.replace("flow_network_ref.", "flow_network_temp."): value for key, value in state.items() if "flow_network_ref." in key}
    made = from_state_dict(state, None, CONFIG)
    assert made.kind == "fs_vid2vid" and made.generator is not None
    found = made.generator.network.config
    assert replace(found, spade_kernel_size=config.spade_kernel_size) == config
    assert found.spade_kernel_size == config.spade_kernel_size or not config.combined
    labels, images = torch.rand(2, 5, 16, 16), torch.rand(2, 3, 16, 16)
    references, maps = torch.rand(2, 3, 3, 16, 16), torch.rand(2, 3, 5, 16, 16)
    with torch.no_grad():
        second = made.generator(label=labels, ref_images=references, ref_labels=maps, prev_labels=maps, prev_images=references)
        first = made.generator(label=labels, ref_images=references, ref_labels=maps)
        expected = network(labels, references, maps, maps[:, -1], references[:, -1])
        alone = network(labels, references, maps)
    torch.testing.assert_close(second["fake_images"], expected.image)
    torch.testing.assert_close(first["fake_images"], alone.image)
    torch.testing.assert_close(second["fake_flow_maps"], [expected.reference.flow, expected.past.flow])
    torch.testing.assert_close(second["warped_images"][0], expected.reference.image)
    torch.testing.assert_close(second["fake_occlusion_masks"][1], expected.past.mask)
    assert first["fake_flow_maps"][1] is None and images.shape == first["fake_images"].shape


def test_a_discriminator_sees_references() -> None:
    network = random_network(lambda: VideoDiscriminator(VideoDiscriminatorConfig(patch=PATCH), label_channels=2 * 5 + 3))
    made = from_state_dict(None, network.state_dict(), CONFIG).discriminator
    assert made is not None
    beside, images = torch.rand(2, 13, 32, 32), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        for one, other in zip(made(label=beside, images=images)["real_outputs"], network(images, label=beside).outputs, strict=True):
            torch.testing.assert_close(one, other)
    face = CropConfig(weight=1.0).shrunk()
    parts = VideoDiscriminator(VideoDiscriminatorConfig(patch=PATCH, face=face), label_channels=2 * 5 + 3, crop_channels=6)
    more = from_state_dict(None, parts.state_dict(), CONFIG).discriminator
    assert more is not None and list(more.network.state_dict()) == list(parts.state_dict())
    wrong = VideoDiscriminator(VideoDiscriminatorConfig(patch=PATCH, face=face), label_channels=2 * 5 + 3)
    with pytest.raises(CheckpointError, match=r"net_D_face.discriminator_0.layer0.0.layers.conv.weight"):
        from_state_dict(None, wrong.state_dict(), CONFIG)


def test_the_published_file_of_faces_is_the_recipe() -> None:
    experiment, recipe = read(VIDEOS["faces"]), fs_vid2vid_faceforensics()
    assert isinstance(experiment.model, FewShotVid2VidConfig) and isinstance(recipe.model, FewShotVid2VidConfig)
    told = {"perceptual": recipe.model.perceptual, "temporal_weight": recipe.model.temporal_weight}
    assert replace(experiment.model, **told) == recipe.model
    train, optim, log = experiment.schedule.configs(processes=8, num_images=704)
    whole = 704 // 24 * 24  # of an epoch, whole batches alone are learned
    assert (train.total_images, train.batch_size) == (200 * whole, recipe.train.batch_size)
    assert train.ema_rates == pytest.approx(recipe.train.ema_rates, abs=1e-4) and train.ema_start == recipe.train.ema_start
    assert (optim.learning_rate, optim.betas) == (recipe.optim.learning_rate, recipe.optim.betas) and optim.decay_every == 100 * whole
    data, mine = experiment.data.config, recipe.data
    assert isinstance(data, ClipDataConfig) and isinstance(mine, ClipDataConfig)
    assert data.length == replace(mine.length, double_every=None) and data.conditions == ("landmarks-dlib68",)
    assert experiment.schedule.lengths(data.length, processes=8, num_images=704) == replace(mine.length, double_every=50 * whole)
    for setting in ("image_size", "width", "crop", "scale", "flip", "references", "most_step", "maps"):
        assert getattr(data, setting) == getattr(mine, setting), setting
    assert experiment.data.label_channels == 1 and log.every == 100 * 24
    assert [entry.name for entry in experiment.data.spec.inputs] == ["landmarks-dlib68", "style", "landmarks-dlib68_of_style"]
    assert any(line.startswith("data.output_h_w: faces are not cut out by themselves: set data.cut_out") for line in experiment.warnings)


def test_a_file_of_dances() -> None:
    experiment = read(VIDEOS["few-shot dancing"])
    assert isinstance(experiment.model, FewShotVid2VidConfig) and isinstance(experiment.data.config, ClipDataConfig)
    assert experiment.model.translation.finetune == 100 and experiment.data.label_channels == 6
    assert experiment.data.spec.height_and_width == (512, 256)
    assert not [line for line in experiment.warnings if "additional_discriminators" in line]
    assert experiment.model.discriminator.crops == {"face": CropConfig(weight=10.0)}
    assert build_meta(experiment) == (6_299_107, 96)
    recipe = fs_vid2vid_dancing()
    assert isinstance(recipe.model, FewShotVid2VidConfig) and isinstance(recipe.data, ClipDataConfig)
    told = {name: getattr(recipe.model, name) for name in ("perceptual", "temporal_weight", "translation")}
    assert replace(experiment.model, **told) == recipe.model and experiment.model.perceptual.num_scales == 3
    assert recipe.model.people and recipe.model.hide_head
    data, mine = experiment.data.config, recipe.data
    assert (data.densepose, data.conditions) == ("pose_maps-densepose", ("poses-openpose",))
    settings = ("maps", "limbs", "drop_parts", "image_size", "width", "resize", "crop", "scale", "flip", "cut_out", "references", "length")
    for setting in settings:
        ours = replace(mine.length, double_every=None) if setting == "length" else getattr(mine, setting)
        assert getattr(data, setting) == ours, setting
    assert not [line for line in experiment.warnings if "output_h_w" in line]
    train, optim, log = experiment.schedule.configs(processes=8, num_images=15_000)
    whole = 15_000 // 48 * 48  # of an epoch, whole batches alone are learned
    assert (train.total_images, train.batch_size, train.ema_rates) == (20 * whole, recipe.train.batch_size, ())
    assert (train.sample_every, log.every) == (recipe.train.sample_every, recipe.log.every)
    assert (optim.learning_rate, optim.betas, optim.decay_every) == (recipe.optim.learning_rate, recipe.optim.betas, 10 * whole)
    assert experiment.schedule.lengths(mine.length, processes=8, num_images=15_000) == replace(mine.length, double_every=5 * whole)
    shown = [entry.stored for entry in experiment.data.spec.inputs]
    assert shown == ["densepose", "pixels", "pixels", "densepose", "pixels"]
    drawing = "data.input_types.poses-openpose: lines of people are read as images here: triptych data draw"
    assert [line for line in experiment.warnings if line.startswith(drawing) and "--face False --out DATA/train/poses" in line]
    assert not [line for line in experiment.warnings if "other people" in line]
    types = [{"images": IMAGE}, {"pose_maps-densepose": IMAGE}, {"poses-openpose": IMAGE}, {"human_instance_maps": MASK}]
    crowded = read(changed(VIDEOS["few-shot dancing"], {"data": {"input_types": types}})).warnings
    assert [
        line for line in crowded if line.startswith("data.input_types.human_instance_maps: other people stay on the maps; triptych data")
    ]
    alone = {"input_labels": ["poses-openpose"], "input_few_shot_labels": ["poses-openpose"]}
    lines = read(changed(VIDEOS["few-shot dancing"], {"data": alone}))
    assert isinstance(lines.data.config, ClipDataConfig) and lines.data.config.cut_out == "person" and lines.data.config.drop_parts == 0
    assert isinstance(lines.model, FewShotVid2VidConfig) and not lines.model.people
    still = read(changed(VIDEOS["few-shot dancing"], {"trainer": {"loss_weight": {"flow": 0.0}}})).model
    assert isinstance(still, FewShotVid2VidConfig) and not still.people and still.hide_head
    apart = read(changed(VIDEOS["few-shot dancing"], {"data": {"for_pose_dataset": {"remove_face_labels": False}}})).model
    assert isinstance(apart, FewShotVid2VidConfig) and apart.people and not apart.hide_head
    several = read(changed(VIDEOS["few-shot dancing"], {"data": {"initial_few_shot_K": 3}}))
    assert isinstance(several.model, FewShotVid2VidConfig) and several.model.generator.attention
    assert isinstance(several.data.config, ClipDataConfig) and several.data.config.references == 3


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"gen": {"hyper": {"is_hyper_conv": True}}}, "gen.hyper.is_hyper_conv: got True, expected False"),
        ({"gen": {"hyper": {"method_to_use_ref_labels": "concat"}}}, "gen.hyper.method_to_use_ref_labels: got 'concat', expected 'mul'"),
        (
            {"gen": {"flow": {"multi_spade_combine": {"embed": {"sep_warp_embed": False}}}}},
            "gen.flow.multi_spade_combine.embed.sep_warp_embed: got False, expected True",
        ),
        ({"gen": {"flow": {"sep_prev_flow": True}}}, "gen.flow.sep_prev_flow: got True, expected False"),
        ({"gen": {"hyper": {"num_hyper_layers": 5}}}, "gen.hyper.num_hyper_layers: got 5, expected at least 1, and below num_downsamples"),
        ({"gen": {"num_downsamples": 4}}, "gen.num_downsamples: got 4, expected 5, as embedding.num_downsamples beside it: change both"),
        ({"gen": {"embed": {"num_downsamples": 1}}}, "gen.embed.num_downsamples: got 1, expected at least 2"),
        (
            {"dis": {"additional_discriminators": {"hand": {"loss_weight": 10}}}},
            "dis.additional_discriminators.hand: got a discriminator of hands, expected that of faces alone",
        ),
        ({"data": {"num_frames_G": 3}}, "data.num_frames_G: got 3, expected 2: a frame and the one before it"),
        ({"data": {"initial_few_shot_K": 0}}, "data.initial_few_shot_K: got 0, expected a whole number from 1 to 64"),
        ({"data": {"output_h_w": "a"}}, "data.output_h_w: got 'a', expected height and width in pixels"),
    ],
)
def test_mistakes(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_experiment(YamlFile(changed(VIDEOS["faces"], changes)))
    assert str(raised.value).startswith(line)


def test_weights_that_are_incomplete_are_refused() -> None:
    with pytest.raises(CheckpointError, match="the file is incomplete: it has no weight_generator.ref_img_first.layers.conv.weight"):
        from_state_dict({"up_0.weight": torch.ones(1)}, None, CONFIG)


def test_faces_are_not_cut_out_by_themselves() -> None:
    experiment = read(changed(VIDEOS["faces"], {"data": {"output_h_w": "128, 256"}}))
    assert any(line.startswith("data.output_h_w: faces are not cut out by themselves: set data.cut_out") for line in experiment.warnings)
    assert experiment.data.config is not None and (experiment.data.config.image_size, experiment.data.config.width) == (128, 256)


def test_people_are_cut_out_where_the_file_gives_a_size_for_it() -> None:
    sized, whole = VIDEOS["few-shot dancing"], changed(VIDEOS["few-shot dancing"], {"data": {"output_h_w": None}})
    assert [read(values).data.config.cut_out for values in (sized, whole)] == ["person", "none"]  # type: ignore[union-attr]


def test_steps_on_references_are_a_hundred_where_the_file_says_no_number() -> None:
    def steps(**arguments: Any) -> int:
        return read(changed(VIDEOS["faces"], {"inference_args": arguments})).model.translation.finetune  # type: ignore[attr-defined]

    assert [steps(), steps(finetune=True), steps(finetune=True, finetune_iter=7), steps(finetune=False, finetune_iter=7)] == [0, 100, 7, 0]


@pytest.mark.parametrize("name", ["dancing", "few-shot dancing"])
def test_no_part_of_people_is_left_out_where_the_file_does_not_ask_for_it(name: str) -> None:
    silent = changed(VIDEOS[name], {"data": {"for_pose_dataset": {"random_drop_prob": None}}})
    assert [read(values).data.config.drop_parts for values in (VIDEOS[name], silent)] == [0.05, 0.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["street", "faces", "world"])
def test_sizes_of_clips_where_the_file_says_nothing(name: str) -> None:
    silent = changed(VIDEOS[name], {"data": {"output_h_w": None, "train": {"augmentations": None}}})
    assert read(silent).data.spec.height_and_width == (512, 512)


def test_layers_whose_weights_are_made_are_fewer_than_the_halvings_where_the_file_says_no_number() -> None:
    def layers(halvings: int) -> int:
        embed = {"embed": {"num_downsamples": halvings}}
        gen = {"num_downsamples": halvings, "hyper": {"num_hyper_layers": None}, **embed, "flow": {"multi_spade_combine": embed}}
        return read(changed(VIDEOS["faces"], {"gen": gen})).model.generator.generated  # type: ignore[attr-defined]

    assert [layers(halvings) for halvings in (3, 4, 5, 6)] == [2, 3, 4, 4]
