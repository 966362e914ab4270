"""Addresses of data that lie elsewhere: s3://bucket/photos.zip, gs://, https://, hf://, and what else fsspec knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET = re.compile(r"(?i)://[^/@\s]*@|\?\S*|((?:key|token|secret|signature|password|credential)\w*\W{1,3})\S+")


def is_address(text: str | Path | None) -> bool:
    """Whether a text is an address, and no path on this machine."""
    return isinstance(text, str) and _SCHEME.match(text) is not None


def without_secrets(text: str) -> str:
    """A text, such as the message of a library, without what in it may be a user's name, a password, a key or a signature.

    It may lose more than these: what is called by such a text is not to be called so.
    """
    return _SECRET.sub(lambda match: f"{match[1]}..." if match[1] else "://" if match[0].startswith("://") else "", text)


def flaw_of(text: str) -> str | None:
    """Why an address will not do, and what to do, without the address itself; None: it will."""
    rest = text.partition("://")[2]
    if "@" in rest.partition("/")[0]:
        return "an address with a user's name in it, which would be kept with the run; leave it to the environment (AWS_PROFILE, ~/.netrc)"
    if "?" in rest or "#" in rest:
        return "an address with a ? or #, and what follows may be a key, which would be kept with the run; give it without"
    return None if rest.strip("/") else "an address without a place; expected, for example, s3://bucket/photos.zip"


@dataclass(frozen=True)
class Address:
    """The address of a file or folder, without a `flaw_of`; a path as far as messages and names go."""

    text: str

    @property
    def scheme(self) -> str:
        """What comes before ://, in small letters."""
        return self.text.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self.text.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.text


Place = Path | Address
"""Where data lie."""
