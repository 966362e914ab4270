"""`triptych data show`: a sheet of what a model sees of its training images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.arguments import finished, require_images
from triptych.cli.data_settings import DATA_SIZE, DataSettings, data_flags, data_settings
from triptych.cli.output import show
from triptych.core.config import Config, config
from triptych.core.wording import counted

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

USAGE = "triptych data show IMAGES [--recipe RECIPE] [--out FILE.png]"
_NAMED_CLASSES = 20


@config
class ShowOptions(Config):
    """What is shown, and where."""

    recipe: str | None = None
    "Show what a model of this recipe sees, with its augmentation; None: the plain settings of data."
    out: str | None = None
    "FILE.png, .jpg or .webp; None: sheet.png, with a number behind it where that is there already."
    count: int = 8
    "Images, a row each; of two domains, of each."
    draws: int = 4
    "Times that each image is drawn as training varies it."
    seed: int = 0
    "Seed of the order and of the draws, as train.seed."
    p: float | None = None
    "How often the model's own augmentation happens, from 0 to 1; None: as in its first step."

    def validate(self) -> None:
        for setting in ("count", "draws"):
            self.require(getattr(self, setting) >= 1, setting, "at least 1")
        self.require(self.p is None or 0 <= self.p <= 1, "p", "from 0 to 1, or nothing")


def configure(arguments: Sequence[str]) -> tuple[ShowOptions, RunConfig | DataSettings]:
    """The options, and what opens the images and learns them."""
    return data_settings(
        arguments,
        options=ShowOptions(),
        verb="triptych data show",
        description="Writes a sheet of training images as a model sees them: each as it is, then in several draws.",
        usage=USAGE,
        short=DATA_SIZE,
        whole=True,
    )


def main(arguments: Sequence[str]) -> int:
    """Writes the sheet, and prints what is on it."""
    options, settings = configure(arguments)
    require_images(settings.data.path, note="; expected a folder, archive or array of images")
    out = options.out or _free_sheet()

    from triptych.runs.showing import show_data

    with data_flags(options):
        shown = show_data(
            settings.data,
            out,
            model=None if isinstance(settings, DataSettings) else settings.model,
            count=options.count,
            draws=options.draws,
            seed=options.seed,
            p=options.p,
        )
    for note in shown.notes:
        show(note)
    for number, row in enumerate(shown.rows, 1):
        show(f"{number:4}  {row}")
    show(f"each row: {shown.columns}")
    if shown.classes is not None:
        more = f" and {len(shown.classes) - _NAMED_CLASSES:,} more" if len(shown.classes) > _NAMED_CLASSES else ""
        show(f"{counted(len(shown.classes), 'class', 'classes')}: {', '.join(shown.classes[:_NAMED_CLASSES])}{more}")
    return finished(f"{counted(len(shown.rows), 'image')}: {out}")


def _free_sheet() -> str:
    number = 1
    while Path(name := "sheet.png" if number == 1 else f"sheet-{number}.png").exists():
        number += 1
    return name
