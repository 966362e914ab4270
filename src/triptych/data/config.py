"""DataConfig: the data of a run. A subclass with an `open` of its own is another kind of data; nothing else has to know of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from triptych.core.address import flaw_of, is_address
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.reading import LARGEST_SIDE

if TYPE_CHECKING:
    from triptych.data.images import Data

Source = Literal["auto", "digits", "folder", "mnist", "cifar10", "tar", "zip", "arrays", "tfrecord", "lmdb", "parquet", "latents"]
Augment = Literal["none", "shift", "affine"]
ClassesFrom = Literal["auto", "folder", "prefix", "json", "none"]
"""Where the class of a file is: its sub-folder, its name up to the first _, or dataset.json; auto: that, or sub-folders that hold all."""
AS_STORED: Mapping[str, Any] = {"background": None, "profiles": "ignore"}
"""Settings by which colours are read as they lie: so do guided-diffusion, Glow and imaginaire, and so did versions without them."""
MOST_WORKERS = 1024
"""Loader processes, beyond which a number is a slip: they would take a machine's memory before they load anything."""
_COLOURS = {"black": (0, 0, 0), "grey": (128, 128, 128), "white": (255, 255, 255)}


@config
class DataConfig(Config):
    """The images that a run learns."""

    kind_name: ClassVar = "images"
    skips: ClassVar = True  # whether others can be in the place of images that cannot be read
    changeable: ClassVar = frozenset(("source", "path", "label_file", "class_file", "decode", "workers", "on_error", "most_errors"))
    unwritten: ClassVar = frozenset(("label_file", "class_file", "latent_std", "skip", "on_error", "most_errors"))

    source: Source = "auto"
    "What `path` is; auto: recognised. digits: the built-in handwritten digits, unless a path is given (then as auto)."
    path: str | None = None
    "Images: folder, .zip, tars or Parquet (x-{0..9}.tar), .npz, .npy, LMDB, MNIST, CIFAR-10, TFRecord; s3://, https://. None: digits."
    pad: int = 0
    "Pixels added on each side before all else, as dark as the darkest of their column or row."
    image_size: int = 64
    "Height and width that the images are cropped and resized to; the height alone where there is a data.width."
    anchor_size: int | None = None
    "Image size that train.batch_size (of one process), init_images and warm-up were chosen for; a start rescales them. None: as given."
    channels: Literal[1, 3] | None = None
    "1 (grey) or 3 (RGB); None: as the source has it (RGB for image files)."
    labels: ClassesFrom = "auto"
    "Class by sub-folder (or a label of the data's own), name up to the first _, dataset.json, or none; auto: own, or sub-folders of all."
    label_file: str | None = None
    "Text file with the classes of the images in no sub-folder: one a line, in the order of the images' names, or behind each. None: none."
    class_file: str | None = None
    "Names of the classes that label_file has as numbers, by the number behind each, else from 0 on; or ImageNet's meta.mat. None: none."
    crop: Literal["center", "random"] = "center"
    "Centre square, or a random square; held-out images have the centre square."
    resize: int | None = None
    "Short side that images get before the square is cut out; None: image_size, or with crop random 1 to 1.25 times that."
    scale: float | None = None
    "With crop random: enlarge by a random factor from 1 to 1 + scale before the square is cut out; None: as resize says."
    flip: bool = True
    "Mirror a random half of the training images."
    augment: Augment = "none"
    "shift: move training images by up to 0.1 of their size; affine: also rotate (15 degrees), zoom (0.9 to 1.1 per axis) and mirror them."
    jitter: float = 0.0
    "Vary brightness, contrast and gamma of training images by up to this share."
    enlarge: bool = False
    "Accept images whose short side is below image_size and enlarge them (the built-in digits always are); else they are an error."
    decode: Literal["exact", "reduced"] = "exact"
    "reduced: JPEGs are decoded at 1/2, 1/4 or 1/8 scale where that suffices: faster, pixels within 2/255 on average."
    background: str | None = "white"
    "What shows through transparent images: white, black, grey, a colour (#ff8000) or a grey level (0 to 255). None: colours beneath show."
    profiles: Literal["convert", "ignore"] = "convert"
    "convert: images with a colour profile (ICC) become sRGB by it; ignore: their levels are taken as they are."
    latent_std: float = 0.5
    "Of latents: the deviation that their samples get; 0.5 is about that of images in [-1, 1]."
    order: Literal["even", "by-name"] = "even"
    "even: validations see images from all held-out ones; the smaller of two domains repeats others each pass. by-name: always the first."
    validation_fraction: float = 0.05
    "Share held out for validation, chosen by file name; a source with its own test images uses those instead. 0: no validation."
    skip: str | None = None
    "File of images that are left out, as triptych data doctor --quarantine writes it; a run keeps a copy. None: none are."
    on_error: Literal["stop", "skip"] = "stop"
    "An image that cannot be read ends the run, or the next one of the order takes its place and the log names it once."
    most_errors: float = 0.01
    "With on_error skip: the run stops where more than this share of the images, and more than 3, cannot be read."
    workers: int | None = None
    "Loader processes of each training process; 0: none; None: by the source and the number of CPU cores."

    def validate(self) -> None:
        flaw = flaw_of(self.path) if self.path is not None and is_address(self.path) else None
        if flaw is not None:
            raise ConfigError("path", f"got {flaw}")
        self.require(self.path != "", "path", "a path, or nothing")
        self.require(1 <= self.image_size <= LARGEST_SIDE, "image_size", f"1 to {LARGEST_SIDE:,}")
        self.require(0 <= self.pad < self.image_size, "pad", "0 or more and below data.image_size")
        by_folder = self.label_file is None or self.labels in ("auto", "folder")
        self.require(by_folder, "labels", "auto or folder, where data.label_file has the classes of the images in no sub-folder")
        self.require(self.class_file is None or self.label_file is not None, "class_file", "nothing without data.label_file")
        self.require(self.resize is None or self.resize >= self.image_size, "resize", "at least data.image_size, or nothing")
        self.require(self.scale is None or 0 <= self.scale <= 8, "scale", "0 to 8, or nothing")
        self.require(self.scale is None or self.crop == "random", "scale", "nothing, unless data.crop is random")
        self.require(0 <= self.jitter < 1, "jitter", "0 or more and below 1")
        self.require(self.anchor_size is None or 1 <= self.anchor_size <= 2**14, "anchor_size", "from 1 to 16384, or nothing")
        colours = f"{', '.join(_COLOURS)}, a colour as #ff8000, a grey level from 0 to 255, or nothing"
        self.require(self.background is None or _is_colour(self.background), "background", colours)
        self.require(0 < self.latent_std < float("inf"), "latent_std", "a positive number")
        self.require(0 <= self.validation_fraction < 1, "validation_fraction", "0 or more and below 1")
        self.require(0 <= self.most_errors <= 1, "most_errors", "0 to 1")
        self.require(self.workers is None or 0 <= self.workers <= MOST_WORKERS, "workers", f"0 to {MOST_WORKERS}, or nothing")

    @property
    def truth_folder(self) -> str | None:
        """Where the image is that a model should make of each input; None: nothing says what it should make."""
        return None

    @property
    def domain_folders(self) -> tuple[str, ...]:
        """The folders of the domains that a model translates between; none: there is one set of images."""
        return ()

    def open(self) -> Data:
        """The images. Raises ConfigError or DataError for what cannot be used; images are decoded later, by `ImageSet.batch`."""
        from triptych.data.source import open_images

        return open_images(self)


def read_before(values: Any) -> Any:
    """The settings of images that a file holds, with those that earlier versions did not write, as they read images."""
    return {**AS_STORED, **values} if isinstance(values, Mapping) else values


def rgb_of(colour: str) -> tuple[int, int, int]:
    """The levels of a background."""
    if colour in _COLOURS:
        return _COLOURS[colour]
    if colour.startswith("#"):
        return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
    return int(colour), int(colour), int(colour)


def _is_colour(text: str) -> bool:
    if re.fullmatch(r"[0-9]{1,3}", text):
        return int(text) <= 255
    return text in _COLOURS or re.fullmatch(r"#[0-9a-fA-F]{6}", text) is not None
