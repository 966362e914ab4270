"""`triptych import` and `triptych export`: what they print, and what they refuse in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.interop.checkpoint import PREFIX
from tests.interop.networks import CLASSIFIER, UPSAMPLER, classifier_weights, diffusion_weights, upsampler_weights
from triptych.cli import export, import_
from triptych.cli.main import main
from triptych.interop.flags import command_line

FLAGS = (
    "--image_size 16 --num_channels 32 --num_res_blocks 1 --channel_mult 1,2 --attention_resolutions 8 --num_heads 2 "
    "--resblock_updown True --learn_sigma True --class_cond True --timestep_respacing 2"
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """model.pt in the present folder, a small network that knows ten classes."""
    monkeypatch.chdir(tmp_path)
    torch.save(diffusion_weights(classes=10), "model.pt")
    return "model.pt"


def failed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("triptych: error: ") and shown.count("\n") == 1
    return shown.removeprefix("triptych: error: ").rstrip("\n")


def test_in_and_out(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "guided-diffusion", file, "--run", "runs/net", "--flags", FLAGS]) == 0
    assert capsys.readouterr().out == "runs/net: ADM, 16x16, 10 classes\ndraw from it: triptych sample runs/net\n"
    assert main(["sample", "runs/net", "--count", "2", "--labels", "7", "--out", "a.png", "--device", "cpu"]) == 0
    assert (tmp_path / "a.png").exists()
    capsys.readouterr()
    assert main(["export", "runs/net", "--to", "guided-diffusion", "--out", "b.pt"]) == 0
    wrote, flags, *notes = capsys.readouterr().out.splitlines()
    assert wrote == "wrote b.pt and b.flags.txt" and flags == f"flags: {Path('b.flags.txt').read_text().strip()}"
    assert [note[:40] for note in notes] == ["note: the model has 10 classes: set the ", "note: to sample as this run does: --times"[:40]]
    assert main(["export", "runs/net", "--to", "diffusers", "--out", "folder", "--drop-variance"]) == 0
    assert capsys.readouterr().out.startswith("wrote folder\nnote: DDPMPipeline gives no class labels")
    assert main(["import", "guided-diffusion", "b.pt", f"--flags={flags.removeprefix('flags: ')}", "--run=runs/back"]) == 0


@pytest.mark.slow
def test_training_goes_on_from_it(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "guided-diffusion", file, "--run", "net", "--flags", FLAGS])
    short = "--train.total-images 4 --train.batch-size 4 --train.sample-count 0 --data.validation-fraction 0 --data.workers 0 --device cpu"
    assert main(["train", "net", "--data.source", "digits", *short.split()]) == 0
    assert sorted(path.name for path in (tmp_path / "net/checkpoints").iterdir()) == ["000000000", "000000004"]
    assert "draw from it: triptych sample net" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["import", "--help"], ["import", "guided-diffusion", "-h"], ["export", "--help"], ["export", "runs/net", "--help"]):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert f"usage: triptych {arguments[0]}" in shown and ("--flags" if arguments[0] == "import" else "--to") in shown


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("", "no program and file given; usage: triptych import PROGRAM FILE --run DIR"),
        ("guided-diffusion", "no file given; usage: triptych import PROGRAM FILE --run DIR"),
        (
            "guided-difusion a.pt --run r",
            "unknown program 'guided-difusion', expected guided-diffusion, improved-diffusion, "
            "glow, imaginaire, nvidia, diffusers, sit or dit",
        ),
        ("guided-diffusion a.pt b.pt --run r", "unexpected 'b.pt'; usage: triptych import PROGRAM FILE --run DIR"),
        ("guided-diffusion a.pt", "--run: missing: the directory of the new run"),
        ("guided-diffusion a.pt --run", "--run: the value is missing"),
        ("guided-diffusion a.pt --rum r", '--rum: unknown option; did you mean "--run"?'),
        ("guided-diffusion a.pt --run=", "--run: the value is missing"),
        ("guided-diffusion a.pt --run --flags=x", "--run: the value is missing"),
        (
            "guided-diffusion model.pt --run r --image_size 64",
            "--image_size: the original's flags go into one text: --flags \"--image_size",
        ),
        ("sit a.pt --run r --path-type GVP", '--path-type: the original\'s flags go into one text: --flags "--path-type ..."'),
        ("dit a.pt --run r --num-heads=6", '--num-heads=6: the original\'s flags go into one text: --flags "--num-heads=6 ..."'),
        (
            "guided-diffusion model.pt --run r --flags=--lr=1",
            "--lr: this is a flag of the original's scripts, not of a network: leave it out",
        ),
        ("guided-diffusion a.pt --run r", "there is no file a.pt"),
        ("guided-diffusion . --run r", ". is a folder; give a file of weights (.pt)"),
        ("guided-diffusion model.pt --run r", "--flags: missing, for model.pt is not a published file: give the flags that it was trained"),
        ("guided-diffusion model.pt --run r --flags=--num_chanels=3", '--num_chanels: unknown flag; did you mean "--num_channels"?'),
        ("guided-diffusion model.pt --run r --flags=--image_size=16", "--num_channels 32 is missing: the file has 32, the default is 128;"),
        ("guided-diffusion text.pt --run r", "text.pt is damaged, or not a file of PyTorch's weights"),
        ("guided-diffusion code.pt --run r", "code.pt holds more than tensors: to read it, code that it names would have to be run"),
        ("guided-diffusion list.pt --run r", "list.pt holds a list, expected tensors by name (a state dict)"),
        ("guided-diffusion opt000003.pt --run r", "opt000003.pt is the state of an optimizer (opt*.pt), expected weights"),
        ("improved-diffusion model.pt --run r --ema model.pt --flags=--image_size=16", "--num_channels 32 is missing"),
        (  # which the network, whose heads have widths of their own, does not look at
            f"guided-diffusion model.pt --run r --flags={FLAGS.replace('--num_heads 2', f'--num_head_channels 16 --num_heads {10**20}')}",
            f"model.network.num_heads: got {10**20}, expected a whole number of at most 64 bits",
        ),
    ],
)
def test_mistakes_of_import(arguments: str, line: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.pt").write_text("hello")
    layer = torch.nn.Linear(2, 2)
    torch.save(layer, "code.pt")
    torch.save([1], "list.pt")
    torch.save(torch.optim.AdamW(layer.parameters()).state_dict(), "opt000003.pt")
    words, is_flags, flags = arguments.partition(" --flags=")
    given = [*words.split(), f"--flags={flags}"] if is_flags else words.split()
    assert failed(["import", *given], capsys).startswith(line)
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("", "no run given; usage: triptych export RUN --to PROGRAM --out PATH"),
        ("--to diffusers", "got '--to' where the run directory is expected"),
        ("nvidia net", "got the program nvidia where the run is expected; usage: triptych export RUN --to PROGRAM --out PATH"),
        ("none net", "no run in none: there is no config.json"),
        ("net --out a.pt", "--to: missing; usage: triptych export RUN --to PROGRAM --out PATH"),
        (
            "net --to diffusers --out=",
            "--out: got '', expected the name of a file or folder; usage: triptych export RUN --to PROGRAM --out PATH",
        ),
        ("net --to diffusers", "--out: missing; usage: triptych export RUN --to PROGRAM --out PATH"),
        (
            "net --to difusers --out a",
            "--to: got 'difusers', expected one of guided-diffusion, diffusers, nvidia, sit; did you mean \"diffusers\"?",
        ),
        ("net --to guided-diffusion --out a.bin", "--out: got 'a.bin', expected the name of a file that ends with .pt"),
        ("net --to guided-diffusion --out a.pt --drop-variance", "--drop-variance: guided-diffusion makes no use of it"),
        ("net --to diffusers --out .", "--out: got '.', expected the name of a folder"),
        (
            "net --to guided-diffusion --out net/checkpoints/x.pt",
            "cannot write net/checkpoints/x.pt: the run ",
        ),
        ("net --to diffusers --out net/checkpoints/9", "cannot write net/checkpoints/9: the run "),
        ("net --to diffusers --out net", "--out: net is there and is no earlier export of this model; choose another, or remove it"),
        (
            "net --to guided-diffusion --out model.pt",
            "--out: model.pt is there and is no earlier export of this model (model.flags.txt is not beside it)",
        ),
        ("net --to diffusers --out a --checkpoint new", "--checkpoint: got 'new', expected latest, best or a number of images"),
        ("net --to diffusers --out a --weights ema-0.5", '--weights: got "ema-0.5", expected one of raw'),
        ("net --to diffusers --out a --checkpoint 3", 'no checkpoint "3" in net; there are latest, best, 0'),
        ("none --to diffusers --out a", "no run in none: there is no config.json"),
    ],
)
def test_mistakes_of_export(arguments: str, line: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "guided-diffusion", file, "--run", "net", "--flags", FLAGS])
    assert failed(["export", *arguments.split()], capsys).startswith(line)
    assert not Path("a").exists() and not Path("a.pt").exists()


def test_options_are_read_as_they_are_given() -> None:
    words = ["improved-diffusion", "--flags", "--image_size 64", "m.pt", "--run", "r", "--ema", "e.pt"]
    options = import_.configure(words)
    assert (options.program, options.file, options.run) == ("improved-diffusion", "m.pt", "r")
    assert (options.flags, options.ema) == ("--image_size 64", "e.pt")
    chosen = export.configure("r", ["--to", "diffusers", "--out", "o", "--weights", "raw", "--checkpoint", "best", "--drop-variance"])
    assert (chosen.to, chosen.out, chosen.weights, chosen.checkpoint, chosen.drop_variance) == ("diffusers", "o", "raw", "best", True)


def test_an_earlier_export_is_replaced(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "guided-diffusion", file, "--run", "net", "--flags", FLAGS])
    before = Path(file).read_bytes()
    assert "is no earlier export" in failed(["export", "net", "--to", "guided-diffusion", "--out", file], capsys)
    assert Path(file).read_bytes() == before
    for _ in range(2):
        assert main(["export", "net", "--to", "guided-diffusion", "--out", "b.pt"]) == 0
        assert main(["export", "net", "--to", "diffusers", "--out", "folder"]) == 0
    for name in ("b.flags.txt", "folder/unet/config.json"):  # as of another model
        text = Path(name).read_text()
        Path(name).write_text(text + " ")
        target, out = ("guided-diffusion", "b.pt") if name.startswith("b") else ("diffusers", "folder")
        assert "is no earlier export" in failed(["export", "net", "--to", target, "--out", out], capsys)
        assert Path(name).read_text() == text + " "
        Path(name).write_text(text)
    Path("c.flags.txt").write_text("mine")
    line = "--out: c.flags.txt is there and is no earlier export of this model (c.flags.txt does not say just the same); choose another"
    assert failed(["export", "net", "--to", "guided-diffusion", "--out", "c.pt"], capsys).startswith(line)
    assert not Path("c.pt").exists() and Path("c.flags.txt").read_text() == "mine"
    Path("folder/unet/notes.txt").write_text("mine")
    assert "folder is there and also holds unet/notes.txt" in failed(["export", "net", "--to", "diffusers", "--out", "folder"], capsys)
    assert Path("folder/unet/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("weights", "flags", "line"),
    [
        (upsampler_weights(), UPSAMPLER, "draw from it: triptych sample r --base IMAGES"),
        (classifier_weights(), CLASSIFIER, "lead a run by it: triptych sample RUN --guide r"),
    ],
)
def test_what_comes_next(weights: dict, flags: dict, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(weights, "w.pt")
    assert main(["import", "guided-diffusion", "w.pt", "--run", "r", "--flags", command_line(flags)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_an_interrupted_import_is_no_run(file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (Path("mine") / "x").mkdir(parents=True)
    assert main(["import", "guided-diffusion", "nowhere.pt", "--run", "mine", "--flags", FLAGS]) == 2
    assert "mine is not a run: it has no config.json but holds x" in capsys.readouterr().err, "before anything is read"
    command = ["import", "guided-diffusion", file, "--run", "net", "--flags", FLAGS]

    def interrupt(*given: object, **settings: object) -> None:
        raise KeyboardInterrupt

    for place in ("triptych.engine.checkpoint.save_file", "triptych.runs.interchange._log"):
        with monkeypatch.context() as patch:
            patch.setattr(place, interrupt)
            assert main(command) == 130
        assert failed(["sample", "net"], capsys).startswith("no run in net")
    assert main(command) == 0


# glow ------------------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_glow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["import", "glow", str(PREFIX), "--run", "r", "--flags", "--image_size 8 --n_bits 5", "--ema-rate", "0.9"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "its moving averages are the run's ema-0.9, and are used unless --weights raw is given",
        "r: Glow, 8x8, no classes",
        "draw from it: triptych sample r",
    ]
    assert main(["sample", "r", "--count", "2", "--weights", "raw", "--out", "a.png", "--device", "cpu"]) == 0
    options = import_.configure(["glow", "x", "--run=r", "--ema-rate=0.5"])
    assert (options.program, options.file, options.ema_rate, options.flags) == ("glow", "x", 0.5, None)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("graph_optimized.pb", "graph_optimized.pb is a frozen graph, not variables; give a checkpoint: PREFIX.index"),
        ("none.ckpt", "there is no checkpoint none.ckpt: no file none.ckpt.index in ."),
        (f"{PREFIX} --flags=--depth=3", "--depth: the checkpoint has 1, got 3"),
        (f"{PREFIX} --flags=--image_size=9", "--image_size: got 9, for the checkpoint has 2 levels: expected a multiple of 4"),
        (f"{PREFIX} --flags=--n_levls=2", '--n_levls: unknown flag; did you mean "--n_levels"?'),
        (f"{PREFIX} --flags=--learntop=True", "--learntop: got 'True', but this flag takes no value"),
        (f"{PREFIX} --flags=--num_channels=3", "--num_channels: unknown flag"),
        (f"{PREFIX} --flags=--n_batch_train=0", "--n_batch_train: got 0, expected more than 0"),
        (f"{PREFIX} --flags=--polyak_epochs=nan", "--polyak_epochs: got nan, expected more than 0"),
        (f"{PREFIX} --n_levels 2", '--n_levels: the original\'s flags go into one text: --flags "--n_levels ..."'),
        (f"{PREFIX} --ema a.pt", "--ema: a checkpoint of glow holds its averages itself: leave it out"),
        (f"{PREFIX} --ema-rate 1", "--ema-rate: got 1.0, expected 0 or more and below 1"),
        (f"{PREFIX} --ema-rate high", "--ema-rate: got 'high', expected a number"),
        ("weights.npz", "weights.npz: the weights have no model/0/0/actnorm_center/b, which a model of these flags has"),
        ("other.npz", "other.npz: these are not the variables of openai/glow: none is called model/LEVEL/STEP/..."),
    ],
)
def test_mistakes_of_importing_glow(arguments: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("weights.npz", **{"model/0/0/f1/l_1/W": np.zeros(3)})
    np.savez("other.npz", weight=np.zeros(3))
    assert failed(["import", "glow", *arguments.split(), "--run", "r"], capsys).startswith(line)
    assert not Path("r").exists()


def test_the_rate_of_averages_is_glows(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = failed(["import", "guided-diffusion", file, "--run", "r", "--flags", FLAGS, "--ema-rate", "0.9"], capsys)
    said = "guided-diffusion's averages are files of their own, whose names say the rate"
    assert line == f"--ema-rate: got 0.9, but {said}: give the file by --ema, and leave the rate out"


def test_a_file_of_averages_that_is_not_there(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = failed(["import", "guided-diffusion", file, "--run", "r", "--flags", FLAGS, "--ema", "there/nope.pt"], capsys)
    assert line == "--ema: there is no file there/nope.pt"
