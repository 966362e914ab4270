"""Whether training from an S3 server that fails gives the bytes of training from the file on this machine.

    PYTHONPATH=../peers/s3 python benchmarks/object_store.py --out FILE.md

Sets all up and takes all down, on loopback: moto's S3 server, before it a proxy that answers some requests with 500 or 503, breaks
some connections, cuts some bodies short and lets some wait; images as a zip, as a pack and as six tars. Each is learned from the disk, left
alone, and from s3:// with loader processes, killed twice with SIGKILL and begun again with an empty cache. Exit code 1 unless weights,
averages and optimizer of the last checkpoint are equal in every byte, and unless an object that is missing, forbidden, cut short, slow
beyond measure, or changed in mid-run is named in one line without a key.

moto and s3fs stay outside the environment: pip install --target ../peers/s3 s3fs "aiobotocore[boto3]" "moto[s3]" flask flask-cors
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import http.client
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from machine import machine
from PIL import Image

from triptych.core import remote
from triptych.core.errors import UserError
from triptych.data.config import DataConfig

IMAGES, SIDE, SHARDS = 800, 96, 6
CACHE = "0.002"  # GB: a quarter of the images, so that most are asked for again
KEY, SECRET = "AKIATESTINGTESTING00", "verysecretverysecretverysecret000"
SETTINGS = (
    "--data.image-size 16 --data.validation-fraction 0.05 --data.workers 2 --data.enlarge "
    "--model.network.num-channels 32 --model.network.num-res-blocks 1 --train.batch-size 16 --train.total-images 256 "
    "--train.checkpoint-every 64 --train.sample-count 0 --train.validate-every 256 --train.validate-images 8 --train.precision float32"
)
FAULTS = {"500": 0.04, "503": 0.04, "broken": 0.04, "cut": 0.04, "slow": 0.02}
"""How often each befalls a request for an object."""


class Proxy(ThreadingHTTPServer):
    """What stands before the server, and fails."""

    daemon_threads = True

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.faulty, self.always = behind, False, ""
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        self.chance = random.Random(0)

    def fault(self) -> str:
        """What befalls a request."""
        if self.always:
            return self.always
        drawn = self.chance.random()
        for name, share in FAULTS.items() if self.faulty else ():
            if drawn < share:
                return name
            drawn -= share
        return ""


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.fault() if self.command in ("GET", "HEAD") else ""
        self.server.counts["requests"] += 1
        self.server.counts.update([fault] if fault else [])
        if fault == "slow":
            time.sleep(1)
        if fault == "never":
            time.sleep(120)
        if fault == "broken":
            self.close_connection = True
            return
        if fault.isdigit():
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        if not answer.getheader("Content-Length"):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            sent = content[: len(content) // 2] if fault == "cut" else content
            self.wfile.write(sent)
            self.server.bytes += len(sent)
        self.close_connection = fault == "cut" or self.close_connection

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def store() -> Iterator[Proxy]:
    """moto's server and the proxy before it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with Proxy(server.get_host_and_port()[1]) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            yield proxy
            proxy.shutdown()
    finally:
        server.stop()


def pictures() -> list[bytes]:
    """JPEGs of smooth shades."""
    generator, found = np.random.default_rng(0), []
    for _ in range(IMAGES):
        coarse = Image.fromarray(generator.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((SIDE + 8, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=95)
        found.append(buffer.getvalue())
    return found


def laid_out(root: Path) -> dict[str, Path]:
    """The images in each form."""
    (root / "shards").mkdir(parents=True)
    images = {f"{'ab'[k % 2]}/{k:04d}.jpg": data for k, data in enumerate(pictures())}
    with zipfile.ZipFile(root / "photos.zip", "w") as archive:
        for name, data in images.items():
            archive.writestr(name, data)
    for shard in range(SHARDS):
        with tarfile.open(root / "shards" / f"part-{shard}.tar", "w") as tar:
            for name in list(images)[shard::SHARDS]:
                entry = tarfile.TarInfo(name)
                entry.size = len(images[name])
                tar.addfile(entry, io.BytesIO(images[name]))
    command = f"data pack {root / 'photos.zip'} --size 16 --out {root / 'pack.npz'} --data.enlarge"
    subprocess.run([sys.executable, "-m", "triptych", *command.split()], check=True, stdout=subprocess.DEVNULL)
    return {"zip": root / "photos.zip", "pack": root / "pack.npz", "six tars": root / "shards"}


def uploaded(place: Path, client: object, name: str = "") -> str:
    """Puts it into the bucket; its address."""
    name = name or place.name
    for file in sorted(place.iterdir()) if place.is_dir() else [place]:
        client.put_object(Bucket="bucket", Key=f"{name}/{file.name}" if place.is_dir() else name, Body=file.read_bytes())  # type: ignore[attr-defined]
    return f"s3://bucket/{name}"


def command(path: object, run: Path) -> list[str]:
    more = " --data.crop center --data.flip" if str(path).endswith("pack.npz") else ""
    return [*f"{sys.executable} -m triptych train adm-digits --run {run} --data.path {path} {SETTINGS}{more}".split()]


def environment(proxy: Proxy, cache: Path) -> dict[str, str]:
    shutil.rmtree(cache, ignore_errors=True)
    url = f"http://127.0.0.1:{proxy.server_address[1]}"
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}
    return {**os.environ, **keys, "TRIPTYCH_CACHE": str(cache), "TRIPTYCH_CACHE_GB": CACHE, "OMP_NUM_THREADS": "1"}


def killed_twice(path: str, run: Path, proxy: Proxy, root: Path) -> int:
    """Trains, is killed where it has a first checkpoint, then a later one, and goes on to the end; the number of kills."""
    kills = 0
    for goal in (64, 128):
        process = subprocess.Popen(command(path, run), env=environment(proxy, root / "cache"), stdout=subprocess.DEVNULL)
        while process.poll() is None and newest(run) < goal:
            time.sleep(0.05)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    subprocess.run(command(path, run), env=environment(proxy, root / "cache"), check=True, stdout=subprocess.DEVNULL, timeout=900)
    return kills


def newest(run: Path) -> int:
    """Images of the last checkpoint; 0: there is none."""
    return max((int(each.name) for each in (run / "checkpoints").glob("[0-9]*")), default=0)


def digest(run: Path) -> str:
    """Of the tensors of the last checkpoint."""
    last = max((run / "checkpoints").glob("[0-9]*"))
    hashed = hashlib.sha256()
    for file in sorted(last.glob("*.safetensors")):
        hashed.update(file.name.encode() + file.read_bytes())
    return f"{int(last.name)} images, {hashed.hexdigest()[:16]}"


def refused(what: str, path: str, proxy: Proxy, prepare: str = "") -> tuple[str, bool, str]:
    """An opening that has to end with one line, by an impatient process: this one."""
    proxy.faulty, proxy.always = False, prepare
    remote.ATTEMPTS, remote.TIMEOUT = 2, 2.0
    line = "(opened)"
    try:
        DataConfig(path=path, image_size=16, enlarge=True).open()
    except UserError as error:
        line = str(error)
    proxy.always = ""
    return what, line.startswith(path) and "\n" not in line and KEY not in line and SECRET not in line, line


def changed(path: str, client: object, place: Path, proxy: Proxy, root: Path) -> tuple[str, bool, str]:
    """An object that is replaced while a run learns from it, whose cache is too small to do without."""
    run = root / "changed"
    env = environment(proxy, root / "cache") | {"TRIPTYCH_CACHE_GB": "0.0001"}
    words = [*command(path, run), "--train.total-images", "200000"]
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not newest(run):
        time.sleep(0.05)
    client.put_object(Bucket="bucket", Key=path.rpartition("/")[2], Body=place.read_bytes() + b"\0")  # type: ignore[attr-defined]
    try:
        line = process.communicate(timeout=120)[1].strip()
    except subprocess.TimeoutExpired:
        process.kill()
        line = process.communicate()[1].strip() + "(went on)"
    last = line.splitlines()[-1] if line else ""
    return "an object that changes in mid-run", process.returncode == 2 and "changed while it was in use" in last, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = ["| images as | requests | faults | MB sent | kills | on the disk | from S3 | equal |", "|---|---|---|---|---|---|---|---|"]
    passed = True
    with tempfile.TemporaryDirectory() as folder, store() as proxy:
        root = Path(folder)
        import boto3

        own = {"endpoint_url": f"http://127.0.0.1:{proxy.behind}", "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        client = boto3.client("s3", region_name="us-east-1", **own)
        client.create_bucket(Bucket="bucket")
        places = laid_out(root / "data")
        for kind, place in places.items():
            words = command(place, root / f"here-{place.name}")
            subprocess.run(words, env=environment(proxy, root / "cache"), check=True, stdout=subprocess.DEVNULL)
            address = uploaded(place, client)
            proxy.counts.clear()
            proxy.bytes, proxy.faulty = 0, True
            kills = killed_twice(address, root / f"there-{place.name}", proxy, root)
            proxy.faulty = False
            here, there = (digest(root / f"{where}-{place.name}") for where in ("here", "there"))
            passed &= here == there
            faults = ", ".join(f"{count} {name}" for name, count in sorted(proxy.counts.items()) if name != "requests")
            sent = f"{proxy.bytes / 1e6:.1f}"
            lines.append(f"| {kind} | {proxy.counts['requests']} | {faults} | {sent} | {kills} | {here} | {there} | {here == there} |")
            print(lines[-1], flush=True)
        os.environ.update(environment(proxy, root / "cache"))
        short = root / "short.zip"
        short.write_bytes(places["zip"].read_bytes()[:-2000])
        found = [
            refused("an object that is missing", "s3://bucket/none.zip", proxy),
            refused("a bucket that is missing", "s3://nobucket/none.zip", proxy),
            refused("no right", "s3://bucket/photos.zip", proxy, "403"),
            refused("a server that fails all the time", "s3://bucket/photos.zip", proxy, "503"),
            refused("a server that does not answer", "s3://bucket/photos.zip", proxy, "never"),
            refused("a zip that was uploaded in part", uploaded(short, client), proxy),
            changed("s3://bucket/photos.zip", client, places["zip"], proxy, root),
        ]
        lines += ["", "| what | named | the line |", "|---|---|---|"]
        lines += [f"| {what} | {good} | `{line}` |" for what, good, line in found]
        passed &= all(good for _, good, _ in found)
    page = f"# Training from an S3 server that fails, {datetime.date.today()}\n\n{machine()}\n\n" + "\n".join(lines) + "\n"
    print(page)
    if arguments.out is not None:
        arguments.out.write_text(page)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
