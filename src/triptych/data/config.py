"""DataConfig: the data of a run. A subclass with an `open` of its own is another kind of data; nothing else has to know of it."""

from __future__ import annotations

from typing import ClassVar

from triptych.core.config import config
from triptych.data.images import Data
from triptych.data.settings import ImageSettings
from triptych.data.source import open_images


@config
class DataConfig(ImageSettings):
    """The images that a run learns."""

    kind_name: ClassVar = "images"

    def open(self) -> Data:
        """The images. Raises ConfigError or DataError for what cannot be used; images are decoded later, by `ImageSet.batch`."""
        return open_images(self)
