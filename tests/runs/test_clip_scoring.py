"""Figures of clips beside the real ones: against direct loops in float64, with the flow that is known and the one that is estimated."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.pairs import write
from tests.data.pictures import encoded
from triptych.cli import evaluate
from triptych.cli.main import main
from triptych.core.errors import ConfigError, DataError
from triptych.engine.distributed import open_world
from triptych.evaluation.clip_metric import CLIP_METRICS, ClipMetricConfig, mean_gradient
from triptych.evaluation.pairs import psnr
from triptych.gans.flow import confidence, inside, leads_home
from triptych.gans.lucas_kanade import lucas_kanade
from triptych.nn.raft import RaftConfig
from triptych.recipes.catalogue import load_recipe
from triptych.runs.clip_scoring import Clip, RunClips, score_clips

SIDE, FRAMES = 32, 3
MOVES = {"a": (2, 1), "b": (-1, 2), "c": (0, 0)}
CPU = {"device": "cpu"}


def real(clip: str) -> np.ndarray:
    """A window that moves by whole pixels over a smooth picture: uint8 (t, h, w, 3)."""
    y, x = np.mgrid[:48, :48]
    phases = np.random.default_rng(ord(clip)).uniform(0, 6, 3)
    waves = np.stack([np.sin(x / 4 + phase) + np.cos(y / 5 + x / 9 + 2 * phase) for phase in phases], axis=-1)
    world = (255 * (waves + 2) / 4).astype(np.uint8)
    across, down = MOVES[clip]
    return np.stack([world[6 + down * t : 6 + down * t + SIDE, 6 + across * t : 6 + across * t + SIDE] for t in range(FRAMES)])


def made(clip: str) -> np.ndarray:
    """The same with noise of its own in each frame, and a little flatter."""
    noise = np.random.default_rng(ord(clip) + 7).integers(-20, 21, size=(FRAMES, SIDE, SIDE, 3))
    return np.clip(0.8 * real(clip) + 20 + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The clips, the real ones, and the true flow, NaN in a corner."""
    root = tmp_path_factory.mktemp("clips")
    for clip, move in MOVES.items():
        flow = np.broadcast_to(np.array(move, np.float32), (SIDE, SIDE, 2)).copy()
        flow[:4, :4] = np.nan
        for t in range(FRAMES):
            write(root / "real" / clip / f"{t + 9}.png", encoded(real(clip)[t]))  # 9, then 10
            write(root / "made" / clip / f"{t + 9}.png", encoded(made(clip)[t]))
            if t:
                (root / "flow" / clip).mkdir(parents=True, exist_ok=True)
                np.save(root / "flow" / clip / f"{t + 9}.npy", flow)
    return root / "made", root / "real", root / "flow"


def over_clips(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


def test_figures_are_those_of_direct_loops(folders: tuple[Path, Path, Path]) -> None:
    scores = score_clips(folders[0], folders[1], metrics=["warping-error", "sharpness", "psnr"], flow=folders[2], **CPU)
    errors, ratios, peaks = [], [], []
    for clip, (across, down) in MOVES.items():
        x, y = (images / 127.5 - 1 for images in (made(clip), real(clip)))
        by_frame = []
        for t in range(1, FRAMES):
            total, count = 0.0, 0
            for i, j in itertools.product(range(SIDE), repeat=2):
                row, column = i + down, j + across
                if (i < 4 and j < 4) or not (0 <= row < SIDE and 0 <= column < SIDE):
                    continue
                if np.square(y[t, i, j] - y[t - 1, row, column]).sum() < 0.02:
                    total, count = total + np.abs(x[t, i, j] - x[t - 1, row, column]).sum(), count + 3
            by_frame.append(total / count)
        errors.append(float(np.mean(by_frame)))
        gradients = []
        for images in (made(clip).astype(float), real(clip).astype(float)):
            steps = [np.abs(images[:, 1:] - images[:, :-1]).ravel(), np.abs(images[:, :, 1:] - images[:, :, :-1]).ravel()]
            gradients.append(np.concatenate(steps).mean())
        ratios.append(gradients[0] / gradients[1])
        peaks.append(psnr(made(clip), real(clip)).mean())
    for name, values in (("warping-error", errors), ("sharpness", ratios), ("psnr", peaks)):
        figure = scores.figures[name]
        assert (figure.value, figure.error) == pytest.approx(over_clips(values), rel=1e-9), name
    assert scores.figures["warping-error"].details["real"] < 1e-9 and scores.figures["warping-error"].value > 0.05
    assert scores.protocol["flow_of"] == "data" and scores.protocol["clips"] == 3 and scores.protocol["frames"] == 9
    assert scores.out is None and not scores.missing


def test_a_flow_that_is_estimated_counts_where_both_directions_agree(folders: tuple[Path, Path, Path]) -> None:
    scores = score_clips(folders[0], folders[1], metrics=["warping-error"], **CPU)
    errors, shares = [], []
    for clip in MOVES:
        x, y = (torch.from_numpy(images).movedim(-1, 1).double() / 127.5 - 1 for images in (made(clip), real(clip)))
        by_frame = []
        for t in range(1, FRAMES):
            now, before = y[t : t + 1], y[t - 1 : t]
            flow, back = (
                found.double() for found in (lucas_kanade(now.float(), before.float()), lucas_kanade(before.float(), now.float()))
            )
            counted = leads_home(flow, back) * inside(flow) * confidence(now, before, flow)
            assert counted.mean() > 0.5
            grid = torch.stack(torch.meshgrid(*[torch.arange(float(SIDE))] * 2, indexing="xy")).double() + flow[0]
            there = torch.nn.functional.grid_sample(
                x[t - 1 : t], (2 * grid / (SIDE - 1) - 1).movedim(0, -1)[None], padding_mode="border", align_corners=True
            )
            shares.append(float(counted.mean()))
            by_frame.append(float(((x[t : t + 1] - there).abs() * counted).sum() / (3 * counted.sum())))
        errors.append(float(np.mean(by_frame)))
    figure = scores.figures["warping-error"]
    assert (figure.value, figure.error) == pytest.approx(over_clips(errors), rel=1e-9)
    assert scores.protocol["flow_of"] == "Lucas and Kanade" and "forward-backward" in scores.protocol["masked_by"]
    assert figure.details["counted"] == pytest.approx(np.mean(shares))
    assert figure.details["real"] < 0.3 * figure.value


def test_frames_after_a_cut_say_nothing_of_flicker(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """No pixel of such a frame counts, and it must not count as one that does not flicker."""
    negative = np.where(real("a")[1] < 128, 255, 0).astype(np.uint8)
    for name, frames in (("real", [*real("a")[:2], negative]), ("made", [*made("a")[:2], negative])):
        for t, frame in enumerate(frames):
            write(tmp_path / name / "a" / f"{t + 9}.png", encoded(frame))
            write(tmp_path / f"cut-{name}" / "a" / f"{t}.png", encoded(np.full_like(frame, 255 * (t % 2))))
            if t < 2:
                write(tmp_path / f"short-{name}" / "a" / f"{t + 9}.png", encoded(frame))
    names = {"metrics": ["warping-error"], "flow": folders[2], **CPU}
    cut = score_clips(tmp_path / "made", tmp_path / "real", **names).figures["warping-error"]
    short = score_clips(tmp_path / "short-made", tmp_path / "short-real", **names).figures["warping-error"]
    assert cut.value == short.value > 0.05 and cut.details["counted"] == short.details["counted"] / 2
    with pytest.raises(ConfigError, match="warping-error cannot be measured: in no frame is there a pixel whose flow is believed"):
        score_clips(tmp_path / "cut-made", tmp_path / "cut-real", metrics=["warping-error"], **CPU)


def test_the_frames_of_all_clips_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a run, whose clips are known by the frames that each of them has."""
    source = SimpleNamespace(names=["a", "b"], frames=2 * FRAMES, size=(SIDE, SIDE), channels=3, has_flow=False)
    source.identity, source.clip = {"frames": FRAMES}, lambda number: Clip(made("ab"[number]), real("ab"[number]), None)
    monkeypatch.setattr("triptych.runs.clip_scoring._opened", lambda *_: (source, open_world("cpu")))
    scores = score_clips("made", "real", metrics=["sharpness"], **CPU)
    assert (scores.protocol["clips"], scores.protocol["frames"]) == (2, 2 * FRAMES)


class Still(torch.nn.Module):
    """A flow network that sees nothing move."""

    def __init__(self, name: str) -> None:
        super().__init__()
        assert name == "raft_small"

    def load(self, weights: dict[str, torch.Tensor], *, source: str) -> None:
        assert set(weights) == {"x"} and source.endswith(".pth")

    def forward(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(target[:, :2])


def test_figures_say_by_which_weights_the_flow_was_estimated(
    folders: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych.runs.clip_scoring.Raft", Still)
    file, digests = tmp_path / "raft.pth", []
    for value in (0.0, 1.0):
        torch.save({"x": torch.tensor(value)}, file)
        settings = ClipMetricConfig(raft=RaftConfig(network="raft_small", weights=str(file)))
        scores = score_clips(folders[0], folders[1], metrics=["warping-error"], settings=settings, **CPU)
        assert scores.protocol["flow_of"] == "raft_small" and scores.figures["warping-error"].value > 0
        assert scores.protocol["flow_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        digests.append(scores.protocol["flow_sha256"])
    assert digests[0] != digests[1]


class Seen(torch.nn.Module):
    """In the place of I3D: the means of a clip's channels and of its first frame, so that the order of axes matters."""

    def forward(self, x: torch.Tensor, rescale: bool = False, resize: bool = False, return_features: bool = False) -> torch.Tensor:
        assert rescale and resize and return_features
        return torch.cat((x.mean((2, 3, 4)), x[:, :1, 0].mean((2, 3))), dim=1) / 10


def test_fvd_needs_the_network_and_the_word_that_it_may_run(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "i3d.pt"
    torch.jit.save(torch.jit.script(Seen()), str(file))
    with pytest.raises(
        ConfigError, match=r"fvd cannot be measured: .*is a program \(TorchScript\), which opening it would run; allow that"
    ):
        score_clips(folders[0], folders[1], metrics=["fvd"], settings=ClipMetricConfig(i3d=str(file)), **CPU)
    allowed = ClipMetricConfig(i3d=str(file), run_i3d_code=True)
    scores = score_clips(folders[0], folders[1], metrics=["fvd", "sharpness"], settings=allowed, out=tmp_path / "x.json", **CPU)
    features = []
    for clips in (made, real):
        rows = [np.append(clips(clip).mean((0, 1, 2)), clips(clip)[0, :, :, 0].mean()) / 10 for clip in MOVES]
        features.append(np.stack(rows).astype(np.float32).astype(np.float64))
    (m, n), (s, r) = ([x.mean(0) for x in features], [np.cov(x.T) for x in features])
    root = np.sqrt(np.linalg.eigvals(s @ r).clip(0).real + 0j).real.sum()
    assert scores.figures["fvd"].value == pytest.approx(np.square(m - n).sum() + np.trace(s + r) - 2 * root, rel=1e-3)
    assert (tmp_path / "x.json").is_file() and len(scores.protocol["i3d_sha256"]) == 64
    missing = score_clips(folders[0], folders[1], metrics=["fvd", "sharpness"], **CPU)
    assert set(missing.figures) == {"sharpness"} and "give the TorchScript file" in missing.missing["fvd"]
    file.write_bytes(b"no program")
    with pytest.raises(ConfigError, match="cannot be opened as TorchScript"):
        score_clips(folders[0], folders[1], metrics=["fvd"], settings=allowed, **CPU)


def test_the_command(folders: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(CLIP_METRICS) == evaluate.CLIP_METRICS
    given = ["--reference", str(folders[1]), "--device", "cpu", "--metrics"]
    assert main(["evaluate", str(folders[0]), *given, "warping-error,sharpness,ssim", "--true-flow", str(folders[2])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["warping-error", "real", "sharpness", "ssim"]
    assert lines[-1].startswith("3 clips, 9 frames of 32x32; the true flow where colours agree")
    assert main(["evaluate", str(folders[0]), *given, "warping-error,kid"]) == 2
    assert "--metrics: got kid, which is measured by triptych evaluate RUN --metrics kid" in capsys.readouterr().err
    for folder, said in (
        (folders[0].parent / "flows", 'flows: no such folder (--true-flow); did you mean "flow"?'),
        (folders[0] / "no" / "flow", "no/flow: no such folder (--true-flow)"),
        (folders[0], "made: has no file a/10.npy (nor 5 more); add it, or leave --true-flow out"),
    ):
        assert main(["evaluate", str(folders[0]), *given, "warping-error", "--true-flow", str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"triptych: error: {folder}: ") and line.endswith(said)


def test_what_does_not_fit_is_said(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    names = {"metrics": ["sharpness"], **CPU}
    with pytest.raises(ConfigError, match="reference: missing: a folder of the real clips"):
        score_clips(folders[0], **names)
    with pytest.raises(ConfigError, match="frames: got 4, but .* is a folder, of which all clips count"):
        score_clips(folders[0], folders[1], frames=4, **names)
    with pytest.raises(ConfigError, match="flow: got data, but the clips come without a true flow"):
        score_clips(folders[0], folders[1], metrics=["warping-error"], settings=ClipMetricConfig(flow="data"), **CPU)
    write(tmp_path / "few" / "a" / "9.png", encoded(made("a")[0]))
    write(tmp_path / "few" / "a" / "10.png", encoded(made("a")[1]))
    with pytest.raises(DataError, match="the clip a has 2 frames, its truth 3"):
        score_clips(tmp_path / "few", folders[1], **names)
    for t in range(2):
        write(tmp_path / "grey" / "a" / f"{t + 9}.png", encoded(made("a")[t][..., 0]))
        write(tmp_path / "small" / "a" / f"{t + 9}.png", encoded(made("a")[t][:16, :16]))
    with pytest.raises(DataError, match="grey has frames of 32x32 pixels, grey, .* of 32x32 pixels, RGB: make both grey or both RGB$"):
        score_clips(tmp_path / "grey", folders[1], **names)
    with pytest.raises(DataError, match="grey has frames of 16x16 pixels, grey, .* make both grey or both RGB$"):
        score_clips(tmp_path / "grey", folders[1], image_size=16, **names)
    with pytest.raises(DataError, match="small has frames of 16x16 pixels, RGB, .* make them one size by --image-size$"):
        score_clips(tmp_path / "small", folders[1], **names)
    write(tmp_path / "other" / "z" / "1.png", encoded(made("a")[0]))
    write(tmp_path / "other" / "z" / "2.png", encoded(made("a")[1]))
    with pytest.raises(DataError, match="has no frame z/1, as .* does; a clip and its truth have the same names"):
        score_clips(tmp_path / "other", folders[1], **names)
    pans: Any = SimpleNamespace(config=load_recipe("wc-vid2vid-pans64"))
    with pytest.raises(ConfigError, match="metrics: clips of pans are not measured here; translate some"):
        RunClips(pans, SimpleNamespace(model=None), frames=None, count=None)  # type: ignore[arg-type]
    flat = np.zeros((SIDE, SIDE, 3), np.uint8)
    for t in range(2):
        write(tmp_path / "flat" / "a" / f"{t}.png", encoded(flat))
    with pytest.raises(DataError, match="a real clip is flat"):
        score_clips(tmp_path / "flat", tmp_path / "flat", **names)


def test_the_mean_gradient_is_in_levels() -> None:
    frame = np.array([[0, 1, 3], [0, 1, 3]], dtype=np.uint8)[None, ..., None]
    assert mean_gradient(frame) == pytest.approx((1 + 2 + 1 + 2) / 7), "three neighbours down, four across"
