"""How fast are 2.4 million events of a profiler trace read into tables?

The trace is that of 8 GPUs, 51 bytes an event, with offsets, durations and ids of all sizes.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.table import Row

EVENTS, DEVICES, OPS = 2_400_000, 8, 500
GOAL_S = 1.0
PROGRAM = """
import sys, time
from pathlib import Path
from nightjar_profiling.readers.xplane.xplane import read_raw
path = Path(sys.argv[1])
start = time.process_time()
ops = read_raw(path).tables["ops"]
print(time.process_time() - start, ops.height, int(ops["duration_ns"].sum()))
"""


def varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def delimited(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def stat(number: int, field: int, value: int) -> bytes:
    return delimited(4, b"\x08" + varint(number) + varint(field << 3) + varint(value))


def names(field: int, texts: list[str]) -> bytes:
    entries = [(varint(n), delimited(2, text.encode())) for n, text in enumerate(texts, start=1)]
    return b"".join(delimited(field, b"\x08" + n + delimited(2, b"\x08" + n + name)) for n, name in entries)


def write_trace(path: Path, events: int) -> int:
    draw, total_ns = random.Random(1), 0
    known = ["correlation_id", "hlo_op", "program_id", "kernel_details", "run_id", "grid:1 block:256"]
    ops = [f"fusion.{n}" for n in range(OPS)]
    tails = [stat(2, 7, len(known) + 1 + n) + stat(3, 4, 12) + stat(4, 7, 6) for n in range(OPS)]
    with path.open("wb") as file:
        for device in range(DEVICES):
            run, now_ns = [], 0
            for number in range(events // DEVICES):
                op, took_ns = draw.randrange(OPS), draw.randrange(1000, 90_000)
                head = b"\x08" + varint(op + 1) + b"\x10" + varint(now_ns * 1000) + b"\x18" + varint(took_ns * 1000)
                run.append(delimited(4, head + stat(1, 3, number) + tails[op] + stat(5, 4, number // 1000)))
                now_ns += took_ns + draw.randrange(500)
                total_ns += took_ns
            stream = b"\x08\x0e" + delimited(2, b"Stream #14(Compute)") + b"\x18" + varint(1_700_000_000 * 10**9)
            plane = delimited(2, f"/device:GPU:{device}".encode()) + names(5, known + ops) + names(4, ops)
            file.write(delimited(1, plane + delimited(3, stream + b"".join(run))))
    return total_ns


def best_of(path: Path, times: int) -> tuple[float, int, int]:
    """The least CPU time of fresh processes that read a trace, and what they counted."""
    found = []
    for _ in range(times):
        command = [sys.executable, "-c", PROGRAM, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, count, total = done.stdout.split()[-3:]
        found.append((float(seconds), int(count), int(total)))
    return min(found)


def list_goals() -> list[str]:
    return ["2.4M XPlane events, CPU time", "events lost", "nanoseconds lost"]


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.xplane.pb"
        total_ns = write_trace(path, EVENTS)
        print(
            f"{path.stat().st_size / 1e6:.0f} MB, {EVENTS:,} events, {time.process_time():.0f} s to make",
            file=sys.stderr,
        )
        ours, count, found_ns = best_of(path, 5)
    return [
        Row("2.4M XPlane events, CPU time", ours, goal=GOAL_S, unit="s"),
        Row("events lost", abs(EVENTS - count), goal=0),
        Row(name="nanoseconds lost", ours=abs(total_ns - found_ns), goal=0, unit="ns"),
    ]
