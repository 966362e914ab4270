"""What a small autoencoder keeps of images, and what a flow makes of its latents.

    python benchmarks/autoencoder.py --data FOLDER --runs DIR --minutes 20 --out FILE.md [--features NETWORK --features-weights FILE]

autoencoder-small is trained on the folder for as many images as it sees in the minutes; its discriminator joins halfway. Held-out ones are
then reconstructed, and beside them stand the same images made smaller, to as many numbers as the latents have, and enlarged bicubically.
Both are held against the originals: PSNR over all of them, and the Frechet distance in one feature space. flow-small learns the kept
latents; its samples, decoded, are held against the training images, and beside them stand the reconstructions and the held-out images
themselves. Runs that are there go on where they are. What it saves that the latents are kept is timed by kept_latents.py.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from families import speed
from machine import machine
from PIL import Image

from triptych.core.images import grid, save_picture
from triptych.data.config import DataConfig
from triptych.diffusion.flow_matching import FlowMatchingConfig
from triptych.engine.metric_log import read_metrics
from triptych.gans.kl_autoencoder import KLAutoencoderConfig
from triptych.recipes.catalogue import load_recipe
from triptych.runs import Run, open_run, score, train
from triptych.runs.latent_data import encode_data
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, maker_of

WARM_UP_IMAGES = 160
SAMPLES, PICTURED, CALLS = 500, 40, 20
CHUNK = 32


def trained(data: DataConfig, folder: Path, minutes: float) -> Run:
    """The autoencoder after so many minutes of training, by its speed over the first steps."""
    if (folder / "autoencoder" / "config.json").is_file():
        return train(open_run(folder / "autoencoder").config, folder / "autoencoder", device="cpu")
    recipe = load_recipe("autoencoder-small")
    assert isinstance(recipe.model, KLAutoencoderConfig)
    first = replace(recipe, data=data, train=replace(recipe.train, total_images=WARM_UP_IMAGES, sample_count=0, validate_images=0))
    model = replace(recipe.model, adversarial_start=WARM_UP_IMAGES // 2)
    speed_run = train(replace(first, model=model), folder / "speed", device="cpu")
    speed = [line["images_per_second"] for line in read_metrics(speed_run.directory / "metrics.jsonl")][-1]
    batch = recipe.train.batch_size
    images = max(2, round(60 * minutes * speed / batch)) * batch
    model = replace(recipe.model, adversarial_start=images // 2)
    steps = replace(recipe.train, total_images=images, checkpoint_every=4_000, sample_every=None, validate_every=None)
    return train(replace(recipe, model=model, data=data, train=steps), folder / "autoencoder", device="cpu")


def latent_flow(data: DataConfig, folder: Path, minutes: float) -> Run:
    """flow-small, after so many minutes of one core on the kept latents."""
    if (folder / "config.json").is_file():
        return train(open_run(folder).config, folder, device="cpu")
    recipe = load_recipe("flow-small")
    steps = replace(recipe.train, sample_count=25, checkpoint_every=20_000, sample_every=None, validate_images=0)
    config = replace(recipe, data=data, train=steps)
    images = int(60 * minutes * speed(config))
    return train(replace(config, train=replace(steps, total_images=images)), folder, device="cpu")


def psnr(made: np.ndarray, truth: np.ndarray) -> float:
    """The mean of the images' own, in dB."""
    errors = ((made.astype(np.float64) - truth) ** 2).reshape(len(made), -1).mean(1)
    return float((10 * np.log10(255**2 / np.maximum(errors, 1e-6))).mean())


def bicubic(images: np.ndarray, *, numbers: int) -> np.ndarray:
    """Images (n, s, s, c), made smaller to at most so many numbers, in 8 bits each, and enlarged again."""
    side, channels = images.shape[1], images.shape[3]
    small = max(1, math.isqrt(numbers // channels))

    def there_and_back(image: np.ndarray) -> np.ndarray:
        thumbnail = Image.fromarray(image).resize((small, small), Image.Resampling.BICUBIC)
        return np.asarray(thumbnail.resize((side, side), Image.Resampling.BICUBIC))

    return np.stack([there_and_back(image) for image in images])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder or archive of images of at least 64 pixels")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20.0, help="of the clock, for the autoencoder")
    parser.add_argument("--flow-minutes", type=float, default=20.0, help="of one core, for the latent flow")
    parser.add_argument("--features")
    parser.add_argument("--features-weights")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data = DataConfig(path=given.data, image_size=64, labels="none", workers=0)
    run = trained(data, given.runs, given.minutes)
    maker = maker_of(run, ImageRequest())
    count = maker.most or 0
    pictures = maker.made(run.open(Loading(device="cpu")), count)
    assert pictures.truth is not None
    starts = range(0, count, CHUNK)
    made, truth = (
        np.concatenate([read(range(start, min(start + CHUNK, count))) for start in starts]) for read in (pictures.images, pictures.truth)
    )
    kept = given.runs / "latents.npz"
    shape = encode_data(given.data, run, kept, labels="none", device="cpu").shape
    rows = {"reconstructed": made, f"bicubic, {math.prod(shape)} numbers": bicubic(truth, numbers=math.prod(shape))}
    learned = data.open().train
    places = {"truth": truth, "training": np.asarray(learned.batch(np.arange(len(learned))).images)}
    places |= {name.partition(",")[0]: images for name, images in rows.items()}
    for name, images in places.items():
        np.savez(given.runs / f"{name}.npz", arr_0=images)

    def distance(images: str, reference: str) -> str:
        place, other = given.runs / f"{images}.npz", given.runs / f"{reference}.npz"
        space = {"features": given.features, "features_weights": given.features_weights}
        figures = score(place, other, metrics=["frechet"], device="cpu", **space).figures
        return ", ".join(f"{figure.value:.2f}" + (f" ± {figure.error:.2g}" if figure.error else "") for figure in figures.values())

    lines = [f"| {count} held-out images, 64x64 | PSNR, dB | Frechet distance to them |", "|---|---|---|"]
    for name, images in rows.items():
        lines.append(f"| {name} | {psnr(images, truth):.2f} | {distance(name.partition(',')[0], 'truth')} |")
    flow = latent_flow(DataConfig(source="latents", path=str(kept), image_size=64, workers=0), given.runs / "flow", given.flow_minutes)
    assert isinstance(flow.config.model, FlowMatchingConfig)
    sampling = replace(flow.config.model.sampling, sampler="unipc", steps=CALLS)
    drawn = flow.sample(SAMPLES, seed=0, settings=sampling, out=given.runs / "samples.npz", device="cpu").images
    np.savez(given.runs / "few.npz", arr_0=drawn[:count])
    lines += ["", f"| Frechet distance to the {len(learned)} training images | images | distance |", "|---|---|---|"]
    name = f"samples of the latent flow, {flow.find_checkpoint():,} images seen, {CALLS} calls"
    lines += [f"| {name} | {SAMPLES} | {distance('samples', 'training')} |"]
    lines += [f"| the same, as many as are held out | {count} | {distance('few', 'training')} |"]
    lines += [f"| reconstructions of held-out images | {count} | {distance('reconstructed', 'training')} |"]
    lines += [f"| held-out images | {count} | {distance('truth', 'training')} |"]
    if given.out is not None:
        both = np.stack([truth[:PICTURED], made[:PICTURED]], axis=1).reshape(-1, *truth.shape[1:])
        save_picture(grid(both, columns=10), given.out.with_name(f"{given.out.stem}-reconstructed.png"))
        save_picture(grid(drawn[:PICTURED], columns=10), given.out.with_name(f"{given.out.stem}-samples.png"))
    seen = run.find_checkpoint()
    lines += ["", f"autoencoder-small, {seen:,} images seen; {given.data}."]
    lines += ["", f"{datetime.date.today()}; {machine()}."]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
