"""Averages that were not tracked: put together out of the snapshots of a run, found by the verbs, and refused where there is too little."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tests.contract.shrink import BATCH, shrunk
from tests.engine.toys import Denoiser, make_loop, seeded
from tests.engine.toys import run as finish
from triptych.cli.main import main
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import Averaged, Phase
from triptych.engine.checkpoint import load_checkpoint
from triptych.engine.ema import averaged_state
from triptych.engine.run_directory import RunDirectory
from triptych.interop.programs import Exported, ExportRequest
from triptych.runs import Run, interchange, open_run, train
from triptych.runs.averaging import mixed, mixture
from triptych.runs.stored import build

TRACKED, OTHERS = (0.05, 0.1), (0.04, 0.075, 0.15)
STEPS, MIDDLE = 32, 24


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that tracks all of these lengths: 8 snapshots, checkpoints after 24 and 32 steps."""
    config = shrunk("adm-digits").updated({"model": {"network": {"num_channels": 32, "channel_mult": (1,), "attention_resolutions": ()}}})
    settings = {"total_images": STEPS * BATCH, "validate_images": 0, "keep_last": 9, "checkpoint_every": MIDDLE * BATCH}
    averages = {"ema_rates": (0.9,), "ema_lengths": (*TRACKED, *OTHERS), "snapshot_every": 4 * BATCH}
    optim = replace(config.optim, learning_rate=1e-3, warmup_images=0)
    config = replace(config, optim=optim, train=replace(config.train, **settings, **averages))
    return train(config, tmp_path_factory.mktemp("runs") / "other", device="cpu")


@pytest.fixture(scope="module")
def stored(other: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run as if it had tracked but two lengths."""
    root = shutil.copytree(other.directory, tmp_path_factory.mktemp("runs") / "tracked")
    gone = {f"ema-length-{length}.safetensors" for length in OTHERS}
    for path in root.glob("*/*/state.json"):
        state = json.loads(path.read_text())
        del state["digest"]
        path.write_text(json.dumps(state | {"files": {name: digest for name, digest in state["files"].items() if name not in gone}}))
        for name in gone:
            (path.parent / name).unlink()
    document = json.loads((root / "config.json").read_text())
    document["train"]["ema_lengths"] = TRACKED
    (root / "config.json").write_text(json.dumps(document))
    return open_run(root)


@pytest.fixture
def run(stored: Run, tmp_path: Path) -> Run:
    """A copy, to be changed."""
    return open_run(shutil.copytree(stored.directory, tmp_path / "run"))


def flat(tensors: dict[str, Tensor], run: Run) -> Tensor:
    """The learned weights in one vector."""
    return torch.cat([tensors[name].double().flatten() for name in learned(run)])


def learned(run: Run) -> list[str]:
    return [name for name, tensor in averaged_state(run.outline).items() if isinstance(tensor, torch.nn.Parameter)]


@pytest.mark.parametrize("length", OTHERS)
def test_an_average_is_put_together_as_if_it_had_been_tracked(stored: Run, other: Run, length: float) -> None:
    """Within a hundredth of what the weights have changed since the start, and far nearer than the nearest that was tracked."""
    beginning = flat(averaged_state(build(stored.config, stored.spec)), stored).detach()
    for images in (MIDDLE * BATCH, STEPS * BATCH):
        expected = load_checkpoint(other.directory / f"checkpoints/{images:09d}").files[f"ema-length-{length}"]
        found = stored.tensors(checkpoint=str(images), weights=f"ema-length-{length}")
        off = (flat(found, stored) - flat(expected, stored)).norm()
        assert off < 0.01 * (flat(expected, stored) - beginning).norm()
        nearest = [flat(stored.tensors(checkpoint=str(images), weights=f"ema-length-{one}"), stored) for one in TRACKED]
        assert off < 0.2 * min((one - flat(expected, stored)).norm() for one in nearest)
        assert found.keys() == stored.tensors(checkpoint=str(images)).keys()
        for name, tensor in stored.tensors(checkpoint=str(images)).items():
            assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape


def test_one_that_was_tracked_is_taken_from_the_checkpoint(stored: Run) -> None:
    checkpoint = load_checkpoint(stored.directory / f"checkpoints/{STEPS * BATCH:09d}")
    found, origin = stored.tensors(weights="ema-length-0.10"), stored.origin(weights="ema-length-0.10")
    assert all(torch.equal(found[name], tensor) for name, tensor in checkpoint.files["ema-length-0.1"].items())
    assert origin == {"images": STEPS * BATCH, "weights": "ema-length-0.1", "hash": checkpoint.hashes["ema-length-0.1"]}


def test_an_average_of_a_snapshot_without_a_checkpoint(stored: Run) -> None:
    images = 8 * BATCH
    snapshot = load_checkpoint(stored.directory / f"snapshots/{images:09d}")
    found = stored.tensors(checkpoint=str(images), weights="ema-length-0.1")
    assert all(torch.equal(found[name], tensor) for name, tensor in snapshot.files["ema-length-0.1"].items())
    assert stored.origin(checkpoint=str(images), weights="ema-length-0.075")["images"] == images
    made = mixture(stored.paths, 0.075, images)
    assert {part.profile.images for part in made.parts} == {4 * BATCH, 8 * BATCH}
    with pytest.raises(CheckpointError, match=rf"has a snapshot at {images} images and no checkpoint: say which average"):
        stored.tensors(checkpoint=str(images))


def test_the_sum_is_that_of_the_files(stored: Run) -> None:
    """With the coefficients of the mixture, in float64; what is not learned is copied."""
    made = mixture(stored.paths, 0.15, STEPS * BATCH)
    parts = [load_checkpoint(part.folder).files[part.stem] for part in made.parts]
    found = stored.tensors(weights="ema-length-0.15")
    for name in learned(stored):
        total = np.tensordot(made.combination.coefficients, np.stack([part[name].double().numpy() for part in parts]), 1)
        np.testing.assert_array_equal(found[name].numpy(), total.astype(np.float32).reshape(found[name].shape))
    assert len(made.parts) == 16 and len({(part.profile, part.digest) for part in made.parts}) == 16
    assert sum(part.folder.parent.name == "checkpoints" for part in made.parts) == 2, "float32, where a snapshot may be less"


def test_one_that_was_kept_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, before = run.origin(weights="ema-length-0.15"), run.tensors(weights="ema-length-0.15")
    made = run.average(0.15)
    assert made.path == run.directory / f"averages/ema-length-0.15/{STEPS * BATCH:09d}/ema-length-0.15.safetensors"
    shutil.rmtree(run.directory / "snapshots")
    assert run.origin(weights="ema-length-0.15") == origin
    after = run.tensors(weights="ema-length-0.15")
    assert after.keys() == before.keys() and all(torch.equal(after[name], tensor) for name, tensor in before.items())
    made.path.write_bytes(made.path.read_bytes()[:-1] + b"\1")
    with pytest.raises(CheckpointError, match=r"ema-length-0.15.safetensors is damaged or cut short"):
        run.tensors(weights="ema-length-0.15")


def test_a_snapshot_that_is_damaged_or_of_another_model_is_named(run: Run) -> None:
    path = run.directory / f"snapshots/{8 * BATCH:09d}/ema-length-0.05.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    said = rf"{8 * BATCH:09d}/ema-length-0.05.safetensors is damaged .*; remove the folder {path.parent}, and the average"
    with pytest.raises(CheckpointError, match=said):
        run.tensors(weights="ema-length-0.15")
    aside = run.directory / "aside"
    path.parent.rename(aside)
    assert len(mixture(run.paths, 0.15, STEPS * BATCH).parts) == 2 * (STEPS // 4 - 1), "without the folder, as the error says"
    run.tensors(weights="ema-length-0.15")
    aside.rename(path.parent)
    (path.parent / "state.json").rename(aside)
    with pytest.raises(CheckpointError, match=rf"remove the folder {path.parent}, and"):
        run.tensors(weights="ema-length-0.15")
    aside.rename(path.parent / "state.json")
    path.write_bytes(whole)
    run.tensors(weights="ema-length-0.15")
    wide = run.config.updated({"model": {"network": {"num_channels": 2 * run.config.model.network.num_channels}}})  # type: ignore[attr-defined]
    document = json.loads((run.directory / "config.json").read_text())
    (run.directory / "config.json").write_text(json.dumps(document | {"model": wide.to_dict()["model"]}))
    with pytest.raises(CheckpointError, match=r"snapshots/.*/ema-length-0.05.safetensors is of another model"):
        open_run(run.directory).tensors(weights="ema-length-0.15")


def test_what_an_average_was_before_it_began_is_not_taken_for_its_past(run: Run) -> None:
    """Of an average that began late, snapshots count from where hardly anything is left of the weights it began at."""
    for number in range(4, STEPS + 1, 4):
        path = run.directory / f"snapshots/{number * BATCH:09d}/state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"begun": {"ema-length-0.1": 7 * BATCH}}))
    made = mixture(run.paths, 0.15, 28 * BATCH)
    times = [part.profile.images // BATCH for part in made.parts if part.stem == "ema-length-0.1"]
    assert times == [24, 28], "(7 / 24)^7.94 is 6e-5, (7 / 20)^7.94 more than 1e-4"
    assert sum(part.stem == "ema-length-0.05" for part in made.parts) == 7


@pytest.mark.parametrize(
    ("length", "at", "message"),
    [
        (0.3, None, "length: got 0.3, expected from 0.001 to 0.288"),
        (0.1, 9999, f"at: got 9999, expected 1 to {STEPS * BATCH}, the images seen at the newest checkpoint or snapshot"),
        (
            0.1,
            28 * BATCH + 1,
            f"at: got {28 * BATCH + 1}, where the run has no checkpoint and no snapshot, so no command could draw with the average; "
            f"give {28 * BATCH} or {32 * BATCH}, or --out FILE.safetensors",
        ),
    ],
)
def test_what_the_run_does_not_have_is_refused(run: Run, length: float, at: int | None, message: str) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=message):
        run.average(length, at=at)
    assert not (run.directory / "averages").exists()


def test_too_few_snapshots_say_where_the_first_is(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"no averages by length up to 20 images seen: .* its first snapshot is at {4 * BATCH}"):
        run.average(0.1, at=20, out=tmp_path / "x.safetensors")
    shutil.rmtree(run.directory / "checkpoints")
    with pytest.raises(CheckpointError, match=rf"no checkpoint yet, only snapshots of averages until {32 * BATCH} images, which need one;"):
        run.average(0.1)


def test_one_that_is_kept_is_not_made_worse(run: Run, tmp_path: Path) -> None:
    """Where snapshots are gone, what is left of them is no better; where some came in, the average is made anew."""
    late = [run.directory / f"snapshots/{number * BATCH:09d}" for number in range(4, 24, 4)]
    for folder in late:
        shutil.move(folder, tmp_path / folder.name)
    rough = run.average(0.15)
    before = rough.path.read_bytes()
    for folder in late:
        shutil.move(tmp_path / folder.name, folder)
    fine = run.average(0.15)
    kept = fine.path.read_bytes()
    assert fine.path == rough.path and kept != before and fine.described.startswith("16 averages")
    for folder in late:
        shutil.rmtree(folder)
    for left in ("some", "none"):
        again = run.average(0.15, out=tmp_path / "deeper" / f"{left}.safetensors")
        assert run.average(0.15).path.read_bytes() == kept and again.described == "kept from an earlier call, residual 3.33%"
        written, expected = load_file(again.path), load_file(fine.path)
        assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
        shutil.rmtree(run.directory / "snapshots", ignore_errors=True)
    state_file = run.directory / f"checkpoints/{STEPS * BATCH:09d}/state.json"
    whole = state_file.read_text()
    state = json.loads(whole)
    del state["files"]["ema-length-0.05.safetensors"]
    state_file.write_text(json.dumps(state))
    assert run.average(0.15).described == "kept from an earlier call, residual 3.33%", "where there is too little to make one"
    state_file.write_text(whole)
    fine.path.write_bytes(kept[:-1] + b"\1")
    run.average(0.15)  # of the checkpoints alone
    assert fine.path.read_bytes() not in (kept, kept[:-1] + b"\1")


def test_a_run_without_averages_by_length_says_how_to_have_them(tiny: Callable[[str], Run], capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny("adm-digits")
    assert main(["average", str(run.directory), "--length", "0.1"]) == 2
    how = "a training with --train.ema-lengths 0.05,0.1 --train.snapshot-every IMAGES writes them"
    said = f"{run.directory} has no averages by length up to {BATCH} images seen: too few to put ema-length-0.1 together; {how}\n"
    assert capsys.readouterr().err.endswith(f"triptych: error: {said}")


def test_a_length_out_of_reach_is_warned_of(run: Run) -> None:
    said = r"ema-length-0.004 at 192 images seen has a residual of 78.\d\d%: what the run tracked does not reach it well; give a length"
    with pytest.warns(UserWarning, match=said):
        run.average(0.004)
    state = json.loads((run.directory / f"averages/ema-length-0.004/{STEPS * BATCH:09d}/state.json").read_text())
    assert 0.78 < state["residual"] < 0.79
    with pytest.warns(UserWarning, match=said):
        run.average(0.004)


def test_the_command(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(run.directory)
    assert main(["average", place, "--length", "0.15", "--at", str(28 * BATCH), "--out", str(tmp_path / "mine.safetensors")]) == 0
    said = capsys.readouterr().out
    assert "14 averages of length 0.05 and 0.1 at 7 times, residual " in said
    found, expected = load_file(tmp_path / "mine.safetensors"), run.tensors(checkpoint=str(28 * BATCH), weights="ema-length-0.15")
    assert found.keys() == averaged_state(run.outline).keys() and all(torch.equal(expected[name], found[name]) for name in found)
    again = ["average", place, "--length", "0.1", "--at", str(28 * BATCH), "--out", str(tmp_path / "mine.safetensors")]
    assert main(again) == 0, "over one that it made"
    notes = {"power_function_length": "0.1", "images_seen": str(28 * BATCH)}
    with safe_open(tmp_path / "mine.safetensors", "pt") as file:
        assert file.metadata() == notes
    newest = run.directory / f"checkpoints/{STEPS * BATCH:09d}/model.safetensors"
    for name, content in (("weights", newest.read_bytes()), ("cut", b"\0"), ("empty", b"")):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
        capsys.readouterr()
        assert main([*again[:-1], str(tmp_path / f"{name}.safetensors")]) == 2
        assert f"{name}.safetensors: it is there, and no such command made it; choose another --out" in capsys.readouterr().err
        assert (tmp_path / f"{name}.safetensors").read_bytes() == content
    assert main(["average", "none", "--help"]) == 0 and "--length" in capsys.readouterr().out, "without a run"
    assert main(["average", place]) == 2 and "--length: missing; usage: triptych average" in capsys.readouterr().err
    assert main(["average", place, "--length", "0.15", "--out", "mine.pt"]) == 2
    assert "--out: got 'mine.pt', expected a name that ends with .safetensors" in capsys.readouterr().err
    assert main(["average", place, "--length", "0.15", "--at", "0"]) == 2
    assert "--at: got 0, expected at least 1" in capsys.readouterr().err
    assert main(["average", place, "--length", "0.15"]) == 0
    assert f"draw with it: triptych sample {place} --ema-length 0.15" in capsys.readouterr().out
    snapshot = f"{place}/snapshots/{8 * BATCH:09d}"
    assert main(["average", f"{place}/snapshots/{8 * BATCH}", "--length", "0.15"]) == 0
    *_, command = capsys.readouterr().out.strip().split("draw with it: triptych ")
    assert command == f"sample {place} --checkpoint {8 * BATCH} --ema-length 0.15"
    flags = ["--count", "1", "--steps", "2", "--device", "cpu", "--out", str(tmp_path / "drawn.png")]
    assert main([*command.split(), *flags]) == 0
    assert main(["average", snapshot, "--length", "0.15", "--at", "3"]) == 2
    assert f"--at: got one beside '{snapshot}', which says the images already" in capsys.readouterr().err
    assert main(["runs", place]) == 0 and "8 snapshots of averages" in capsys.readouterr().out


@pytest.mark.slow
def test_samples_and_figures_by_length(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    common = [str(run.directory), "--device", "cpu", "--sampler", "ddim", "--steps", "2"]
    images = {}
    for length in (None, 0.1, 0.2):
        out = tmp_path / f"{length}.npz"
        assert main(["sample", *common, "--count", "3", "--out", str(out), *([] if length is None else ["--ema-length", str(length)])]) == 0
        images[length] = np.load(out)["arr_0"]
    assert (images[0.2] != images[None]).any() and (images[0.1] != images[None]).any() and (images[0.1] != images[0.2]).any()
    settings = run.config.model.sampling.updated({"sampler": "ddim", "steps": 2})  # type: ignore[attr-defined]
    np.testing.assert_array_equal(run.sample(3, settings=settings, ema_length=0.2, device="cpu").images, images[0.2])
    assert main(["sample", *common, "--ema-length", "0.1", "--weights", "raw"]) == 2
    assert "--ema-length: got 0.1 beside --weights raw; leave one of them out" in capsys.readouterr().err
    score = ["evaluate", *common, "--metrics", "frechet", "--features", "random", "--count", "5"]
    assert main([*score, "--sweep", "ema-length=0.05,0.1,0.2"]) == 0
    head, *rows, protocol = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "ema-length" and [row.split()[0] for row in rows] == ["0.05", "0.1", "0.2"]
    assert len({row.split()[1] for row in rows}) == 3
    assert protocol.startswith("ema-length = 0.05, 0.1, 0.2, else 5 images") and "images seen" not in protocol


@pytest.mark.slow
def test_a_guide_has_a_length_of_its_own(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    common = [str(run.directory), "--device", "cpu", "--sampler", "ddim", "--steps", "2", "--guidance-scale", "2"]
    images = []
    for guide, *length in (["checkpoints/144"], ["checkpoints/144", "0.2"], ["snapshots/000000096", "0.2"], ["snapshots/96", "0.05"]):
        out = tmp_path / f"{len(images)}.npz"
        flags = ["--guide-with", str(run.directory / guide), *(["--guide-ema-length", *length] if length else [])]
        assert main(["sample", *common, "--count", "3", "--out", str(out), *flags]) == 0
        images.append(np.load(out)["arr_0"])
    assert len({image.tobytes() for image in images}) == 4
    assert main(["sample", *common, "--guide-ema-length", "0.2"]) == 2
    assert "--guide-ema-length: got 0.2, expected nothing without --guide-with or --guide" in capsys.readouterr().err
    score = ["evaluate", *common, "--metrics", "frechet", "--features", "random", "--count", "5"]
    assert main([*score, "--guide-with", str(run.directory / "checkpoints/144"), "--sweep", "guide-ema-length=0.05,0.2"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:3]
    assert rows[0].split()[1] != rows[1].split()[1]


def test_an_export_takes_a_length(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Tensor] = []

    def exported(to: str, request: ExportRequest) -> Exported:
        loaded.append(next(request.load().parameters()).detach())
        return Exported((request.out,), None, ())

    monkeypatch.setattr(interchange, "exported", exported)
    for flags in ([], ["--ema-length", "0.2"]):
        assert main(["export", str(run.directory), "--to", "diffusers", "--out", str(tmp_path / "out"), *flags]) == 0
    name = next(name for name, _ in run.outline.named_parameters())
    assert torch.equal(loaded[1], run.tensors(weights="ema-length-0.2")[name]) and not torch.equal(*loaded)


def test_buffers_that_go_with_the_weights_are_computed_anew(tmp_path: Path) -> None:
    """As of weights that spectral norm divides."""

    class Summed(Denoiser, Averaged):
        def __init__(self) -> None:
            super().__init__()
            self.network.register_buffer("total", torch.zeros(()))
            self.network.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
            self.network.steps += 1

        def recompute_buffers(self, average: Mapping[str, Tensor]) -> None:
            average["network.total"].copy_(average["network.0.weight"].square().sum())

    model = seeded(Summed)
    finish(make_loop(model, tmp_path, ema_lengths=TRACKED, snapshot_every=16))
    made = mixed(mixture(RunDirectory(tmp_path), 0.075, 64), model)
    assert made["network.total"] == made["network.0.weight"].square().sum() != model.network.total
    assert made["network.steps"] == 8, "those of the newest"
