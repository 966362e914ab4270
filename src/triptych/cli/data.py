"""`triptych data`: what is to be done with images before or beside a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from triptych.cli import data_doctor, data_draw, data_pack, data_person, data_points, data_show
from triptych.cli.arguments import (
    asks_for_help,
    at_checkpoint,
    finished,
    flag_value,
    named_as_flags,
    require_argument,
    require_images,
    run_argument,
)
from triptych.cli.data_settings import SIZE, lengthened
from triptych.cli.output import show_page
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.wording import counted
from triptych.data.config import ClassesFrom
from triptych.runs.loading import Loading

_ENCODE_LINE = "triptych data encode IMAGES --with RUN --out FILE.npz"
_STATS_LINE = "triptych data stats IMAGES --out FILE.npz [--features NETWORK]"
USAGE = """usage: triptych data doctor IMAGES [--image-size N] [--against OTHERS] [--page FILE.html] [--quarantine FILE.json]
       triptych data stats IMAGES --out FILE.npz [--features NETWORK] [--image-size N] [--images]
       triptych data encode IMAGES --with RUN --out FILE.npz [--image-size N] [--flip False]
       triptych data show IMAGES [--recipe RECIPE] [--out FILE.png] [--count N] [--draws N] [--p P] [--SETTING ...]
       triptych data pack IMAGES --size N --out FILE.npz [--recipe RECIPE] [--data.SETTING ...]
       triptych data points UNPROJECTIONS --out FOLDER [--height N] [--width N]
       triptych data draw KEYPOINTS --out FOLDER --frames FOLDER [--kind people]
       triptych data person MAPS --out FOLDER --instances FOLDER --poses FOLDER

  doctor   decode every image, and say whether a training can use them and what is wrong with which: damaged files, sizes, colours,
           duplicates; the exit code is 1 where it cannot
  stats    write the mean and covariance of a network's features of the images, to be the reference of an evaluation:
           `triptych evaluate`, guided-diffusion's evaluator and pytorch-fid read the file
  encode   write the latents of the images by the autoencoder of a run, mean and deviation of each: `triptych train RECIPE --data.path FILE`
           learns them, and its samples are decoded
  show     write a sheet of training images as a model sees them: each as it is, then cropped, mirrored and augmented in several draws; with
           its class map, style images or small image
  pack     write the images as training takes them into one file (.npz of pixels, or .zip of PNGs), which is learned many times faster and
           gives the same batches
  points   write imaginaire's unprojection files (.pkl), which are not run, as maps of the points of a scene, for data.points of clips
  draw     draw key points of faces (68 each) and of people (OpenPose), .json, as images for data.conditions of pairs and clips
  person   take all people but one out of maps of people, by maps that say who is where

IMAGES is whatever --data.path may be: a folder, .zip, .tar, .parquet, .npz or .npy, an LMDB, a pattern in quotation marks
("x-{000..009}.tar"), or a folder of MNIST's, CIFAR-10's or openai/glow's files.

  triptych data VERB --help    list all options of a verb

example: triptych data doctor ./photos --image-size 64 --page photos.html
         triptych data stats ./photos --features inception --out photos.npz
         triptych data encode ./photos --with runs/kl --out latents.npz
         triptych data show ./photos --recipe stylegan2-photos64 --p 0.5
         triptych data pack ./photos --size 64 --out photos64.npz"""
_VERBS = ("doctor", "stats", "encode", "pack", "points", "draw", "person", "show")


@config
class StatsOptions(Config):
    """Statistics of which network, over which images, to where."""

    out: str | None = None
    "Required: FILE.npz for mu and sigma of the features; of a network with spatial features (inception) mu_s and sigma_s too."
    features: str | None = None
    "The network; None: inception where its weights are in the cache, else efficientnet-lite0 where it is installed."
    features_weights: str | None = None
    "File of the network's weights; None: that in the cache."
    features_resize: str | None = None
    "How images get the network's size; None: as is usual for the network."
    image_size: int | None = None
    "Height and width in pixels that the images are cropped and resized to before; None: as they are, where all have one size."
    width: int | None = None
    "Width, where that is not the height; goes with --image-size. None: as the height."
    images: bool = False
    "Also write the images (arr_0): guided-diffusion's evaluator needs them for precision and recall."
    device: str | None = None
    "cpu, cuda or cuda:N; None: a CUDA device where there is one."

    def validate(self) -> None:
        self.require(self.out is None or Path(self.out).suffix == ".npz", "out", "a name that ends with .npz")
        self.require(self.image_size is None or self.image_size >= 1, "image_size", "at least 1")
        self.require(self.width is None or self.width >= 1, "width", "at least 1")
        self.require(self.width is None or self.image_size is not None, "width", "nothing without --image-size")


def main(arguments: Sequence[str]) -> int:
    """Does what the first argument says."""
    if not arguments:
        raise ConfigError("", f"nothing to do given; expected one of {', '.join(_VERBS)} (triptych data --help says what they do)")
    if arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    if arguments[0] not in _VERBS:
        raise ConfigError("", f"unknown triptych data {arguments[0]!r}{nearest(arguments[0], _VERBS)} (triptych data --help)")
    verbs = {
        "doctor": data_doctor.main,
        "stats": _stats,
        "encode": _encode,
        "pack": data_pack.main,
        "points": data_points.main,
        "draw": data_draw.main,
        "person": data_person.main,
        "show": data_show.main,
    }
    return verbs[arguments[0]](arguments[1:])


def _stats(arguments: Sequence[str]) -> int:
    """Writes the statistics, and prints what they are of."""
    helped = asks_for_help(arguments)
    if not helped:
        require_argument(arguments, "images", usage=_STATS_LINE)
        require_images(arguments[0], note="; expected a folder, .zip, .tar, .npz or .npy of images")
    options = configure(arguments if helped else arguments[1:])
    if options.out is None:
        raise ConfigError("--out", f"missing: the file to write; usage: {_STATS_LINE}")

    from triptych.runs.statistics import write_statistics

    size = options.image_size
    with named_as_flags(options), progress_bar("embedding") as progress:
        written = write_statistics(
            arguments[0],
            options.out,
            features=options.features,
            weights=options.features_weights,
            resize=options.features_resize,
            image_size=size if size is None or options.width is None else (size, options.width),
            images=options.images,
            device=options.device,
            progress=progress,
        )
    height, width = written.size
    numbers = ", ".join(f"{dimensions} {output}" for output, dimensions in written.dimensions.items())
    return finished(f"{counted(written.count, 'image')} of {width}x{height} in {written.network} ({numbers}): {options.out}")


@config
class EncodeOptions(Loading):
    """Latents of which images, by which weights, to where."""

    autoencoder: str | None = None
    "Required; also written --with: the run of the autoencoder, or one on its latents, which says scale and size."
    out: str | None = None
    "Required: FILE.npz for the latents."
    image_size: int | None = None
    "Height and width in pixels that the images are cropped and resized to; None: those that the autoencoder learned."
    flip: bool | None = None
    "Encode mirrored images too, for --data.flip; None: where the autoencoder's training mirrored them."
    labels: ClassesFrom = "auto"
    "Class by sub-folder (or a label of the data's own), name up to the first _, dataset.json, or none; auto: own, or sub-folders of all."
    enlarge: bool | None = None
    "Enlarge images that are smaller than image_size; None: where the autoencoder's training did."
    validation_fraction: float | None = None
    "Share held out, chosen by file name, unless the images have their own; 0: none. None: as in the autoencoder's training, or 0.05."
    on_error: Literal["stop", "skip"] | None = None
    "What becomes of an image that cannot be read: stop, or skip, which leaves it out; None: as in the autoencoder's training."

    def validate(self) -> None:
        share = self.validation_fraction is None or 0 <= self.validation_fraction < 1
        self.require(share, "validation_fraction", "0 or more and below 1")
        self.require(self.out is None or Path(self.out).suffix == ".npz", "out", "a name that ends with .npz")
        self.require(self.image_size is None or self.image_size >= 1, "image_size", "at least 1")


def _encode(arguments: Sequence[str]) -> int:
    """Writes the latents, and prints what they are."""
    images, options = configure_encode(arguments)
    for name, value in (("--with", options.autoencoder), ("--out", options.out)):
        if value is None:
            raise ConfigError(name, f"missing; usage: {_ENCODE_LINE}")
    out = options.out
    assert options.autoencoder is not None and out is not None
    require_images(images, note="; expected a folder, .zip, .tar, .npz or .npy of images")
    run, *flags = at_checkpoint([options.autoencoder, *arguments[1:]])
    options = dataclasses.replace(options, checkpoint=flag_value("--checkpoint", flags) or options.checkpoint)
    directory = run_argument([run], usage=_ENCODE_LINE)

    from triptych.runs import open_run
    from triptych.runs.latent_data import encode_data

    try:
        with named_as_flags(options), progress_bar("encoding") as progress:
            made = encode_data(
                images,
                open_run(directory),
                out,
                image_size=options.image_size,
                flip=options.flip,
                labels=options.labels,
                enlarge=options.enlarge,
                validation_fraction=options.validation_fraction,
                on_error=options.on_error,
                progress=progress,
                **options.keywords(),
            )
    except ConfigError as error:
        raise error.renamed(lambda name: "--with" if name == "with" else name) from None
    except DataError as error:
        raise _with_flags(error) from None
    channels, height, width = made.shape
    std = ", ".join(f"{value:.3g}" for value in made.stamp.latents.std)
    already = " were there already" if made.already else ""
    return finished(f"{counted(made.count, 'image')} as latents of {width}x{height}x{channels} (deviations {std}){already}: {out}")


def _with_flags(error: DataError) -> DataError:
    """The same error, whose advice names the flags of this verb and not the settings of a training."""
    said = str(error)
    for name in ("image_size", "enlarge", "on_error", "labels"):
        said = said.replace(f"data.{name}", f"--{name.replace('_', '-')}")
    return DataError(said)


def configure_encode(arguments: Sequence[str]) -> tuple[str, EncodeOptions]:
    """The images, and the options, of `triptych data encode`."""
    from triptych.cli.settings import parse

    helped = asks_for_help(arguments)
    if not helped:
        require_argument(arguments, "images", usage=_ENCODE_LINE)
    options, _ = parse(
        lengthened(arguments if helped else arguments[1:], _LONG | SIZE),
        prog="triptych data encode IMAGES",
        description="Writes the latents of the images by an autoencoder's run (--with), mean and deviation of each.",
        options=EncodeOptions(),
        settings=Config(),
    )
    return arguments[0], options


_LONG = {"--with": "--autoencoder"}  # a word that is no name in Python


def configure(arguments: Sequence[str]) -> StatsOptions:
    """The options of `triptych data stats`."""
    from triptych.cli.settings import parse

    options, _ = parse(
        lengthened(arguments, SIZE),
        prog="triptych data stats IMAGES",
        description="Writes the mean and covariance of a network's features of the images.",
        options=StatsOptions(),
        settings=Config(),
    )
    return options
