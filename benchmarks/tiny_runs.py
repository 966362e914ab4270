"""A tiny run of every kind of model by the command line of any tree of the program, for scripts that compare two of them.

As a script, `python tiny_runs.py FILE`, it runs the command lines of a JSON file one after another: one process, one import of PyTorch.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

STEPS = 20
"""Training steps of a run; it keeps the checkpoints after a half of them and after all."""


@dataclass(frozen=True)
class Tiny:
    """A recipe made smaller by flags, and what is done with its run."""

    name: str
    recipe: str
    batch: int
    settings: str
    uses: tuple[str, ...]
    "Command lines; RUN stands for the run, OUT for a folder of its outputs."

    @property
    def images(self) -> int:
        """Training images in all."""
        return STEPS * self.batch

    def train(self) -> list[str]:
        """The command that trains the run of its name, or goes on with it."""
        common = {
            "train.total-images": self.images,
            "train.batch-size": self.batch,
            "train.checkpoint-every": self.images // 2,
            "train.sample-every": self.images // 2,
            "train.sample-count": 2,
            "train.validate-every": self.images // 2,
            "train.validate-images": 8,
            "log.every": self.images // 4,
            "data.workers": 0,
        }
        flags = [word for name, value in common.items() for word in (f"--{name}", str(value))]
        return ["train", self.recipe, "--run", self.name, "--device", "cpu", *flags, *self.settings.split()]

    def use(self) -> list[list[str]]:
        """The commands that use the run."""
        known = {"RUN": self.name, "OUT": f"out/{self.name}"}
        lines = ([known.get(word, word.replace("OUT/", f"out/{self.name}/")) for word in line.split()] for line in self.uses)
        return [words if words[0] == "export" else [*words, "--device", "cpu"] for words in lines]


_NETWORK = "--model.network.num-channels 32 --model.network.channel-mult 1 2 --model.network.attention-resolutions 8"
_SMALL = "--model.generator.num-filters 4 --model.discriminator.num-filters 8"
_PAIRS = "--data.path ../data/pairs --data.image-size 32 --data.width 64 --data.instances instances"
_DOMAINS = "--data.a images_a.npz --data.b images_b.npz"
_FEATURES = (
    "--model.perceptual-weight 1 --model.perceptual.network squeezenet1_0 --model.perceptual.weights ../data/squeezenet.safetensors "
    "--model.perceptual.layers relu_1 --model.perceptual.layer-weights 1"
)
_TRANSLATE = "translate RUN --held-out --count 3 --batch-size 2 --seed 3 --out OUT/held-out"
TINY = (
    Tiny(
        "adm-digits",
        "adm-digits",
        8,
        f"{_NETWORK} --train.precision float32 --model.label-dropout 0.1 --model.diffusion.variance learned_range "
        "--data.channels 3 --model.diffusion.mean epsilon --model.diffusion.loss rescaled_mse --model.timestep-sampler loss-second-moment",
        (
            "sample RUN --count 4 --seed 1 --steps 4 --batch-size 3 --out OUT/ddim.npz",
            "sample RUN --count 4 --labels 3,7 --sampler unipc --steps 4 --guidance-scale 2 --weights raw --out OUT/grid.png",
            "evaluate RUN --count 4 --steps 4 --out OUT/bound.json",
            "evaluate RUN --count 2 --steps 3 --likelihood ode --out OUT/ode.json",
            "encode RUN OUT/ddim.npz --steps 4 --out OUT/latents.npz",
            "encode RUN OUT/latents.npz --decode --out OUT/decoded",
            "export RUN --to guided-diffusion --out OUT/adm.pt",
            "export RUN --to diffusers --out OUT/diffusers",
        ),
    ),
    Tiny(
        "classifier-digits",
        "classifier-digits",
        8,
        f"{_NETWORK} --data.channels 3",
        ("sample adm-digits --guide RUN --guidance-scale 2 --count 3 --labels 3,7 --steps 4 --out OUT/guided.npz",),
    ),
    Tiny(
        "upsample-digits",
        "upsample-digits",
        8,
        f"{_NETWORK} --train.precision bf16",
        (
            "sample RUN --base ../data/small --labels 3,4 --steps 4 --out OUT/files",
            "sample RUN --base ../data/small.npz --labels 3 --steps 4 --sampler ancestral --out OUT/array.npz",
            "evaluate RUN --count 4 --steps 4 --out OUT/bound.json",
        ),
    ),
    Tiny(
        "glow-digits",
        "glow-digits",
        8,
        "--model.depth 2 --model.width 16 --model.init-images 32 --train.microbatch 3 --model.memory inversion",
        (
            "sample RUN --count 4 --seed 1 --temperature 0.5 --out OUT/samples.npz",
            "evaluate RUN --count 6 --draws 2 --out OUT/bits.json",
            "encode RUN ../data/digits --directions --out OUT/latents.npz",
            "encode RUN OUT/latents.npz --decode --out OUT/decoded.npz",
            "sample RUN --from OUT/latents.npz --pick 0,3 --direction one=0.8 --out OUT/moved.png",
            "sample RUN --from OUT/latents.npz --between 0,3 --count 3 --out OUT/way.png",
        ),
    ),
    Tiny(
        "spade",
        "spade-camvid",
        4,
        f"{_PAIRS} {_FEATURES} --model.generator.num-filters 4 --model.generator.spade-filters 8 --model.generator.encoder-filters 4 "
        "--model.discriminator.patch.num-filters 8 --train.ema-start 8",
        (
            _TRANSLATE,
            "translate RUN ../data/pairs/val --style-count 2 --out OUT/maps",
            "translate RUN ../data/pairs/val --style ../data/pairs/val/images --out OUT/styled",
        ),
    ),
    Tiny(
        "pix2pixhd",
        "pix2pixhd-camvid",
        4,
        f"{_PAIRS} {_SMALL} --model.augment color,translation --model.generator.num-enhancers 1 --model.discriminator-steps 2",
        (_TRANSLATE, "translate RUN ../data/pairs/val --out OUT/maps"),
    ),
    Tiny(
        "unit",
        "unit-mnist",
        4,
        f"--data.path ../data {_DOMAINS} {_SMALL} --model.top-k.least 0.5 --model.top-k.decay 0.7 --model.top-k.round-steps 3",
        (_TRANSLATE, "translate RUN ../data/images_a.npz --direction b-to-a --batch-size 9 --out OUT/array"),
    ),
    Tiny(
        "munit",
        "munit-mnist",
        4,
        f"--data.path ../data {_DOMAINS} {_SMALL} --model.penalty.r1-gamma 1 --model.penalty.every 2",
        (
            _TRANSLATE,
            "translate RUN ../data/pairs/val/images --style-count 2 --temperature 0.7 --size own --batch-size 1 --out OUT/styles",
            "translate RUN ../data/images_b.npz --style ../data/images_b.npz --count 3 --style-each --out OUT/styled",
        ),
    ),
    Tiny(
        "funit",
        "funit-omniglot",
        4,
        f"--data.path ../data/characters {_SMALL}",
        (_TRANSLATE, "translate RUN ../data/pairs/val/images --size 32 --style ../data/characters/Greek/character01 --out OUT/styled"),
    ),
    Tiny(
        "coco-funit",
        "coco-funit-omniglot",
        4,
        f"--data.path ../data/characters {_SMALL}",
        (_TRANSLATE, "translate RUN ../data/pairs/val/images --size 32 --style ../data/characters/Greek/character01 --out OUT/styled"),
    ),
)


# Data --------------------------------------------------------------------------------------------------------------------


def write_data(folder: Path) -> None:
    """Writes the data of all tiny runs: blots of few colours, for what is learned of them does not matter."""
    for split, count in (("train", 8), ("val", 3)):
        for k in range(count):
            _save(folder / f"pairs/{split}/images/{k}.png", _blots(k, 32, 64, 3, 256))
            _save(folder / f"pairs/{split}/labels/{k}.png", _blots(k, 32, 64, 1, 12))
            _save(folder / f"pairs/{split}/instances/{k}.png", _blots(k + 50, 32, 64, 1, 5))
    for name, seed in (("images_a", 0), ("images_b", 100)):
        np.savez(folder / f"{name}.npz", arr_0=np.stack([_blots(seed + k, 32, 32, 3, 256) for k in range(16)]))
    np.savez(folder / "small.npz", arr_0=np.stack([_blots(k, 8, 8, 1, 256) for k in range(3)]))
    for k in range(4):
        _save(folder / f"small/{k}.png", _blots(k, 8, 8, 1, 256))
        _save(folder / f"two/{k % 2}.png", _blots(k, 32, 32, 3, 256))
        _save(folder / f"digits/{('zero', 'one')[k % 2]}/{k}.png", _blots(k, 16, 16, 1, 256))
    for character in ("Greek/character01", "Greek/character02", *(f"Latin/character0{k}" for k in range(4))):
        for k in range(6):
            _save(folder / f"characters/{character}/{k}.png", _blots(k + len(character), 32, 32, 1, 256))
    write_tensors(
        folder / "squeezenet.safetensors",
        {f"features.0.{name}": np.random.default_rng(0).normal(0, 0.05, shape) for name, shape in _FIRST_LAYER.items()},
    )


_FIRST_LAYER = {"weight": (96, 3, 7, 7), "bias": (96,)}
"""Of SqueezeNet 1.0, for a perceptual loss."""


def _blots(seed: int, height: int, width: int, channels: int, levels: int) -> np.ndarray:
    low = np.random.default_rng(seed).integers(0, levels, (height // 4, width // 4, channels), dtype=np.uint8)
    return low.repeat(4, axis=0).repeat(4, axis=1)


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]).save(path)


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a file of float32 tensors."""
    from safetensors.numpy import save_file

    save_file({name: values.astype(np.float32) for name, values in tensors.items()}, path)


# Processes ---------------------------------------------------------------------------------------------------------------


def environment(tree: Path) -> dict[str, str]:
    """The variables of a process that runs that tree's program."""
    return {**os.environ, "PYTHONPATH": str(tree.resolve() / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def run_lines(tree: Path, lines: Iterable[Sequence[str]], *, folder: Path) -> str | None:
    """Runs command lines of that tree's program in a folder, in one process. None, or what they printed when one failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([list(line) for line in lines], file)
        file.flush()
        done = subprocess.run(
            [sys.executable, __file__, file.name],
            cwd=folder,
            env=environment(tree),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    return None if done.returncode == 0 else done.stdout + done.stderr


def run_line(words: Sequence[str]) -> None:
    """Runs a command line in this process; raises SystemExit, which names it, when it failed."""
    sys.argv = ["triptych", *words]
    try:
        runpy.run_module("triptych", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise SystemExit(f"code {end.code} of triptych {' '.join(words)}") from None


def require_tree(tree: Path) -> None:
    """Stops the process where the program that it would import is not that tree's."""
    import triptych

    if not Path(triptych.__file__).is_relative_to(tree.resolve()):
        raise SystemExit(f"{triptych.__file__} is not in {tree}: is there a src/triptych in it?")


if __name__ == "__main__":
    require_tree(Path(os.environ["PYTHONPATH"]).parent)
    for line in json.loads(Path(sys.argv[1]).read_text()):
        run_line(line)
