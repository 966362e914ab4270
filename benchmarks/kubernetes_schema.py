"""Whether the manifests of `triptych launch kubernetes` fit the published schema of a PyTorchJob.

    git -C ../peers/training-operator show v1.9.0:manifests/base/crds/kubeflow.org_pytorchjobs.yaml > pytorchjobs.yaml
    python benchmarks/kubernetes_schema.py pytorchjobs.yaml --out FILE.md

Reads the schema from the file of the operator's resource definition, writes some manifests, and holds each value against it: its type, the
names that are allowed, those that are required. Exit code 1 where one does not fit, or where a manifest that was spoilt on purpose does.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from triptych.cli.main import main as triptych

COMMANDS = (
    "adm-digits --run /shared/runs/a --image i --claim c",
    "adm-imagenet64 --run /shared/runs/b --image i --claim c --nodes 4 --gpus 8 --cpus 64 --memory 200Gi --namespace team",
    "stylegan2-digits --run /disk/c --mount /disk --name c1 --image i --claim c --gpus 0 --processes 2 --restarts 0",
)
SPOILT = (
    ("spec.nprocPerNode", 8),
    ("spec.elasticPolicy.minReplicas", "4"),
    ("spec.runPolicy.backofLimit", 3),
    ("spec.pytorchReplicaSpecs.Worker.template.spec.containers", None),
    ("spec.pytorchReplicaSpecs", None),
)
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}


def faults(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """What of a value does not fit a schema as Kubernetes writes it."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{where}: {value!r} is no number and no text"
        return
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{where}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if isinstance(value, dict):
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{where}.{name}: missing" for name in schema.get("required", ()) if name not in value)
        for name, inner in value.items():
            if name in named or isinstance(others, dict):
                yield from faults(inner, named.get(name, others), f"{where}.{name}")
            elif named and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{where}.{name}: no such name"
    if isinstance(value, list):
        for k, item in enumerate(value):
            yield from faults(item, schema["items"], f"{where}[{k}]")


def written(command: str) -> dict[str, Any]:
    """The manifest of a command line."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        if triptych(["launch", "kubernetes", *command.split(), "--out", "job.yaml"]):
            raise SystemExit(f"not written: {command}")
        return yaml.safe_load(Path("job.yaml").read_text())


def spoilt(manifest: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """The manifest with another value at a place; None: without it."""
    found = copy.deepcopy(manifest)
    *path, last = place.split(".")
    inner = found
    for name in path:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definition", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    definition = yaml.safe_load(arguments.definition.read_text())
    version = next(each for each in definition["spec"]["versions"] if each["name"] == "v1")
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}}}
    lines, passed = ["| manifest | faults |", "|---|---|"], True
    for command in COMMANDS:
        found = list(faults(written(command), schema))
        passed &= not found
        lines.append(f"| `{command}` | {'; '.join(found) or 'none'} |")
    manifest = written(COMMANDS[1])
    for place, value in SPOILT:
        found = list(faults(spoilt(manifest, place, value), schema))
        passed &= bool(found)
        lines.append(f"| the second with `{place}` {'left out' if value is None else f'= {value!r}'} | {'; '.join(found) or 'NONE'} |")
    said = definition["metadata"].get("annotations", {}).get("controller-gen.kubebuilder.io/version", "unknown")
    page = f"# Manifests of PyTorchJobs against their schema, {datetime.date.today()}\n\n"
    page += f"kubeflow.org/v1 (controller-gen {said}).\n\n" + "\n".join(lines) + "\n"
    print(page)
    if arguments.out is not None:
        arguments.out.write_text(page)
    return 0 if passed else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
