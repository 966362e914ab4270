"""What memory there is: read from the files of a system that is made here, and of this process."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import pytest
import torch

from triptych.core import memory
from triptych.core.memory import (
    available_memory,
    data_memory,
    forget_peak,
    in_bytes,
    is_out_of_memory,
    kills_for_memory,
    limited_to_available,
    memory_of_children,
    peak_memory,
    resident_memory,
    said_of,
)


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


FREE = {"proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:    6000 kB\n"}
GROUP = {"proc/self/cgroup": "0::/jobs/one\n"}


def test_the_machine_without_a_container(tmp_path):
    assert available_memory(system(tmp_path, FREE)) == 6000 * 1024


def test_nothing_is_known(tmp_path):
    assert available_memory(tmp_path) is None


@pytest.mark.parametrize("place", ["sys/fs/cgroup/jobs/one", "sys/fs/cgroup/jobs", "sys/fs/cgroup"])
def test_the_limit_of_a_group_or_of_one_above_it(tmp_path, place):
    """What the system may take back at once (inactive files) counts as free."""
    limit = {
        f"{place}/memory.max": "3000000\n",
        f"{place}/memory.current": "2500000\n",
        f"{place}/memory.stat": "anon 1\ninactive_file 70000\n",
    }
    assert available_memory(system(tmp_path, FREE | GROUP | limit)) == 570_000


def test_a_group_without_a_limit(tmp_path):
    place = "sys/fs/cgroup/jobs/one"
    assert available_memory(system(tmp_path, FREE | GROUP | {f"{place}/memory.max": "max", f"{place}/memory.current": "5"})) == 6000 * 1024


@pytest.mark.parametrize(("limit", "left"), [("1000000", 400_000), ("9223372036854771712", 6000 * 1024)])
def test_version_1_of_the_groups(tmp_path, limit, left):
    place = "sys/fs/cgroup/memory"
    assert (
        available_memory(system(tmp_path, FREE | {f"{place}/memory.limit_in_bytes": limit, f"{place}/memory.usage_in_bytes": "600000"}))
        == left
    )


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path):
    place = "sys/fs/cgroup"
    assert available_memory(system(tmp_path, FREE | {f"{place}/memory.max": "10", f"{place}/memory.current": "20"})) == 0


def test_the_limit_of_the_address_space(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5_000_000 if which == resource.RLIMIT_AS else None, None))
    assert available_memory(system(tmp_path, FREE | {"proc/self/status": "VmSize:\t1000 kB\n"})) == 5_000_000 - 1_024_000


def test_the_peak_stays_when_memory_is_given_back():
    before = resident_memory()
    with mmap.mmap(-1, 2**26) as held:  # 64 MiB that no allocator had before
        held.write(b"1" * 2**26)
        assert resident_memory() > before + 2**25
    assert peak_memory() > before + 2**25
    assert peak_memory() >= resident_memory()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone keeps a peak that can begin anew")
def test_a_peak_that_is_forgotten():
    """A quarter of a gigabyte that was taken and given back is no longer the peak, and what is taken afterwards is."""
    with mmap.mmap(-1, 2**28) as block:
        block.write(b"x" * 2**28)
    assert peak_memory() >= resident_memory() + 2**27
    assert forget_peak()
    assert peak_memory() < resident_memory() + 2**25
    with mmap.mmap(-1, 2**27) as block:
        block.write(b"x" * 2**27)
    assert peak_memory() >= resident_memory() + 2**26


def test_a_peak_that_cannot_be_forgotten(tmp_path):
    assert not forget_peak(tmp_path)


def test_the_processes_below_this_one_and_what_they_alone_have(tmp_path):
    """This one has two threads with a child each, one of which has a child; what they share with this one does not count."""
    me = os.getpid()
    files = {f"proc/{me}/task/{me}/children": "7 ", f"proc/{me}/task/9/children": "8", "proc/7/task/7/children": "11\n"}
    files |= {f"proc/{me}/smaps_rollup": "Private_Dirty: 999 kB\n"}
    for process, dirty in ((7, 10), (8, 20), (11, 30)):
        files[f"proc/{process}/smaps_rollup"] = f"Rss: 5000 kB\nShared_Clean: 100 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: {dirty} kB\n"
    assert memory_of_children(system(tmp_path, files) / "proc") == (3, 63 * 1024)
    assert memory_of_children(tmp_path / "nothing") == (0, 0)


def test_elsewhere_the_peak_is_that_of_getrusage(tmp_path):
    assert peak_memory(tmp_path) == resident_memory(tmp_path) > 2**20


def test_kills_are_counted_where_the_system_counts_them(tmp_path):
    assert kills_for_memory(tmp_path) == 0
    assert kills_for_memory(system(tmp_path, {"vmstat": "pgfree 9\noom_kill 3\n"})) == 3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"), "CUDA out of memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried 9 bytes."),
            "DefaultCPUAllocator: can't allocate memory: you tried 9 bytes.",
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        (
            RuntimeError("GET was unable to find an engine to execute this computation"),
            "GET was unable to find an engine to execute this computation",
        ),
        (RuntimeError("could not create a primitive"), "could not create a primitive"),
        (RuntimeError("could not execute a primitive"), "could not execute a primitive"),
        (RuntimeError("std::bad_alloc"), "std::bad_alloc"),
    ],
)
def test_errors_that_speak_of_memory(error, said):
    assert is_out_of_memory(error) and said_of(error) == said
    for other in ("shapes differ", "could not create a primitive descriptor for a convolution"):
        assert not is_out_of_memory(RuntimeError(other))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.skipif(data_memory() is None, reason="the system has no limit of a process's data")
def test_within_the_limit_a_share_of_what_is_there_can_be_taken(monkeypatch):
    """Sizes are far above what the allocator may have kept from other tests of this process: that would be given without the system."""
    monkeypatch.setattr(memory, "available_memory", lambda: 2**33)
    torch.empty(3 * 2**29)  # 6 GiB, of which nothing is used
    with limited_to_available(2):
        torch.empty(2**27)  # 0.5 GiB of 3.6
        with pytest.raises(RuntimeError) as caught:
            torch.empty(3 * 2**29)
    assert is_out_of_memory(caught.value)
    torch.empty(3 * 2**29)


def test_where_nothing_is_known_there_is_no_limit(monkeypatch):
    limit = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    with limited_to_available(2):
        assert resource.getrlimit(resource.RLIMIT_DATA) == limit


def test_a_figure_that_the_system_keeps_to_itself_is_not_known(tmp_path):
    (tmp_path / "vmstat").mkdir()  # to be read as little as a file without the right
    assert kills_for_memory(tmp_path) == 0


def test_sizes_in_words() -> None:
    sizes = {
        0: "0 bytes",
        1: "1 byte",
        999: "999 bytes",
        1000: "1 KB",
        999_499: "999 KB",
        999_500: "1 MB",
        21_940_524: "21.9 MB",
        3.2e9: "3.2 GB",
        5e15: "5 PB",
    }
    assert [in_bytes(size) for size in sizes] == list(sizes.values())
