"""What may be wrong with a set of images, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.data.decode import MOST_PIXELS

EXTREME_SHAPE = 3
"""Long side over short side, beyond which the centre square is less than a third of the image."""
FLAT_LEVELS = 4
"""Of 255: an image none of whose channels spans more shows nothing."""
UNBALANCED = 10
"""Images of the largest class over those of the smallest."""
NEAR_BITS = 3
"""Of 64: images whose difference hashes differ in no more may be near duplicates."""
NEAR_LEVELS = 8.0
"""Of 255: they are, where their 9x8 pixels differ by no more in the mean."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    stops: bool
    "Whether a training would stop at it, so that the images are not fit."
    title: str
    advice: str


_MEND = "copy or make the file again, or leave it out"
FAULTS = (
    Fault("source", True, "the source cannot be opened", "do what the message says"),
    Fault("labels", True, "the classes cannot be read", "do what the message says, or train with --data.labels none"),
    Fault("empty", True, "empty files", _MEND),
    Fault("unopened", True, "files that cannot be opened", "see to their permissions and to the disk, or leave them out"),
    Fault("unreadable", True, "no images that can be read", "save it in a format that is read, or leave it out"),
    Fault("truncated", True, "cut short", _MEND),
    Fault("damaged", True, "cannot be decoded", _MEND),
    Fault("bomb", True, f"more than {MOST_PIXELS:,} pixels declared", "make it smaller, or leave it out"),
    Fault("fatal", True, "end or halt the process that decodes them", "leave it out"),
    Fault("small", True, "smaller than the image size", "choose a smaller --image-size, train with --data.enlarge, or leave it out"),
    Fault("partner", True, "lack a partner", "add the missing member of the pair, or remove the ones that are there"),
    Fault("double", True, "the same name but for its ending", "remove one of the two files"),
    Fault("sizes", True, "members of a pair, or frames of a clip, differ in size", "make them one size"),
    Fault("short", True, "clips of fewer frames than a training begins with", "add frames, lower --length.first, or remove it"),
    Fault("longest", True, "no clip to train on has the most frames of a training", "give longer clips, or lower --length.most"),
    Fault("classes", True, "maps with classes out of range", "raise --num-classes, or set --dont-care or --blank"),
    Fault("unused", False, "could not be used, but no training reads them", "mend them, if they are for something else"),
    Fault("huge", False, "so large that they were not decoded here", "make it smaller: each loader process needs that much memory"),
    Fault("misnamed", False, "contents of another format than the ending", "rename it; it is read by its contents"),
    Fault("animated", False, "animations or several pages", "only the first frame is used"),
    Fault("grey", False, "grey among colour", "leave them out if they are strays, or train with --data.channels 1"),
    Fault("cmyk", False, "CMYK", "it is converted, by its profile where it has one: look at the colours"),
    Fault("deep", False, "16 bits for each channel", "8 bits of them are used"),
    Fault("alpha", False, "transparent", "a background shows through, --background, which is white by default"),
    Fault("hidden", False, "different colours beneath transparent pixels", "they show where --background is None"),
    Fault("turned", False, "turned by EXIF data", "it is turned upright here, which other programs may not do"),
    Fault("profile", False, "a colour profile other than sRGB", "it is converted, unless --profiles is ignore"),
    Fault("extreme", False, f"one side more than {EXTREME_SHAPE} times the other", "the centre square is a small part: crop it first"),
    Fault("flat", False, "nothing to see: flat", "leave it out"),
    Fault("outgrown", False, "clips of fewer frames than the most of a training", "longer ones take their place in samples of more frames"),
    Fault("copies", False, "exact duplicates (the same pixels)", "keep one of each group"),
    Fault("copies_held_out", False, "exact duplicates across the held-out border", "keep one: figures of held-out images flatter"),
    Fault("copies_against", False, "exact duplicates of images of --against", "remove them here: figures against those flatter"),
    Fault("near", False, "near duplicates", "look at them on the page; frames of one film and bursts are such"),
    Fault("near_held_out", False, "near duplicates across the held-out border", "split by film or burst, with folders train and val"),
    Fault("near_against", False, "near duplicates of images of --against", "look at them on the page"),
    Fault("balance", False, "classes of very different size", "a class of few images is learned by heart"),
)  # fmt: skip
"""All faults, the worst first."""
BY_NAME = {fault.name: fault for fault in FAULTS}
_PLACES = {fault.name: k for k, fault in enumerate(FAULTS)}


def bit(name: str) -> int:
    """The number that has the bit of a fault alone."""
    return 1 << _PLACES[name]
