"""`triptych launch kubernetes`: the manifest is what the training operator takes, and what it cannot be is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from triptych.cli.main import main
from triptych.cli.train import base_and_settings, configure

WORDS = ["--run", "/shared/runs/In_64", "--image", "registry/triptych:1", "--claim", "disk"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def manifest(*words: str) -> dict:
    assert main(["launch", "kubernetes", "adm-digits", *WORDS, *words]) == 0
    (file,) = Path().glob("*.yaml")
    return yaml.safe_load(file.read_text())


def test_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["--nodes", "4", "--gpus", "8", "--cpus", "64", "--memory", "200Gi", "--notice", "120", "--namespace", "team"]
    found = manifest(*cluster, "--data.path", "/shared/x", "--train.batch-size", "64")
    said = capsys.readouterr().out
    assert "submit it: kubectl create -f in-64.yaml" in said and "kubectl logs -n team in-64-worker-0" in said
    (container,) = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"].pop("containers")
    assert found == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "in-64", "namespace": "team"},
        "spec": {
            "nprocPerNode": "8",  # the schema has a text here
            "runPolicy": {"cleanPodPolicy": "Running"},  # with None, pods that wait for one that has failed keep their GPUs
            "elasticPolicy": {"rdzvBackend": "c10d", "rdzvId": "in-64", "minReplicas": 4, "maxReplicas": 4, "maxRestarts": 3},
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": 4,
                    "restartPolicy": "ExitCode",
                    "template": {
                        "spec": {
                            "terminationGracePeriodSeconds": 150,
                            "volumes": [
                                {"name": "shared", "persistentVolumeClaim": {"claimName": "disk"}},
                                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                            ],
                        }
                    },
                }
            },
        },
    }
    assert container["env"] == [{"name": "TRIPTYCH_STOPPED_CODE", "value": "75"}], "a stop that ends with 0 would finish the job"
    assert (container["name"], container["image"]) == ("pytorch", "registry/triptych:1")
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8, "cpu": 64, "memory": "200Gi"}}
    assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}, {"name": "memory", "mountPath": "/dev/shm"}]
    assert container["command"][:4] == ["python3", "-m", "triptych.cli.pod", "/shared/runs/In_64"]
    taken = get_args_parser().parse_args(container["command"][4:])
    assert container["command"][-2:] == ["--device", "cuda"], "without it a pod without CUDA would train on its CPU"
    assert taken.module and taken.shutdown_timeout == 120
    options, config = configure(*base_and_settings(taken.training_script_args[1:], usage=""))
    assert (options.run, config.data.path, config.train.batch_size) == ("/shared/runs/In_64", "/shared/x", 64)


def test_without_gpus() -> None:
    found = manifest("--gpus", "0", "--processes", "2")
    (container,) = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert found["spec"]["nprocPerNode"] == "2" and container["resources"] == {"limits": {}}
    assert "--device" not in container["command"]
    assert "namespace" not in found["metadata"]


def test_words_that_other_programs_would_read_as_numbers() -> None:
    """PyYAML takes 1e-4 and y for text without quotation marks; Kubernetes takes the one for a number and the other for true."""
    manifest("--optim.learning-rate", "1e-4", "--name", "y", "--memory", "200k")
    text = next(Path().glob("*.yaml")).read_text()
    for word in ('"1e-4"', '"name": "y"', '"200k"'):
        assert word in text, word


def test_names_of_claims_and_namespaces() -> None:
    """As the cluster has them: RFC 1123 allows digits at the start, and dots in the name of a claim."""
    claim, namespace = f"2.{'d' * 60}.disk-{'0' * 60}", f"7{'n' * 62}"
    found = manifest("--claim", claim, "--namespace", namespace)
    (shared, _) = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
    assert shared["persistentVolumeClaim"] == {"claimName": claim} and found["metadata"]["namespace"] == namespace


def test_what_kubernetes_would_expand() -> None:
    """It puts values in the place of $(NAME) in the words of a command, and one dollar in that of two."""
    path = "/shared/$(HOME)/$$x/$y"
    found = manifest("--data.path", path)
    (container,) = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    words = [re.sub(r"\$\$|\$\((\w+)\)", lambda match: "$" if match[0] == "$$" else "EXPANDED", word) for word in container["command"]]
    assert words[words.index("--data.path") + 1] == path


def test_an_address_is_taken_where_the_recipe_takes_one(capsys: pytest.CaptureFixture[str]) -> None:
    manifest("--data.path", "s3://bucket/photos.zip", "--data.source", "zip")
    words = ["--image", "i", "--claim", "c", "--run", "/shared/x", "--data.path", "s3://bucket/streets"]
    assert main(["launch", "kubernetes", "pix2pixhd-cityscapes", *words]) == 2
    assert "s3://bucket/streets: an address, where a path on this machine is expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train.batch-sise", "64"], "unknown setting"),
        (
            ["--data.path", "https://127.0.0.1:9/x", "--data.source", "folder"],
            "--data.source: got 'folder', but https://127.0.0.1:9/x is not on this machine",
        ),
        (["--run", "runs/x"], "--run: got 'runs/x', expected a path inside /shared (--mount)"),
        (["--run", "/shared/../etc/x"], "--run: got '/shared/../etc/x', expected a path inside /shared (--mount)"),
        (["--run", "/shared"], "--run: got '/shared', expected a path inside /shared (--mount)"),
        (["--mount", "shared"], "--mount: got 'shared', expected a path from / on"),
        (["--name", "In64"], "--name: got 'In64', expected at most 50 small letters"),
        (["--name", "in.64"], "--name: got 'in.64', expected at most 50 small letters"),
        (["--namespace", "n" * 64], "expected at most 63 small letters, digits and dashes, no dash at an end"),
        (["--namespace", "team.a"], "--namespace: got 'team.a', expected at most 63"),
        (["--claim", "c" * 254], "expected at most 253 small letters, digits, dashes and dots"),
        (["--claim", "a.-b"], "--claim: got 'a.-b', expected at most 253"),
        (["--claim", "Disk"], "--claim: got 'Disk', expected at most 253"),
        (["--run", "/shared/64"], "--name: missing, and '64' cannot be the name of a job"),
        (["--memory", "100K"], "--memory: got '100K', expected a number of bytes"),
        (["--device", "cpu"], "--device: got 'cpu', expected cuda with --gpus 1, or nothing"),
        (["--memory", "much"], "--memory: got 'much', expected a number of bytes"),
        (["--image", "None"], "--image: missing"),
        (["--claim", "None"], "--claim: missing"),
        (["--config", "x.toml"], "--config: got 'x.toml', which is not in the pods"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "kubernetes", "adm-digits", *WORDS, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(Path().glob("*.yaml"))
