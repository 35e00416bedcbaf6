"""The JobSet of a job: as golden text, and against the published schemas."""

import json
import re
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.executors.kubernetes import CLOUDS, Manifest, name_object, patch_jobset, render_jobset
from nightjar_ci.formats.resources import Resources
from nightjar_ci.night.matrix import expand, read_matrix
from tests.called import call
from tests.ci.jobs import make_job, write_matrix
from tests.places import ROOT

SHIPPED = ROOT / "ci" / "matrix" / "multinode-gpu.toml"
ENVELOPE = json.loads((Path(__file__).parent / "jobset.schema.json").read_text())
OLDEST, NEWEST = "1.31", "1.37"  # podFailurePolicy is stable since 1.31


def image_job(**changes: Any) -> Manifest:
    job = make_job("train", "--out", "{out}", **({"environment": "image:nightjar/models:cpu"} | changes))
    return render_jobset(job, claim="nights")


# jsonschema is imported where it is used: all workers read this file, and its grammars of IRIs take three seconds.


def check(manifest: Manifest) -> None:
    """Validates the envelope by our schema, and each template by Kubernetes' own for a Job."""
    import jsonschema
    import kubernetes_validate

    jsonschema.validate(manifest, ENVELOPE)
    for replicated in manifest["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **replicated["template"]}
        for version in (OLDEST, NEWEST):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the validator reads its files in a deprecated way
                kubernetes_validate.validate(job, version, strict=True)


def pod_of(manifest: Manifest) -> Manifest:
    pod: Manifest = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return pod


def environment_of(manifest: Manifest) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod_of(manifest)["containers"][0]["env"]}


def test_a_job_of_two_nodes_with_gpus(golden: Callable[[str, str], None]) -> None:
    manifest = render_jobset(expand(read_matrix(SHIPPED))[1], claim="nightjar-nights")
    check(manifest)
    golden("jobset-two-nodes.json", json.dumps(manifest, indent=2) + "\n")


def test_a_job_of_one_pod_without_gpus_asks_for_nothing_that_it_does_not_need() -> None:
    manifest = image_job()
    check(manifest)
    pod = pod_of(manifest)
    assert pod["containers"][0]["resources"] == {"limits": {}, "requests": {}}
    assert [volume["name"] for volume in pod["volumes"]] == ["nights"]
    assert "tolerations" not in pod
    assert not any(name.startswith(("JAX_", "NCCL_")) for name in environment_of(manifest))


def test_a_job_ends_with_its_timeout_counted_from_its_start_and_its_set_is_removed() -> None:
    manifest = image_job(timeout_s=90.5)
    command = pod_of(manifest)["containers"][0]["command"]
    assert command[:4] == ["sh", "-c", 'mkdir -p "$$0" && exec "$$@"', "/nights/demo-s0"]
    assert command[4:8] == ["timeout", "-k", "60", "91"]
    assert "activeDeadlineSeconds" not in json.dumps(manifest)
    assert manifest["spec"]["ttlSecondsAfterFinished"] == 7 * 86400


def test_a_secret_is_named_and_comes_from_the_cluster() -> None:
    manifest = image_job(secrets=("HF_TOKEN",))
    check(manifest)
    wanted = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "nightjar-secrets", "key": "HF_TOKEN"}}}
    assert wanted in pod_of(manifest)["containers"][0]["env"]


def exit_codes_of(manifest: Manifest) -> list[int]:
    rules = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    codes: list[int] = rules[1]["onExitCodes"]["values"]
    return codes


def test_processes_that_jax_aborts_because_a_node_is_lost_do_not_fail_the_job() -> None:
    assert exit_codes_of(image_job(resources=Resources(nodes=2))) == [134, 143]
    assert exit_codes_of(image_job()) == [143], "a single process that aborts does so by itself"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_cloud_is_valid_and_the_job_has_the_last_word(cloud: str) -> None:
    resources = Resources(nodes=2, gpus_per_task=8)
    job = make_job("train", environment="image:x:1", resources=resources, env={"NCCL_SOCKET_IFNAME": "mine"})
    manifest = render_jobset(job, claim="nights", fabric=CLOUDS[cloud])
    check(manifest)
    assert environment_of(manifest)["NCCL_SOCKET_IFNAME"] == "mine"
    limits = pod_of(manifest)["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8", **CLOUDS[cloud].requests}


def test_a_daemon_of_the_network_shares_its_sockets_and_does_not_keep_the_pod_from_completing() -> None:
    job = make_job("train", environment="image:x:1", resources=Resources(nodes=2, gpus_per_task=8))
    pod = pod_of(render_jobset(job, claim="nights", fabric=CLOUDS["gke-tcpx"]))
    (daemon,), (container,) = pod["initContainers"], pod["containers"]
    assert daemon["restartPolicy"] == "Always", "an init container that is a sidecar"
    shared = {"name": "tcpx-daemon", "mountPath": "/run/tcpx"}
    assert shared in daemon["volumeMounts"]
    assert shared in container["volumeMounts"]
    assert {"name": "tcpx-daemon", "emptyDir": {}} in pod["volumes"]


def test_a_site_adds_what_it_wants_and_a_misspelt_table_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "clouds" / "kubernetes.md").read_text(), re.DOTALL)[0]
    path = tmp_path / "site.toml"
    path.write_text(text)
    monkeypatch.setenv("NIGHTJAR_KUBERNETES_OPTIONS", f"--cloud eks --patch {path}")
    command = ("kubernetes", str(SHIPPED), "*dp16*", "--environment", "image:mine:1")
    printed = render(*command)
    assert printed.returncode == 0, printed.stderr
    manifest = json.loads(printed.stdout)
    check(manifest)
    assert manifest["metadata"]["namespace"] == "research"
    assert set(manifest["metadata"]["labels"]) > {"kueue.x-k8s.io/queue-name", "app.kubernetes.io/name"}
    pod = pod_of(manifest)
    assert (pod["serviceAccountName"], pod["securityContext"]["fsGroup"]) == ("nightjar", 1000)
    assert pod["containers"][0]["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    path.write_text("[pods]\nx = 1\n")
    refused = render(*command)
    assert refused.returncode == 2
    assert "did you mean [pod]?" in refused.stderr


def test_a_patch_adds_to_lists_and_refuses_another_kind() -> None:
    manifest = image_job(resources=Resources(gpus_per_task=1))
    taint = {"key": "team", "operator": "Exists"}
    patched = patch_jobset(manifest, {"pod": {"tolerations": [taint]}}, "site.toml")
    check(patched)
    assert [one["key"] for one in pod_of(patched)["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert "tolerations" in pod_of(manifest)
    assert len(pod_of(manifest)["tolerations"]) == 1, "what was given is left as it was"
    with pytest.raises(InputError, match=r"site.toml: \[pod\]: 'tolerations' is 'x', expected a list"):
        patch_jobset(manifest, {"pod": {"tolerations": "x"}}, "site.toml")


def test_kubernetes_fills_in_nothing_that_the_job_means_itself() -> None:
    manifest = image_job(env={"GREETING": "$(date) $$(date) $HOME $$ $"})  # which reads $$ as $ from left to right
    assert environment_of(manifest)["GREETING"] == "$$(date) $$$$(date) $$HOME $$$$ $$"


@pytest.mark.parametrize("job_id", ["gpt-s0", "GPT_tiny.s0", "0-first", "a" * 120, "x" * 39 + "-_-" + "y"])
def test_every_job_id_has_a_name_whose_pods_have_names(job_id: str) -> None:
    import jsonschema

    name = name_object(job_id)
    jsonschema.validate(name, {**ENVELOPE["$defs"]["label"], "maxLength": 63 - len("-workers-0-99999")})
    assert name_object(f"{job_id}-") != name


def test_what_kubernetes_cannot_run_is_refused_with_a_way_out() -> None:
    with pytest.raises(InputError, match="a pod runs an image"):
        image_job(environment="current")
    with pytest.raises(InputError, match="tasks_per_node = 8"):
        image_job(resources=Resources(tasks_per_node=8))


def render(*arguments: str) -> subprocess.CompletedProcess[str]:
    return call(main, "render", *arguments)


def test_the_command_prints_one_job_and_refuses_many(tmp_path: Path) -> None:
    printed = render("kubernetes", str(SHIPPED), "*dp16*", "--environment", "image:mine:1")
    assert printed.returncode == 0, printed.stderr
    assert pod_of(json.loads(printed.stdout))["containers"][0]["image"] == "mine:1"
    many = render("kubernetes", str(SHIPPED), "*")
    assert many.returncode == 2
    assert "matches 2 jobs, expected one" in many.stderr
    matrix = write_matrix(tmp_path / "m.toml", {"a": ("pytest", "-q")}, kind="test")
    script = render("slurm", str(matrix), "a", "--out", "/shared/a")
    assert script.returncode == 0, script.stderr
    assert "#SBATCH --job-name=nightjar-a\n" in script.stdout
    assert "folder=/shared/a\n" in script.stdout
    manifest = render("kubernetes", str(matrix), "a", "--environment", "image:mine:1")
    assert ["PYTEST_ADDOPTS" in printed for printed in (script.stdout, manifest.stdout)] == [True, True]
