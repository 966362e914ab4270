"""Keys of imaginaire's YAML files that are not read: those without an effect here, and unknown ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from triptych.core.errors import nearest

_GROUPS = (
    # How the machine is used, which is chosen here by itself or by other settings.
    "cudnn.* local_rank logdir speed_benchmark trainer.channels_last trainer.distributed_data_parallel "
    "trainer.distributed_data_parallel_params.* trainer.delay_allreduce gen_opt.fused_opt dis_opt.fused_opt data.persistent_workers "
    "data.cache.* data.val_data_loader_not_distributed",
    # Not read by the original either.
    "trainer.gan_decay_k trainer.gan_min_k trainer.gan_separate_topk trainer.amp trainer.amp_gp trainer.hparam_to_tensorboard "
    "trainer.perceptual_loss.fp16 trainer.loss_weight.gp gen.all_res gen.version",
    # Known from the data, or from the weights.
    "gen.activation_norm_params.cond_dims gen.style_enc.input_image_channels gen.style_enc.style_dims gen.num_image_channels "
    "gen.image_channels dis.image_channels dis.num_image_channels",
    # Done otherwise: resuming, logs, pictures, measures, downloads.
    "snapshot_save_start_iter snapshot_save_start_epoch image_display_iter trainer.strict_resume trainer.image_to_tensorboard "
    "trainer.use_fid trainer.use_kid trainer.num_videos_to_test val_sample_size kid_num_subsets kid_sample_size pretrained_weight "
    "aws_credentials_file inference_args.* test_data.* metrics_* data.name data.paired data.full_data_ops data.output_h_w "
    "data.num_frames_G data.num_frames_D data.input_types.*.ext data.input_types.*.interpolator data.input_types.*.normalize "
    "data.input_types.*.is_mask data.input_types.*.num_channels data.input_types.*.use_dont_care data.train.is_lmdb "
    "data.train.initial_sequence_length data.train.max_sequence_length data.train.distributed_sampler "
    "data.train.augmentations.max_time_step data.val.* data.test.* common.*",
)
IGNORED = [name for group in _GROUPS for name in group.split()]
"""Patterns of dotted names. One that ends in .* stands for a whole section; a key that was read is never ignored."""


def unread(given: Mapping[str, Any], read: set[str]) -> tuple[list[str], list[str]]:
    """A warning for each unknown key of a file, with the nearest known one; and a line that names the keys without an effect here.

    `read`: the dotted names of the settings that were read.
    """
    read = read | {f"common.{name.partition('.common.')[2]}" for name in read if ".common." in name}
    unknown: list[str] = []
    ignored: list[str] = []
    for name in _keys(given, "", read):
        if name in read:
            continue
        pattern = next((p for p in IGNORED if fnmatchcase(name, p) or name == p.removesuffix(".*")), None)
        if pattern is None:
            unknown.append(f"unknown setting {name} is not used{_nearest(name, read)}")
        else:
            ignored.append(pattern if ".*." in pattern else name)
    return unknown, [f"settings without a meaning here: {', '.join(dict.fromkeys(ignored))}"] if ignored else []


def _keys(table: Mapping[str, Any], section: str, read: set[str]) -> Iterator[str]:
    """The dotted names of a table's settings; a section of which nothing was read counts as one setting."""
    for key, value in table.items():
        name = f"{section}.{key}" if section else str(key)
        tables: list[Any] = value if isinstance(value, list) and value else [value]
        if not any(other.startswith(f"{name}.") for other in read):
            yield name
        elif all(isinstance(entry, Mapping) for entry in tables):
            for entry in tables:
                yield from _keys(entry, name, read)
        elif value is not None:
            yield name


def _nearest(name: str, read: set[str]) -> str:
    """A hint at the setting of the same section with the most similar name."""
    section, _, key = name.rpartition(".")
    start = f"{section}." if section else ""
    names = {other.removeprefix(start).partition(".")[0] for other in (*read, *IGNORED) if other.startswith(start)}
    return nearest(key, sorted(names - {"*"}))
