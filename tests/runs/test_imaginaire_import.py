"""imaginaire's YAML files and checkpoints as runs: their weights, averages and translations are those of the networks themselves."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.interop.imaginaire_files import ALONE, PUBLISHED, changed, checkpoint, small, written
from triptych.core.batch import STYLE, DataSpec
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.core.model import Model, seeded_build
from triptych.core.rng import Rng
from triptych.gans.weight_norms import normalised_weight, spectral_layers
from triptych.interop.imaginaire.experiment import read_experiment
from triptych.interop.imaginaire.yaml_file import YamlFile
from triptych.runs import Run, import_run, train

TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@cache
def trained(model: str) -> tuple[Model, Model]:
    """A model, and one whose generator stands for its average: with running statistics that are not those of the start."""
    experiment = read_experiment(YamlFile(small(model)))
    built = seeded_build(experiment.model, experiment.data.spec, seed=1), seeded_build(experiment.model, experiment.data.spec, seed=2)
    generator = torch.Generator().manual_seed(0)
    for one in built:
        for name, tensor in one.state_dict().items():
            if name.endswith("running_mean"):
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
            elif name.endswith(("weight", "weight_orig")) and tensor.ndim > 1:
                tensor.mul_(1 + 0.1 * torch.rand(tensor.shape, generator=generator)).mul_(20 if model == "spade" else 1)
        one.eval()
    return built


def imported(model: str, content: Any, values: dict[str, Any] | None = None, **given: Any) -> Run:
    file = written(Path("c.yaml"), small(model) if values is None else values)
    torch.save(content, "c.pt")
    shutil.rmtree("run", ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_run(file, "run", program="imaginaire", checkpoint="c.pt", **given)


def inputs(spec: DataSpec, sources: Any, side: int) -> dict[str, Tensor]:
    """Two of what a model makes images from."""
    found: dict[str, Tensor] = {}
    for source in sources:
        if source.kind == "image":
            found[source.name] = torch.rand(2, source.channels, side, side) * 2 - 1
        else:
            found[source.name] = torch.randint(source.num_classes or 9, (2, side, side))
    return found


@pytest.mark.parametrize("model", PUBLISHED)
def test_weights_averages_and_translations(model: str) -> None:
    live, average = trained(model)
    lines: list[str] = []
    run = imported(model, checkpoint(live, average), report=lines.append)
    assert "the state of its optimizers is not taken: they begin anew" in lines
    raw = run.load(weights="raw", device="cpu")
    found = raw.state_dict()
    for name, tensor in live.state_dict().items():
        assert torch.equal(found[name], tensor), name
    loaded = run.load(device="cpu")
    generators: Any = (loaded.generator, average.generator)
    for one, other in zip(*(spectral_layers(g) for g in generators), strict=True):
        torch.testing.assert_close(normalised_weight(one), normalised_weight(other), rtol=1e-5, atol=1e-7)
    buffers = [dict(g.named_buffers()) for g in generators]
    assert all(torch.equal(tensor, buffers[1][name]) for name, tensor in buffers[0].items() if "running" in name)
    torch.manual_seed(0)
    side = max(64, int(getattr(loaded, "least_size", 0)))
    given = inputs(run.spec, loaded.sources, side)  # type: ignore[arg-type]
    if loaded.styles == "required":
        given[STYLE] = torch.rand(2, 1, 3, side, side) * 2 - 1
    average = copy.deepcopy(average).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as what is loaded
    rng = Rng(0, ("translate",), torch.arange(2))
    made: list[Tensor] = [one.translate(given, rng, settings=loaded.translation) for one in (loaded, average, raw)]  # type: ignore[operator, arg-type]
    assert made[0].shape == (2, 3, side, side)
    assert (made[0] - made[1]).abs().max() < TOLERANCE < (made[0] - made[2]).abs().max()


@pytest.mark.slow
def test_without_an_average_and_without_a_discriminator() -> None:
    live, _ = trained("munit")
    lines: list[str] = []
    run = imported("munit", checkpoint(live, discriminator=False), report=lines.append)
    assert "it has no net_D: the discriminator begins anew" in lines
    loaded = run.load(device="cpu").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in live.state_dict().items() if name.startswith("generator."))
    fresh = seeded_build(run.config.model, run.spec, seed=0).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in fresh.items() if name.startswith("discriminator."))
    assert run.config.train.ema_rates == (0.9999,) and run.config.train.ema_start == 16_000, "it begins as the file says"


def test_an_average_that_the_file_does_not_speak_of_is_kept() -> None:
    run = imported("unit", checkpoint(*trained("unit")))
    assert run.config.train.ema_rates == (0.9999,) and run.config.train.ema_start == 0
    assert imported("munit", checkpoint(*trained("munit")), processes=4).config.train.batch_size == 64


@pytest.mark.parametrize("said", [{"num_labels": 7}, {"num_labels": None, "out_image_small_side_size": None}])
def test_a_file_without_data_takes_labels_and_size_from_the_weights(said: dict[str, Any]) -> None:
    """And weights of its norms without the norm that the others have."""
    few = {"num_filters": 2, "style_dims": 4, "activation_norm_params": {"num_filters": 4, "weight_norm_type": ""}}
    judge = {"type": "imaginaire.discriminators.spade", "num_filters": 2, "max_num_filters": 4}  # the published one takes long to draw
    values = changed(ALONE, {"gen": {**few, "style_enc": {"num_filters": 2}, **said}, "dis": judge})
    experiment = read_experiment(YamlFile(changed(values, {"gen": {"num_labels": 7, "out_image_small_side_size": 512}})))
    model = seeded_build(experiment.model, experiment.data.spec, seed=1)
    run = imported("spade", checkpoint(model, discriminator=False), values)
    spec = run.spec
    assert [(entry.name, entry.kind, entry.num_classes) for entry in spec.inputs] == [("seg_maps", "classes", 7)]
    generator: Any = run.config.model.generator  # type: ignore[attr-defined]
    assert (spec.image_size, generator.resolution, generator.weight_norm, generator.norm_weight_norm) == (512, 512, "spectral", "none")
    loaded = run.load(device="cpu").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items() if name.startswith("generator."))


def test_a_file_without_data_and_labels_needs_weights_that_fit() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ConfigError, match=r"c.yaml: data: missing, and gen.num_labels too: say what images are made from, or give a"):
            import_run(written(Path("c.yaml"), changed(ALONE, {"gen": {"num_labels": None}})), "run", program="imaginaire")
    live, _ = trained("spade")
    values = changed(small("spade"), {"data": None, "gen": {"num_labels": 9}})
    with pytest.raises(ConfigError, match=r"gen.num_labels: they have 9 channels \(gen.num_labels 9\), but the generator's weights take 8"):
        imported("spade", checkpoint(live), values)


@pytest.mark.slow
def test_the_networks_are_those_of_the_weights() -> None:
    """What the file leaves out, and would else be as published, comes from the shapes."""
    values = changed(small("unit"), {"gen": {"num_filters": None}, "dis": {"num_filters": None, "max_num_filters": None}})
    run = imported("unit", checkpoint(*trained("unit")), values)
    model: Any = run.config.model
    assert (model.generator.num_filters, model.discriminator.max_num_filters) == (4, 16)
    no_discriminator = changed(small("unit"), {"dis": {"type": "imaginaire.discriminators.dummy"}})
    model = imported("unit", checkpoint(trained("unit")[0], discriminator=False), no_discriminator).config.model
    assert model.discriminator.num_filters == 48 and model.generator.num_filters == 4
    values = changed(small("funit"), {"dis": {"num_classes": None}})
    assert imported("funit", checkpoint(*trained("funit")), values).spec.num_classes == 5


def test_a_coarse_pix2pixhd_begins_a_finer_one() -> None:
    live, average = trained("pix2pixHD")
    finer = {"gen": {"local_enhancer": {"num_enhancers": 1}}, "dis": {"num_discriminators": 3}}
    larger = {"data": {"train": {"augmentations": {"resize_smallest_side": 128, "random_crop_h_w": "128, 256"}}}}
    lines: list[str] = []
    run = imported("pix2pixHD", checkpoint(live, average), changed(small("pix2pixHD"), {**finer, **larger}), report=lines.append)
    assert "it has no enhancers: the global generator takes its weights; they and the discriminator begin anew" in lines
    state, own = run.load(device="cpu").state_dict(), live.state_dict()
    taken = [name for name in state if name.startswith("generator.global_model.")]
    assert len(taken) > 50
    for name in taken:
        assert torch.equal(state[name], own[name.replace("global_model.", "global_model.model.")]), name
    fresh = seeded_build(run.config.model, run.spec, seed=0).state_dict()
    assert all(torch.equal(state[name], fresh[name]) for name in state if name not in taken)
    wider = changed(small("pix2pixHD"), {**finer, **larger, "gen": {"global_generator": {"num_filters": 8}, **finer["gen"]}})
    with pytest.raises(CheckpointError, match=r"c.pt: generator.global_model.0.layers.conv.bias has shape \[4\], expected \[8\]"):
        imported("pix2pixHD", checkpoint(live), wider)


def saved(change: Callable[[dict[str, Any]], Any], model: str = "unit") -> dict[str, Any]:
    content = checkpoint(*trained(model))
    change(content)
    return content


FIRST = "module.module.autoencoder_a.content_encoder.model.0.layers.conv.weight"
AVERAGED = "module.averaged_model.autoencoder_a.content_encoder.model.0.layers.conv.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("net_G"), "c.pt: holds no net_G but current_epoch, current_iteration, net_D: this is no checkpoint of imaginaire"),
        (lambda c: c.update(net_G=None), "c.pt: holds no net_G but current_epoch"),
        (lambda c: c.update(net_G=[1]), "c.pt: net_G holds a list, expected tensors by name"),
        (lambda c: c.update(net_G={"module.a": 3}), "c.pt: net_G holds an int under 'module.a'"),
        (lambda c: c.update(net_D={}), "c.pt: net_D is empty"),
        (
            lambda c: c["net_G"].pop(FIRST),
            "c.pt: the file is incomplete: it has no autoencoder_a.content_encoder.model.0.layers.conv.weight",
        ),
        (
            lambda c: c["net_G"].pop(AVERAGED),
            "c.pt: the file is incomplete: it has no autoencoder_a.content_encoder.model.0.layers.conv.wei",
        ),
        (
            lambda c: c["net_G"].update({AVERAGED: torch.ones(3)}),
            "c.pt: autoencoder_a.content_encoder.model.0.layers.conv.weight has shape",
        ),
        (lambda c: c["net_G"].update({FIRST: torch.full((4, 3, 7, 7), torch.nan)}), "holds values that are not finite"),
        (lambda c: c["net_G"].update({"module.module.more": torch.ones(1)}), "c.pt: the file is of another network: it has more"),
        (lambda c: c["net_D"].update({"module.more": torch.ones(1)}), "c.pt: the file is of another network: it has more"),
    ],
)
def test_checkpoints_that_do_not_fit_are_named(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        imported("unit", saved(change))
    assert message in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 300
    assert not Path("run").exists()


@pytest.mark.parametrize(("model", "other"), [("munit", "funit"), ("spade", "unit"), ("funit", "pix2pixHD"), ("pix2pixHD", "spade")])
def test_the_weights_of_another_model_are_named(model: str, other: str) -> None:
    message = rf"^c\.pt: holds the weights of another model than {model} .*: give the YAML file that they were trained with$"
    with pytest.raises(CheckpointError, match=message):
        imported(model, checkpoint(*trained(other)))


@pytest.mark.slow
@pytest.mark.parametrize("model", PUBLISHED)
def test_every_cut_checkpoint_is_refused(model: str) -> None:
    """Without a tensor, or with one of another number of axes."""
    whole = checkpoint(*trained(model))
    for part in ("net_G", "net_D"):
        names = [name for name in whole[part] if "num_updates" not in name]
        first, last = names[0], names[-1]
        for state in ({k: v for k, v in whole[part].items() if k != last}, whole[part] | {first: whole[part][first][None]}):
            with pytest.raises((CheckpointError, ConfigError)) as raised:
                imported(model, whole | {part: state})
            assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


def test_an_average_with_spectral_norm_is_read_too() -> None:
    """As remove_sn: False leaves it; here with more digits than the weights beside it."""
    live, average = trained("munit")
    network: Any = average.generator
    kept = {f"module.averaged_model.{key}": tensor.double() for key, tensor in network.state_dict().items()}
    content = checkpoint(live, average)
    rest = {key: tensor for key, tensor in content["net_G"].items() if ".averaged_model." not in key}
    plain, same = (imported("munit", content | {"net_G": state}).load(device="cpu") for state in (content["net_G"], rest | kept))
    for (name, one), other in zip(plain.state_dict().items(), same.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    first = next(key for key in kept if key.endswith("weight_u"))
    stem = first.removeprefix("module.averaged_model.")
    for change, message in (
        ({}, f"the file is incomplete: it has no {stem}"),
        ({first: torch.ones(3)}, rf"{stem} has shape \[3\], expected"),
    ):
        broken = rest | {key: tensor for key, tensor in kept.items() if key != first} | change
        with pytest.raises(CheckpointError, match=message):
            imported("munit", content | {"net_G": broken})


def test_an_average_of_zeros_is_refused() -> None:
    content = saved(lambda c: None, "munit")
    name = next(key for key in content["net_G"] if ".averaged_model." in key and key.endswith("content_encoder.model.0.layers.conv.weight"))
    content["net_G"][name] = torch.zeros_like(content["net_G"][name])
    with pytest.raises(CheckpointError, match="content_encoder.model.0.layers.conv.weight is 0 throughout"):
        imported("munit", content)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            "spade",
            {"data": {"one_hot_num_classes": {"seg_maps": 7}}},
            "c.yaml: data.input_labels: they have 9 channels (seg_maps 8, edge_maps",
        ),
        ("munit", {"gen": {"weight_norm_type": "none"}}, "c.yaml: gen.weight_norm_type: got 'none', but the weights have 'spectral'"),
        ("funit", {"dis": {"num_classes": 6}}, "c.yaml: dis.num_classes: got 6, but the weights know 5 classes"),
        (
            "unit",
            {"data": {"input_types": [{"images_a": {"num_channels": 1}}]}},
            "c.yaml: data.input_types: images have 1 channel, but the",
        ),
        ("unit", {"gen": {"type": "imaginaire.generators.gancraft"}}, "c.yaml: gen.type: got 'imaginaire.generators.gancraft'"),
        (
            "munit",
            {"data": {"train": {"augmentations": {"resize_h_w": None, "random_crop_h_w": 64}}}},
            "c.yaml: model.discriminator.num_layers",
        ),
    ],
)
def test_files_that_the_weights_do_not_bear_out(model: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        imported(model, checkpoint(*trained(model)), changed(small(model), changes))
    assert str(raised.value).startswith(message)


def test_files_that_are_no_checkpoints() -> None:
    file = written(Path("c.yaml"), small("unit"))
    torch.save(checkpoint(*trained("unit")), "c.pt")
    whole = Path("c.pt").read_bytes()
    Path("cut.pt").write_bytes(whole[: len(whole) // 2])
    torch.save({"net_G": torch.nn.Linear(2, 2)}, "code.pt")
    Path("text.pt").write_text("hello")
    torch.save([], "list.pt")
    for name, message in (
        ("cut.pt", "cut.pt is damaged"),
        ("code.pt", "code.pt holds more than tensors: to read it, code that it names would have to be run"),
        ("text.pt", "text.pt is damaged"),
        ("list.pt", "list.pt: holds no net_G: this is no checkpoint"),
        ("none.pt", "there is no file none.pt"),
    ):
        with warnings.catch_warnings(), pytest.raises(CheckpointError, match=message) as raised:
            warnings.simplefilter("ignore")
            import_run(file, "run", program="imaginaire", checkpoint=name)
        assert "\n" not in str(raised.value)


def test_what_does_not_go_together() -> None:
    file = written(Path("c.yaml"), small("unit"))
    for given, message in (
        ({"flags": "--a 1"}, "flags: a YAML file of imaginaire says it all"),
        ({"ema": "x.pt"}, "ema: a YAML file"),
        ({"ema_rate": 0.5}, "ema_rate: a YAML file"),
        ({"processes": 0}, "processes: got 0, expected at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            import_run(file, "run", program="imaginaire", **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="data: goes with imaginaire, not with glow"):
        import_run(file, "run", program="glow", data="x")
    with pytest.raises(DataError, match="nowhere: does not exist"):
        import_run(file, "run", program="imaginaire", data="nowhere")


# Settings alone


def photographed(folder: Path, count: int, *, side: int = 160) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for k in range(count):
        Image.fromarray(generator.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(folder / f"{k:03d}.png")


def short(**changes: Any) -> dict[str, Any]:
    """UNIT for three iterations on images of 32 pixels."""
    base: dict[str, Any] = {
        "max_iter": None,
        "max_epoch": 1,
        "snapshot_save_iter": None,
        "image_save_iter": None,
        "dis": {"num_layers": 2, "num_discriminators": 1},
        "trainer": {"model_average_config": {"enabled": True, "start_iteration": 1}},
        "data": {
            "train": {"roots": ["photos/train"], "batch_size": 2, "augmentations": {"resize_smallest_side": 32, "random_crop_h_w": 32}},
            "val": {"roots": ["photos/val"], "augmentations": {"resize_smallest_side": 32}},
        },
    }
    return changed(changed(small("unit"), base), changes)


@pytest.mark.slow
def test_a_run_with_settings_alone_is_trained() -> None:
    for part, count in (("train", 6), ("val", 2)):
        for domain in "ab":
            photographed(Path(f"photos/{part}/images_{domain}"), count, side=40)
    lines: list[str] = []
    run = import_run(written(Path("c.yaml"), short()), "run", program="imaginaire", report=lines.append)
    assert run.checkpoints() == [] and run.config.data.path == "photos" and run.config.train.total_images == 6
    with pytest.raises(CheckpointError, match="has no checkpoint yet; train it first"):
        run.load()
    again = import_run(Path("c.yaml"), "run", program="imaginaire", processes=3)
    assert again.config.train.batch_size == 6, "nothing was lost, so it may be replaced"
    config = run.config.updated({"train": {"sample_count": 0, "seed": 3}, "data": {"workers": 0}})
    done = train(config, "run", device="cpu")
    assert done.checkpoints() == [6] and done.config.train.seed == 3
    assert sorted(path.name for path in Path("run/checkpoints/000000006").iterdir())[0] == "ema-0.9999.safetensors"
    with pytest.raises(CheckpointError, match="run holds a run already"):
        import_run(Path("c.yaml"), "run", program="imaginaire")


@pytest.mark.slow
def test_training_goes_on_from_an_imported_average() -> None:
    """On images of 32 pixels, which the small networks take; the rate of the average is so high that it hardly moves."""
    for domain in "ab":
        photographed(Path(f"photos/images_{domain}"), 6, side=40)
    values = changed(short(), {"dis": {"num_layers": 4, "num_discriminators": 3, "shared": None}})
    values["data"]["train"]["augmentations"] = {"resize_smallest_side": 128, "random_crop_h_w": 128}
    run = imported("unit", checkpoint(*trained("unit")), values, data="photos")
    before = run.tensors()
    config = run.config.updated({"train": {"total_images": 2, "sample_count": 0, "validate_images": 0}, "data": {"workers": 0}})
    after = train(config, "run", device="cpu").tensors()
    moved = [
        float((after[name] - before[name]).abs().max()) for name in before if name.startswith("generator.") and name.endswith("weight")
    ]
    assert 0 < max(moved) < 1e-4 and run.config.train.ema_start == 0


def test_where_the_data_lie() -> None:
    def path(**changes: Any) -> str | None:
        lines.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_run(written(Path("c.yaml"), short(**changes)), "run", program="imaginaire", report=lines.append).config.data.path

    lines: list[str] = []
    assert path() is None and any("there is no photos/train here; triptych train takes the folder as --data.path" in line for line in lines)
    for domain in "ab":
        photographed(Path(f"photos/train/images_{domain}"), 4, side=40)
    assert path() == "photos/train"
    assert "data.val.roots: there is no photos/val here" in lines
    Path("held").mkdir()
    assert path(data={"val": {"roots": ["held"]}}) == "photos/train"
    assert any(line.startswith("data.val.roots: held is not used: it is not beside photos/train") for line in lines)
    Path("photos/val").mkdir()
    assert path() == "photos"
    assert path(data={"val": None}) == "photos/train"


def test_epochs_of_data_that_are_not_there_are_said_to_be_unknown() -> None:
    with pytest.warns(UserWarning, match="the file counts in epochs, and how long one is nobody knows: import it with --data DIR"):
        run = import_run(written(Path("c.yaml"), short()), "run", program="imaginaire")
    assert run.config.train.total_images == 1_000_000 and run.config.optim.schedule == "constant"
    for domain in "ab":
        photographed(Path(f"elsewhere/images_{domain}"), 9, side=40)
    counted = import_run(Path("c.yaml"), "run", program="imaginaire", data="elsewhere").config
    assert counted.data.path == "elsewhere" and 2 <= counted.train.total_images <= 8
    Path("elsewhere/images_b/000.png").write_text("no picture")
    with pytest.warns(UserWarning, match=r"how long one is cannot be counted \(.*000.png"):
        import_run(Path("c.yaml"), "run", program="imaginaire", data="elsewhere")


def test_few_shot_data_lie_in_the_folder_of_the_contents() -> None:
    for name in ("cat", "dog"):
        photographed(Path(f"faces/images_content/{name}"), 2)
    values = changed(small("funit"), {"data": {"train": {"roots": ["faces"]}, "val": {"roots": ["held"]}}})
    for line in (
        "data.val.roots: there is no held here",
        "data.val.roots: held is not used; classes of faces are held out by --data.held-out",
    ):
        lines: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = import_run(written(Path("c.yaml"), values), "run", program="imaginaire", report=lines.append)
        assert run.config.data.path == "faces/images_content" and line in lines
        Path("held").mkdir(exist_ok=True)
