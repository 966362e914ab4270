"""Files that lie elsewhere, read in parts through fsspec (pip install "triptych[remote]") and kept in blocks on this machine's disk.

What a file is called, how large it is and what the server says of its version (an ETag, a generation, a time) is its identity. It is looked
at after each request, before what came is used; so all that is read of a file is of one version of it, and one that changed is named.

Nothing is opened that a fork would share: each process has connections of its own.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from triptych.core.address import Address, without_secrets
from triptych.core.block_cache import BlockCache, BlockMemory
from triptych.core.cache import cache_folder, remote_limit
from triptych.core.errors import DataError, one_line

ATTEMPTS = 8
"""At a request, where it may help to ask again; the pauses between them make up a minute."""
FIRST_PAUSE = 0.5
"""Seconds; each pause is twice as long as the one before, less up to half of it by chance, so that processes do not ask at once."""
TIMEOUT = 60.0
"""Seconds without a byte until a server is asked again."""
_WHOLE = 15  # times that long a whole request may take, where the library alone knows what comes
BLOCK = 2**18
"""Bytes that are kept in one piece; a photograph has about as many."""
_REQUEST = 32  # blocks at most, in one request
_AT_ONCE = 16  # requests
_HELD = 2**26  # bytes in memory before they are kept
_UNVERSIONED = 2**28  # bytes in memory of each process, of all files whose server says no version
_WEB = ("http", "https")
_PARTS = "parts"

_VERSIONS = ("VersionId", "version_id", "generation", "ETag", "etag", "sha256", "blob_id", "md5Hash", "Content-MD5", "content_md5")
_VERSIONS += ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created")
"""What file systems say by which versions of a file differ; the first that is there counts."""
_NO_RIGHTS = frozenset((401, 403, 407))
_ABSENT = frozenset((404, 410))
_FINAL = frozenset((400, 402, 405, 406, 411, 412, 414, 451))
"""Other answers that would come again."""

T = TypeVar("T")


class RemoteError(DataError):
    """A file that lies elsewhere cannot be read; the message names it, and never a key."""


@dataclass(frozen=True)
class Identity:
    """Which version of a file it is."""

    size: int
    version: str
    'What the server says, by name: ETag "0af1"; empty: it says nothing.'

    def __str__(self) -> str:
        return f"{self.size:,} bytes{f', {self.version}' if self.version else ''}"


def names_version(said: str) -> bool:
    """Whether an identity, as text, has a version: of a file without one nobody knows whether it changed."""
    return not said.endswith(" bytes")


def identity_of(address: Address) -> Identity:
    """What the server says of a file now. Raises RemoteError where there is none, or it may not be read."""
    found = _asked(address, lambda system, limits: _info(system, address, limits))
    size = found.get("size")
    if found.get("type") == "directory":
        raise RemoteError(f"{address}: a folder; give a .zip, .tar, .npz or .npy, or a folder of tars")
    if not isinstance(size, int):
        raise RemoteError(f"{address}: the server does not say how large it is, so that it cannot be read in parts; copy it here")
    name = next((name for name in _VERSIONS if str(found.get(name) or "null") != "null"), None)
    return Identity(size, "" if name is None else f"{name} {' '.join(str(found[name]).split())}")


def listed(folder: Address) -> list[Address]:
    """The files in a folder, in the order of their names. Raises RemoteError where it cannot be listed."""
    names = _asked(folder, lambda system, limits: system.ls(folder.text, detail=False, **limits))
    last = {str(name).rstrip("/").rpartition("/")[2] for name in names}
    return [folder / name for name in sorted(last - {""})]


def _info(system: Any, address: Address, limits: dict[str, Any]) -> dict[str, Any]:
    system.invalidate_cache()
    return cast(dict[str, Any], system.info(address.text, **limits))


def require_reader(address: Address) -> None:
    """Raises RemoteError where this machine lacks what reads such addresses; no server is asked."""
    try:
        with _saying_what_is_missing(address.scheme):
            from fsspec import get_filesystem_class

            get_filesystem_class(address.scheme)
    except _Refused as error:
        raise RemoteError(f"{address}: {error}") from None


class RemoteFile:
    """A file that lies elsewhere, of one version, read in parts.

    Where the server says no version, what is read is kept in memory, for this object alone: later another file of that size may lie there.
    """

    def __init__(self, address: Address) -> None:
        """Raises RemoteError where it cannot be read."""
        self.address = address
        self.identity = identity_of(address)
        version, limit = self.identity.version, remote_limit()
        key = json.dumps([address.text, self.identity.size, version or os.urandom(16).hex()])
        self._key = hashlib.sha256(key.encode()).hexdigest()[:32]
        self.cache = _disk(cache_folder() / "remote", limit, os.getpid()) if version else _memory(os.getpid())
        if self.size > 1 and address.scheme in _WEB and self.note(_PARTS) is None:
            _asked(address, lambda system, limits: _check_parts(system, address))
            self.keep_note(_PARTS, b"")

    @property
    def size(self) -> int:
        """In bytes."""
        return self.identity.size

    def pread(self, length: int, offset: int) -> bytes:
        """`length` bytes from `offset` on, fewer at the end of the file. Raises RemoteError."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        numbers = range(offset // BLOCK, (end - 1) // BLOCK + 1)
        parts = {k: self._kept(k, offset, end) for k in numbers}
        for k, block in self._fetched([k for k in numbers if parts[k] is None]):
            parts[k] = block[max(offset - k * BLOCK, 0) : end - k * BLOCK]
        return b"".join(part for part in parts.values() if part is not None)

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Keeps what lies there, (offset, length) each, so that `pread` finds it. Raises RemoteError."""
        ends = [(offset, min(offset + length, self.size)) for offset, length in ranges]
        wanted = {k for start, end in ends if start < end for k in range(start // BLOCK, (end - 1) // BLOCK + 1)}
        for _ in self._fetched([k for k in sorted(wanted) if not self.cache.holds(self._name(k))]):
            pass

    def fetch(self, length: int, offset: int) -> bytes:
        """As `pread`, without keeping it, nor looking whether the file changed: see `check`."""
        end = min(offset + length, self.size)
        return _asked(self.address, lambda system, limits: self._request(system, offset, end, limits)) if end > offset else b""

    def check(self) -> None:
        """Raises RemoteError where the file is another one now."""
        now = identity_of(self.address)
        if now != self.identity:
            reason = f"changed while it was in use ({self.identity} before, {now} now)"
            raise RemoteError(f"{self.address}: {reason}; start again with what it was") from OSError(errno.ESTALE, reason)

    def reader(self) -> io.BufferedReader:
        """The file for libraries that want one."""
        return io.BufferedReader(_Reader(self), BLOCK)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it no other process of this machine is within it, so that not all of them fetch the same at once."""
        with self.cache.alone(self._key):
            yield

    def note(self, name: str) -> bytes | None:
        """What was kept of this version of the file under a name; None: nothing."""
        return self.cache.get(f"{self._key}/{name}")

    def keep_note(self, name: str, content: bytes) -> None:
        """Keeps it."""
        self.cache.put(f"{self._key}/{name}", content)

    def _name(self, k: int) -> str:
        return f"{self._key}/{k}"

    def _kept(self, k: int, offset: int, end: int) -> bytes | None:
        """What of a block lies between two places of the file; None: the block is not kept."""
        start, stop = max(offset - k * BLOCK, 0), min(end - k * BLOCK, BLOCK)
        return self.cache.get(self._name(k), start, stop - start)

    def _fetched(self, blocks: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The blocks, in order, once they are known to be of this version; they are kept."""
        runs = list(_runs(blocks))
        step = max(1, _HELD // (_REQUEST * BLOCK))
        for first in range(0, len(runs), step):
            some = runs[first : first + step]
            contents = at_once([functools.partial(self.fetch, len(run) * BLOCK, run.start * BLOCK) for run in some])
            self.check()
            for run, content in zip(some, contents, strict=True):
                for k in run:
                    block = content[(k - run.start) * BLOCK : (k - run.start + 1) * BLOCK]
                    self.cache.put(self._name(k), block)
                    yield k, block

    def _request(self, system: Any, start: int, end: int, limits: dict[str, Any]) -> bytes:
        found = system.cat_file(self.address.text, start=start, end=end, **limits)
        if len(found) > end - start:
            raise _Refused(_NO_PARTS)
        if len(found) < end - start:
            raise OSError(f"cut short: {len(found):,} of {end - start:,} bytes came")
        return bytes(found)


class _Reader(io.RawIOBase):
    """A RemoteFile as Python's own files are."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence] + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._file.pread(len(buffer), self._at)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, made in threads. The first error is raised when those that have begun have ended; the others do not begin."""
    if len(calls) < 2:
        return [call() for call in calls]
    threads = ThreadPoolExecutor(min(_AT_ONCE, len(calls)))
    try:
        return list(threads.map(lambda call: call(), calls))
    finally:
        threads.shutdown(cancel_futures=True)


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """Blocks that follow one another, so many as one request may have."""
    start = 0
    for k in range(1, len(blocks) + 1):
        if k == len(blocks) or blocks[k] != blocks[k - 1] + 1 or k - start == _REQUEST:
            yield range(blocks[start], blocks[k - 1] + 1)
            start = k


# Requests


_NO_PARTS = "the server does not give parts of files (HTTP ranges); copy it here"


class _Refused(Exception):
    """It would be of no use to ask again; the message says why."""


def _check_parts(system: Any, address: Address) -> None:
    """Asks a server on the web for the first byte, and reads no more of what it sends. Raises _Refused where that is the whole file."""
    from fsspec.asyn import sync

    async def ask() -> tuple[int, str]:
        session = await system.set_session()
        headers = {**system.kwargs.get("headers", {}), "Range": "bytes=0-0"}
        async with session.get(system.encode_url(address.text), headers=headers) as answer:
            answer.raise_for_status()
            return answer.status, answer.headers.get("Content-Range", "bytes 0-0")

    status, given = cast(tuple[int, str], sync(system.loop, ask))
    if status != 206 or not given.startswith("bytes 0-0"):
        raise _Refused(_NO_PARTS)


def _asked(address: Address, ask: Callable[[Any, dict[str, Any]], T]) -> T:
    """What a file system answers, asked again where that may help. `ask` is given it, and what limits the time. Raises RemoteError."""
    for attempt in range(ATTEMPTS):
        try:
            system = _filesystem(address.scheme, os.getpid(), TIMEOUT)
            counted = getattr(system, "async_impl", False) and address.scheme not in _WEB
            return ask(system, {"timeout": _WHOLE * TIMEOUT} if counted else {})
        except Exception as error:  # libraries raise errors of many types
            why, final = _reason(error, address)
            if final or attempt == ATTEMPTS - 1:
                again = "" if final else f" (asked {ATTEMPTS} times)"
                # An error of the machine, not of an image: training does not do without the image (see data/stored.py).
                raise RemoteError(f"{address}: {why}{again}") from OSError(errno.EIO, why)
        time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1))
    raise AssertionError("the last attempt returns or raises")


@functools.lru_cache(maxsize=4)
def _disk(folder: Path, most: int, process: int) -> BlockCache:
    """What is kept of files with a version: one for all files of a process, for it looks through the whole folder at times."""
    return BlockCache(folder, most=most)


@functools.lru_cache(maxsize=1)
def _memory(process: int) -> BlockMemory:
    """What a process keeps of files without a version."""
    return BlockMemory(_UNVERSIONED)


@functools.lru_cache(maxsize=16)
def _filesystem(scheme: str, process: int, timeout: float) -> Any:
    """fsspec's file system of a process; it lists nothing from memory. `timeout`: seconds without a byte, on the web."""
    with _saying_what_is_missing(scheme):
        import fsspec

        more = _web_settings(timeout) if scheme in _WEB else {}
        return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **more)


@contextmanager
def _saying_what_is_missing(scheme: str) -> Iterator[None]:
    """Within it _Refused is raised in the place of what fsspec does where it cannot read such addresses on this machine."""
    try:
        yield
    except ImportError as error:
        if error.name == "fsspec":
            raise _Refused(f'to read {scheme}:// needs fsspec: pip install "triptych[remote]"') from None
        raise _Refused(f'{one_line(error)}: pip install "triptych[remote]" has what http, https and s3 need') from None
    except ValueError:
        raise _Refused(f"fsspec knows no {scheme}://; expected s3://, gs://, https:// or hf://, or a path on this machine") from None


def _web_settings(timeout: float) -> dict[str, Any]:
    """How the web is asked: no limit for a whole answer, which a slow link takes long for; ~/.netrc and proxies as the environment says."""
    from aiohttp import ClientTimeout

    limits = ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
    return {"headers": {"Accept-Encoding": "identity"}, "client_kwargs": {"timeout": limits, "trust_env": True}}


def _reason(error: BaseException, address: Address) -> tuple[str, bool]:
    """Why a request failed, in a line without secrets, and whether it would fail again."""
    if isinstance(error, _Refused):
        return str(error), True
    if isinstance(error, FileNotFoundError):  # fsspec's HTTP makes any failure one of these
        deeper = error.__cause__
        return ("does not exist", True) if deeper is None or isinstance(deeper, FileNotFoundError) else _reason(deeper, address)
    status = _status(error)
    if isinstance(error, PermissionError) or status in _NO_RIGHTS or "Credentials" in type(error).__name__:
        said = f" (the server answers {status})" if status else ""
        return f"no right to read it{said}; see that the environment has the keys that {address.scheme}:// takes", True
    if status in _ABSENT:
        return "does not exist", True
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        whole = type(error).__name__ == "FSTimeoutError" and address.scheme not in _WEB
        return f"no answer in {_WHOLE * TIMEOUT if whole else TIMEOUT:g} seconds", False
    if status is not None and status >= 400:
        return f"the server answers {status}", status in _FINAL
    return without_secrets(f"{type(error).__name__}: {one_line(error) if isinstance(error, Exception) else error}"), False


def _status(error: BaseException) -> int | None:
    """The code of an answer of HTTP, wherever the library has it."""
    response = getattr(error, "response", None)
    botocore = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    body = botocore.get("HTTPStatusCode") or getattr(response, "status_code", None)
    value = getattr(error, "status", None) or body or (None if isinstance(error, OSError) else getattr(error, "code", None))
    if str(value).isdigit():
        return int(str(value))
    cause = error.__cause__ if isinstance(error, OSError) else None  # s3fs makes an OSError of botocore's
    return None if cause is None or cause is error else _status(cause)
