"""What can be said of one image or map: its faults, size, hashes and the sums of its pixels.

It is decoded by the code that training uses, whatever its header says, so that what is called readable here is readable there.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
from PIL import Image, ImageCms, ImageFile, UnidentifiedImageError

from triptych.core.batch import InputSpec
from triptych.data import poses
from triptych.data.colours import PLAIN, Colours
from triptych.data.cut import Cut, TooSmall, Value
from triptych.data.decode import decoded, number_map, open_image, orientation_of, reason
from triptych.data.duplicates import REDUCED, difference_hash, reduced
from triptych.data.faults import EXTREME_SHAPE, FLAT_LEVELS, bit
from triptych.data.frame_files import flow_of, landmarks_of
from triptych.data.keypoints import NUM_LIMBS
from triptych.data.transforms import Size, apply

ROW = np.dtype(
    [
        ("faults", "<u8"),
        ("width", "<i4"),
        ("height", "<i4"),
        ("decoded", "?"),
        ("grey", "?"),
        ("digest", "<u8", (2,)),
        ("hash", "<u8"),
        ("reduced", "u1", (REDUCED,)),
        ("values", "<i8"),
        ("total", "<i8"),
        ("squares", "<i8"),
    ]
)
"""What is kept of an image: bits of its faults, upright sides, whether it was decoded, whether all of it is grey, BLAKE2b of its pixels,
its difference hash and the pixels that this is of; number, sum and sum of squares of the values of its square, in levels of 0 to 255."""
STATISTICS_SIZE = 64
"""Side of the squares whose values are summed where no image size was asked for."""
_MOST_DECODED = 3 * 2**28  # bytes that decoding may take, so that the process stays below 1 GB
_BYTES_PER_PIXEL = 16  # what was decoded, converted, turned, and its bytes: 4 each
_MORE_OF_16_BITS, _MORE_OF_PROFILES, _MORE_OF_ALPHA = 24, 4, 16  # these are converted by way of other arrays
_KEPT_PROFILES = 64
_ENDINGS = {
    "AVIF": (".avif",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".jfif"),
    "JPEG2000": (".jp2",),
    "PNG": (".png",),
    "PPM": (".pbm", ".pgm", ".pnm", ".ppm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
_MAY_BE_ANIMATED = ("AVIF", "GIF", "PNG", "TIFF", "WEBP")


@dataclass(frozen=True)
class Wanted:
    """What images are held against."""

    image_size: int | None
    "Height and, without `width`, width that they are to be cut to; None: any size will do."
    width: int | None = None
    enlarge: bool = False
    colours: Colours = PLAIN
    "How transparency and profiles are read."

    @property
    def cut(self) -> Cut:
        """How they are cut."""
        return Cut(self.image_size or STATISTICS_SIZE, self.width, enlarge=self.enlarge or self.image_size is None)


@dataclass
class Look:
    """What was found out of an image."""

    row: np.ndarray = field(default_factory=lambda: np.zeros((), ROW))
    reasons: dict[str, str] = field(default_factory=dict)
    "By the fault: what the decoder said, or the numbers that it is about."
    kind: str = ""
    'Format and mode ("JPEG RGB"); empty where the header says neither.'

    def found(self, fault: str, why: str = "") -> None:
        """Notes a fault."""
        self.row["faults"] |= np.uint64(bit(fault))
        if why:
            self.reasons[fault] = why


def look_at(value: Value, name: str, wanted: Wanted, *, counted: bool = True) -> Look:
    """What there is to say of an image. `counted`: whether its hashes and sums are wanted too; never raises for what it holds.

    `name`: that of its file, of which the ending is held against the contents.
    """
    look = Look()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of large images and of damage that it reads past
        if isinstance(value, bytes):
            _look_at_file(value, name, wanted, look, counted=counted)
        else:
            _look_at_pixels(Image.fromarray(value if value.shape[-1] == 3 else value[..., 0]).convert("RGB"), wanted, look, counted=counted)
    return look


def look_at_map(value: Value, *, num_classes: int | None) -> Look:
    """What there is to say of a map. `num_classes`: numbers from there on are out of range; None: any number will do."""
    look, numbers = _numbers(value, number_map)
    if numbers is None or num_classes is None:
        return look
    outside = (numbers < 0) | (numbers >= num_classes)
    if outside.any():
        held = ", ".join(map(str, np.unique(numbers[outside])[:4]))
        look.found("classes", f"holds {held}; 0 to {num_classes - 1} expected")
    return look


def look_at_points(value: Value) -> Look:
    """What there is to say of a map of the points of a scene."""
    return _numbers(value, lambda data: number_map(data, wide=True))[0]


def look_at_pose(value: Value, stored: Literal["limbs", "densepose"]) -> Look:
    """What there is to say of a map of people."""
    spec = InputSpec(name=stored, kind="image", channels=NUM_LIMBS if stored == "limbs" else 3, stored=stored)

    def levels(data: bytes) -> np.ndarray:
        found = poses.levels(data, spec)
        poses.channels(found, spec)  # raises where it has others too
        return found

    return _numbers(value, levels)[0]


def look_at_flow(value: Value) -> Look:
    """What there is to say of a file of the flow to the frame before."""
    return _parsed(value, flow_of)


def look_at_landmarks(value: Value) -> Look:
    """What there is to say of a file of the points of a face; it has no size."""
    return _parsed(value, landmarks_of, sized=False)


def _parsed(value: Value, parse: Callable[[bytes], np.ndarray], *, sized: bool = True) -> Look:
    """What there is to say of a file that is no image; its size is that of what it holds."""
    assert isinstance(value, bytes)
    look = Look()
    if not value:
        look.found("empty")
        return look
    try:
        found = parse(value)
    except Exception as error:
        look.found("damaged", reason(error))
        return look
    if sized:
        look.row["height"], look.row["width"] = found.shape[:2]
        look.row["decoded"] = True
    return look


def _numbers(value: Value, read: Callable[[bytes], np.ndarray]) -> tuple[Look, np.ndarray | None]:
    """What there is to say of a map, and its numbers (h, w, ...); None where it cannot be read."""
    look = Look()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if isinstance(value, bytes):
                if not value:
                    look.found("empty")
                    return look, None
                with open_image(value) as image:
                    if _too_large(image, look):
                        return look, None
            numbers = read(value) if isinstance(value, bytes) else value.astype(np.int64)
        except Exception as error:
            look.found(*_failure(error, opened=not isinstance(error, UnidentifiedImageError)))
            return look, None
    look.row["height"], look.row["width"] = numbers.shape[:2]
    look.row["decoded"] = True
    return look, numbers


def unread(error: Exception) -> Look:
    """What there is to say of an image whose bytes cannot be read: they are damaged, or the system refuses."""
    look = Look()
    look.found("unopened" if isinstance(error, OSError) else "damaged", reason(error))
    return look


def fatal(why: str) -> Look:
    """What there is to say of an image at which the process ended that decoded it."""
    look = Look()
    look.found("fatal", why)
    return look


def packed(looks: Iterable[Look], first: int) -> dict[str, np.ndarray]:
    """What was found out of images that follow one another from number `first` on, as arrays."""
    looks = list(looks)
    said = {first + k: look.reasons for k, look in enumerate(looks) if look.reasons}
    kinds = Counter(look.kind for look in looks if look.kind)
    text = json.dumps({"reasons": said, "kinds": kinds}).encode()
    return {"rows": np.array([look.row for look in looks], dtype=ROW).reshape(-1), "said": np.frombuffer(text, dtype=np.uint8)}


# Files


def _look_at_file(data: bytes, name: str, wanted: Wanted, look: Look, *, counted: bool) -> None:
    if not data:
        look.found("empty")
        return
    opened = False
    try:
        with open_image(data) as image:
            opened = True
            _look_at_header(image, name, look)
            if _too_large(image, look):
                return
            deep = _is_deep(image)
            pixels = decoded(data, image, channels=3, colours=wanted.colours)
            if deep:
                look.found("deep")
            if counted:
                _look_through(image, look)
        if counted and image.format in _MAY_BE_ANIMATED and _is_animated(data):
            look.found("animated")
        _look_at_pixels(pixels, wanted, look, counted=counted)
    except Exception as error:  # Pillow's decoders raise errors of many types
        look.found(*_failure(error, opened=opened))


def _failure(error: Exception, *, opened: bool) -> tuple[str, str]:
    """The fault that an error is, and its reason."""
    why = reason(error)
    if "pixels" in why and why.startswith("more than"):
        return "bomb", ""
    if not opened:
        return "unreadable", why
    return ("truncated" if "truncated" in why.lower() or isinstance(error, EOFError) else "damaged"), why


def _look_at_header(image: ImageFile.ImageFile, name: str, look: Look) -> None:
    look.kind = f"{image.format} {image.mode}"
    ending = PurePosixPath(name).suffix.lower()
    if image.format in _ENDINGS and any(ending in endings for endings in _ENDINGS.values()) and ending not in _ENDINGS[image.format]:
        look.found("misnamed", f"it is {image.format}")
    orientation = orientation_of(image)
    if orientation != 1:
        look.found("turned")
    width, height = image.size
    look.row["width"], look.row["height"] = (height, width) if orientation >= 5 else (width, height)
    if image.mode == "CMYK":
        look.found("cmyk")
    profile = image.info.get("icc_profile")
    if isinstance(profile, bytes) and profile and (described := _foreign_profile(profile)) is not None:
        look.found("profile", described)


def _too_large(image: ImageFile.ImageFile, look: Look) -> bool:
    """Whether to decode it would take more memory than there should be."""
    each = _BYTES_PER_PIXEL + _MORE_OF_16_BITS * image.mode.startswith(("I", "F"))
    each += _MORE_OF_PROFILES * ("icc_profile" in image.info) + _MORE_OF_ALPHA * image.has_transparency_data
    needed = image.width * image.height * each
    if needed <= _MOST_DECODED:
        return False
    look.found("huge", f"{image.width}x{image.height} pixels take {needed / 1e6:,.0f} MB to decode")
    return True


def _is_deep(image: ImageFile.ImageFile) -> bool:
    """Whether channels have 16 bits, some of which Pillow drops as it reads them."""
    raw = image.tile[0][3] if image.tile else ""
    raw = raw if isinstance(raw, str) else next((part for part in raw if isinstance(part, str)), "") if isinstance(raw, tuple) else ""
    return image.mode.startswith("I") or "16" in raw


def _is_animated(data: bytes) -> bool:
    """Whether there is a second frame; a file whose second one is damaged has one."""
    with open_image(data) as image:
        return bool(getattr(image, "is_animated", False)) or int(getattr(image, "n_frames", 1)) > 1


@functools.lru_cache(_KEPT_PROFILES)
def _foreign_profile(profile: bytes) -> str | None:
    """What a colour profile calls itself; None where that is sRGB."""
    try:
        described = " ".join(ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(io.BytesIO(profile))).split())
    except Exception:  # as many types as a profile has faults
        return "it cannot be read"
    return None if "srgb" in described.lower() else described[:80] or "it has no name"


def _look_through(image: Image.Image, look: Look) -> None:
    """Looks for transparent pixels, and for what lies beneath them."""
    if image.mode in ("1", "L", "P", "RGB") and "transparency" in image.info:  # of one colour, or of a palette
        image = image.convert("RGBA")
    if image.mode not in ("RGBA", "LA", "PA"):
        return
    values = np.asarray(image if image.mode == "RGBA" else image.convert("RGBA"))
    alpha = values[..., 3]
    if alpha.min(initial=255) == 255:
        return
    look.found("alpha")
    beneath = values[alpha == 0][:, :3]
    if len(beneath) and (beneath != beneath[0]).any():
        look.found("hidden")


# Pixels


def _look_at_pixels(pixels: Image.Image, wanted: Wanted, look: Look, *, counted: bool) -> None:
    """Looks at decoded pixels in RGB."""
    row = look.row
    size = row["width"], row["height"] = pixels.size
    row["decoded"] = True
    try:
        wanted.cut.fit(size)
    except TooSmall:
        look.found("small", "x".join(map(str, size)))
    if max(size) > EXTREME_SHAPE * min(size):
        look.found("extreme", "x".join(map(str, size)))
    if not counted:
        return
    digest = hashlib.blake2b(repr(size).encode(), digest_size=16)
    digest.update(pixels.tobytes())
    row["digest"] = np.frombuffer(digest.digest(), dtype="<u8")
    square = _square(pixels, wanted)
    values = square.astype(np.int64)
    row["values"], row["total"], row["squares"] = values.size, values.sum(), np.square(values).sum()
    row["grey"] = bool((square[..., :1] == square[..., 1:]).all())
    spans = square.reshape(-1, 3)
    if (spans.max(0) - spans.min(0)).max() <= FLAT_LEVELS:
        look.found("flat")
    else:
        row["reduced"] = reduced(pixels)
        row["hash"] = difference_hash(row["reduced"])


def _square(pixels: Image.Image, wanted: Wanted) -> np.ndarray:
    """What training would see of it: uint8 (h, w, 3). Of an image that is too small or too long for it, the middle, enlarged."""
    cut, (width, height) = wanted.cut, pixels.size
    if max(width, height) <= EXTREME_SHAPE * min(width, height) or not _enlarged(cut, (width, height)):
        return apply(pixels, replace(cut, enlarge=True).fit((width, height)))
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    down, across = cut.height_and_width
    return np.asarray(pixels.resize((across, down), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side)))


def _enlarged(cut: Cut, size: Size) -> bool:
    try:
        replace(cut, enlarge=False).fit(size)
    except TooSmall:
        return True
    return False
