"""`triptych data draw`: key points of faces and people as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from triptych.cli.arguments import finished, named_as_flags
from triptych.cli.data_settings import FolderOptions, from_folder
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.core.reading import user_path
from triptych.core.wording import counted

USAGE = "triptych data draw KEYPOINTS --out FOLDER --frames FOLDER [--kind people]"


@config
class DrawOptions(FolderOptions):
    """Of what, of which size, and to where."""

    out: str | None = None
    "Required: folder of the pictures, FOLDER/CLIP/FRAME.png for each KEYPOINTS/CLIP/FRAME.json (or FRAME_keypoints.json)."
    kind: Literal["faces", "people"] = "faces"
    "faces: 68 points each, as dlib finds them, [[x, y], ...]; people: what OpenPose writes, of which the tallest is drawn."
    frames: str | None = None
    "Folder of the frames, FOLDER/CLIP/FRAME.*, whose sizes the pictures have. None: --height and --width say it."
    height: int | None = None
    "Height of the pictures in pixels, in place of --frames; None: theirs."
    width: int | None = None
    "Width of the pictures in pixels, in place of --frames; None: theirs."
    forehead: bool = True
    "faces: with a line over the forehead, which no point shows."
    fit: str | None = None
    "faces: file of another face (.json), whose proportions all get, to drive a picture of it; the files lie as clips do. None: their own."
    form: Literal["colours", "limbs"] = "colours"
    "people: a picture in colours, for data.conditions; or 27 channels of 0 or 1, one for each limb, hand and the face, for data.limbs."
    body_only: bool = False
    "people: without feet, hands and face."
    face: bool = True
    "people: with the face."

    def validate(self) -> None:
        self.require(self.forehead or self.kind == "faces", "forehead", "true but with --kind faces")
        self.require(self.fit is None or self.kind == "faces", "fit", "nothing but with --kind faces")
        for name, default in (("form", "colours"), ("body_only", False), ("face", True)):
            fits = self.kind == "people" or getattr(self, name) == default
            self.require(fits, name, f"{str(default).lower()} but with --kind people")
        self.require(self.face or not self.body_only, "face", "true with --body-only, which leaves the face out already")
        for name in ("height", "width"):
            value = getattr(self, name)
            self.require(value is None or 1 <= value <= 2**14, name, f"1 to {2**14:,}, or nothing")
        if self.frames is not None and (self.height, self.width) != (None, None):
            raise ConfigError("frames", "got it beside {} or {}, which say the size too; leave one of them out", ["height", "width"])
        if (self.height is None) != (self.width is None):
            given, missing = ("height", "width") if self.width is None else ("width", "height")
            raise ConfigError(given, "got it without {}; give both, or --frames FOLDER", [missing])
        sized = self.frames is not None or self.height is not None
        if not sized and self.out is not None:
            raise ConfigError("frames", "missing: give the folder of the frames, or else both {} and {}", ["height", "width"])


def configure(arguments: Sequence[str]) -> tuple[str, DrawOptions]:
    """The folder that is read, and the options."""
    description = "Draws key points of faces and people, as images for data.conditions of pairs and clips."
    return from_folder(arguments, options=DrawOptions(), prog="triptych data draw KEYPOINTS", description=description, usage=USAGE)


def main(arguments: Sequence[str]) -> int:
    """Draws, and prints how many pictures there are."""
    folder, options = configure(arguments)
    assert options.out is not None

    from triptych.data.keypoints import PeopleStyle
    from triptych.runs.drawing import draw_folder

    size = None if options.height is None or options.width is None else (options.height, options.width)
    frames, fit = (None if given is None else user_path(given) for given in (options.frames, options.fit))
    style = PeopleStyle(limbs=options.form == "limbs", body_only=options.body_only, face=options.face)
    given = {"kind": options.kind, "size": size, "frames": frames, "forehead": options.forehead, "style": style, "fit": fit}
    with named_as_flags(options), progress_bar("drawing") as progress:
        count = draw_folder(user_path(folder), user_path(options.out), **given, progress=progress)
    return finished(f"{counted(count, 'picture')} of {options.kind} in {options.out}")
