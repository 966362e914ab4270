"""Handwritten characters translated into characters of an alphabet that the model never saw, from one drawing of each.

    python benchmarks/characters.py --zips DIR --folder DATA --judge judge.pt                       (writes the data, trains the judge)
    python benchmarks/characters.py --zips DIR --folder DATA --judge judge.pt --recipe funit-omniglot --run RUN --out FILE.md

DIR holds Omniglot's images_background_small1.zip and images_background_small2.zip. One alphabet is held out, of which 20 characters are
used. Contents are drawings of other alphabets, styles single drawings of the 20 characters. The judge is a small network, trained to
tell the other alphabets' characters apart; an output counts as the held-out character whose drawings have the nearest mean in its
features (cosine), the style's own drawing left out. Target: the style's character for at least 15 % of the outputs; chance is 5 %.
Exit code 1 when it is missed. A run that is not there yet is trained first.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from translation_runs import length, report, trained_run

from triptych.runs.translation_grid import write_rows

HELD_OUT, CHARACTERS, DRAWINGS, CONTENTS, SHOWN, AT_LEAST = "Greek", 20, 20, 5, 20, 0.15
JUDGE_STEPS, JUDGE_BATCH, JUDGE_WIDTH, SIZE = 3000, 64, 32, 32


def write_characters(zips: Path, folder: Path) -> None:
    """ALPHABET/CHARACTER/*.png in a folder, where it is not there yet."""
    if folder.is_dir():
        return
    for name in ("images_background_small1", "images_background_small2"):
        with zipfile.ZipFile(zips / f"{name}.zip") as archive:
            for member in archive.namelist():
                if member.endswith(".png"):
                    path = folder / Path(member).relative_to(name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(member))


def drawings(folder: Path) -> np.ndarray:
    """All drawings of a character: uint8 (n, 32, 32)."""
    images = [
        Image.open(path).convert("L").resize((SIZE, SIZE), Image.Resampling.BICUBIC, reducing_gap=None)
        for path in sorted(folder.glob("*.png"))
    ]
    return np.stack([np.asarray(image) for image in images])


class Judge(nn.Module):
    """A network from drawings to features, and to scores of the training characters."""

    def __init__(self, classes: int, width: int = JUDGE_WIDTH) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for ins, outs in ((1, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width)):
            layers += [nn.Conv2d(ins, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.scores = nn.Linear(4 * width * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (b, classes) of drawings (b, 1, 32, 32) in [-1, 1]."""
        return self.scores(self.features(x))

    @torch.no_grad()
    def directions(self, images: np.ndarray) -> np.ndarray:
        """The features of uint8 drawings (n, 32, 32), of length 1: (n, d)."""
        return torch.cat([F.normalize(self.features(part), dim=1) for part in as_tensor(images).split(256)]).numpy()


def as_tensor(images: np.ndarray) -> Tensor:
    """uint8 drawings (n, 32, 32) as (n, 1, 32, 32) in [-1, 1]."""
    return torch.from_numpy(images).float()[:, None] / 127.5 - 1


def trained_judge(characters: list[np.ndarray], path: Path, seed: int = 0) -> Judge:
    """The judge in a file, trained first where there is none."""
    torch.manual_seed(seed)
    judge = Judge(len(characters))
    if path.is_file():
        judge.load_state_dict(torch.load(path, weights_only=True))
        return judge.eval()
    images = as_tensor(np.concatenate(characters))
    labels = torch.repeat_interleave(torch.arange(len(characters)), torch.tensor([len(part) for part in characters]))
    optimizer = torch.optim.AdamW(judge.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=JUDGE_STEPS)
    for step in range(JUDGE_STEPS):
        chosen = torch.randint(len(images), (JUDGE_BATCH,))
        loss = F.cross_entropy(judge(varied(images[chosen])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"judge: step {step}, loss {float(loss.detach()):.3f}", flush=True)
    torch.save(judge.eval().state_dict(), path)
    return judge


def varied(x: Tensor) -> Tensor:
    """Turned by up to 10 degrees, enlarged by up to a tenth and moved by up to two pixels."""
    angle, scale = torch.empty(len(x)).uniform_(-0.17, 0.17), torch.empty(len(x)).uniform_(0.9, 1.1)
    shift = torch.empty(len(x), 2).uniform_(-2 / SIZE * 2, 2 / SIZE * 2)
    rows = (
        torch.stack((scale * angle.cos(), -scale * angle.sin(), shift[:, 0]), 1),
        torch.stack((scale * angle.sin(), scale * angle.cos(), shift[:, 1]), 1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def nearest(queries: np.ndarray, references: np.ndarray, *, own: np.ndarray | None) -> np.ndarray:
    """The character whose references (20, n, d) have the nearest mean; `own` (q, 2): character and number of one that is left out."""
    sums, count = references.sum(1), references.shape[1]
    found = []
    for k, query in enumerate(queries):
        means = sums / count
        if own is not None:
            character, number = own[k]
            means = means.copy()
            means[character] = (sums[character] - references[character, number]) / (count - 1)
        found.append(int((means / np.linalg.norm(means, axis=1, keepdims=True) @ query).argmax()))
    return np.array(found)


def main() -> int:
    """0, or 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zips", type=Path, required=True, help="folder of Omniglot's zip files")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the drawings, written where there is none")
    parser.add_argument("--judge", type=Path, required=True, help="file of the judge's weights, written where there is none")
    parser.add_argument("--recipe", default="funit-omniglot")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images", type=int, help="images seen by the training, in place of the recipe's")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--picture", type=Path, help="also draw some contents, styles and outputs to this file")
    options = parser.parse_args()
    write_characters(options.zips, options.folder)
    known = [path for path in sorted(options.folder.glob("*/*")) if path.parent.name != HELD_OUT]
    judge = trained_judge(contents := [drawings(path) for path in known], options.judge)
    unseen = np.stack([drawings(path) for path in sorted((options.folder / HELD_OUT).iterdir())[:CHARACTERS]])
    features = judge.directions(unseen.reshape(-1, SIZE, SIZE)).reshape(CHARACTERS, DRAWINGS, -1)
    own = np.array([(character, number) for character in range(CHARACTERS) for number in range(DRAWINGS)])
    real = nearest(features.reshape(len(own), -1), features, own=own)
    rows: list[tuple[str, float, float | None]] = [("real drawings of the held-out characters", (real == own[:, 0]).mean(), None)]
    note = ""
    if options.run is not None:
        run = trained_run(options.run, options.recipe, {"path": str(options.folder), "held_out": [HELD_OUT]}, options.images)
        draws = np.random.default_rng(0)
        chosen = np.repeat(own, CONTENTS, axis=0)
        given = np.stack(
            [
                contents[c][n]
                for c, n in zip(draws.integers(len(contents), size=len(chosen)), draws.integers(20, size=len(chosen)), strict=True)
            ]
        )
        styles = unseen[chosen[:, 0], chosen[:, 1]]
        made = np.stack(run.translate({"images": given[..., None]}, style=styles[..., None], style_each=True).images)[:, 0, ..., 0]
        if options.picture:
            shown = slice(None, None, len(made) // SHOWN)
            write_rows(options.picture, [list(part[shown][:SHOWN, ..., None]) for part in (given, styles, made)])
        before = nearest(judge.directions(given), features, own=chosen)
        found = nearest(judge.directions(made), features, own=chosen)
        rows.append(("contents as they are", (before == chosen[:, 0]).mean(), None))
        rows.append((f"translated by {options.recipe}", (found == chosen[:, 0]).mean(), AT_LEAST))
        note = length(run)
    title, heading = f"Characters of {HELD_OUT} from one drawing", "drawings | taken for the style's character, of 20"
    return report(title, heading, rows, note, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
