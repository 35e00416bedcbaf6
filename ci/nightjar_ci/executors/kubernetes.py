"""JobSet manifest of a job. Pure: a job and a volume in, plain data out.

Each node runs one pod with all of its GPUs and one process of the job. The JobSet controller creates the headless
service `subdomain`, so the first pod has a name before it runs. That pod is the coordinator; every process reads its
address in `JAX_COORDINATOR_ADDRESS`, along with `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`. A lost or evicted pod
restarts all pods, which resume from their checkpoint on the shared volume: JAX aborts the processes of the other nodes
(exit code 134), often long before Kubernetes marks the lost pod. Any other exit code of the program fails the job at
once, 124 of a program that takes longer than its timeout included.

Source: jobset.x-k8s.io/v1alpha2 (jobset.sigs.k8s.io, reference), batch/v1 Job (kubernetes.io, API reference);
port 55527: jax/_src/clusters/k8s_cluster.py.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from nightjar_ci.errors import InputError
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.resources import Resources

VOLUME = PurePosixPath("/nights")  # mount point of the shared volume
PORT = 55527
RESTARTS = 3
SECRETS = "nightjar-secrets"  # the Secret that holds the values of a job's secrets, by name
_SIGNALLED = 143  # SIGTERM, of a pod that is moved; SIGKILL (137) without the condition of an eviction is out of memory
KEPT_S = 7 * 86400  # a finished JobSet
ABORTED = 134  # SIGABRT: how JAX ends the other processes if one is lost
_LONGEST_NAME = 40  # a pod's host name, with `-workers-0-` and its index, is a DNS label: 63 characters
_SHM_WITH_GPUS = "8G"  # as in a docker container
Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A network daemon along with the job, which starts before it and ends with it.

    Attributes:
        host_paths: folders of the node that it mounts: path in the container to path on the node.
        shared: a new folder that both containers mount, for its sockets.
    """

    name: str
    image: str
    command: tuple[str, ...]
    shared: str
    capabilities: tuple[str, ...] = ()
    host_paths: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Cloud-specific settings of the pods.

    Attributes:
        requests: quantities of additional resources for each pod, such as `vpc.amazonaws.com/efa`: 32.
        selector: labels of the nodes that may run them.
        host_network: whether they use the network of their node instead of the pod network.
        annotations: of the pods, such as the networks that they are part of.
        env: variables of the network's libraries; the job's take precedence.
        host_paths: folders of the node that are mounted, read-only: path in the container to path on the node.
        capabilities: of Linux, that the job's container adds.
        sidecar: a daemon that the network needs in each pod.
    """

    requests: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    host_paths: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    sidecar: Sidecar | None = None


_PLAIN = Fabric()
CLOUDS = TypeAdapter(dict[str, Fabric]).validate_python(
    tomllib.loads(Path(__file__).with_name("clouds.toml").read_text(encoding="utf-8"))
)


def render_jobset(
    job: Job, *, claim: str, out: PurePosixPath | None = None, fabric: Fabric = _PLAIN, name: str | None = None
) -> Manifest:
    """The JobSet of a job.

    Args:
        claim: a PersistentVolumeClaim that all nodes can write to (ReadWriteMany); mounted as `/nights`.
        out: the job's folder on that volume; `/nights/<job id>` if None.
        fabric: settings for the cloud's network and nodes.
        name: of the JobSet; made of the job's id if None.
    """
    kind, _, image = job.environment.partition(":")
    if kind != "image":
        raise InputError(
            f"{job.id}: the environment is {job.environment!r}, expected image:<reference>: a pod runs an image.",
            "--environment image:REFERENCE",
        )
    if job.resources.tasks_per_node != 1 or job.resources.pinned_cpus is not None:
        raise InputError(
            f"{job.id}: resources ask for tasks_per_node = {job.resources.tasks_per_node} and pinned_cpus = "
            f"{job.resources.pinned_cpus}, expected 1 and none: one pod is one process with all GPUs of its node.",
            "ask for gpus_per_task instead",
        )
    name, out = name or name_object(job.id), out or VOLUME / job.id
    command, variables = job.rendered(out)
    # Kubernetes' own deadlines count the wait for nodes, too.
    command = ("timeout", "-k", "60", str(math.ceil(job.timeout_s)), *command)
    command = ("sh", "-c", 'mkdir -p "$0" && exec "$@"', str(out), *command)
    nodes = job.resources.nodes
    environ = {"HOME": "/tmp", "NIGHTJAR_IMAGE": image, **fabric.env}
    if nodes > 1:
        environ |= _coordinator_variables(name, job.resources, fabric)
    pod: Manifest = {
        "restartPolicy": "Never",
        "containers": [_container(job, image, command, environ | variables, fabric)],
        "volumes": _volumes(claim, job.resources, fabric),
    }
    if fabric.sidecar is not None:
        pod["initContainers"] = [_sidecar_container(fabric.sidecar)]
    if job.resources.gpus_per_task:
        pod["tolerations"] = [_GPU_TAINT]
    if fabric.selector:
        pod["nodeSelector"] = dict(fabric.selector)
    if fabric.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    # The program's own error fails the job; the effects of a lost node on other pods do not.
    effects = [ABORTED, _SIGNALLED] if nodes > 1 else [_SIGNALLED]
    codes = {"containerName": "job", "operator": "NotIn", "values": effects}
    metadata: Manifest = {"labels": _LABELS}
    if fabric.annotations:
        metadata["annotations"] = dict(fabric.annotations)
    work = {
        "parallelism": nodes,
        "completions": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [_ON_EVICTION, {"action": "FailJob", "onExitCodes": codes}]},
        "template": {"metadata": metadata, "spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": _LABELS, "annotations": {"nightjar/job": job.id}},
        "spec": {
            "ttlSecondsAfterFinished": KEPT_S,
            "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "failurePolicy": {
                "maxRestarts": RESTARTS,
                "rules": [
                    {"name": "own-error", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                ],
            },
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": work}}],
        },
    }


def name_object(job_id: str) -> str:
    """A job id as a Kubernetes name: a DNS label, short enough for its pods; a changed id gets a hash.

    >>> name_object("gpt-s0"), name_object("gpt_tiny-train.s0")
    ('gpt-s0', 'gpt-tiny-train-s0-3b4831')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")
    if plain == job_id and len(plain) <= _LONGEST_NAME and plain[0].isalpha():
        return plain
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:6]
    if not plain[:1].isalpha():
        plain = f"j-{plain}"
    return plain[: _LONGEST_NAME - 7].rstrip("-") + f"-{digest}"


_LABELS = {"app.kubernetes.io/name": "nightjar", "app.kubernetes.io/managed-by": "nightjar-ci"}
_GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_ON_EVICTION = {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def _coordinator_variables(name: str, resources: Resources, fabric: Fabric) -> dict[str, str]:
    """The coordinator's address and, for NCCL, the pod network's interface and its warnings."""
    variables = {
        "JAX_COORDINATOR_ADDRESS": f"{name}-workers-0-0.{name}:{PORT}",
        "JAX_NUM_PROCESSES": str(resources.nodes),
    }
    if resources.gpus_per_task:
        variables["NCCL_DEBUG"] = "WARN"
        if (
            not fabric.host_network and "NCCL_SOCKET_IFNAME" not in fabric.env
        ):  # a node's own interfaces have other names
            variables["NCCL_SOCKET_IFNAME"] = "eth0"
    return variables


def _container(job: Job, image: str, command: tuple[str, ...], environ: dict[str, str], fabric: Fabric) -> Manifest:
    resources = job.resources
    variables: list[Manifest] = [{"name": key, "value": _escape(value)} for key, value in sorted(environ.items())]
    if resources.nodes > 1:
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        variables.append({"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": index}}})
    for name in job.secrets:
        variables.append({"name": name, "valueFrom": {"secretKeyRef": {"name": SECRETS, "key": name}}})
    limits: dict[str, str] = {}
    if resources.cpus_per_task:
        limits["cpu"] = str(resources.cpus_per_task)
    if resources.memory:
        limits["memory"] = f"{resources.memory}i"
    if resources.gpus_per_task:
        limits["nvidia.com/gpu"] = str(resources.gpus_per_task)
    limits |= fabric.requests
    mounts: list[Manifest] = [{"name": "nights", "mountPath": str(VOLUME)}]
    if _shm(resources):
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    mounts += [
        {"name": f"host-{number}", "mountPath": path, "readOnly": True} for number, path in enumerate(fabric.host_paths)
    ]
    if fabric.sidecar is not None:
        mounts.append({"name": fabric.sidecar.name, "mountPath": fabric.sidecar.shared})
    container: Manifest = {
        "name": "job",
        "image": image,
        "command": [_escape(part) for part in command],
        "env": variables,
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": mounts,
    }
    if resources.nodes > 1:
        container["ports"] = [{"containerPort": PORT, "name": "coordinator"}]
    if fabric.capabilities:
        container["securityContext"] = {"capabilities": {"add": list(fabric.capabilities)}}
    return container


def _sidecar_container(sidecar: Sidecar) -> Manifest:
    """A sidecar is an init container that is always restarted: the pod completes without it (Kubernetes 1.29)."""
    mounts: list[Manifest] = [{"name": sidecar.name, "mountPath": sidecar.shared}]
    mounts += [
        {"name": f"{sidecar.name}-{number}", "mountPath": path} for number, path in enumerate(sidecar.host_paths)
    ]
    return {
        "name": sidecar.name,
        "image": sidecar.image,
        "restartPolicy": "Always",
        "command": list(sidecar.command),
        "env": [{"name": name, "value": value} for name, value in sorted(sidecar.env.items())],
        "securityContext": {"capabilities": {"add": list(sidecar.capabilities)}},
        "volumeMounts": mounts,
    }


def _escape(text: str) -> str:
    return text.replace("$", "$$")


def _volumes(claim: str, resources: Resources, fabric: Fabric) -> list[Manifest]:
    volumes: list[Manifest] = [{"name": "nights", "persistentVolumeClaim": {"claimName": claim}}]
    if shm := _shm(resources):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm}i"}})
    for number, path in enumerate(fabric.host_paths.values()):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": path}})
    if fabric.sidecar is not None:
        name = fabric.sidecar.name
        volumes.append({"name": name, "emptyDir": {}})
        for number, path in enumerate(fabric.sidecar.host_paths.values()):
            volumes.append({"name": f"{name}-{number}", "hostPath": {"path": path}})
    return volumes


def _shm(resources: Resources) -> str | None:
    if resources.gpus_per_task:
        return resources.shm or _SHM_WITH_GPUS
    return resources.shm


TABLES = ("jobset", "pod_metadata", "pod", "container")


def patch_jobset(manifest: Manifest, patch: Mapping[str, Any], source: str) -> Manifest:
    """A JobSet with a site's additions.

    Args:
        manifest: as `render_jobset` made it.
    """
    for name, table in patch.items():
        if name not in TABLES or not isinstance(table, Mapping):
            near = difflib.get_close_matches(name, TABLES, n=1)
            hint = f"did you mean [{near[0]}]?" if near else None
            raise InputError(f"{source}: [{name}] is not a table of a patch, expected {', '.join(TABLES)}.", hint)
    patched = copy.deepcopy(manifest)
    for job in patched["spec"]["replicatedJobs"]:
        template = job["template"]["spec"]["template"]
        _merge(template["metadata"], patch.get("pod_metadata", {}), f"{source}: [pod_metadata]")
        _merge(template["spec"], patch.get("pod", {}), f"{source}: [pod]")
        _merge(template["spec"]["containers"][0], patch.get("container", {}), f"{source}: [container]")
    _merge(patched, patch.get("jobset", {}), f"{source}: [jobset]")
    return patched


def _merge(into: Manifest, table: Mapping[str, Any], where: str) -> None:
    for key, value in table.items():
        old = into.get(key)
        if old is not None and isinstance(old, (dict, list)) != isinstance(value, (Mapping, list)):
            kinds: dict[type, str] = {dict: "a table", list: "a list"}
            raise InputError(f"{where}: {key!r} is {value!r}, expected {kinds.get(type(old), 'a single value')}.")
        if isinstance(old, dict):
            _merge(old, value, f"{where} {key}")
        elif isinstance(old, list):
            into[key] = [*old, *value]
        else:
            into[key] = copy.deepcopy(value)
