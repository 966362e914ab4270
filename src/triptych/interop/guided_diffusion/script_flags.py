"""The flags of guided-diffusion's scripts that say nothing of the network or its diffusion, with their defaults."""

from __future__ import annotations

from triptych.interop.flags import Value

TRAINING: dict[str, Value] = {
    "data_dir": "",
    "schedule_sampler": "uniform",
    "lr": 1e-4,
    "weight_decay": 0.0,
    "lr_anneal_steps": 0,
    "batch_size": 1,
    "microbatch": -1,
    "ema_rate": "0.9999",
    "log_interval": 10,
    "save_interval": 10_000,
    "resume_checkpoint": "",
    "use_fp16": False,
    "fp16_scale_growth": 1e-3,
}
CLASSIFIER_TRAINING: dict[str, Value] = {
    "data_dir": "",
    "val_data_dir": "",
    "noised": True,
    "iterations": 150_000,
    "lr": 3e-4,
    "weight_decay": 0.0,
    "anneal_lr": False,
    "batch_size": 4,
    "microbatch": -1,
    "schedule_sampler": "uniform",
    "resume_checkpoint": "",
    "log_interval": 10,
    "eval_interval": 5,
    "save_interval": 10_000,
}
SAMPLING: dict[str, Value] = {"clip_denoised": True, "num_samples": 10_000, "batch_size": 16, "use_ddim": False, "model_path": ""}
CLASSIFIER_SAMPLING: dict[str, Value] = {**SAMPLING, "classifier_path": "", "classifier_scale": 1.0}
UPSAMPLING: dict[str, Value] = {**SAMPLING, "base_samples": ""}
LIKELIHOOD: dict[str, Value] = {"data_dir": "", "clip_denoised": True, "num_samples": 1_000, "batch_size": 1, "model_path": ""}

OF_SCRIPTS = frozenset({*TRAINING, *CLASSIFIER_TRAINING, *CLASSIFIER_SAMPLING, *UPSAMPLING, *LIKELIHOOD})
"""All their names."""
