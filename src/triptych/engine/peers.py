"""Signs of life between the processes of a run: which of them live, what each is doing, and why one failed.

They tell it through the store by which torchrun lets them meet. The error of a broken connection says nothing of that, and a
process that waits for others on a GPU gets no error at all. So a thread of each process gives a sign of life every second, reads
those of the others, and ends its process when another one has failed or is silent for too long.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch._C import _distributed_c10d  # where the flight recorder's JSON is

from triptych.core.errors import RunError
from triptych.core.files import write_text

SIGN_SECONDS = 1.0
"""Between two signs of life."""
_SILENT_SIGNS = 4  # so many missed after a broken connection: it has ended
_ANSWER_SECONDS = 30.0  # for the store to say why another process failed, signs that it waits for included
_GRACE_SECONDS = 10.0  # for a process to end by itself when another one has failed; less than the 30 of torchrun
_LOOKS_PER_SECOND = 64  # of signs that a process reads: more than so many processes are read less often
_LATE_LIMITS = 2  # so many limits behind: a wait on a GPU has no error, and here the step before the wait counts too
_RECORDED = 100  # collective operations of a record
_GO_ON = "the same command goes on from the newest checkpoint"


class PeerError(RunError):
    """Another process of the run failed or is gone; the message names it. `first`: whether no other process has said so yet."""

    def __init__(self, message: str, *, first: bool) -> None:
        super().__init__(message)
        self.first = first


def meet(store: Any, *, rank: int, size: int) -> str:
    """A name for this start, the same in all processes and different from that of every other start on the store.

    torchrun keeps one store through its restarts, and its count of them differs between machines: without a name of its own, a
    restarted process finds the addresses of ended ones, and waits for those. Every process shows a number of its own; when all
    have seen the same numbers, theirs among them, those are the processes of this start.
    """
    token = secrets.token_hex(8)
    store.set(f"start/{rank}", token)
    while True:
        present = [value.decode() for value in store.multi_get([f"start/{each}" for each in range(size)])]
        name = hashlib.sha256(" ".join(present).encode()).hexdigest()[:16]
        if present[rank] == token:
            store.set(f"start/{name}/{rank}", "seen")
        if store.check([f"start/{name}/{each}" for each in range(size)]):
            return name
        time.sleep(0.05)


@dataclass
class _Sign:
    """The last sign of life of a process: JSON of its number, of the count of works begun, and of the last work."""

    value: bytes = b'[0, 0, "starting"]'
    missed: int = 0
    "How often this process has looked since without finding a newer sign."

    @property
    def begun(self) -> int:
        return json.loads(self.value)[1]

    @property
    def doing(self) -> str:
        """Empty when it has left."""
        return json.loads(self.value)[2]


class Peers:
    """This process among `size`. `store` must have keys of its own for each start, and be used by nobody else."""

    def __init__(self, store: Any, *, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.limit_seconds = 300.0
        "The longest silence of a process that lives."
        self.minutes: float | None = None
        "The limit of the waits that is in force; kept here for `World.patience`."
        self.log_path: Path | None = None
        "The log of the run, for what no process 0 is left to write there."
        self.records: Path | None = None
        "The folder for what each process was doing when all waited in vain."
        self._store = store
        self._number = self._begun = 0
        self._looks = 0  # since the work was begun
        self._doing = "starting"
        self._signs = [_Sign() for _ in range(size)]
        self._explained = False
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._keeper = "the process or machine"
        "Who keeps the store."
        store.set(f"name/{rank}", f"rank {rank} (process {os.getpid()} on {socket.gethostname()})")
        self._give_sign()

    def wait_for_all(self) -> None:
        """Returns when all processes have given a sign; raises PeerError, which names one that has not within the limit."""
        for rank in range(self.size):
            try:
                self._store.wait([f"sign/{rank}"], timedelta(seconds=self.limit_seconds))
            except dist.DistError:
                what = f"was killed or stopped while it started, or the process that keeps the store was; {_GO_ON}"
                raise PeerError(f"rank {rank} {what}", first=True) from None

    def watch(self) -> None:
        """Starts the threads; all processes must have given a sign."""
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # torchrun itself keeps it
            self._keeper = self._store.get("name/0").decode()
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_the_store, name="store", daemon=True).start()

    def leave(self) -> None:
        """Tells the others that this process ends as it should."""
        if self._left.is_set():
            return
        self._left.set()
        self._doing = ""
        with contextlib.suppress(dist.DistError):  # the process that keeps the store has ended first
            self._give_sign()
        if self._thread is not None:
            self._thread.join(_GRACE_SECONDS)  # a thread that talks to the store while Python shuts down aborts the process

    def doing(self, what: str) -> None:
        """Notes the work that this process begins; all begin the same works in the same order."""
        self._begun, self._doing, self._looks = self._begun + 1, what, 0

    def look(self) -> str | None:
        """Gives a sign of life and reads those of the others. Returns the failure of another process, reported or by silence."""
        self._give_sign()
        every = max(1, self.size // _LOOKS_PER_SECOND)
        if self._number % every == 0:
            for sign, value in zip(self._signs, self._values(), strict=True):
                # Counted in looks and not by a clock: a job that is stopped as a whole and goes on has missed nothing.
                sign.missed = sign.missed + 1 if value == sign.value else 0
                sign.value = value
        self._looks += 1
        silent = self._silent(max(_SILENT_SIGNS, round(self.limit_seconds / SIGN_SECONDS / every)))
        if silent:
            limit = spelled_minutes(self.limit_seconds / 60)
            what = f"has given no sign of life for {limit}: it was stopped or killed, or its machine is gone; {_GO_ON}"
            self._tell(silent[0], what, own=False, waited=True)
        elif self.minutes is not None and self._looks * SIGN_SECONDS >= _LATE_LIMITS * 60 * self.minutes:
            for rank, doing in self._behind()[:1]:
                self._tell_late(rank, doing)
        return self._told()

    def explained(self, error: BaseException) -> BaseException:
        """The error to raise in place of `error`: itself, reported to the others, or the failure of another process that caused it.

        Itself gets the attribute `first`, False, where another process of this machine has said the same: see `told_elsewhere`.
        """
        self._explained = True
        if isinstance(error, PeerError):
            return error
        line = " ".join(str(error).split()) or type(error).__name__
        answered = _within(_ANSWER_SECONDS, lambda: self._explained_by_the_store(error, line))
        return self._end_without_store(line) if answered is None else answered

    def _explained_by_the_store(self, error: BaseException, line: str) -> BaseException:
        try:
            # What a process gets when another one has gone.
            broken = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())
            if not broken:
                self._tell(self.rank, f"failed: {line}", own=True)
                if not self._says_first(line):
                    error.first = False  # type: ignore[attr-defined]
                return error
            behind = self._behind()  # as of now: they may arrive yet, too late
            if self._told() is None and self._wait_for_word() is None:
                self._judge(line, behind)
            message = self._told()
            assert message is not None
            return PeerError(message, first=self._report(message, forced=False))
        except dist.DistError:  # the store has ended with the process that kept it
            return PeerError(f"the other processes cannot be reached any more: {line}; {_GO_ON}", first=True)

    def _wait_for_word(self) -> str | None:
        """The failure that another process reports, if it does so before a process is found silent."""
        for _ in range(_SILENT_SIGNS + 1):
            if (told := self._told()) is not None or self._silent(_SILENT_SIGNS):
                return told
            time.sleep(SIGN_SECONDS)
        return None

    def _behind(self) -> list[tuple[int, str]]:
        """The processes that have not begun the work of this one, and what each is doing."""
        signs = [_Sign(value) for value in self._values()]
        return [(rank, sign.doing) for rank, sign in enumerate(signs) if sign.begun < self._begun and sign.doing]

    def _judge(self, line: str, behind: list[tuple[int, str]]) -> None:
        """Names the process that must have failed."""
        silent = self._silent(_SILENT_SIGNS)
        if silent:
            waited = "timed out" in line.lower()  # else its connection was closed
            what = f"gives no sign of life: it was killed (for want of memory?) or stopped; {_GO_ON}"
            self._tell(silent[0], what, own=False, waited=waited)
        elif behind:
            self._tell_late(*behind[0])
        else:
            self._tell(self.rank, f"lost the connection to the others, which live: {line}; {_GO_ON}", own=False)

    def _tell_late(self, rank: int, doing: str) -> None:
        limit = "" if self.minutes is None else f" within {spelled_minutes(self.minutes)} (train.timeout_minutes)"
        self._tell(rank, f"did not arrive{limit}: it is {doing}; {_GO_ON}", own=False, waited=True)

    def _silent(self, signs: int) -> list[int]:
        return [rank for rank, sign in enumerate(self._signs) if sign.missed >= signs and rank != self.rank and sign.doing]

    def _values(self) -> list[bytes]:
        return self._store.multi_get([f"sign/{rank}" for rank in range(self.size)])

    def _give_sign(self) -> None:
        self._number += 1
        self._store.set(f"sign/{self.rank}", json.dumps([self._number, self._begun, self._doing]))

    def _tell(self, rank: int, what: str, *, own: bool, waited: bool = False) -> None:
        """Reports a failure. The first report counts: later ones are mostly its consequences. `waited`: for one that did not come."""
        name = self._store.get(f"name/{rank}").decode()
        self._store.compare_set("failed", "", json.dumps([rank, own, f"{name} {what}", waited]))

    def _told(self) -> str | None:
        return json.loads(self._store.get("failed"))[2] if self._store.check(["failed"]) else None

    def _says_first(self, line: str) -> bool:
        """Whether no other process of this machine has failed in the same words before: of a setting all of them would say so."""
        key = f"said/{socket.gethostname()}/{hashlib.sha256(line.encode()).hexdigest()}"
        return int(self._store.compare_set(key, "", str(self.rank))) == self.rank

    def _report(self, message: str, *, forced: bool) -> bool:
        """Whether nobody has reported it yet. What process 0 cannot write to the log is written there."""
        rank, own, _, waited = json.loads(self._store.get("failed"))
        if waited and self.records is not None:
            with contextlib.suppress(OSError):
                write_record(self.records, rank=self.rank, message=message, doing=self._doing)
        first = self._store.add("reports", 1) == 1
        silent = rank == 0 and not own
        if (forced and self.rank == 0) or (first and silent and self.rank != 0):
            self._log(message)
        return first

    def _log(self, message: str) -> None:
        if self.log_path is not None:
            with contextlib.suppress(OSError), self.log_path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} failed: {message}\n")

    def _watch(self) -> None:
        with contextlib.suppress(dist.DistError):  # the store has ended: a process that still waits for others gets an error of its own
            while not self._left.wait(SIGN_SECONDS):
                message = self.look()
                if message is not None and not self._explained:
                    self._left.wait(_GRACE_SECONDS)
                    if not self._explained and not self._left.is_set():
                        self._end(message)

    def _watch_the_store(self) -> None:
        """Ends this process when its signs have found no answer for as long as another one may be silent: the store has stopped."""
        number, missed = self._number, 0
        while not self._left.wait(SIGN_SECONDS) and self._thread is not None and self._thread.is_alive():
            missed = missed + 1 if self._number == number else 0
            number = self._number
            if missed * SIGN_SECONDS >= self.limit_seconds and not self._explained:
                self._end_without_store(f"no answer for {spelled_minutes(self.limit_seconds / 60)}")

    def _end_without_store(self, line: str) -> NoReturn:
        """Ends this process, which can neither ask nor tell the others."""
        message = (
            f"{self._keeper} that keeps the store of this start was stopped or is gone, and with it word of the others: {line}; {_GO_ON}"
        )
        if self.rank == 1:  # the first of those that can tell, for it is mostly process 0 that stands still
            self._log(message)
        _end_with(message)

    def _end(self, message: str) -> NoReturn:
        """Ends this process, whose main thread waits for one that will not come."""
        _end_with(message if self._report(message, forced=True) else None)


def _end_with(message: str | None) -> NoReturn:
    """Ends this process, whatever its main thread waits for, with a line where there is one; what reads it may be gone."""
    if message is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"triptych: error: {message}\n")
            sys.stderr.flush()
    os._exit(1)


def _within(seconds: float, function: Callable[[], BaseException]) -> BaseException | None:
    """What the function returns, or raises; None where it takes longer, and then it goes on in a thread."""
    found: list[BaseException] = []

    def ask() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=ask, name="asking", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def write_record(folder: Path, *, rank: int, message: str, doing: str) -> None:
    """Writes what this process does to `folder`/rank-RANK.json: its work, where its main thread is, its last messages. Raises OSError."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    main_thread = [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_stack(frame)]
    record = {"message": message, "doing": doing, "main_thread": main_thread, "flight_recorder": _flight_recorder()}
    folder.mkdir(exist_ok=True)
    write_text(folder / f"rank-{rank:05d}.json", json.dumps(record, indent=1) + "\n")


def _flight_recorder() -> dict[str, Any]:
    """The last collective operations of this process and the state of each, as PyTorch keeps them: of NCCL, and of gloo."""
    found = {}
    for name, function in (("nccl", "_dump_nccl_trace_json"), ("gloo", "_dump_fr_trace_json")):
        dump = getattr(_distributed_c10d, function, None)  # the first one in builds with NCCL alone
        if dump is not None:
            trace = json.loads(dump())
            found[name] = trace | {"entries": trace.get("entries", [])[-_RECORDED:]}
    return found


def spelled_minutes(minutes: float) -> str:
    """A limit in minutes, as in the setting."""
    return f"{minutes:g} minute{'' if minutes == 1 else 's'}"
