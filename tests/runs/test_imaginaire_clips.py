"""imaginaire's models of clips as runs: their weights, the SPADE of first frames apart, and epochs of clips."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded, picture
from tests.interop.imaginaire_files import IMAGE, MASK, changed, checkpoint, written
from tests.interop.imaginaire_videos import VIDEOS
from triptych.core.batch import ClipLength
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.images import to_uint8
from triptych.core.model import Model, seeded_build
from triptych.core.rng import Rng
from triptych.data.clips import ClipDataConfig
from triptych.engine.run_directory import RunDirectory
from triptych.gans.spade import SPADE, SPADEGenerator, SPADEGeneratorConfig
from triptych.interop.imaginaire import from_state_dict
from triptych.interop.imaginaire.experiment import read_experiment
from triptych.interop.imaginaire.importer import _counted
from triptych.interop.imaginaire.weights import run_weights
from triptych.interop.imaginaire.yaml_file import YamlFile
from triptych.runs import Run, import_run, train
from triptych.runs.beginning import same_images

HEIGHT, WIDTH, CLASSES, FRAMES = 32, 64, 3, 4
_PART = {"num_filters": 4, "num_downsamples": 2}
_FLOW = {**_PART, "max_num_filters": 8, "num_res_blocks": 1, "multi_spade_combine": {"num_layers": 1, "embed": _PART}}
SMALL: dict[str, Any] = {
    "gen": {"num_filters": 4, "max_num_filters": 8, "num_layers": 3, "num_downsamples_img": 1, "embed": _PART, "flow": _FLOW},
    "dis": {"image": {"num_filters": 4, "max_num_filters": 8, "num_discriminators": 1, "num_layers": 1}},
    "data": {
        "one_hot_num_classes": {"seg_maps": CLASSES},
        "train": {"roots": ["clips/train"], "augmentations": {"resize_h_w": f"{HEIGHT}, {WIDTH}"}},
    },
}
GUIDED = {"gen": {"activation_norm_params": {"num_filters": [0, 0, 4]}}, "trainer": {"loss_weight": {"perceptual": 0}}}
SINGLE = SPADEGeneratorConfig(
    num_filters=4, style_dims=4, spade_filters=4, encoder_filters=4, encoder_size=64, positional_input=True, separate_projection=False,
    norm_weight_norm="none",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def drawn(build: Any) -> Any:
    """A network with weights and statistics that are not those of the start."""
    torch.manual_seed(1)
    network = build()
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2)
            elif tensor.is_floating_point() and not name.endswith(("_u", "_v")):
                tensor.add_(0.3 * torch.randn_like(tensor))
    return network.eval()


def model_of(values: dict[str, Any]) -> Model:
    experiment = read_experiment(YamlFile(values))
    return drawn(lambda: seeded_build(experiment.model, experiment.data.spec, seed=1))


def imported(values: dict[str, Any], content: Any, **given: Any) -> Run:
    if content is not None:
        torch.save(content, "c.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_run(
            written(Path("c.yaml"), values), "run", program="imaginaire", checkpoint=None if content is None else "c.pt", **given
        )


def write_clips(root: Path, *, count: int = 2, frames: int = FRAMES, images: bool = False) -> Path:
    for clip in range(count):
        for t in range(frames):
            labels = np.random.default_rng([clip, t]).integers(CLASSES, size=(8, 16)).repeat(4, 0).repeat(4, 1)
            points = np.arange(HEIGHT)[:, None] * 80 + np.arange(WIDTH) + 2 * t + 1
            write(root / "seg_maps" / f"{clip}" / f"{t}.png", as_map(labels))
            write(root / "points" / f"{clip}" / f"{t}.png", as_map(points.astype(np.uint16)))
            if images:
                write(root / "images" / f"{clip}" / f"{t}.png", encoded(picture(WIDTH, HEIGHT, seed=t)))
    return root


@pytest.mark.slow
def test_weights_of_first_frames_are_a_run_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    written, write_config = list[str](), RunDirectory.write_config

    def noted(self: RunDirectory, document: dict[str, Any]) -> None:
        written.append(self.root.name)
        write_config(self, document)

    monkeypatch.setattr(RunDirectory, "write_config", noted)
    values = changed(VIDEOS["world"], changed(SMALL, GUIDED))
    model, single = model_of(values), drawn(lambda: SPADEGenerator(SINGLE, label_channels=CLASSES))
    content, lines = checkpoint(model), list[str]()
    content["net_G"] |= {f"module.single_image_model.{key}": tensor for key, tensor in single.state_dict().items()}
    run = imported(values, content, report=lines.append)
    assert "the model of first frames is a run of its own, run/first_frames, which triptych translate and evaluate take" in lines
    assert written == ["first_frames", "run"], "an import that is killed between the two is done again"
    found = run.load(device="cpu").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    assert not [name for name in found if "single_image_model" in name]
    first = Run(run.paths.first_frames)
    kept: Any = first.load(device="cpu")
    assert isinstance(kept, SPADE) and kept.config.generator == SINGLE
    state: dict[str, Tensor] = kept.generator.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in single.state_dict().items())
    made = run.translate(write_clips(Path("in"), count=1), device="cpu").images
    assert len(made) == FRAMES and made[2].std() > 5
    maps = {"seg_maps": torch.from_numpy(np.random.default_rng([0, 1]).integers(CLASSES, size=(8, 16)).repeat(4, 0).repeat(4, 1))[None]}
    second = to_uint8(kept.translate(maps, Rng(0, ("translate", "first"), torch.tensor([0])), settings=kept.translation)).numpy()
    assert np.array_equal(made[1], second), "two frames are the SPADE's, as published"


@pytest.mark.slow
def test_averages_have_weights_of_first_frames_too() -> None:
    averaged = {"trainer": {"model_average_config": {"enabled": True}}}
    values = changed(VIDEOS["world"], changed(changed(SMALL, GUIDED), averaged))
    model, single = model_of(values), drawn(lambda: SPADEGenerator(SINGLE, label_channels=CLASSES))
    content = checkpoint(model, model)
    for kind in ("module", "averaged_model"):
        content["net_G"] |= {f"module.{kind}.single_image_model.{key}": tensor for key, tensor in single.state_dict().items()}
    run = imported(values, content)
    assert run.config.train.ema_rates and Run(run.paths.first_frames).load(device="cpu") is not None


def test_without_them_the_run_makes_its_first_frames_itself() -> None:
    values = changed(VIDEOS["world"], changed(SMALL, GUIDED))
    run = imported(values, checkpoint(model_of(values)))
    assert not run.paths.first_frames.exists() and run.translation.to_dict() == {"first_frames": 2}
    assert len(run.translate(write_clips(Path("in")), device="cpu").images) == 2 * FRAMES


def test_weights_that_are_no_spade_are_refused() -> None:
    values = changed(VIDEOS["world"], changed(SMALL, GUIDED))
    content = checkpoint(model_of(values))
    content["net_G"] |= {"module.single_image_model.spade_generator.head_0.layers.conv.weight": torch.ones(32, 5, 3, 3)}
    with pytest.raises(CheckpointError, match="c.pt: single_image_model: the file is incomplete: it has no spade_generator"):
        imported(values, content)


def few_shot() -> dict[str, Any]:
    """The file of a small few-shot vid2vid."""
    part = {"num_filters": 4, "max_num_filters": 8, "num_downsamples": 2, "embed": _PART, "flow": _FLOW | {"num_blocks": 1}}
    small = {
        "gen": part | {"hyper": {"num_hyper_layers": 1, "num_fc_layers": 1}},
        "dis": SMALL["dis"],
        "data": {"output_h_w": "32, 32", "train": {"roots": ["clips/train"]}},
        "trainer": {"loss_weight": {"perceptual": 0}},
    }
    return changed(VIDEOS["faces"], small)


def with_second_flow(content: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint that has the flow network under both of its names."""
    twice = {name: tensor for name, tensor in content["net_G"].items() if "flow_network_ref." in name}
    again = {name.replace("flow_network_ref.", "flow_network_temp."): tensor for name, tensor in twice.items()}
    return content | {"net_G": content["net_G"] | again}


def test_weights_of_few_shot_vid2vid_with_and_without_an_average() -> None:
    file = YamlFile(few_shot())
    experiment = read_experiment(file)
    model = seeded_build(experiment.model, experiment.data.spec, seed=1)
    for average, eps in ((model, 1e-5), (None, 0.1)):
        torch.save(with_second_flow(checkpoint(model, average)), "c.pt")
        found: Any = run_weights("c.pt", experiment, file.settings)
        assert found.experiment.model.generator.reference_eps == eps and (found.average is None) == (average is None)
        assert not [name for name in (*found.model, *(found.average or ())) if "flow_network_temp" in name]


@pytest.mark.slow
def test_an_average_of_few_shot_vid2vid() -> None:
    """Its references have the variance that averages were made with, and the second name of its flow network is left out."""
    values = few_shot()
    live, average = model_of(values), model_of(values)
    generator: Any = average.generator
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.mul_(1.5)
    content = with_second_flow(checkpoint(live, average))
    loaded: Any = imported(values, content).load(device="cpu")
    assert loaded.config.generator.reference_eps == 1e-5 and not [name for name in loaded.state_dict() if "flow_network_temp" in name]
    for name, module in generator.named_modules():
        if name.startswith("weight_generator.ref_label_") and hasattr(module, "eps"):
            module.eps = 1e-5
    label, images = torch.rand(2, 1, 32, 32), torch.rand(2, 1, 3, 32, 32)
    with torch.no_grad():
        found = loaded.generator(label, images, label[:, None]).image
        expected = generator(label, images, label[:, None]).image
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for averaged, eps in ((True, 1e-5), (False, 0.1)):
        made: Any = from_state_dict(content["net_G"], None, values, averaged=averaged).generator
        assert made.network.config.reference_eps == eps
        if averaged:
            with torch.no_grad():
                same = made(label=label, ref_labels=label[:, None], ref_images=images)["fake_images"]
            torch.testing.assert_close(same, expected, rtol=1e-4, atol=1e-4)
    for name, tensor in live.state_dict().items():
        if name.startswith("discriminator."):
            assert torch.equal(loaded.state_dict()[name], tensor)


def test_weights_of_discriminators_of_faces_and_hands() -> None:
    patch = {"num_filters": 4, "max_num_filters": 8, "num_layers": 1}
    small = {"additional_discriminators": {"face": {**patch, "loss_weight": 7}, "hand": {**patch, "loss_weight": 2.5}}}
    values = changed(VIDEOS["dancing"], changed(SMALL, {"dis": small, "trainer": {"loss_weight": {"perceptual": 0}}}))
    values["data"]["one_hot_num_classes"] = None
    values["data"]["train"]["augmentations"] = {"resize_h_w": "64, 64"}
    values["gen"]["style_dims"] = 8
    model, lines = model_of(values), list[str]()
    run = imported(values, checkpoint(model), report=lines.append)
    config: Any = run.config.model
    assert {part: settings.weight for part, settings in config.discriminator.crops.items()} == {"face": 7, "hand": 2.5}
    found = run.load(device="cpu").state_dict()
    names = [name for name in found if ".net_D_face." in name or ".net_D_hand." in name]
    assert len(names) == 2 * (3 * 4 + 2 * 2) and all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    assert not [line for line in lines if "additional_discriminators" in line]


def test_an_average_of_vid2vid() -> None:
    values = changed(VIDEOS["street"], SMALL | {"trainer": {"loss_weight": {"perceptual": 0}}})
    values["data"]["train"]["augmentations"] = {"resize_h_w": f"{HEIGHT}, {WIDTH}"}
    live = model_of(values)
    torch.manual_seed(2)
    average = model_of(values)
    generator: Any = average.generator
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.mul_(1.5)
    run = imported(values, checkpoint(live, average))
    assert run.config.train.ema_rates == pytest.approx((0.999**10,)) and run.config.train.ema_start == 0
    loaded: Any = run.load(device="cpu")
    label = torch.rand(1, CLASSES, HEIGHT, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(loaded.generator(label).image, generator(label).image, rtol=0, atol=1e-5)
        assert (loaded.generator(label).image - live.generator(label).image).abs().max() > 1e-3  # type: ignore[operator]


def test_epochs_are_counted_in_clips() -> None:
    values = changed(VIDEOS["world"], changed(SMALL, GUIDED))
    write_clips(Path("many"), count=9, images=True)
    config = imported(values, None, data="many").config
    data: Any = config.data
    assert (config.train.total_images, data.length.double_every, data.length.most) == (800, 160, FRAMES), "a clip of nine is held out"
    assert config.optim.decay_every == 320
    write_clips(Path("few"), count=2, frames=6, images=True)
    config = imported(values, None, data="few").config
    data = config.data
    assert (config.train.total_images, data.length.double_every, data.length.most) == (600, 120, 6), "fewer than eight batches: all frames"


def test_an_imported_run_of_clips_goes_on_with_their_length() -> None:
    """Which the file says in epochs, or the user in images; a run that was trained since has its own."""
    values = changed(VIDEOS["world"], changed(SMALL, GUIDED))
    write_clips(Path("many"), count=9, images=True)
    run = imported(values, checkpoint(model_of(values), None), data="many")
    assert run.config.data.length.double_every == 160
    opened = run.config.data.open().spec
    assert opened.clip_length != run.spec.clip_length and same_images(run.spec, opened, fresh=True) == opened
    length = replace(run.config.data.length, first=2, most=2, double_every=None)
    data = replace(run.config.data, length=length, workers=0)
    settings = replace(run.config.train, total_images=1, batch_size=1, sample_count=0, validate_images=0, ema_rates=(), compile="off")
    trained = train(replace(run.config, data=data, train=settings), run.directory, device="cpu")
    assert trained.checkpoints()[-1] == 1 and trained.spec.frames == 2
    with pytest.raises(ConfigError, match="the images are not those of this run"):
        same_images(trained.spec, opened)


def test_an_epoch_with_references_is_a_sample_of_each_clip(tmp_path: Path) -> None:
    """However few there are; vid2vid's would be all their frames."""
    write_clips(Path("few"), count=3, frames=12, images=True)
    data = ClipDataConfig(path="few", maps=("seg_maps",), num_classes=(CLASSES,), image_size=32, validation_fraction=0.0, references=1)
    data = replace(data, length=ClipLength(first=2, most=2))
    assert _counted(data, 8)[1] == 3 and _counted(replace(data, references=0), 8)[1] == 36


def test_clips_and_their_references_fit_into_the_longest(tmp_path: Path) -> None:
    write_clips(Path("short"), count=3, frames=12, images=True)
    for place in (Path("short/images"), Path("short/seg_maps")):
        assert len(list(place.glob("*/*.png"))) == 36
    data = {"output_h_w": "32, 32", "input_types": [{"images": IMAGE}, {"seg_maps": MASK}], "input_labels": ["seg_maps"]}
    values = changed(VIDEOS["faces"], {"data": data | {"train": {"max_sequence_length": 16}, "one_hot_num_classes": {"seg_maps": CLASSES}}})
    config = imported(values, None, data="short").config
    opened: Any = config.data
    assert opened.references == 1 and opened.length.most == 11
    assert opened.open().spec.clip_length.most == 11
    values = changed(values, {"data": {"train": {"max_sequence_length": 8}}})
    Path("run").rename("before")
    shorter: Any = imported(values, None, data="short").config.data
    assert shorter.length.most == 8, "as the file says, where that fits"
    assert config.train.ema_rates == (pytest.approx(0.999 ** ((opened.length.first + 11) / 2)),)
