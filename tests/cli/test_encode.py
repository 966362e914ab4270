"""`triptych encode` and what it stands on, `Run.coder`: files, labels, batches, refusals; on a small run that has learnt nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import BATCH, shrunk
from tests.runs.glow import folder, moved_run
from triptych.cli import encode, settings
from triptych.cli.main import main
from triptych.core.batch import RawBatch
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError, RunError
from triptych.diffusion.adm import ADM, EncodingConfig
from triptych.runs import Latents, Run, sampling, train
from triptych.runs.directions import check_directions, read_directions
from triptych.runs.encoding import Coder
from triptych.runs.latents import read_latents, write_latents
from triptych.runs.sampling import check_output

FAST = ("--steps", "4", "--device", "cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = shrunk("adm-digits")
    config = replace(config, train=replace(config.train, total_images=BATCH))
    return train(config, tmp_path_factory.mktemp("runs") / "digits", device="cpu")


@pytest.fixture(scope="module")
def glow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("runs") / "glow")


@pytest.fixture(scope="module")
def unconditional(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = shrunk("adm-digits").updated({"model": {"class_conditional": False}, "train": {"total_images": BATCH}})
    return train(config, tmp_path_factory.mktemp("runs") / "plain", device="cpu")


def pixels(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Five labelled images."""
    np.savez(tmp_path / "images.npz", arr_0=pixels(), arr_1=np.array([3, 1, 4, 1, 5]))
    return tmp_path / "images.npz"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["encode", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["encode", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("triptych: error: ")


def test_there_and_back(run: Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, latents = str(run.directory), tmp_path / "deep" / "latents.npz"
    line = shown(capsys, directory, str(images), "--out", str(latents), "--check", *FAST)
    assert line.startswith(f"5 images encoded in {latents}; decoded they are ")
    with np.load(latents) as file:
        assert sorted(file) == ["arr_0", "labels", "settings"]
        assert file["arr_0"].dtype == np.float32 and file["arr_0"].shape == (5, 1, 8, 8)
        assert file["labels"].tolist() == [3, 1, 4, 1, 5]
    out = tmp_path / "back.npz"
    assert shown(capsys, directory, str(latents), "--decode", "--out", str(out), *FAST) == f"5 images in {out}\n"
    with np.load(out) as file:
        back, labels = file["arr_0"], file["arr_1"]
    assert labels.tolist() == [3, 1, 4, 1, 5]
    # 8-bit images are cut, by half a level on average, where --check compares before that.
    told = float(line.split("decoded they are ")[1].split(" ")[0])
    assert np.abs(back.astype(float) - pixels()).mean() == pytest.approx(told, abs=0.6)


def test_every_kind_of_output(run: Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(run.directory)
    shown(capsys, directory, str(images), "--count", "3", *FAST)
    assert len(read_latents(run.directory / "latents.npz")) == 3
    for out in ("grid.png", "folder"):
        shown(capsys, directory, str(run.directory / "latents.npz"), "--decode", "--count", "2", "--out", str(tmp_path / out), *FAST)
    assert len(list((tmp_path / "folder").glob("*.png"))) == 2
    assert Image.open(tmp_path / "grid.png").size[0] > 16
    shown(capsys, directory, str(run.directory / "latents.npz"), "--decode", *FAST)
    assert (run.directory / "decoded.png").is_file()


def test_archives_of_something_else_are_kept(run: Run, images: Path, tmp_path: Path) -> None:
    """Latents in the place of directions too; an earlier file of the same kind is replaced."""
    np.savez(tmp_path / "mine.npz", arr_0=np.zeros((3, 2), np.float32), other=np.zeros(3))
    coder = run.coder(settings=EncodingConfig(steps=3), device="cpu")
    for _ in range(2):
        coder.encode(pixels(2), labels=[1], out=tmp_path / "latents.npz")
    with pytest.raises(DataError, match=r"mine\.npz: it is there, and no such command made it"):
        coder.encode(pixels(2), labels=[1], out=tmp_path / "mine.npz")
    with pytest.raises(DataError, match=r"latents\.npz: it is there, and no such command made it"):
        check_directions(tmp_path / "latents.npz")


def test_latents_and_samples_do_not_replace_one_another(run: Run, tmp_path: Path) -> None:
    coder = run.coder(settings=EncodingConfig(steps=3), device="cpu")
    kept = {"samples": pixels(2), "numbers": np.zeros((5, 3)), "text": np.array("a"), "floats": np.zeros(3, np.float32)}
    for name, array in kept.items():
        np.savez(tmp_path / f"{name}.npz", array)
    coder.encode(pixels(2), labels=[1], out=tmp_path / "latents.npz")
    write_latents(tmp_path / "styles.npz", Latents((np.zeros((2, 6, 4), np.float32),), None))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for name in kept:
        with pytest.raises(DataError, match=rf"{name}\.npz: it is there, and no such command made it"):
            coder.encode(pixels(2), labels=[1], out=tmp_path / f"{name}.npz")
    for name in ("latents", "styles", "numbers", "text", "floats"):
        with pytest.raises(DataError, match=rf"{name}\.npz: it is there, and no such command made it"):
            check_output(tmp_path / f"{name}.npz", count=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    check_output(tmp_path / "samples.npz", count=2)


def test_latents_are_decoded_as_they_were_encoded(
    run: Run, glow: Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latents = read_latents_of(run, images, tmp_path, capsys)
    assert latents.settings == {"steps": 4}
    expected = {steps: run.coder(settings=EncodingConfig(steps=steps), device="cpu").decode(latents).images for steps in (4, 9)}
    assert not np.array_equal(expected[4], expected[9])
    np.testing.assert_array_equal(run.coder(device="cpu").decode(latents).images, expected[4])
    np.testing.assert_array_equal(run.edit(latents, device="cpu").images, expected[4])
    way = run.edit(latents, between=(1, 3), count=3, device="cpu").images
    assert np.abs(way[[0, 2]].astype(int) - expected[4][[1, 3]]).max() <= 1  # of another batch
    directory, file, out = str(run.directory), str(tmp_path / "latents.npz"), str(tmp_path / "out.npz")
    decode = ["encode", directory, file, "--decode", "--device", "cpu", "--out", out]
    for command, steps in (
        (decode, 4),
        ([*decode, "--steps", "9"], 9),
        (["encode", directory, file, "--decode=True", "--device", "cpu", "--out", out], 4),
        (["encode", directory, file, "--steps", "9", "--device", "cpu", "--out", out, "--decode", "true"], 9),
        (["sample", directory, "--from", file, "--device", "cpu", "--out", out], 4),
    ):
        assert main(command) == 0
        with np.load(out) as made:
            np.testing.assert_array_equal(made["arr_0"], expected[steps])
    capsys.readouterr()
    for steps in ("50", "250", "4"):
        assert main(["sample", directory, "--from", file, f"--steps={steps}", "--out", out]) == 2
        assert capsys.readouterr().err.startswith("triptych: error: --steps: got it with --from, which draws nothing")
    assert main(["encode", str(glow.directory), file, "--decode", "--dequantization", "center"]) == 2
    assert "--dequantization: got it with --decode, which takes no settings of this encoder" in capsys.readouterr().err
    with pytest.raises(
        ConfigError,
        match="latents: got some of another model, encoded with settings that this run's encoder does not have .*; give latents that",
    ):
        glow.coder(device="cpu").decode(latents)


@pytest.mark.parametrize(
    ("words", "decodes"),
    [
        ([], False),
        (["--decode"], True),
        (["--decode", "--out", "a.png"], True),
        (["--decode=True"], True),
        (["--decode", "False"], False),
        (["--decode=false"], False),
        (["--no-decode"], False),
        (["--decode", "--no-decode"], False),
        (["--no-decode", "--decode"], True),
        (["--out=--decode"], False),
    ],
)
def test_the_flags_are_read_once_and_say_which_way(
    run: Run, images: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], decodes: bool
) -> None:
    asked: list[bool] = []
    for name in ("_encode", "_decode"):
        monkeypatch.setattr(encode, name, lambda run, images, options, settings: asked.append(options.decode) or "done")
    read: list[Sequence[str]] = []
    monkeypatch.setattr(settings, "parse", lambda flags, parse=settings.parse, **named: read.append(flags) or parse(flags, **named))
    assert encode._decodes(words) == decodes
    if "--out=--decode" not in words:
        assert main(["encode", str(run.directory), str(images), *words]) == 0
        assert asked == [decodes] and read == [words]


def read_latents_of(run: Run, images: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Latents:
    shown(capsys, str(run.directory), str(images), "--out", str(folder / "latents.npz"), *FAST)
    return read_latents(folder / "latents.npz")


def test_latents_that_are_no_numbers_are_not_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(_: ADM, x: torch.Tensor, **__: object) -> list[torch.Tensor]:
        made = torch.zeros_like(x)
        made[2, 0, 3, 3] = torch.nan
        return [made]

    monkeypatch.setattr(ADM, "encode", encode)
    with pytest.raises(RunError, match="the latents of image 2, and of 1 in all, are not finite; try other settings of the encoder"):
        run.coder(device="cpu").encode(pixels(4), labels=[1], out=tmp_path / "latents.npz")
    assert not (tmp_path / "latents.npz").exists()


def test_runs_are_no_images(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(run.directory)
    assert f"{directory}: is a run, expected images; triptych sample {directory} --out" in refused(capsys, directory, directory, *FAST)
    parent = str(run.directory.parent)
    assert refused(capsys, directory, parent, *FAST) == (
        f"{parent}: holds the runs digits, expected images; name the folder or file that has them"
    )


def test_the_steps_of_the_encoder_are_used(run: Run) -> None:
    few, many = (run.coder(settings=EncodingConfig(steps=steps), device="cpu").encode(pixels(2), labels=[1]) for steps in (3, 9))
    assert not np.array_equal(few.arrays[0], many.arrays[0])
    assert isinstance(run.encoding, Config) and run.encoding == EncodingConfig()


def test_the_precision_is_that_of_both_ways(run: Run) -> None:
    exact, coarse = (run.coder(settings=EncodingConfig(steps=3), precision=name, device="cpu") for name in ("float32", "bf16"))
    latents, others = (made.encode(pixels(2), labels=[1]) for made in (exact, coarse))
    off = np.abs(others.arrays[0] - latents.arrays[0])
    assert off.max() > 0 and off.mean() < 0.1  # 8 bits of mantissa, against latents of length 1
    assert coarse.error(pixels(2), latents) != exact.error(pixels(2), latents)  # 8-bit images may be the same


def coder(run: Run, *, batch_size: int | None = None) -> Coder:
    return run.coder(settings=EncodingConfig(steps=4), batch_size=batch_size, device="cpu")


def test_batches_make_no_difference(run: Run) -> None:
    done: list[tuple[float, float]] = []
    parts = run.coder(settings=EncodingConfig(steps=4), batch_size=2, device="cpu", progress=lambda *now: done.append(now))
    split, whole = parts.encode(pixels(), labels=[3, 7]), coder(run).encode(pixels(), labels=[3, 7])
    within = [(2 / 3, 5), (4 / 3, 5), (8 / 3, 5), (10 / 3, 5), (13 / 3, 5), (14 / 3, 5)]  # two of three steps on the way there
    np.testing.assert_allclose(done, sorted([(0, 5), (2, 5), (4, 5), (5, 5), *within]))
    assert whole.labels is not None and whole.labels.tolist() == [3, 7, 3, 7, 3]
    np.testing.assert_allclose(split.arrays[0], whole.arrays[0], atol=1e-4, rtol=1e-4)
    decoded = [made.decode(whole).images.astype(int) for made in (parts, coder(run))]
    assert np.abs(decoded[0] - decoded[1]).max() <= 1


def test_each_image_has_its_own_label_in_every_batch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = coder(run, batch_size=2), []

    def noted(given: object, *, labels: torch.Tensor, **_: object) -> list[torch.Tensor]:
        told.extend(labels.tolist())
        return [torch.zeros(len(labels), 1, 8, 8)]

    monkeypatch.setattr(made.model, "encode", noted)
    monkeypatch.setattr(made.model, "decode", lambda given, **named: noted(given, **named)[0])
    latents = made.encode(pixels(), labels=[3, 7, 1])
    made.decode(latents)
    made.decode(latents, labels=[2, 4])
    assert told == [3, 7, 1, 3, 7] * 2 + [2, 4, 2, 4, 2]


def test_error_is_the_mean_difference_in_levels(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = coder(run)
    given = np.full((2, 8, 8, 1), 100, dtype=np.uint8)
    off = torch.full((2, 1, 8, 8), 103.25 / 127.5 - 1)
    off[1] = 99.25 / 127.5 - 1
    monkeypatch.setattr(made.model, "decode", lambda latents, **_: off)
    assert made.error(given, Latents((np.zeros((2, 1, 8, 8), dtype=np.float32),), np.array([1, 2]))) == pytest.approx(2.0, abs=1e-5)


def test_decoded_images_are_rounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = coder(run)
    levels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8, 1)
    images = RawBatch(torch.from_numpy(levels), None, torch.arange(4)).to("cpu").images
    monkeypatch.setattr(made.model, "decode", lambda latents, **_: images)
    found = made.decode(Latents((np.zeros((4, 1, 8, 8), dtype=np.float32),), np.zeros(4, dtype=np.int64)))
    np.testing.assert_array_equal(found.images, levels)


def test_a_grid_that_its_format_cannot_hold_is_refused_before_it_is_decoded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of images of 8 pixels takes 60, and 12 for all."""
    latents = Latents((np.zeros((5, 1, 8, 8), np.float32),), np.arange(5))
    monkeypatch.setattr(ADM, "decode", lambda *given, **named: pytest.fail("it was decoded"))
    monkeypatch.setitem(sampling._LONGEST_SIDE, ".webp", 311)
    with pytest.raises(DataError, match=r"a grid of 5 images would have 312x72 pixels, and \.webp holds 311 a side"):
        run.coder(device="cpu").decode(latents, out=tmp_path / "a.webp")
    way = replace(latents, labels=np.zeros(5, np.int64))
    with pytest.raises(DataError, match="a grid of 9 images would have 552x72 pixels"):
        run.edit(way, between=(0, 1), count=9, out=tmp_path / "a.webp", device="cpu")
    assert not list(tmp_path.iterdir())


def test_run_encode_and_decode(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADM, "encoding", EncodingConfig(steps=4))  # all 250 take seconds
    latents = run.encode(pixels(1), labels=["7"], device="cpu")
    np.testing.assert_array_equal(latents.arrays[0], coder(run).encode(pixels(1), labels=["7"]).arrays[0])
    samples = run.decode(latents, device="cpu")
    assert samples.images.dtype == np.uint8 and samples.images.shape == (1, 8, 8, 1)
    assert samples.labels is not None and samples.labels.tolist() == [7]
    assert run.decode(latents, labels=[2], device="cpu").labels == np.array([2])


def test_labels_of_a_folder_go_by_name(run: Run, tmp_path: Path) -> None:
    for name in ("3", "7"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        Image.fromarray(pixels(1)[0, ..., 0]).save(tmp_path / "folder" / name / "a.png")
    labels = coder(run).encode(tmp_path / "folder").labels
    assert labels is not None and labels.tolist() == [3, 7]


def test_an_unconditional_model_takes_images_with_and_without_labels(unconditional: Run, images: Path) -> None:
    made = coder(unconditional)
    with_labels, without = made.encode(images), made.encode(pixels())
    np.testing.assert_array_equal(with_labels.arrays[0], without.arrays[0])
    assert without.labels is None
    assert made.decode(with_labels).images.shape == (5, 8, 8, 1)


def test_files_hold_several_levels(tmp_path: Path) -> None:
    levels = tuple(np.full((2, k + 1), k, dtype=np.float32) for k in range(12))
    write_latents(tmp_path / "latents.npz", Latents(levels, None))
    back = read_latents(tmp_path / "latents.npz")
    assert back.labels is None and [array.shape for array in back.arrays] == [(2, k + 1) for k in range(12)]
    assert [array[0, 0] for array in back.first(1).arrays] == list(range(12)) and len(back.first(1)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["latents.npz"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"arr_0": np.zeros((2, 3), np.uint8)}, "holds arr_0 (uint8), expected latents"),
        ({"latent_1": np.zeros((2, 3), np.float32)}, "holds latent_1 (float32), expected latents"),
        ({"arr_0": np.zeros((2, 3), np.float32), "arr_1": np.zeros(2, np.int64)}, "arr_1 (int64), expected latents"),
        ({"arr_0": np.zeros((2, 3), np.float32), "labels": np.zeros(3, np.int64)}, "not of one length"),
        ({"arr_0": np.zeros((2, 3), np.float32), "labels": np.zeros(2, np.float32)}, "labels are not whole numbers"),
    ],
)
def test_other_files_are_refused(arrays: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        read_latents(tmp_path / "other.npz")
    assert words in str(caught.value) and "other.npz" in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    for name, content in (("a.npz", b"PK\x03\x04 cut short"), ("b.npz", b"text"), ("c.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            read_latents(tmp_path / name)


def sampled(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["sample", *arguments, "--device", "cpu"])
    printed = capsys.readouterr()
    return code, printed.out or printed.err.removeprefix("triptych: error: ")


def test_from_labelled_images_to_moved_ones(glow: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """encode --directions, then sample --from: the same images, and others along a direction and between two."""
    directory, given = str(glow.directory), folder(tmp_path / "images", pixels(), ["a/0.png", "a/1.png", "b/0.png", "b/1.png", "c/0.png"])
    latents, out = tmp_path / "latents.npz", tmp_path / "out.npz"
    line = shown(capsys, directory, str(given), "--directions", "--check", "--out", str(latents), "--device", "cpu")
    start = f"5 images encoded in {latents}, 3 directions in {glow.directory / 'directions.npz'}; decoded they are 0.0"
    assert line.startswith(start)
    common = (directory, "--from", str(latents), "--out", str(out))
    for more, expected in (
        ((), pixels()),
        (("--direction", "b=0"), pixels()),
        (("--batch-size", "2", "--pick", "4,1"), pixels()[[4, 1]]),
        (("--between", "1,3", "--count", "2"), pixels()[[1, 3]]),
        (("--pick", "2", "--direction", "b=-1:1", "--count", "3"), None),
    ):
        count = 3 if expected is None else len(expected)
        assert sampled(capsys, *common, *more) == (0, f"{count} images in {out}\n")
        with np.load(out) as file:
            images = file["arr_0"]
        np.testing.assert_array_equal(images[[1]] if expected is None else images, pixels()[[2]] if expected is None else expected)
    assert read_directions(glow.directory / "directions.npz").of("a")[0].shape == (2, 4, 4)
    code, error = sampled(capsys, *common, "--direction", "d=1")
    assert (code, error) == (2, '--direction: unknown direction "d" (there is a, b, c)\n')
    code, error = sampled(capsys, *common, "--pick", "5")
    assert (code, error) == (2, "--pick: got 5, expected 0 to 4, the latents that are there\n")
    write_latents(tmp_path / "other.npz", Latents((np.zeros((2, 1, 9, 9), np.float32),), None))
    code, error = sampled(capsys, directory, "--from", str(tmp_path / "other.npz"))
    assert (code, error) == (2, "--from: got the shapes [(1, 9, 9)], expected [(2, 4, 4), (8, 2, 2)], one for each level\n")
    code, error = sampled(capsys, directory, "--from", str(tmp_path / "none.npz"))
    assert (code, error) == (2, f"{tmp_path}/none.npz: there is no such file; expected an .npz of latents\n")


def test_what_is_decoded_for_a_check_is_held_against_the_images_that_were_drawn(
    glow: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = folder(tmp_path / "images", pixels(9), [f"{'abc'[k // 3]}/{k}.png" for k in range(9)])
    out, latents = tmp_path / "d.npz", tmp_path / "l.npz"
    options = ("--directions", "--check", "--count", "4", "--directions-out", str(out), "--out", str(latents), "--device", "cpu")
    line = shown(capsys, str(glow.directory), str(given), *options)
    assert line.startswith(f"4 images encoded in {latents}, ") and "; decoded they are 0.0" in line and len(read_directions(out)) > 1


def test_directions_of_a_table(glow: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder(tmp_path / "images", pixels(), [f"{k}.png" for k in range(5)])
    table, out = tmp_path / "list_attr.txt", tmp_path / "d.npz"
    table.write_text("5\nsmiling young\n" + "".join(f"{k}.png {(-1) ** k} {1 if k < 2 else -1}\n" for k in range(5)))
    options = ("--directions", "--attributes", str(table), "--device", "cpu")
    line = shown(capsys, str(glow.directory), str(given), *options, "--directions-out", str(out), "--out", str(tmp_path / "l.npz"))
    assert line == f"5 images encoded in {tmp_path / 'l.npz'}, 2 directions in {out}\n"
    assert read_directions(out).names == ("smiling", "young")
    (tmp_path / "l.npz").unlink()
    table.write_text("5\nsmiling\n0.png 1\n")
    error = refused(capsys, str(glow.directory), str(given), *options, "--out", str(tmp_path / "l.npz"))
    assert error == f"{table}: has no row for {given}/1.png" and not (tmp_path / "l.npz").exists()


def test_nothing_that_is_read_is_overwritten(glow: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "images.npz", arr_0=pixels(), arr_1=np.array([3, 1, 4, 1, 5]))
    latents, directory, cpu = tmp_path / "latents.npz", str(glow.directory), ("--device", "cpu")
    shown(capsys, directory, str(tmp_path / "images.npz"), "--directions", "--out", str(latents), *cpu)
    read = {file: file.read_bytes() for file in (tmp_path / "images.npz", latents, glow.directory / "directions.npz")}
    (tmp_path / "folder.npz").mkdir()
    for verb, arguments, line in (
        ("encode", ("images.npz", "--out", "images.npz"), "cannot write {}/images.npz: it is the file that is read; choose another --out"),
        (
            "encode",
            ("images.npz", "--directions", "--directions-out", "images.npz"),
            "cannot write {}/images.npz: it is the file that is read; choose another --directions-out",
        ),
        (
            "encode",
            ("images.npz", "--directions", "--out", "other.npz", "--directions-out", "latents.npz"),
            "cannot write {}/latents.npz: it is there, and no such command made it; choose another --directions-out, or remove it",
        ),
        (
            "encode",
            ("images.npz", "--directions", "--out", "latents.npz", "--directions-out", "latents.npz"),
            "--directions-out: got '{}/latents.npz', where the latents go; name another file",
        ),
        (
            "encode",
            ("images.npz", "--directions", "--out", "both.npz", "--directions-out", "both.npz"),
            "--directions-out: got '{}/both.npz', where the latents go; name another file",
        ),
        (
            "encode",
            ("latents.npz", "--decode", "--out", "latents.npz"),
            "cannot write {}/latents.npz: it is the file that is read; choose another --out",
        ),
        (
            "sample",
            ("--from", "latents.npz", "--out", "latents.npz"),
            "cannot write {}/latents.npz: it is the file that is read; choose another --out",
        ),
        ("encode", ("images.npz", "--out", "folder.npz"), "cannot write {}/folder.npz: it is a folder; choose another --out"),
    ):
        given = [str(tmp_path / word) if word.endswith(".npz") else word for word in arguments]
        assert main([verb, directory, *given, *cpu]) == 2
        assert capsys.readouterr().err == f"triptych: error: {line.replace('{}', str(tmp_path))}\n"
    own = str(glow.directory / "directions.npz")
    assert main(["sample", directory, "--from", str(latents), "--direction", "1=1", "--out", own, *cpu]) == 2
    assert capsys.readouterr().err == f"triptych: error: cannot write {own}: it is the file that is read; choose another --out\n"
    assert all(file.read_bytes() == before for file, before in read.items()) and not (tmp_path / "both.npz").exists()


def test_what_does_not_go_with_directions(glow: Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "plain.npy", pixels())
    advice = "put them in sub-folders, one for each class, or give a table of attributes (--attributes)"
    for arguments, line in (
        (("--decode", "--directions"), "--directions: got True, expected False with --decode; it goes with encoding"),
        (("--decode", "--classes", "prefix"), "--classes: got 'prefix', expected auto with --decode; it goes with encoding"),
        (("--attributes", "a.csv"), "--attributes: got 'a.csv', expected nothing without --directions"),
        (("--directions-out", "d.npz"), "--directions-out: got 'd.npz', expected nothing without --directions"),
        (("--directions", "--directions-out", "d.txt"), "--directions-out: got 'd.txt', expected a name that ends with .npz"),
        (("--directions", "--classes", "prefix"), f"--classes: got 'prefix', but {images} is not made of files; leave it out"),
        (
            ("--directions", "--attributes", "a.csv"),
            f"--attributes: {images} holds images without file names, which the rows of a.csv go by",
        ),
    ):
        assert refused(capsys, str(glow.directory), str(images), *arguments) == line
    line = f"--directions: {tmp_path}/plain.npy has no classes; {advice}"
    assert refused(capsys, str(glow.directory), str(tmp_path / "plain.npy"), "--directions", "--device", "cpu") == line


@pytest.mark.slow
def test_mistakes(run: Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, given = str(run.directory), str(images)
    np.save(tmp_path / "plain.npy", pixels())
    locked = bytearray(images.read_bytes())
    for start in (locked.index(b"PK\x03\x04") + 6, locked.index(b"PK\x01\x02") + 8):
        locked[start] |= 1
    (tmp_path / "locked.npz").write_bytes(locked)
    write_latents(tmp_path / "bare.npz", Latents((np.zeros((2, 1, 8, 8), np.float32),), None))
    write_latents(tmp_path / "wide.npz", Latents((np.zeros((2, 1, 9, 9), np.float32),), np.array([1, 2])))
    usage = "usage: triptych encode RUN IMAGES [--out FILE.npz] [--check], or triptych encode RUN LATENTS.npz --decode [--out FILE]"
    for arguments, line in (
        ((), f"no run given; {usage}"),
        (("--decode",), f"got '--decode' where the run directory is expected; {usage}"),
        ((directory,), f"no images given; {usage}"),
        ((directory, "--check"), f"got '--check' where the images are expected; {usage}"),
        ((directory, ""), f"got '' where the images are expected; {usage}"),
        ((directory, "none.npz"), "none.npz: does not exist; expected a folder, .zip, .tar, .npz or .npy of images"),
        ((directory, "none.npz", "--decode"), "none.npz: there is no such file; expected an .npz of latents"),
        ((directory, ".", "--decode"), ".: is no file; expected an .npz of latents"),
        (
            (directory, str(tmp_path / "locked.npz")),
            "{}/locked.npz: File 'arr_0.npy' is encrypted, password required for extraction; save one uint8 array of shape "
            "(n, height, width, 1 or 3)",
        ),
        ((directory, given, "--out", "a.png"), "--out: got 'a.png', expected a name that ends with .npz"),
        (
            (directory, given, "--decode", "--out", "a.gif"),
            "--out: got 'a.gif', expected a name that ends with .png, .jpg, .webp or .npz, or a folder",
        ),
        ((directory, given, "--decode", "--check"), "--check: got True, expected False with --decode; it goes with encoding"),
        ((directory, given, "--count", "9", *FAST), "--count: got 9, expected 1 to 5, the images that are there"),
        ((directory, given, "--step", "9"), '--step: unknown setting; did you mean "--steps"?'),
        ((directory, given, "--labels", "11", *FAST), "--labels: got 11, expected 0 to 9"),
        (
            (directory, str(tmp_path / "plain.npy"), *FAST),
            "--labels: {}/plain.npy has none, but this model needs one for each image, from 0 to 9",
        ),
        (
            (directory, str(tmp_path / "bare.npz"), "--decode", *FAST),
            "--labels: the latents have none, but this model needs one for each, from 0 to 9",
        ),
        (
            (directory, str(tmp_path / "wide.npz"), "--decode", *FAST),
            "latents: got the shapes [(1, 9, 9)] of a sample, expected [(1, 8, 8)]",
        ),
        (
            (directory, given, "--out", given + "/l.npz", *FAST),
            "cannot write {}/images.npz/l.npz: {}/images.npz is a file; choose another --out",
        ),
    ):
        assert refused(capsys, *arguments) == line.replace("{}", str(tmp_path))


def test_a_model_that_is_no_encoder(run: Run, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delattr("triptych.diffusion.adm.ADM.encode")
    assert refused(capsys, str(run.directory), str(images), *FAST) == "model: ADM encodes no images; triptych sample draws images with it"


def test_help(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: triptych encode RUN IMAGES" in shown(capsys, "--help")
    for arguments in (("--help",), ("images", "--help")):
        page = shown(capsys, str(run.directory), *arguments)
        assert "--check" in page and "--steps" in page


@pytest.mark.parametrize("latents", [np.float32(3), np.zeros((0, 1, 8, 8), np.float32), np.full((2, 1, 8, 8), np.nan, np.float32)])
def test_latents_that_are_none(latents: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "l.npz", arr_0=latents)
    with pytest.raises(DataError, match=r"l\.npz: holds no latents, or values that are not finite"):
        read_latents(tmp_path / "l.npz")


def test_no_advice_to_unpickle(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"text")
    with pytest.raises(DataError) as caught:
        read_latents(tmp_path / "a.npz")
    assert str(caught.value) == f"{tmp_path / 'a.npz'}: is damaged, or no .npz of latents"
