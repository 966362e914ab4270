"""A server on this machine that gives files in parts, and fails as it is told."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        """What befalls the next GETs, one after the other: a status, cut (a body that breaks off), short (half the range), slow, drips (a
        body that comes little by little), or well."""
        self.always: str | None = None
        "What befalls every request."
        self.ranged = True
        self.versioned = True
        "Whether it says the version of a file."
        self.key: str | None = None
        "What has to be in the header Authorization."
        self.asked: list[tuple[str, str, int]] = []
        "Method, path and bytes that were sent."

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def sent(self) -> int:
        """Bytes of all answers."""
        return sum(size for _, _, size in self.asked)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer("HEAD", self.server.always)

    def do_GET(self) -> None:
        self._answer("GET", self.server.always or (self.server.faults.pop(0) if self.server.faults else None))

    def _answer(self, method: str, fault: str | None) -> None:
        path = self.path
        content = self.server.files.get(path)
        if fault == "slow":
            time.sleep(0.6)
        status = int(fault) if fault and fault.isdigit() else 404 if content is None else 200
        if self.server.key is not None and self.headers.get("Authorization") != self.server.key:
            status = 401
        if status != 200 or content is None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        part, first, asked = content, "0", self.headers.get("Range")
        if asked is not None and self.server.ranged:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1 if last else None]
        if fault == "short" and asked is not None:
            part = part[: len(part) // 2]
        self.send_response(206 if len(part) < len(content) else 200)
        self.send_header("Content-Length", str(len(part)))
        if part is not content:
            self.send_header("Content-Range", f"bytes {int(first)}-{int(first) + len(part) - 1}/{len(content)}")
        if self.server.versioned:
            self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        self.end_headers()
        if method == "GET":
            sent = part[: len(part) // 2] if fault == "cut" else part
            for start in range(0, len(sent), step := max(1, len(sent) // 6 if fault == "drips" else len(sent))):
                self.wfile.write(sent[start : start + step])
                if fault == "drips":
                    time.sleep(0.1)
            self.server.asked.append((method, path, len(sent)))
            if fault == "cut":
                self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(OSError):  # who asked has gone
            super().handle()


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
