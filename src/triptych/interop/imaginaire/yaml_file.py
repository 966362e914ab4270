"""imaginaire's YAML files: read as plain data, and laid over the defaults that the original has.

    file = read_yaml("config.yaml")
    file.settings.inside("gen").number("num_filters", 64)

Nothing in a file is run: tags that would make objects are refused, and so are files that become very large. The settings record which of
them were read; in the end `unread` names all others.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from triptych.core.errors import ConfigError, nearest
from triptych.core.files import explain
from triptych.core.given import shown
from triptych.core.reading import read_regular
from triptych.interop.imaginaire.reading import Settings

MOST_BYTES = 1_000_000
MOST_VALUES = 50_000
"""Of a file, every alias counted as what it stands for, and a text as one for each 100 characters."""
_LONGEST_NAME = 200
"""Characters of a setting's name, and digits of a whole number."""
_MOST_NAMED = 20
"""Unknown settings that have a warning each."""

ENDLESS = 1_000_000_000
"""Iterations or epochs that stand for "never"."""

DEFAULTS = """
snapshot_save_iter: 1000000000
snapshot_save_epoch: 1000000000
image_save_iter: 1000000000
metrics_iter: 1000000000
metrics_epoch: 1000000000
max_epoch: 1000000000
max_iter: 1000000000
logging_iter: 100
trainer:
  gen_step: 1
  dis_step: 1
  gan_relativistic: false
  aug_policy: ""
  model_average_config: {enabled: false, beta: 0.9999, start_iteration: 1000, num_batch_norm_estimation_iterations: 30, remove_sn: true}
  amp_config: {enabled: false, init_scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000}
gen_opt: &adam
  type: adam
  lr: 1e-4
  adam_beta1: 0.0
  adam_beta2: 0.999
  eps: 1e-8
  skip_grad: false
  lr_policy: {iteration_mode: false, type: step, step_size: 1000000000, gamma: 1, decay_start: 0, decay_end: 0, decay_target: 0}
dis_opt: *adam
data: {num_workers: 0, train: {batch_size: 1}}
"""
"""What the original assumes where a file is silent, of that which has a meaning here."""

_GROUPS = (
    # How the machine is used, which is chosen here by itself or by other settings.
    "cudnn.* local_rank logdir speed_benchmark trainer.channels_last trainer.distributed_data_parallel "
    "trainer.distributed_data_parallel_params.* trainer.delay_allreduce gen_opt.fused_opt dis_opt.fused_opt data.persistent_workers "
    "data.cache.* data.val_data_loader_not_distributed",
    # Not read by the original either.
    "trainer.gan_decay_k trainer.gan_min_k trainer.gan_separate_topk trainer.amp trainer.amp_gp trainer.hparam_to_tensorboard "
    "trainer.perceptual_loss.fp16 trainer.loss_weight.gp gen.all_res gen.version gen.do_checkpoint gen.num_downsamples gen.flow.no_flow "
    "gen.hyper.* trainer.interleave trainer.reuse_gen_output data.for_pose_dataset.* data.for_face_dataset.*",
    # Known from the data, or from the weights.
    "gen.activation_norm_params.cond_dims gen.style_enc.input_image_channels gen.style_enc.style_dims gen.num_image_channels "
    "gen.image_channels dis.image_channels dis.num_image_channels data.has_foreground dis.additional_discriminators.*.crop_func",
    # Done otherwise: resuming, logs, pictures, measures, downloads, the teacher of flow.
    "snapshot_save_start_iter snapshot_save_start_epoch image_display_iter trainer.strict_resume trainer.image_to_tensorboard "
    "trainer.use_fid trainer.use_kid trainer.num_videos_to_test trainer.num_frames_per_video flow_network.* trainer.flow_network.* "
    "val_sample_size "
    "kid_num_subsets kid_sample_size pretrained_weight aws_credentials_file inference_args.* test_data.* metrics_* data.name "
    "data.paired data.full_data_ops data.output_h_w data.num_frames_G data.num_frames_D data.keypoint_data_types "
    "data.input_few_shot_labels data.input_types.*.ext data.input_types.*.interpolator data.input_types.*.normalize "
    "data.input_types.*.is_mask data.input_types.*.num_channels data.input_types.*.use_dont_care data.train.is_lmdb "
    "data.train.initial_sequence_length data.train.max_sequence_length data.train.distributed_sampler "
    "data.train.augmentations.max_time_step data.val.* data.test.* common.*",
)
IGNORED = [name for group in _GROUPS for name in group.split()]
"""Patterns of dotted names. One that ends in .* stands for a whole section; a key that was read is never ignored."""


class YamlFile:
    """The values that a file gives, and the same over the original's defaults as `settings`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        values = merged(copy.deepcopy(_defaults()), given)
        for section in ("gen", "dis"):
            if "common" in values and isinstance(values.get(section), Mapping):
                values[section] = {"common": values["common"], **values[section]}
        self.settings = Settings(values)

    def unread(self) -> tuple[list[str], list[str]]:
        """What was not read of the settings: a warning for each unknown key, with the nearest known one; a line of the ignored keys."""
        read = self.settings.read
        read = read | {f"common.{name.partition('.common.')[2]}" for name in read if ".common." in name}
        unknown: list[str] = []
        ignored: list[str] = []
        for name in _keys(self.given, "", _sections(read)):
            if name in read:
                continue
            pattern = next((p for p in IGNORED if fnmatchcase(name, p) or name == p.removesuffix(".*")), None)
            if pattern is None:
                unknown.append(name)
            else:
                ignored.append(pattern if ".*." in pattern else name)
        named = [f"unknown setting {name.replace(_DOT, '.')} is not used{_hint(name, read)}" for name in unknown[:_MOST_NAMED]]
        if further := len(unknown) - len(named):
            named.append(f"{further:,} further unknown settings are not used")
        return named, [f"settings without a meaning here: {', '.join(dict.fromkeys(ignored))}"] if ignored else []


@functools.cache
def _defaults() -> dict[str, Any]:
    return parsed_yaml(DEFAULTS)


def read_yaml(path: str | Path) -> YamlFile:
    """The file at `path`. Raises ConfigError, naming the place, for one that cannot be used."""
    try:
        data = read_regular(path, most=MOST_BYTES)
    except FileNotFoundError:
        raise ConfigError("", f"there is no file {path}") from None
    except IsADirectoryError:
        raise ConfigError("", f"{path} is a folder; give a YAML file") from None
    except OSError as error:
        raise ConfigError("", f"cannot read {path}: {explain(error)}") from error
    return YamlFile(parsed_yaml(data, name=str(path)))


def parsed_yaml(text: str | bytes, *, name: str = "the file") -> dict[str, Any]:
    """The table of settings that a text is. Raises ConfigError, about `name`, for anything else."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ConfigError("", f"{name} is empty, expected settings")
            _count(node, {}, name)
            content = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError("", f"{name}{where}: {_one_line(', '.join(filter(None, (error.context, error.problem))))}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, OverflowError, AttributeError, TypeError, KeyError) as error:  # of PyYAML too
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("", f"{name} is not YAML: {_one_line(error)}") from None
    except RecursionError:
        raise ConfigError("", f"{name} is nested too deeply: this is no file of settings") from None
    if not isinstance(content, dict):
        raise ConfigError("", f"{name} holds {shown(content)}, expected settings by name (gen, dis, data, trainer, ...)")
    return content


def _one_line(problem: object) -> str:
    return " ".join(str(problem or "it cannot be read").split())[:200]


def _count(node: yaml.Node, counts: dict[int, int | None], name: str) -> int:
    """Values in a node, aliases counted as what they stand for. Raises ConfigError for too many, and for what contains itself."""
    counted = counts.get(id(node), 0)
    if counted is None:
        raise ConfigError("", f"{name}: an alias stands for something that contains it")
    if counted:
        return counted
    counts[id(node)] = None
    total = 1 + _length(node, name) // 100
    if isinstance(node, yaml.SequenceNode):
        total += sum(_count(child, counts, name) for child in node.value)
    elif isinstance(node, yaml.MappingNode):
        _check_keys(node, name)
        total += sum(_count(child, counts, name) for pair in node.value for child in pair)
    if total > MOST_VALUES:
        raise ConfigError("", f"{name} holds more than {MOST_VALUES:,} values: this is no file of settings")
    counts[id(node)] = total
    return total


def _length(node: yaml.Node, name: str) -> int:
    """Characters of a text or number, 0 of what holds others. Raises ConfigError for a whole number of too many digits."""
    if not isinstance(node, yaml.ScalarNode):
        return 0
    if node.tag == _WHOLE and len(node.value) > _LONGEST_NAME:
        where = f"{name}, line {node.start_mark.line + 1}"
        raise ConfigError("", f"{where}: got a number of {len(node.value):,} digits, expected {_LONGEST_NAME} at most")
    return len(node.value)


def _check_keys(node: yaml.MappingNode, name: str) -> None:
    """Raises ConfigError for a key that is no text, and for one that stands twice: one of them would be ignored silently."""
    seen: set[str] = set()
    for key, _ in node.value:
        where = f"{name}, line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEY_TAGS:
            shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a list or table"
            raise ConfigError(
                "", f"{where}: got {shown} as a key, expected a name; write one that YAML takes for a value in quotation marks"
            )
        if len(key.value) > _LONGEST_NAME:
            raise ConfigError("", f"{where}: got a name of {len(key.value):,} characters, expected {_LONGEST_NAME} at most")
        if key.value in seen:
            raise ConfigError("", f"{where}: {key.value} stands twice in one table")
        seen.add(key.value)


_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_WHOLE = "tag:yaml.org,2002:int"


class _Loader(yaml.SafeLoader):
    """Plain data alone; 1e-4 is a number, and a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(("timestamp", "value"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$"), list("-+.0123456789")
)


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` over `defaults`: tables are merged, all else is replaced; what is empty (null) leaves the default."""
    values = dict(defaults)
    for name, value in given.items():
        default = values.get(name)
        if isinstance(default, Mapping) and isinstance(value, Mapping):
            values[name] = merged(default, value)
        elif value is not None:
            values[name] = value
    return values


_DOT = "\0"
"""Stands for a dot in a key, which does not lead into a section."""
_BY_TYPE = ("data.input_types", "data.one_hot_num_classes", "data.use_dont_care")
"""Sections whose keys are names of folders."""


def _sections(names: Iterable[str]) -> set[str]:
    """The dotted names of the sections that hold these settings."""
    return {name[:end] for name in names for end, sign in enumerate(name) if sign == "."}


def _keys(table: Mapping[str, Any], section: str, sections: set[str]) -> Iterator[str]:
    """The dotted names of a table's settings; a section that is not among `sections`, of which something was read, counts as one."""
    for key, value in table.items():
        name = str(key) if section in _BY_TYPE else str(key).replace(".", _DOT)
        name = f"{section}.{name}" if section else name
        tables: list[Any] = value if isinstance(value, list) and value else [value]
        if name not in sections:
            yield name
        elif all(isinstance(entry, Mapping) for entry in tables):
            for entry in tables:
                yield from _keys(entry, name, sections)
        elif value is not None:
            yield name


def _hint(name: str, read: set[str]) -> str:
    """A hint at the setting of the same section with the most similar name, or at how sections are written."""
    if _DOT in name:
        return ": a name has no dots; the settings of a section stand below its name, indented"
    section, _, key = name.rpartition(".")
    start = f"{section}." if section else ""
    names = {other.removeprefix(start).partition(".")[0] for other in (*read, *IGNORED) if other.startswith(start)}
    return nearest(key, sorted(names - {"*"}))
