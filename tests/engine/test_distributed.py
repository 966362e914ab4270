"""Two processes train as one does."""

from __future__ import annotations

import re

import pytest
import torch

from tests.engine.distributed_worker import keep_waiting, train_toys, train_with_little_memory, train_without_warnings
from tests.engine.toys import Hungry, make_loop, run, seeded
from tests.processes import run_together
from triptych.core.errors import ConfigError
from triptych.engine.distributed import Agreement, World, open_world


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


def test_two_processes_are_warned_of_nothing(tmp_path):
    run_together(2, train_without_warnings, tmp_path)


def test_a_late_process_is_named_by_all(tmp_path):
    run_together(2, keep_waiting, tmp_path)  # nobody was late in its patience, or there would be a traceback
    for rank in (0, 1):
        expected = r"rank 1 \(process \d+ on .*\) did not arrive within 0.0166667 minutes .*: it is loading images; .*"
        assert re.fullmatch(expected, (tmp_path / f"late-{rank}.txt").read_text(encoding="utf-8"))


def test_one_process_agrees_with_itself():
    agreement = Agreement(World(0, 1, torch.device("cpu")))
    assert agreement.vote({"stop": True, "overdue": False}) == {"stop": True, "overdue": False}
    agreement.close()


@pytest.mark.parametrize("device", ["tpu", "nonsense:0", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ConfigError, match="device: got"):
        open_world(device)
