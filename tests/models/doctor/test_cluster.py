"""A cluster's node: each fault is named with whose job it is, and a healthy node is silent."""

import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_models.doctor.checks import Finding, judge_facts
from nightjar_models.doctor.cli import doctor
from nightjar_models.doctor.cluster import (
    Cluster,
    Folder,
    Port,
    gather_cluster,
)
from nightjar_models.doctor.cluster_checks import CLUSTER, IMAGE, JOB, judge_cluster
from nightjar_models.doctor.report import render_json, render_report
from tests.models.doctor.test_doctor import HEALTHY

UP = Port(name="mlx5_0/1", link="InfiniBand", active=True, rate="400 Gb/sec (4X NDR)")
HOME = Folder(path="/home/a", used_as="HOME", free_bytes=2**40, writable=True)
TMP = Folder(path="/tmp", used_as="TMPDIR", free_bytes=2**40, writable=True)
NODE = Cluster(
    ports=(UP, replace(UP, name="mlx5_1/1")),
    verbs=True,
    libraries=("libibverbs.so.1",),
    limits={"memlock": -1, "nofile": 1048576, "nproc": -1},
    addresses=("10.1.2.3",),
    interfaces=("eth0", "ib0", "lo"),
    folders=(HOME, TMP),
    cpus=64,
    environ={"SLURM_GPUS_ON_NODE": "2", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
)


def judge(**changes: object) -> list[Finding]:
    return list(judge_cluster(HEALTHY, replace(NODE, **changes)))  # type: ignore[arg-type]


def with_variable(name: str, value: str) -> dict[str, str]:
    return {**NODE.environ, name: value}


def test_a_healthy_node_is_silent() -> None:
    assert judge() == []


FAULTS = {
    "a port is down": ({"ports": (UP, replace(UP, name="mlx5_3/1", active=False))}, "warning", "mlx5_3/1", CLUSTER),
    "a cable trained down": (
        {"ports": (UP, replace(UP, rate="100 Gb/sec (4X EDR)"))},
        "warning",
        "100 Gb/sec",
        CLUSTER,
    ),
    "the device is not passed": ({"verbs": False}, "error", "uverbs", CLUSTER),
    "no user library": ({"libraries": ()}, "error", "libibverbs.so.1 cannot be loaded", IMAGE),
    "EFA without its plugin": (
        {"ports": (replace(UP, link="EFA"),), "libraries": ("libibverbs.so.1", "libfabric.so.1")},
        "error",
        "aws-ofi-nccl",
        IMAGE,
    ),
    "memory cannot be locked": ({"limits": {"memlock": 8 * 2**20}}, "error", "at most 8 MiB may be locked", CLUSTER),
    "few files": ({"limits": {"nofile": 1024}}, "warning", "at most 1024 files", JOB),
    "no address": ({"addresses": ()}, "warning", "stands for no address", CLUSTER),
    "loopback alone": ({"addresses": ("127.0.1.1", "::1")}, "warning", "127.0.1.1, ::1 alone", CLUSTER),
    "read-only home": ({"folders": (replace(HOME, writable=False),)}, "warning", "HOME=/home/a cannot be written", JOB),
    "home is absent": ({"folders": (replace(HOME, free_bytes=None),)}, "warning", "HOME=/home/a does not exist", JOB),
    "full disk": ({"folders": (replace(TMP, free_bytes=2**20),)}, "warning", "TMPDIR=/tmp has 1 MiB free", JOB),
    "too few processors": ({"cpus": 2}, "warning", "2 processors for 2 GPUs", JOB),
    "fabric switched off": ({"environ": with_variable("NCCL_IB_DISABLE", "1")}, "warning", "NCCL_IB_DISABLE=1", JOB),
    "no such interface": (
        {"environ": with_variable("NCCL_SOCKET_IFNAME", "enp1")},
        "error",
        "names no interface of this node (eth0, ib0, lo)",
        JOB,
    ),
    "part of a name, whole asked": (
        {"environ": with_variable("NCCL_SOCKET_IFNAME", "=eth")},
        "error",
        "NCCL_SOCKET_IFNAME==eth",
        JOB,
    ),
    "no compute": (
        {"environ": with_variable("NVIDIA_DRIVER_CAPABILITIES", "utility")},
        "error",
        "NVIDIA_DRIVER_CAPABILITIES=utility",
        IMAGE,
    ),
    "fewer GPUs than given": (
        {"environ": with_variable("SLURM_GPUS_ON_NODE", "8")},
        "warning",
        "Slurm gave 8",
        CLUSTER,
    ),
    "every task takes all GPUs": (
        {"environ": with_variable("SLURM_NTASKS_PER_NODE", "2(x4)")},
        "note",
        "2 tasks on this node, and this one computes on all 2 GPUs",
        JOB,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_with_whose_job_it_is(fault: str) -> None:
    changes, level, text, whose = FAULTS[fault]
    (finding,) = judge(**changes)  # type: ignore[arg-type]
    assert (finding.level, finding.whose) == (level, whose)
    assert text in finding.found
    assert finding.fix


@pytest.mark.parametrize("value", ["eth", "=ib0,eth0", "^docker0", "ib"])
def test_an_interface_may_be_a_prefix_a_name_or_what_is_left_out(value: str) -> None:
    assert judge(environ=with_variable("NCCL_SOCKET_IFNAME", value)) == []


def test_a_node_without_a_fabric_gets_a_note_and_no_errors_about_it() -> None:
    findings = judge(ports=(), libraries=(), verbs=None)
    assert [(finding.level, finding.check) for finding in findings] == [("note", "fabric")]


def test_a_container_that_was_told_to_have_no_gpu() -> None:
    facts = replace(HEALTHY, gpus=(), devices=())
    node = replace(NODE, environ={"NVIDIA_VISIBLE_DEVICES": "void"})
    assert "NVIDIA_VISIBLE_DEVICES=void" in [finding.found.partition(":")[0] for finding in judge_cluster(facts, node)]


def test_the_facts_of_a_node_are_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device, driver, state in (("mlx5_0", "mlx5_core", "4: ACTIVE"), ("rdmap0", "efa", "1: DOWN")):
        port = tmp_path / "sys/class/infiniband" / device / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "link_layer").write_text("Ethernet\n")
        (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (tmp_path / "sys/class/infiniband" / device / "device").mkdir()
        (tmp_path / "sys/class/infiniband" / device / "device/driver").symlink_to(tmp_path / "drivers" / driver)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    for name in ("SLURM_JWT", "PMIX_SECURITY", "FI_TOKEN", "UCX_KEY", "OMPI_SECRET", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    node = gather_cluster(tmp_path)
    assert node.ports == (
        Port(name="mlx5_0/1", link="Ethernet", active=True, rate="100 Gb/sec (4X EDR)"),
        Port(name="rdmap0/1", link="EFA", active=False, rate="100 Gb/sec (4X EDR)"),
    )
    assert (node.verbs, node.interfaces) == (True, ("eth0",))
    assert node.environ["NCCL_DEBUG"] == "INFO"
    assert "s3cret" not in str(node)
    assert node.limits["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    (absent,) = [folder for folder in node.folders if folder.used_as == "TMPDIR"]
    assert absent.free_bytes is None


def test_a_machine_that_shows_nothing_has_no_facts(tmp_path: Path) -> None:
    node = gather_cluster(tmp_path)
    assert (node.ports, node.verbs, node.interfaces) == ((), None, ())


def test_the_page_and_its_json_have_the_node_and_whose_job_a_fix_is() -> None:
    node = replace(NODE, verbs=False)
    findings = judge_facts(HEALTHY, more=judge_cluster(HEALTHY, node))
    page = render_report(HEALTHY, findings, node)
    assert "Fabric     mlx5_0/1 InfiniBand up, 400 Gb/sec (4X NDR)\n           mlx5_1/1" in page
    assert "  fix (who runs the cluster): pass the devices to the container" in page
    document = json.loads(render_json(HEALTHY, findings, node))
    assert document["cluster"]["ports"][0]["name"] == "mlx5_0/1"
    assert document["findings"][0]["whose"] == CLUSTER
    assert json.loads(render_json(HEALTHY, ()))["cluster"] is None


def test_this_machine_has_an_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_models.doctor.cli.gather_facts", lambda timeout_s: HEALTHY)
    code = doctor(["--cluster", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == int(any(finding["level"] == "error" for finding in document["findings"]))
    assert document["cluster"]["cpus"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("changes", "silent"),
    [
        ({"limits": {"memlock": 2**30 - 1}}, False),
        ({"limits": {"memlock": 2**30}}, True),
        ({"limits": {"nofile": 4095}}, False),
        ({"limits": {"nofile": 4096}}, True),
        ({"folders": (replace(TMP, free_bytes=2**30 - 1),)}, False),
        ({"folders": (replace(TMP, free_bytes=2**30),)}, True),
        ({"cpus": 3}, False),
        ({"cpus": 4}, True),
    ],
    ids=str,
)
def test_a_node_at_a_limit_is_silent_and_one_below_is_not(changes: dict[str, object], silent: bool) -> None:
    assert (judge(**changes) == []) == silent


DOWN = tuple(replace(UP, name=f"m{n}", active=False, rate="10 Gb/sec (4X SDR)") for n in range(9))
EDGE = {"limits": {"memlock": 2**30, "nofile": 4096}, "folders": (replace(TMP, free_bytes=2**30),), "cpus": 4}
EFA = (replace(UP, link="EFA"),)
EFA_LIBRARIES = ("libibverbs.so.1", "libfabric.so.1")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (EDGE, None),
        ({"limits": {"memlock": 0, "nofile": 4096}}, "at most 0 MiB"),
        ({"limits": {"memlock": 2**30 - 1}}, "at most 1.02e+03 MiB"),
        ({"limits": {"nofile": 4095}}, "at most 4095 files"),
        ({"folders": (replace(TMP, free_bytes=2**30 - 1),)}, "has 1024 MiB free"),
        ({"cpus": 3}, "3 processors"),
        ({"environ": {"SLURM_NTASKS_PER_NODE": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}}, None),
        ({"environ": {"SLURM_STEP_TASKS_PER_NODE": "2"}}, "2 tasks"),
        ({"environ": {"NVIDIA_VISIBLE_DEVICES": "void"}}, None),  # GPUs are seen
        ({"environ": {"NVIDIA_DRIVER_CAPABILITIES": "compute"}}, "lacks compute or utility"),
        ({"environ": {"NVIDIA_DRIVER_CAPABILITIES": "utility,all"}}, None),
        ({"environ": {"NVIDIA_DRIVER_CAPABILITIES": "video,utility,compute"}}, None),
        ({"environ": {"NCCL_SOCKET_IFNAME": "ib1,eth1"}, "interfaces": ()}, "no interface of this node (none)"),
        ({"environ": {"NCCL_IB_DISABLE": "1"}, "ports": DOWN[:1]}, "1 of 1 fabric ports are down: m0"),
        ({"ports": (*DOWN, UP)}, "9 of 10 fabric ports are down: m0, m1, m2, m3, m4, m5, m6, m7"),
        ({"ports": (UP, replace(UP, rate="")), "addresses": ("127.0.0.1", "10.1.2.3")}, None),
        ({"ports": EFA, "libraries": (*EFA_LIBRARIES, "libnccl-net.so")}, None),
        ({"ports": EFA, "libraries": (*EFA_LIBRARIES, "libnccl-net-ofi.so")}, None),
        ({"ports": EFA, "libraries": ("libibverbs.so.1", "libnccl-net.so")}, "the node has EFA"),
    ],
)
def test_each_limit_has_a_healthy_and_a_faulty_side(changes: dict[str, object], found: str | None) -> None:
    findings = judge(**changes)
    assert len(findings) == (found is not None)
    assert found is None or found in findings[0].found


def test_memory_that_cannot_be_locked_matters_to_gpus_and_fabrics_alone() -> None:
    alone = replace(NODE, ports=(), limits={"memlock": 0})
    for gpus, level in ((HEALTHY.gpus, "warning"), ((), None)):
        findings = judge_cluster(replace(HEALTHY, gpus=gpus, devices=()), alone)
        assert [one.level for one in findings if one.check == "limits"] == [level] * (level is not None)


@pytest.mark.parametrize(("cpus", "found"), [(1, ["processors"]), (2, [])])
def test_a_process_with_one_gpu_needs_two_processors(cpus: int, found: list[str]) -> None:
    facts = replace(HEALTHY, gpus=HEALTHY.gpus[:1], devices=HEALTHY.devices[:1])
    node = replace(NODE, cpus=cpus, environ={})
    assert [finding.check for finding in judge_cluster(facts, node)] == found


def test_a_fabric_of_which_one_port_is_up_is_switched_off_in_vain() -> None:
    findings = judge(ports=(UP, DOWN[0]), environ={"NCCL_IB_DISABLE": "1"})
    assert [finding.check for finding in findings] == ["fabric", "variables"]
