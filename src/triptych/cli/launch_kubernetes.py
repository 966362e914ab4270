"""`triptych launch kubernetes`: the manifest of a PyTorchJob, which Kubeflow's training operator runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from triptych.cli.arguments import flag_value, named_as_flags
from triptych.cli.launch import LaunchOptions, Written, plain_name, training_of, written_by
from triptych.core.address import is_address
from triptych.core.config import config
from triptych.core.errors import ConfigError

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST = 50  # letters; the operator puts more behind it, and 63 are allowed
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
"""Names of namespaces and of claims, as of RFC 1123."""
_LONGEST_LABEL, _LONGEST_DOMAIN = 63, 253
_QUANTITY = re.compile(r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?")


@config
class KubernetesOptions(LaunchOptions):
    """What is asked of Kubernetes."""

    image: str | None = None
    "Required: image of the containers, with triptych and the build of PyTorch for their GPUs."
    claim: str | None = None
    "Required: PersistentVolumeClaim of the disk that all pods share."
    mount: str = "/shared"
    "Where the pods have that disk; --run lies inside it."
    name: str | None = None
    "Name of the job; None: that of the run's directory."
    namespace: str | None = None
    "Namespace; None: that of kubectl."
    cpus: int | None = None
    "CPU cores of each pod; None: no limit."
    memory: str | None = None
    "Memory of each pod, such as 200Gi; None: no limit."

    def validate(self) -> None:
        self.require(self.mount.startswith("/"), "mount", "a path from / on")
        self.require(self.cpus is None or self.cpus >= 1, "cpus", "at least 1, or nothing")
        self.require(
            self.memory is None or _QUANTITY.fullmatch(self.memory) is not None, "memory", "a number of bytes such as 200Gi, or nothing"
        )
        for name, form, longest, more in (
            ("name", _NAME, _LONGEST, "digits and dashes, the first of them a letter"),
            ("namespace", _LABEL, _LONGEST_LABEL, "digits and dashes, no dash at an end"),
            ("claim", _DOMAIN, _LONGEST_DOMAIN, "digits, dashes and dots, a letter or digit on both sides of each dot"),
        ):
            value = getattr(self, name)
            fits = value is None or (form.fullmatch(value) is not None and len(value) <= longest)
            self.require(fits, name, f"at most {longest} small letters, {more}")


def prepared(words: Sequence[str]) -> Written:
    """The manifest. Raises what `triptych train` raises for settings."""
    from triptych.runs.beforehand import refuse_settings_of_address
    from triptych.runs.kubernetes import PodJob, job_manifest

    file = flag_value("--config", words)
    if file is not None:
        raise ConfigError("--config", f"got {file!r}, which is not in the pods; give the settings as flags")
    options, training = training_of(words, KubernetesOptions(), platform="kubernetes")
    if is_address(training.config.data.path):  # other paths are those of the pods
        with named_as_flags(training.config):
            refuse_settings_of_address(training.config.data)
    directory = training.directory
    for name, value in (("--image", options.image), ("--claim", options.claim)):
        if value is None:
            raise ConfigError(name, "missing; usage: triptych launch kubernetes RECIPE --image IMAGE --claim CLAIM --run /shared/runs/NAME")
    if PurePosixPath(options.mount) not in PurePosixPath(os.path.normpath(directory)).parents:
        raise ConfigError(
            "--run", f"got {str(directory)!r}, expected a path inside {options.mount} (--mount): what lies elsewhere goes with the pod"
        )
    name = options.name or re.sub(r"[^a-z0-9-]", "-", plain_name(directory).lower()).strip("-")
    if _NAME.fullmatch(name) is None or len(name) > _LONGEST:
        raise ConfigError("--name", f"missing, and {directory.name!r} cannot be the name of a job: small letters, digits and dashes")
    assert options.image is not None and options.claim is not None
    job = PodJob(
        name=name,
        image=options.image,
        claim=options.claim,
        mount=options.mount,
        directory=directory,
        nodes=options.nodes,
        gpus=options.gpus,
        processes=options.of_each_node,
        notice=options.notice,
        restarts=options.restarts,
        cpus=options.cpus,
        memory=options.memory,
        namespace=options.namespace,
    )
    within = "" if options.namespace is None else f"-n {options.namespace} "
    text = job_manifest(job, training.command, written_by=written_by("kubernetes", words))
    return Written(options, Path(options.out or f"{name}.yaml"), text, f"kubectl logs {within}{name}-worker-0", ["kubectl", "create", "-f"])
