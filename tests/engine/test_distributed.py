"""Two processes train as one does."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
import torch

from tests.engine.distributed_worker import (
    go_on,
    keep_waiting,
    lose_one_while_joining,
    train_toys,
    train_with_little_memory,
    train_without_warnings,
)
from tests.engine.toys import Denoiser, Hungry, make_loop, run, seeded
from tests.processes import run_together
from triptych.core.errors import ConfigError
from triptych.engine import distributed
from triptych.engine.checkpoint import load_newest
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import Agreement, World, open_world
from triptych.engine.schedule import refuse_impossible


@pytest.mark.parametrize(("microbatch", "out_of_memory"), [(None, "halve"), (3, "stop")])
def test_two_processes_have_the_gradients_data_and_noise_of_one(tmp_path, microbatch, out_of_memory):
    run_together(1, train_toys, tmp_path / "1", None)
    run_together(2, train_toys, tmp_path / "2", microbatch, out_of_memory)
    for kind in ("Denoiser", "Pair", "Clip"):
        gradients, seen, state = torch.load(tmp_path / f"1/{kind}-1-0.pt")
        parts = [torch.load(tmp_path / f"2/{kind}-2-{rank}.pt") for rank in (0, 1)]
        for rank, (theirs, _, their_state) in enumerate(parts):
            for own, other in zip(gradients, theirs, strict=True):
                for name, gradient in own.items():
                    assert (other[name] - gradient).norm() <= 1e-9 * gradient.norm(), (kind, rank, name)
            assert all(torch.allclose(their_state[name], state[name], rtol=1e-9, atol=1e-9) for name in state), (kind, rank)
        for step, (index, images) in enumerate(seen):
            assert torch.equal(torch.cat([part[1][step][0] for part in parts]), index)
            assert torch.equal(torch.cat([part[1][step][1] for part in parts]), images)


def test_all_processes_take_the_step_anew_where_one_lacks_memory(tmp_path, float64):
    reference = seeded(Hungry)
    run(make_loop(reference, tmp_path / "1", total_images=32, microbatch=2))
    for microbatch, sizes in ((None, [4] * 3 + [2] * 4), ("auto", [4, 2, 2] + [2] * 8)):
        run_together(2, train_with_little_memory, tmp_path, microbatch)
        states, found, seen = zip(*(torch.load(tmp_path / f"{microbatch}-{rank}.pt") for rank in (0, 1)), strict=True)
        assert found == ([2], [2]) and seen[0] == seen[1] == sizes, microbatch
        for name, trained in reference.network.named_parameters():
            assert torch.equal(states[0][name], states[1][name]), name
            assert torch.allclose(states[0][name], trained, rtol=1e-9, atol=1e-11), (microbatch, name)


def test_starts_of_3_8_and_1_processes_are_one_training(tmp_path, float64):
    """Batches of 10, whose shares differ between 3 or 8 processes by one image."""
    reference = seeded(Denoiser)
    run(make_loop(reference, tmp_path / "unbroken", batch_size=10, total_images=30))
    folder = tmp_path / "run"
    for start, processes in enumerate((3, 8, 1)):
        total = 10 * (start + 1)
        run_together(processes, go_on, folder, total)
        shares = [json.loads((folder / f"{total}-{rank}.json").read_text()) for rank in range(processes)]
        assert all(len(share) == 1 for share in shares)
        assert [image for share in shares for image in share[0]] == list(range(total - 10, total))
        sizes = [len(share[0]) for share in shares]
        assert max(sizes) - min(sizes) <= 1
    expected, found = (load_newest(path / "checkpoints", warn=print) for path in (tmp_path / "unbroken", folder))
    assert expected is not None and found is not None and expected.images_seen == found.images_seen == 30
    for stem, tensors in expected.files.items():
        for name, tensor in tensors.items():
            assert torch.allclose(found.files[stem][name], tensor, rtol=1e-9, atol=1e-12), (stem, name)


def test_more_processes_than_images_of_a_batch_are_refused(tmp_path):
    model, world = seeded(Denoiser), World(0, 8, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"train\.batch_size: got 7, expected at least one image for each of 8 processes"):
        make_loop(model, tmp_path, world=world, batch_size=7)
    refuse_impossible(model, TrainConfig(total_images=1, batch_size=8), world)


def test_two_processes_are_warned_of_nothing(tmp_path):
    run_together(2, train_without_warnings, tmp_path)


@pytest.mark.slow
def test_a_late_process_is_named_by_all(tmp_path):
    run_together(2, keep_waiting, tmp_path)  # nobody was late in its patience, or there would be a traceback
    for rank in (0, 1):
        expected = r"rank 1 \(process \d+ on .*\) did not arrive within 0.0166667 minutes .*: it is loading images; .*"
        message = (tmp_path / f"late-{rank}.txt").read_text(encoding="utf-8")
        assert re.fullmatch(expected, message)
        record = json.loads((tmp_path / f"records/rank-{rank:05d}.json").read_text(encoding="utf-8"))
        assert (record["message"], record["doing"]) == (message, "taking a step")
        assert any("distributed_worker.py" in line and "keep_waiting" in line for line in record["main_thread"])
        operations = [entry["profiling_name"] for entry in record["flight_recorder"]["gloo"]["entries"]]
        assert operations[-1] == "gloo:all_reduce" and "gloo:barrier" in operations


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before its first sign", "while they connect"])
def test_one_that_is_killed_while_they_meet_is_named_and_not_waited_for(moment: str) -> None:
    waiting, _ = run_together(2, lose_one_while_joining, moment, codes=[1, -9], timeout_seconds=60)
    assert re.search(r"^triptych: error: rank 1 ", waiting.stderr, re.MULTILINE), waiting.stderr
    assert "the same command goes on" in waiting.stderr and "Traceback" not in waiting.stderr


def test_the_chosen_gpu_is_the_one_that_is_asked_for_its_memory(monkeypatch):
    used = []
    monkeypatch.setattr(distributed, "_device", lambda name, rank: torch.device(name))
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert distributed.open_world("cuda:1").device == torch.device("cuda:1") and used == [torch.device("cuda:1")]
    distributed.open_world("cpu")
    assert len(used) == 1


def test_messages_are_filled_in_order_and_each_tensor_is_measured_once(monkeypatch):
    asked, sent, nbytes = list[int](), list[int](), torch.Tensor.nbytes
    monkeypatch.setattr(distributed, "_BUCKET_BYTES", 12)
    monkeypatch.setattr(torch.Tensor, "nbytes", property(lambda tensor: asked.append(1) or nbytes.__get__(tensor)))
    tensors = [torch.full((count,), float(k), dtype=torch.float32) for k, count in enumerate((1, 1, 2, 1, 3, 1))]

    def send(flat: torch.Tensor) -> SimpleNamespace:
        sent.append(len(flat))
        return SimpleNamespace(wait=lambda: flat.add_(10))

    distributed._in_buckets(tensors, send)
    assert sent == [4, 4, 1] and len(asked) == len(tensors)
    assert [set(tensor.tolist()) for tensor in tensors] == [{k + 10.0} for k in range(6)]


def test_one_process_agrees_with_itself():
    agreement = Agreement(World(0, 1, torch.device("cpu")))
    assert agreement.vote({"stop": True, "overdue": False}) == {"stop": True, "overdue": False}
    agreement.close()


@pytest.mark.parametrize("device", ["tpu", "nonsense:0", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ConfigError, match="device: got"):
        open_world(device)
