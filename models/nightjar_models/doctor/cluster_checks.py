"""Checks of a cluster's node for training on several GPUs and machines: pure functions over gathered facts.

In: facts of the machine and of the node. Out: findings. Each fix names its owner: the cluster's administrator, the
image's maintainer, or the job's submitter.

Source: docs.nvidia.com/deeplearning/nccl (troubleshooting, environment variables); docs.aws.amazon.com/AWSEC2 (EFA);
slurm.schedmd.com/sbatch.html.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

from nightjar_models.doctor.checks import Finding, Level
from nightjar_models.doctor.cluster import Cluster
from nightjar_models.doctor.facts import Facts

CLUSTER, IMAGE, JOB = "who runs the cluster", "who makes the image", "who submits the job"

LEAST_MEMLOCK_BYTES = 2**30  # RDMA pins the buffers that it registers
LEAST_FILES = 4096  # NCCL and gRPC open several sockets for each peer
LEAST_FREE_BYTES = 2**30
CPUS_PER_GPU = 2  # one dispatches, one loads data
_NEEDED = frozenset(("compute", "utility"))


def judge_cluster(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    for check in CHECKS:
        yield from check(facts, cluster)


def check_ports(_: Facts, cluster: Cluster) -> Iterator[Finding]:
    """The ports of the fabric are up, and programs may use them."""
    if not cluster.ports:
        fix = "ask for nodes with InfiniBand, RoCE or EFA where jobs span machines; pass /dev/infiniband to containers"
        problem = "no InfiniBand, RoCE or EFA device is seen: NCCL uses TCP between machines"
        yield Finding("note", "fabric", problem, fix, whose=CLUSTER)
        return
    down = [port.name for port in cluster.ports if not port.active]
    if down:
        problem = f"{len(down)} of {len(cluster.ports)} fabric ports are down: {', '.join(down[:8])}"
        fix = "drain the node and check cable, switch port and subnet manager (ibstat)"
        yield Finding("warning", "fabric", problem, fix, whose=CLUSTER)
    rates = {port.rate for port in cluster.ports if port.active and port.rate}
    if len(rates) > 1:
        problem = f"fabric ports run at different rates: {', '.join(sorted(rates))}"
        fix = "check for a cable that trained down (ibstat, ibdiagnet)"
        yield Finding("warning", "fabric", problem, fix, whose=CLUSTER)
    if cluster.verbs is False:
        problem = "/dev/infiniband/uverbs* may not be opened by this user"
        fix = "pass the devices to the container (--device /dev/infiniband, or the RDMA device plugin)"
        yield Finding("error", "fabric", problem, fix, whose=CLUSTER)


def check_libraries(_: Facts, cluster: Cluster) -> Iterator[Finding]:
    """The user libraries of the fabric can be loaded."""
    if not cluster.ports:
        return
    if "libibverbs.so.1" not in cluster.libraries:
        problem = "libibverbs.so.1 cannot be loaded: NCCL falls back to TCP"
        yield Finding("error", "fabric library", problem, "install rdma-core's ibverbs", whose=IMAGE)
    if any(port.link == "EFA" for port in cluster.ports):
        plugin = {"libnccl-net.so", "libnccl-net-ofi.so"} & set(cluster.libraries)
        if "libfabric.so.1" not in cluster.libraries or not plugin:
            problem = "the node has EFA, and libfabric with NCCL's plugin for it (aws-ofi-nccl) cannot be loaded"
            fix = "use an image with both; NCCL uses TCP otherwise"
            yield Finding("error", "fabric library", problem, fix, whose=IMAGE)


def check_limits(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Enough memory may be locked, and enough files opened."""
    locked, files = cluster.limits.get("memlock", -1), cluster.limits.get("nofile", -1)
    if (cluster.ports or facts.gpus) and 0 <= locked < LEAST_MEMLOCK_BYTES:
        problem = f"at most {locked / 2**20:.3g} MiB may be locked (ulimit -l): RDMA cannot register its buffers"
        level: Level = "error" if cluster.ports else "warning"
        fix = "docker run --ulimit memlock=-1; on Slurm PropagateResourceLimitsExcept=MEMLOCK and LimitMEMLOCK=infinity"
        yield Finding(level, "limits", problem, fix, whose=CLUSTER)
    if 0 <= files < LEAST_FILES:
        problem = f"at most {files} files may be open (ulimit -n): a job of many processes runs out of sockets"
        yield Finding("warning", "limits", problem, "ulimit -n 65536 in the job", whose=JOB)


def check_names(_: Facts, cluster: Cluster) -> Iterator[Finding]:
    """This machine's name is an address that others can reach."""
    if not cluster.addresses:
        problem = "this machine's own name stands for no address: jax.distributed cannot name a coordinator"
        fix = "add the name to DNS or /etc/hosts, or pass coordinator_address"
        yield Finding("warning", "name", problem, fix, whose=CLUSTER)
    elif all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in cluster.addresses):
        problem = (
            f"this machine's own name stands for {', '.join(cluster.addresses)} alone, which no other machine reaches"
        )
        fix = "map the name to the address of its network in /etc/hosts, or pass coordinator_address"
        yield Finding("warning", "name", problem, fix, whose=CLUSTER)


def check_folders(_: Facts, cluster: Cluster) -> Iterator[Finding]:
    """HOME, the temporary folder and the compilation cache can be written."""
    for folder in cluster.folders:
        if folder.free_bytes is None:
            yield Finding(
                "warning",
                "folders",
                f"{folder.used_as}={folder.path} does not exist",
                f"make it, or set {folder.used_as} to a folder that exists",
                whose=JOB,
            )
        elif not folder.writable:
            problem = f"{folder.used_as}={folder.path} cannot be written by this user"
            fix = f"mount it writable, or set {folder.used_as} to another folder"
            yield Finding("warning", "folders", problem, fix, whose=JOB)
        elif folder.free_bytes < LEAST_FREE_BYTES:
            problem = f"{folder.used_as}={folder.path} has {folder.free_bytes / 2**20:.0f} MiB free"
            fix = f"make room, or set {folder.used_as} to a larger disk"
            yield Finding("warning", "folders", problem, fix, whose=JOB)


def check_processors(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """A process has the processors that its GPUs need."""
    wanted = CPUS_PER_GPU * max(1, len(facts.devices))
    if facts.gpus and cluster.cpus < wanted:
        problem = (
            f"{cluster.cpus} processors for {len(facts.devices)} GPUs: dispatch and data loading wait for each other"
        )
        fix = f"ask for --cpus-per-task={4 * len(facts.devices)} or more"
        yield Finding("warning", "processors", problem, fix, whose=JOB)


def check_variables(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """The variables of NCCL, the scheduler and the container fit the node."""
    environ = cluster.environ
    if environ.get("NCCL_IB_DISABLE") == "1" and any(port.active for port in cluster.ports):
        problem = "NCCL_IB_DISABLE=1 on a node with a fabric: NCCL uses TCP"
        yield Finding("warning", "variables", problem, "unset NCCL_IB_DISABLE", whose=JOB)
    wanted = environ.get("NCCL_SOCKET_IFNAME", "")
    if wanted and not wanted.startswith("^") and not _is_interface(wanted, cluster.interfaces):
        problem = (
            f"NCCL_SOCKET_IFNAME={wanted} names no interface of this node ({', '.join(cluster.interfaces) or 'none'})"
        )
        yield Finding("error", "variables", problem, "unset it, or name one that exists", whose=JOB)
    if environ.get("NVIDIA_VISIBLE_DEVICES") == "void" and not facts.gpus:
        problem = "NVIDIA_VISIBLE_DEVICES=void: the container runtime was told to give no GPU"
        yield Finding("error", "variables", problem, "set it to all, or ask for GPUs", whose=JOB)
    capabilities = set(environ.get("NVIDIA_DRIVER_CAPABILITIES", "all").split(","))
    if "all" not in capabilities and not capabilities >= _NEEDED:
        problem = f"NVIDIA_DRIVER_CAPABILITIES={environ['NVIDIA_DRIVER_CAPABILITIES']} lacks compute or utility"
        yield Finding("error", "variables", problem, "set it to compute,utility", whose=IMAGE)


def check_scheduler(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Slurm's tasks share the GPUs of a node as the job asks."""
    given = cluster.environ.get("SLURM_GPUS_ON_NODE", "")
    if given.isdigit() and facts.gpus and int(given) != len(facts.gpus):
        problem = f"Slurm gave {given} GPUs on this node and {len(facts.gpus)} are seen"
        fix = "ConstrainDevices=yes in cgroup.conf, and nvidia-container-toolkit or Pyxis for containers"
        yield Finding("warning", "scheduler", problem, fix, whose=CLUSTER)
    tasks = re.match(
        r"\d+", cluster.environ.get("SLURM_NTASKS_PER_NODE", cluster.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    )
    if tasks and int(tasks[0]) > 1 and 1 < len(facts.devices) == len(facts.gpus):
        problem = f"{tasks[0]} tasks on this node, and this one computes on all {len(facts.devices)} GPUs"
        fix = "srun --gpus-per-task, or jax.distributed.initialize(), which picks one by SLURM_LOCALID"
        yield Finding("note", "scheduler", problem, fix, whose=JOB)


def _is_interface(wanted: str, interfaces: tuple[str, ...]) -> bool:
    """Whether an interface matches: prefixes by commas; after `=` whole names."""
    exact, names = wanted.startswith("="), wanted.lstrip("=").split(",")
    return any(name in interfaces if exact else any(i.startswith(name) for i in interfaces) for name in names)


CHECKS: tuple[Callable[[Facts, Cluster], Iterator[Finding]], ...] = (
    check_ports,
    check_libraries,
    check_limits,
    check_names,
    check_folders,
    check_processors,
    check_variables,
    check_scheduler,
)
