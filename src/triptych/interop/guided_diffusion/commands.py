"""Command lines of guided-diffusion's training scripts as configurations of ours."""

from __future__ import annotations

from collections.abc import Callable

from triptych.core.errors import ConfigError
from triptych.data.config import AS_STORED, DataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.interop.flags import named_as_flags
from triptych.interop.guided_diffusion.configs import configuration, flags_of
from triptych.interop.guided_diffusion.flags import ScriptFlags
from triptych.recipes.config import RunConfig

ENDLESS_IMAGES = 10**12
"""Images of a training that the original never ends (lr_anneal_steps 0)."""
_TRAINING_FLAG_OF = {
    "learning_rate": "lr",
    "checkpoint_every": "save_interval",
    "every": "log_interval",
    "ema_rates": "ema_rate",
    "timestep_sampler": "schedule_sampler",
    "loss_scale_growth": "fp16_scale_growth",
}


def training(flags: ScriptFlags, *, processes: int, note: Callable[[str], None]) -> RunConfig:
    """What a script's flags train. `note` hears of what differs from the original; a ConfigError is about its flag, if there is one."""
    with named_as_flags(flags_of(flags.kind) | _TRAINING_FLAG_OF, flags.values):
        classifier, batch = flags.kind == "classifier", flags["batch_size"] * processes
        model, image_size = configuration(flags.values, flags.kind)
        model = model.updated({"timestep_sampler": flags["schedule_sampler"]} | ({"noised": flags["noised"]} if classifier else {}))
        return RunConfig(
            model=model,
            data=DataConfig(
                source="folder",
                path=flags["data_dir"],
                image_size=image_size,
                channels=3,
                labels="prefix" if classifier or flags["class_cond"] else "none",
                crop="random" if classifier else "center",
                enlarge=True,
                validation_fraction=0.05 if classifier and flags["val_data_dir"] else 0.0,
            ).updated(AS_STORED),
            train=_train_config(flags, batch, note),
            optim=OptimConfig(
                learning_rate=flags["lr"],
                weight_decay=flags["weight_decay"],
                schedule="linear" if (flags["anneal_lr"] if classifier else flags["lr_anneal_steps"] > 0) else "constant",
            ),
            log=LogConfig(every=flags["log_interval"] * batch),
        )


def _train_config(flags: ScriptFlags, batch: int, note: Callable[[str], None]) -> TrainConfig:
    classifier = flags.kind == "classifier"
    steps = flags["iterations"] if classifier else flags["lr_anneal_steps"]
    if steps < 0 or (classifier and not steps):
        name, least = ("iterations", 1) if classifier else ("lr_anneal_steps", 0)
        raise ConfigError(f"--{name}", f"got {steps}, expected at least {least}")
    if not steps:
        note("--lr_anneal_steps 0 never ends: stop it with Ctrl-C, or give --lr_anneal_steps; --train.total-images is the number of images")
    return TrainConfig(
        total_images=steps * batch or ENDLESS_IMAGES,
        batch_size=batch,
        microbatch=flags["microbatch"] if flags["microbatch"] > 0 else None,
        precision="fp16" if flags["classifier_use_fp16" if classifier else "use_fp16"] else "float32",
        loss_scale=2.0**16 if classifier else 2.0**20,
        loss_scale_growth=1e-3 if classifier else flags["fp16_scale_growth"],
        ema_rates=() if classifier else _rates(flags["ema_rate"]),
        ema_warmup=False,
        checkpoint_every=flags["save_interval"] * batch,
        validate_every=flags["save_interval"] * batch,
        sample_every=None,
        sample_count=0,
    )


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError:
        raise ConfigError("--ema_rate", f"got {text!r}, expected numbers separated by commas") from None
