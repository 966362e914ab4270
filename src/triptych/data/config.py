"""DataConfig: the data of a run. A subclass with an `open` of its own is another kind of data; nothing else has to know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from triptych.core.config import config
from triptych.data.settings import ImageSettings

if TYPE_CHECKING:
    from triptych.data.images import Data


@config
class DataConfig(ImageSettings):
    """The images that a run learns."""

    kind_name: ClassVar = "images"

    def open(self) -> Data:
        """The images. Raises ConfigError or DataError for what cannot be used; images are decoded later, by `ImageSet.batch`."""
        from triptych.data.source import open_images

        return open_images(self)
