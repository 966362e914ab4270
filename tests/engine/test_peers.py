"""Which process failed, told through a store; no process but this one is started."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from triptych.core.errors import DataError
from triptych.engine import peers
from triptych.engine.distributed import told_elsewhere
from triptych.engine.peers import PeerError, Peers, meet

BROKEN = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(peers, "SIGN_SECONDS", 0.001)


def company(size: int) -> list[Peers]:
    """The processes of a run, each as its own thread would see them."""
    store = dist.HashStore()
    return [Peers(store, rank=rank, size=size) for rank in range(size)]


def look(*those: Peers, times: int = 1) -> None:
    for _ in range(times):
        for one in those:
            one.look()


def test_an_error_is_known_to_the_others_with_its_rank_and_words():
    one, other = company(2)
    error = DataError("photos/7.png cannot be decoded")
    assert other.explained(error) is error
    explained = one.explained(BROKEN)
    assert isinstance(explained, PeerError) and explained.first
    assert str(explained).startswith("rank 1 (process ") and str(explained).endswith("failed: photos/7.png cannot be decoded")


def test_the_first_word_counts_and_is_said_once():
    first, second, third = company(3)
    first.explained(DataError("the cause"))
    second.explained(DataError("a consequence"))
    said = third.explained(BROKEN)
    assert "the cause" in str(said) and "consequence" not in str(said)
    again = Peers.explained(second, BROKEN)
    assert isinstance(said, PeerError) and isinstance(again, PeerError)
    assert (said.first, again.first) == (True, False)


def test_what_processes_of_a_machine_say_alike_is_told_by_the_first(monkeypatch):
    one, second, third, elsewhere = company(4)
    errors = [DataError(f"photos: {words}") for words in ("does not exist", "does not exist", "may not be read", "does not exist")]
    for process, error in zip((second, one, third), errors, strict=False):
        assert process.explained(error) is error
    second.explained(errors[0])  # again on its way, as the command line does
    monkeypatch.setattr(peers.socket, "gethostname", lambda: "node2")
    assert elsewhere.explained(errors[3]) is errors[3]
    assert [told_elsewhere(error) for error in errors] == [False, True, False, False]


def test_one_that_was_killed_is_named_by_those_whose_connection_broke():
    one, killed, other = company(3)
    look(one, killed, other, times=3)
    look(one, other, times=6)
    message = str(one.explained(BROKEN))
    assert message.startswith("rank 1 (process ") and "gives no sign of life" in message
    assert str(other.explained(BROKEN)) == message


def test_where_one_stands_still_until_a_wait_ends_what_the_others_did_is_recorded(tmp_path):
    one, stopped = company(2)
    one.records = tmp_path / "records"
    look(one, stopped, times=3)
    look(one, times=6)
    message = str(one.explained(RuntimeError("gloo: Timed out waiting 300000ms for recv operation to complete")))
    assert "rank 1 (process " in message and "gives no sign of life" in message
    assert (one.records / "rank-00000.json").exists()


def test_one_that_does_not_arrive_is_named_with_what_it_does():
    one, late = company(2)
    one.minutes = 5.0
    for peer in (one, late):
        peer.doing("loading images")
    one.doing("taking a step")
    look(one, late, times=2)
    stop = threading.Event()
    living = threading.Thread(target=lambda: [look(one, late) for _ in iter(lambda: stop.wait(0.0005), True)])
    living.start()
    try:
        message = str(one.explained(RuntimeError("gloo: Timed out waiting 300000ms for recv operation to complete")))
    finally:
        stop.set()
        living.join()
    assert message.startswith("rank 1 (process ") and "did not arrive within 5 minutes" in message and "it is loading images" in message


def test_one_that_stands_still_is_named_when_the_limit_is_reached_and_not_before():
    one, stopped = company(2)
    one.limit_seconds = 20 * peers.SIGN_SECONDS
    look(one, stopped, times=3)
    assert [one.look() for _ in range(20)][-1] is None
    message = one.look()
    assert message is not None and message.startswith("rank 1 (process ") and "no sign of life" in message


def test_one_that_is_late_is_named_at_twice_the_limit_where_no_wait_fails_and_what_this_one_did_is_recorded(tmp_path):
    one, late = company(2)
    one.records = tmp_path / "records"
    for peer in (one, late):
        peer.doing("loading images")
    one.doing("taking a step")
    assert not any(one.look() for _ in range(100) if late.look() is None), "without a limit"
    one.doing("taking a step")
    one.minutes = 20 * peers.SIGN_SECONDS / 60
    assert not any(one.look() for _ in range(39) if late.look() is None)
    message = one.look()
    assert message is not None and message.startswith("rank 1 (process ") and "did not arrive within" in message
    assert "it is loading images" in message and late.look() == message
    assert str(one.explained(BROKEN)) == message
    record = json.loads((tmp_path / "records/rank-00000.json").read_text())
    assert (record["message"], record["doing"]) == (message, "taking a step")
    assert any("test_peers.py" in line for line in record["main_thread"])


def test_nothing_is_recorded_of_a_process_that_failed(tmp_path):
    one, other = company(2)
    one.records = tmp_path / "records"
    other.explained(DataError("photos/7.png cannot be decoded"))
    one.explained(BROKEN)
    assert not one.records.exists()


def test_one_that_has_left_is_not_missed():
    one, gone = company(2)
    one.limit_seconds = 10 * peers.SIGN_SECONDS
    gone.leave()
    assert [one.look() for _ in range(50)][-1] is None


def test_what_process_0_cannot_write_is_written_to_its_log(tmp_path):
    killed, one, other = company(3)
    for peer in (one, other):
        peer.log_path = tmp_path / "log.txt"
    look(killed, one, other, times=2)
    look(one, other, times=6)
    said = [str(peer.explained(BROKEN)) for peer in (one, other)]
    (line,) = (tmp_path / "log.txt").read_text().splitlines()
    assert line.endswith(f"failed: {said[0]}") and "rank 0" in line


def test_a_process_that_waits_for_one_that_failed_is_ended(monkeypatch, capsys):
    one, other = company(2)
    ended = threading.Event()
    codes: list[int] = []
    monkeypatch.setattr(peers, "_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(peers.os, "_exit", lambda code: (codes.append(code), one._left.set(), ended.set()))
    one.watch()
    other.explained(DataError("photos/7.png cannot be decoded"))
    assert ended.wait(10) and codes == [1]
    assert capsys.readouterr().err.endswith("failed: photos/7.png cannot be decoded\n")


def test_a_process_that_waits_is_ended_also_where_nobody_reads_its_words(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    one, other = company(2)
    ended = threading.Event()
    monkeypatch.setattr(peers, "_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(peers.os, "_exit", lambda code: (one._left.set(), ended.set()))
    monkeypatch.setattr(peers.sys, "stderr", Gone())
    one.watch()
    other.explained(DataError("photos/7.png cannot be decoded"))
    assert ended.wait(10)


def test_a_process_that_ends_by_itself_is_not_ended(monkeypatch):
    one, other = company(2)
    codes: list[int] = []
    monkeypatch.setattr(peers, "_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(peers.os, "_exit", codes.append)
    other.explained(DataError("x"))
    one.explained(BROKEN)
    one.watch()
    threading.Event().wait(0.2)
    one.leave()
    assert codes == []


class StoppingStore:
    """A store whose keeper can be stopped: from then on nobody gets an answer, until it is freed."""

    def __init__(self) -> None:
        self.kept, self.free = dist.HashStore(), threading.Event()
        self.free.set()

    def __getattr__(self, name: str) -> Callable[..., object]:
        self.free.wait()
        return getattr(self.kept, name)


class Ended(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StoppingStore, Peers, list[int]]]:
    """A store, process 1 of two on it, and the codes that it ended with."""
    store, codes = StoppingStore(), list[int]()
    peer, _ = Peers(store, rank=1, size=2), Peers(store, rank=0, size=2)

    def ended(code: int) -> None:
        codes.append(code)
        peer._left.set()
        raise Ended

    monkeypatch.setattr(peers.os, "_exit", ended)
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    yield store, peer, codes
    store.free.set()
    peer._left.set()


def test_where_the_store_stands_still_a_process_that_waits_ends(stopping, capsys, tmp_path) -> None:
    store, peer, codes = stopping
    peer.limit_seconds, peer.log_path = 50 * peers.SIGN_SECONDS, tmp_path / "log.txt"
    peer.watch()
    threading.Event().wait(100 * peers.SIGN_SECONDS)
    assert codes == []
    store.free.clear()
    assert peer._left.wait(10)
    threading.Event().wait(0.05)
    assert codes == [1]
    said = capsys.readouterr().err
    assert said.startswith("triptych: error: rank 0 (process ") and "that keeps the store of this start was stopped or is gone" in said
    assert "that keeps the store" in (tmp_path / "log.txt").read_text()


def test_where_the_store_stands_still_an_error_does_not_wait_for_it(stopping, monkeypatch, capsys) -> None:
    store, peer, codes = stopping
    monkeypatch.setattr(peers, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # torchrun keeps the store
    peer.watch()
    store.free.clear()
    with pytest.raises(Ended):
        peer.explained(BROKEN)
    assert codes == [1]
    said = capsys.readouterr().err
    assert said.startswith("triptych: error: the process or machine that keeps the store") and "Connection closed by peer" in said


def test_an_error_while_the_store_is_asked_is_not_taken_for_its_silence(stopping, monkeypatch) -> None:
    _, peer, codes = stopping
    fault = ValueError("no JSON")

    def failed() -> str | None:
        raise fault

    monkeypatch.setattr(peer, "_told", failed)
    assert peer.explained(BROKEN) is fault
    assert codes == []


def starts(store: dist.Store, size: int) -> list[str]:
    """The names that the processes of a start agree on."""
    names = [""] * size

    def start(rank: int) -> None:
        names[rank] = meet(store, rank=rank, size=size)

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return names


def test_each_start_has_a_name_of_its_own_on_one_store():
    store = dist.HashStore()
    first, second = starts(store, 3), starts(store, 3)
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] and second[0] and first[0] != second[0]


def test_what_a_start_that_was_cut_short_left_is_not_taken_for_one_of_now():
    store = dist.HashStore()
    starts(store, 3)
    for rank in (0, 2):  # they showed a number and were killed
        store.set(f"start/{rank}", "0" * 16)
    names = starts(store, 3)
    assert len(set(names)) == 1 and names[0]
