"""The readers of what jobs, users, registries and indexes hand to nightjar-ci, and small valid inputs to begin with."""

import json
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from xml.parsers import expat

import pydantic_core

from nightjar_ci.adapters.records import read_csv, read_json_lines
from nightjar_ci.adapters.tensorboard import checksum, read_events
from nightjar_ci.bisect.ladders.commits import parse_commits
from nightjar_ci.bisect.ladders.rung import Ladder, merge_same_builds
from nightjar_ci.environments.lock import parse_lock, read_pins
from nightjar_ci.environments.uv import parse_requirements
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.nightly_index import check_reference, parse_index
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_ci.suites.junit import Reader
from nightjar_ci.web.manifest_shape import find_wrong_keys
from nightjar_ci.web.package_index import group, parse_page
from tests.ci.nights import make_night, outcome, record
from tests.fuzz.traces import SCRATCH, write
from tests.places import ROOT


def fuzz_night(data: bytes) -> None:
    write("night.json", data)
    read_night(SCRATCH)


def fuzz_nightly_index(data: bytes) -> None:
    for image in parse_index(data, "fuzz").images:
        check_reference(image, "ghcr.io/me/nightjar")


def fuzz_manifest(data: bytes) -> None:
    try:
        document = pydantic_core.from_json(data)
    except ValueError:
        return
    if isinstance(document, dict) and not find_wrong_keys(document):
        read_platforms(document)


def fuzz_page(data: bytes) -> None:
    kind = "text/html" if data.startswith(b"<") else "application/json"
    group("jax", parse_page("jax", data, kind, "https://host/jax/"))


def fuzz_lines(data: bytes) -> None:
    path = write("lines.txt", data)
    for read in (read_json_lines, read_csv):
        try:
            list(read(path))
        except InputError as error:
            if not str(error):
                raise RuntimeError("an error without a message") from error


def fuzz_junit(data: bytes) -> None:
    try:
        Reader().parse(data)
    except (expat.ExpatError, ValueError):
        return


def fuzz_git(data: bytes) -> None:
    """What git prints of commits, made a ladder that is kept and read again."""
    kept, notes = merge_same_builds(parse_commits(data.decode(errors="replace")))
    ladder = Ladder(rungs=kept, notes=notes)
    if Ladder.model_validate_json(ladder.model_dump_json()) != ladder:
        raise RuntimeError("the ladder that is read is not the one that was kept")


def fuzz_lock(data: bytes) -> None:
    text = data.decode(errors="replace")
    parse_lock(text)
    for read in (lambda: read_pins(text, "3.13"), lambda: parse_requirements(text)):
        with suppress(ValueError):  # its caller names the environment
            read()


def _frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", checksum(length)) + data + struct.pack("<I", checksum(data))


def _night() -> Iterable[bytes]:
    folder = make_night(SCRATCH / "valid-night", [(outcome(), record())])
    return [(folder / "night.json").read_bytes()]


DIGEST = "sha256:" + "0" * 64
INDEX = {
    "schema": "nightjar.images/1",
    "images": [{"name": "jax-cpu", "date": "2026-11-20", "reference": f"ghcr.io/me/nightjar@{DIGEST}"}],
}
MANIFEST = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.index.v1+json",
    "manifests": [{"digest": DIGEST, "size": 3, "platform": {"os": "linux", "architecture": "arm64"}}],
    "layers": [{"digest": DIGEST, "size": 3, "mediaType": "x", "annotations": {"a": "b"}}],
}
PAGE = {
    "files": [
        {
            "filename": "jax-1.0-py3-none-any.whl",
            "url": "../jax-1.0-py3-none-any.whl",
            "hashes": {"sha256": "0" * 64},
            "upload-time": "2026-11-20T00:00:00Z",
            "yanked": "broken",
        }
    ]
}
HTML = b'<a href="/jax-1.0.tar.gz#sha256=00" data-yanked data-upload-time="2026-11-20T00:00:00Z">jax</a>'
SUITE = b'<testsuite><testcase classname="a" name="b" time="1"><failure message="m">t</failure></testcase></testsuite>'
COMMITS = b"".join(
    b"\0".join((b"%040d" % n, b"%040d" % (n // 2), b"%07d" % n, b"2026-11-20T00:00:00Z", b"a b", b"a subject")) + b"\n"
    for n in range(4)
)
EVENT = bytes.fromhex("10012a0d0a0b0a046c6f73731500002040")  # step 1, loss 2.5
Target = tuple[Callable[[bytes], object], Callable[[], Iterable[bytes]]]
TARGETS: dict[str, Target] = {
    "result": (
        lambda data: read_run(write("result.json", data)),
        lambda: [record(values=[2.0, 1.0]).model_dump_json(by_alias=True).encode()],
    ),
    "night": (fuzz_night, _night),
    "matrix": (
        lambda data: expand(read_matrix(write("matrix.toml", data))),
        lambda: [(ROOT / "ci" / "matrix" / "nightly-cpu.toml").read_bytes()],
    ),
    "policies": (
        lambda data: read_policies(write("policies.toml", data)),
        lambda: [(ROOT / "ci" / "policies.toml").read_bytes()],
    ),
    "nightly-index": (fuzz_nightly_index, lambda: [json.dumps(INDEX).encode()]),
    "manifest": (fuzz_manifest, lambda: [json.dumps(MANIFEST).encode()]),
    "page": (fuzz_page, lambda: [json.dumps(PAGE).encode(), HTML]),
    "events": (lambda data: list(read_events(write("events.out.tfevents.1", _frame(data)))), lambda: [EVENT]),
    "lines": (fuzz_lines, lambda: [b'{"step": 1, "loss": 2.5}\n', b"step,loss\n1,2.5\n"]),
    "junit": (fuzz_junit, lambda: [SUITE]),
    "git": (fuzz_git, lambda: [COMMITS]),
    "lock": (fuzz_lock, lambda: [b"jax==0.10.2 ; python_version < '3.12' \\\n    --hash=sha256:00\n"]),
}
