"""A training as a job of Kubernetes: a PyTorchJob (kubeflow.org/v1), which Kubeflow's training operator runs.

The operator starts torchrun in a pod for each machine and tells it by its environment where the processes meet. A pod that has to go gets
SIGTERM: the training saves and stops, in all pods. A pod that ends with 128 or more is made anew, without end, and goes on from the newest
checkpoint; one that ends with another code ends the job, and `triptych.cli.pod` chooses between them. One that ends with 0 finishes the
job, so a training that was stopped ends with an exit code of its own here. Before version 1.8 the operator let a job that had ended with
an error stand, and its other pods go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from triptych.core.errors import STOPPED_CODE

_AFTER_SHUTDOWN = 30  # seconds that torchrun has for ending when its processes have saved
_STOPPED = 75  # EX_TEMPFAIL: to be tried again


class _Quoting(yaml.SafeDumper):
    """Writes every text in quotation marks: to programs that read YAML otherwise 1e-4 is a number without them, and y is true."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@dataclass(frozen=True)
class PodJob:
    """What is asked of the cluster."""

    name: str
    image: str
    claim: str
    "The PersistentVolumeClaim of the disk that all pods share."
    mount: str
    "Where the pods have it."
    directory: PurePath
    "The run."
    nodes: int
    gpus: int
    "Of each pod; 0: none."
    processes: int
    "Of each pod."
    notice: int
    "Seconds that a training has for saving and stopping."
    restarts: int
    cpus: int | None = None
    memory: str | None = None
    namespace: str | None = None


def job_manifest(job: PodJob, command: Sequence[str], *, written_by: str) -> str:
    """The manifest, in YAML. `command`: that of triptych, its verb first; `written_by`: the command line, for a comment."""
    limits = {"nvidia.com/gpu": job.gpus or None, "cpu": job.cpus, "memory": job.memory}
    run, *words = [word.replace("$", "$$") for word in (str(job.directory), *command)]  # Kubernetes puts values in the place of $(NAME)
    signals = ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "--shutdown-timeout", str(job.notice)]
    container = {
        "name": "pytorch",  # the operator looks for this name
        "image": job.image,
        "command": ["python3", "-m", "triptych.cli.pod", run, *signals, "-m", "--", "triptych", *words],
        "env": [{"name": STOPPED_CODE, "value": str(_STOPPED)}],
        "resources": {"limits": {name: value for name, value in limits.items() if value is not None}},
        "volumeMounts": [{"name": "shared", "mountPath": job.mount}, {"name": "memory", "mountPath": "/dev/shm"}],
    }
    pod = {
        "terminationGracePeriodSeconds": job.notice + _AFTER_SHUTDOWN,
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": job.claim}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},  # NCCL needs more of it than the 64 MB that pods have
        ],
    }
    meeting = {"rdzvBackend": "c10d", "rdzvId": job.name, "minReplicas": job.nodes, "maxReplicas": job.nodes, "maxRestarts": job.restarts}
    manifest: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.name, **({} if job.namespace is None else {"namespace": job.namespace})},
        "spec": {
            "nprocPerNode": str(job.processes),
            "runPolicy": {"cleanPodPolicy": "Running"},  # those that still wait for one that has ended the job have GPUs
            "elasticPolicy": meeting,
            "pytorchReplicaSpecs": {"Worker": {"replicas": job.nodes, "restartPolicy": "ExitCode", "template": {"spec": pod}}},
        },
    }
    return f"# Written by: {written_by}\n{yaml.dump(manifest, Dumper=_Quoting, sort_keys=False, width=120)}"
