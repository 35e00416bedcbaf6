"""Orbax's tiers cell: two replicas keep checkpoints on their own disks, and fewer on a disk that both share.

Two processes, each with a replica of the state. The newest checkpoint is on the disk of one of them only: a run that
begins again gets it on both, by a broadcast from that peer. With that disk lost, both go back to the shared one.

Source: orbax.checkpoint.experimental.emergency.checkpoint_manager
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nightjar_models.ecosystem.cell import Check, Finding
from nightjar_models.errors import ToolError
from nightjar_models.measuring.result import Sample

LAST, LOCAL, SHARED = 6, 2, 4  # steps: the last one, and the intervals of the two tiers
LIMIT_S = 240


def run() -> Finding:
    """Runs the cell."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("disk0", "disk1", "shared"):
            (root / name).mkdir()
        _run_members(root, "save")
        started = time.perf_counter()
        from_peer = _run_members(root, "restore")
        restored_s = time.perf_counter() - started
        shutil.rmtree(root / "disk1")
        (root / "disk1").mkdir()
        from_shared = _run_members(root, "restore")
    checks = [
        Check(name=f"{name}_{process}", value=found["value"], expected=step, tolerance=0, why=why)
        for name, answers, step, why in (
            ("from_peer", from_peer, LAST, "the newest, which one of the two has"),
            ("from_shared", from_shared, LAST // SHARED * SHARED, "the newest of those that both reach"),
        )
        for process, found in enumerate(answers)
    ]
    samples = [Sample(name="restored_time", unit="s", better="lower", values=[restored_s])]
    return Finding(checks=checks, samples=samples)


def _run_members(root: Path, phase: str) -> list[dict[str, float]]:
    """What both processes print last."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", __name__, str(port), phase, str(root)]
    members = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    answers = []
    try:
        for member in members:
            out, err = member.communicate(timeout=LIMIT_S)
            if member.returncode:
                raise ToolError(f"{phase} ended with {member.returncode}: {err[-2000:]}")
            answers.append(json.loads(out.splitlines()[-1]))
    finally:
        for member in members:
            member.kill()
    return answers


def _be_member(port: str, phase: str, root: Path, number: int) -> None:
    import jax
    import numpy as np
    from absl import flags
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)
    flags.FLAGS(sys.argv[:1])  # Orbax reads flags of its own
    from orbax.checkpoint import args, multihost
    from orbax.checkpoint.experimental.emergency import checkpoint_manager as emergency

    multihost.initialize_runtime_to_distributed_ids()
    multihost.initialize_distributed_to_device_ids()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("replica", "data"))
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    def make(step: int) -> dict[str, Any]:
        return {"w": jax.make_array_from_callback((8,), sharding, lambda index: np.full(8, float(step))[index])}

    options = emergency.CheckpointManagerOptions(
        local=emergency.LocalCheckpointOptions(save_interval_steps=LOCAL, max_to_keep=2),
        persistent=emergency.PersistentCheckpointOptions(save_interval_steps=SHARED),
    )
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), make(0))
    folders = root / f"disk{number}", root / "shared"
    with emergency.CheckpointManager(*folders, global_mesh=mesh, abstract_state=abstract, options=options) as manager:
        value = float(LAST)
        if phase == "save":
            for step in range(LAST + 1):
                manager.save(step, args=args.Composite(state=args.PyTreeSave(make(step))))
        else:
            wanted = args.Composite(state=args.PyTreeRestore())
            state = manager.restore(manager.latest_step(), args=wanted)["state"]
            shards = [np.asarray(shard.data) for shard in state["w"].addressable_shards]
            value = float(np.mean(shards)) if np.ptp(shards) == 0 else float("nan")
    print(json.dumps({"value": value}), flush=True)


if __name__ == "__main__":
    _be_member(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
