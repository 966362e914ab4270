"""Unprojection files: as maps of points, nothing in them run, and what is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from triptych.cli.main import main
from triptych.core.errors import DataError
from triptych.data.decode import number_map
from triptych.interop.imaginaire.unprojections import MOST_POINTS, read_unprojection

SIZE = (3, 4)
TABLE = [0, 1, 70_000, 2, 3, MOST_POINTS - 1, 1, 0, 0, 0, 1, 8, 1, 3, 70_000]


def pickled(path: Path, content: Any, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_table_becomes_a_map(tmp_path: Path, protocol: int) -> None:
    found = read_unprojection(pickled(tmp_path / "a.pkl", {"w4xh3": TABLE, "w2xh1": [0, 0, 1]}, protocol), size=SIZE)
    expected = np.zeros(SIZE, dtype=np.int64)
    expected[0, 1], expected[2, 3], expected[1, 0], expected[1, 3] = 9, MOST_POINTS, 1, 70_001
    assert np.array_equal(found, expected)
    for empty in (None, []):
        assert not read_unprojection(pickled(tmp_path / "b.pkl", {"w4xh3": empty}), size=SIZE).any()


def test_the_command_writes_maps_that_clips_are_read_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a/1", "a/2", "b/1"):
        pickled(tmp_path / "in" / f"{name}.pkl", {"w4xh3": TABLE})
    assert main(["data", "points", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--height", "3", "--width", "4"]) == 0
    assert "3 maps of points of 4x3" in capsys.readouterr().out
    written = number_map((tmp_path / "out" / "a" / "2.png").read_bytes(), wide=True)
    assert np.array_equal(written, read_unprojection(tmp_path / "in" / "a" / "2.pkl", size=SIZE))
    assert len(list((tmp_path / "out").glob("*/*.png"))) == 3
    one = ["data", "points", str(tmp_path / "in" / "b"), "--out", str(tmp_path / "one"), "--height", "3", "--width", "4"]
    assert main(one) == 0 and capsys.readouterr().out.startswith("1 map of points of 4x3: ")
    pickled(tmp_path / "cityscapes" / "a" / "1.pkl", {"w1024xh512": TABLE})
    assert main(["data", "points", str(tmp_path / "cityscapes"), "--out", str(tmp_path / "large")]) == 0
    assert "1 map of points of 1024x512: " in capsys.readouterr().out
    assert main(["data", "points", str(tmp_path / "out"), "--out", str(tmp_path / "more")]) == 2
    assert "holds no unprojection files" in capsys.readouterr().err
    assert main(["data", "points", str(tmp_path / "none"), "--out", str(tmp_path / "more")]) == 2
    assert "none: no folder; name that of the unprojection files (.pkl)" in capsys.readouterr().err
    for side in ("height", "width"):
        assert main([*one, f"--{side}", "0"]) == 2
        assert f"--{side}: got 0, expected at least 1" in capsys.readouterr().err
    command = ["data", "points", str(tmp_path / "in"), "--height", "3", "--width", "4", "--out"]
    assert main([*command, str(tmp_path / "out")]) == 0, "once more"
    file = next((tmp_path / "out").rglob("*.png")).relative_to(tmp_path / "out")
    mine = tmp_path / "frames" / file
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"a frame")
    (tmp_path / "file").write_text("")
    capsys.readouterr()
    for place, said in (
        (tmp_path / "frames", "no such command made it"),
        (tmp_path / "in", "which is read"),
        (tmp_path / "in" / "maps", "which is read"),
        (tmp_path / "file", "is a file"),
    ):
        assert main([*command, str(place)]) == 2
        assert said in capsys.readouterr().err
    assert mine.read_bytes() == b"a frame"


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_what_is_refused_is_not_run(tmp_path: Path) -> None:
    evil = pickled(tmp_path / "evil.pkl", {"w4xh3": _Evil(tmp_path / "made")})
    with pytest.raises(DataError, match=r"evil\.pkl names posix\.mkdir, which no unprojection file needs: nothing of it was run$"):
        read_unprojection(evil, size=SIZE)
    assert not (tmp_path / "made").exists()
    torch.save({"w4xh3": [0, 0, 1]}, tmp_path / "torch.pkl")
    torch.save({"w4xh3": [0, 0, 1]}, tmp_path / "old.pkl", _use_new_zipfile_serialization=False)
    of_torch, instead = "is a file of torch.save, and no unprojection file", "give those that imaginaire reads (.pkl)"
    for name, written, said in (
        ("torch", None, f"{of_torch}: {instead}"),
        ("old", None, f"{of_torch}: {instead}"),
        ("text", b"<html>", f"is no pickle: {instead}"),
        ("cut", evil.read_bytes()[:-1], "names posix.mkdir, which no unprojection file needs: nothing of it was run"),
        ("short", pickle.dumps({"w4xh3": TABLE})[:-1], "is damaged or cut off, or no unprojection file"),
        ("empty", b"", "is damaged or cut off, or no unprojection file"),
        ("broken", b"\x80\x04s.", "is damaged or cut off, or no unprojection file"),
        ("outside", b"\x80\x04K\x01Q.", "refers to values outside of it, which no unprojection file does"),
        ("memory", b"\x80\x05\x97.", "has the instruction NEXT_BUFFER, which no unprojection file needs: nothing of it was run"),
        ("graph", b"cdnnlib.tflib.network\nNetwork\n.", "names dnnlib.tflib.network.Network, which no unprojection file needs: nothing"),
    ):
        if written is not None:
            (tmp_path / f"{name}.pkl").write_bytes(written)
        with pytest.raises(DataError) as refused:
            read_unprojection(tmp_path / f"{name}.pkl", size=SIZE)
        assert str(refused.value).startswith(f"{tmp_path / name}.pkl {said}") and "NVIDIA" not in str(refused.value)
    for content, words in (
        ([1, 2, 3], "no unprojection file"),
        ({"w2xh1": []}, "has no table w4xh3, but w2xh1"),
        ({"w4xh3": [1, 2]}, r"c\.pkl: w4xh3 is no list of whole numbers, three for each point"),
        ({"w4xh3": [1, 2, 0.5]}, "no list of whole numbers"),
        ({"w4xh3": [3, 0, 1]}, "numbers outside of it; expected rows below 3"),
        ({"w4xh3": [0, 4, 1]}, "numbers outside of it"),
        ({"w4xh3": [0, 0, MOST_POINTS]}, "numbers outside of it"),
        ({"w4xh3": [0, 0, -1]}, "numbers outside of it"),
    ):
        with pytest.raises(DataError, match=words):
            read_unprojection(pickled(tmp_path / "c.pkl", content), size=SIZE)
