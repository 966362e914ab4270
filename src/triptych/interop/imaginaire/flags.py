"""The flags of imaginaire's train.py, with their defaults: https://github.com/NVlabs/imaginaire."""

from __future__ import annotations

from triptych.interop.flags import Flag, Value

_VALUES: dict[str, Value] = {
    "config": "",
    "logdir": "",
    "checkpoint": "",
    "seed": 2,
    "local_rank": 0,
    "wandb_name": "default",
    "wandb_id": "",
    "resume": "",
    "num_workers": "",
}
_SWITCHES = ("randomized_seed", "single_gpu", "debug", "use_jit", "profile", "wandb")

FLAGS = {name: Flag(name, default, "run") for name, default in _VALUES.items()} | {
    name: Flag(name, False, "run", switch=True) for name in _SWITCHES
}
"""All of them by name; an empty text stands for one that is not given."""

RANDOM_SEEDS = 10_001
"""How many seeds --randomized_seed chooses from."""
