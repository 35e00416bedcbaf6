"""How long is it from `docker run`, on an engine that holds nothing, to the first step of a training?

An engine of its own pulls the models image at 100 MB/s from a registry on loopback and trains one step of gpt_tiny.
The rival is the same files as most Dockerfiles leave them: one layer, gzip. The same command on the engine that has the
image says how much of either is the training's own.
"""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.images.build import inspect_image
from nightjar_ci.images.publish.layer_blob import DEFAULT, Compression
from nightjar_ci.tools import ToolError, run_captured
from nightjar_ci.web.registry import MANIFEST_TYPE, Repository
from tests.bench.images.workshop import CHECKOUT, build, open_workshop, pack, say
from tests.bench.table import NotMeasuredError, Row
from tests.ci.registries import run_registry

BYTES_A_SECOND = 100_000_000
READ_BYTES = 2**18
GOAL = 1 / 3  # of the time of the one-layer image
OURS, RIVAL = "nightjar-bench/models:ready", "nightjar-bench/models:one-layer"
TRAIN = ["nightjar-models", "train", "gpt_tiny", "--steps", "1", "--out", "/tmp/run"]
STARTS_S = 60.0
BRIDGE, BRIDGE_ADDRESS = "nightjar-bench0", "192.0.2.1/24"


def list_goals(flavor: str) -> list[str]:
    return ["models: `docker run` to the first step, share of the one-layer image's "]


def measure(flavor: str) -> list[Row]:
    if os.geteuid() != 0:
        raise NotMeasuredError("an engine of its own needs root")
    with open_workshop(), TemporaryDirectory(prefix="nightjar-bench-") as name:
        build(CHECKOUT, "models", flavor, "ready")
        flatten()
        with run_registry(Path(name, "registry")) as registry, throttle(registry.host) as slow:
            pushed: tuple[tuple[str, Compression], ...] = ((OURS, DEFAULT), (RIVAL, "gzip"))
            sizes = [push(registry.repository, tag, compression, Path(name)) for tag, compression in pushed]
            warm = run_once(["docker"], OURS)
            ours, theirs = (
                pull_and_run(
                    f"{slow}/{registry.repository.path}:{tag.partition(':')[2]}", Path(name, f"engine-{number}")
                )
                for number, (tag, _) in enumerate(pushed)
            )
    say(f"compressed: {sizes[0] / 1e6:.0f} MB, as one layer of gzip {sizes[1] / 1e6:.0f} MB")
    return [
        Row(name="models: `docker run` to the first step, image there", ours=warm, unit="s"),
        Row(name="models: `docker run` to the first step", ours=ours, unit="s", rival="one layer", rival_value=theirs),
        Row(name=f"{list_goals(flavor)[0]}{theirs:.1f} s", ours=ours / theirs, goal=GOAL),
    ]


def flatten() -> None:
    """The files of the models image in one layer, with its variables, user and command."""
    match inspect_image(OURS):
        case {"Config": {"Env": [*variables], "User": str(user), "WorkingDir": str(folder)}}:
            changes = [f"ENV {str(variable).replace('=', '=' + chr(34), 1)}{chr(34)}" for variable in variables]
            changes += [f"USER {user}", f"WORKDIR {folder}"]
        case other:
            raise ToolError(f"{OURS}: the engine describes it without variables or user: {other}")
    container = run_captured(["docker", "create", OURS]).strip()
    options = [part for change in changes for part in ("--change", change)]
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as exported:
            subprocess.run(
                ["docker", "import", *options, "-", RIVAL], stdin=exported.stdout, stdout=subprocess.DEVNULL, check=True
            )
    finally:
        run_captured(["docker", "rm", container])


def push(repository: Repository, tag: str, compression: Compression, folder: Path) -> int:
    """Pushes an image of the engine as `images push` does; returns what is to be pulled of it."""
    packed = pack([tag], folder / "memory", repository, compression)[tag]
    repository.put_blob(packed.id, packed.config)
    repository.put_manifest(tag.partition(":")[2], packed.manifest, MANIFEST_TYPE)
    return sum(layer.size_bytes for layer in packed.layers)


def pull_and_run(reference: str, folder: Path) -> float:
    """Seconds of `docker run` on an engine that is started for it, empty, and removed."""
    with start_engine(folder) as engine:
        return run_once(["docker", "--host", engine], reference)


def run_once(docker: list[str], reference: str) -> float:
    began = time.monotonic()
    run_captured([*docker, "run", "--rm", "--network", "none", "--env", "JAX_PLATFORMS=cpu", reference, *TRAIN])
    return time.monotonic() - began


@contextmanager
def start_engine(folder: Path) -> Iterator[str]:
    """An empty Docker engine beside the one of the machine; yields its address.

    It has a bridge of its own: an engine without one removes docker0, which is the other engine's.
    """
    folder.mkdir()
    run_captured(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run_captured(["ip", "address", "add", BRIDGE_ADDRESS, "dev", BRIDGE])
    address = f"unix://{folder}/docker.sock"
    config = folder / "daemon.json"
    config.write_text(json.dumps({"bridge": BRIDGE, "iptables": False, "ip6tables": False}))
    options = ["--config-file", str(config), "--data-root", f"{folder}/data", "--exec-root", f"{folder}/run"]
    options += ["--pidfile", f"{folder}/pid", "--host", address]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["dockerd", *options], stdout=log, stderr=log)
    try:
        wait_for_engine(address, process, folder / "log")
        yield address
    finally:
        process.terminate()
        process.wait(timeout=STARTS_S)
        run_captured(["ip", "link", "delete", BRIDGE])


def wait_for_engine(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            run_captured(["docker", "--host", address, "version"])
            return
        except ToolError:
            time.sleep(0.2)
    raise NotMeasuredError(f"no second engine starts: {log.read_text()[-300:].strip()}")


@contextmanager
def throttle(host: str) -> Iterator[str]:
    """An address that answers as `host` does, all connections together with at most `BYTES_A_SECOND`."""
    listener = socket.create_server(("127.0.0.1", 0))
    turn, free_at = threading.Lock(), [time.monotonic()]

    def wait_for_turn(count: int) -> None:
        with turn:
            free_at[0] = max(free_at[0], time.monotonic()) + count / BYTES_A_SECOND
            until = free_at[0]
        time.sleep(max(0.0, until - time.monotonic()))

    def copy(source: socket.socket, target: socket.socket, slow: bool) -> None:
        try:
            while data := source.recv(READ_BYTES):
                if slow:
                    wait_for_turn(len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other end has gone

    def accept() -> None:
        server, _, port = host.rpartition(":")
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            upstream = socket.create_connection((server, int(port)))
            for arguments in ((client, upstream, False), (upstream, client, True)):
                threading.Thread(target=copy, args=arguments, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
