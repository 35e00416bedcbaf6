"""Instructions that a job's processes execute: counted by the processor, or by Valgrind in a second run.

In: the command of a job. Out: the command that counts, and the number that it left. A count of one program on one
machine repeats to about a thousandth, while times differ by several percent.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.formats.job import Job
from nightjar_ci.untrusted.files import read_end, read_untrusted

PERF, VALGRIND = "instructions (perf)", "instructions (valgrind)"  # units: the two count differently
_PERF_FILE = "instructions.csv"
_VALGRIND_FILE = "cachegrind"
_TRIAL_S = 20
_MOST_PROCESSES = 10_000
_SUM_BYTES = 4096  # the sum is the last line


@dataclass(frozen=True, slots=True)
class Counter:
    """How this machine counts instructions; `unit` is the sample's."""

    unit: str

    @property
    def runs_again(self) -> bool:
        """Whether the count needs a separate run, because it slows the program down."""
        return self.unit == VALGRIND

    def wrap(self, job: Job) -> Job:
        """The job whose command is counted; the counter writes into the job's folder."""
        if self.runs_again:
            tool = ("valgrind", "-q", "--tool=cachegrind", "--cache-sim=no", "--trace-children=yes")
            command = (*tool, f"--cachegrind-out-file={{out}}/{_VALGRIND_FILE}.%p", *job.command)
            # The order of sets and dictionaries of text affects the instructions of Python.
            return replace(job, command=command, env={"PYTHONHASHSEED": "0", **job.env})
        perf = ("perf", "stat", "-x", ",", "-e", "instructions:u", "-o", f"{{out}}/{_PERF_FILE}", "--")
        return replace(job, command=(*perf, *job.command))

    def read(self, folder: Path) -> float:
        try:
            if not self.runs_again:
                return read_perf(read_untrusted(folder, _PERF_FILE).decode("utf-8", errors="replace"))
            names = sorted(path.name for path in islice(folder.glob(f"{_VALGRIND_FILE}.*"), _MOST_PROCESSES))
            texts = [read_end(folder, name, _SUM_BYTES).decode("utf-8", errors="replace") for name in names]
        except OSError as error:
            raise InputError(f"{folder}: the count of instructions cannot be read: {error}.") from None
        return read_cachegrind(texts)


@cache
def find_counter() -> Counter:
    if shutil.which("perf") is not None and _perf_counts():
        return Counter(PERF)
    if shutil.which("valgrind") is not None:
        return Counter(VALGRIND)
    raise InputError(
        "this machine cannot count instructions: perf is missing or reads no counter, and valgrind is not on PATH.",
        "install linux-perf and allow it (kernel.perf_event_paranoid at most 2), or install valgrind",
    )


def _perf_counts() -> bool:
    """Whether perf reads the counter of the processor; many virtual machines have none."""
    command = ["perf", "stat", "-x", ",", "-e", "instructions:u", "--", "true"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_S, check=False)
        return ended.returncode == 0 and read_perf(ended.stderr) > 0
    except (OSError, subprocess.SubprocessError, InputError):
        return False


def read_perf(text: str) -> float:
    """The number of instructions in the output of `perf stat -x ,`.

    >>> read_perf("123456,,instructions:u,1000,100.00,,")
    123456.0
    """
    match = re.search(r"^(\d+),[^,]*,instructions:u,", text, re.MULTILINE)
    if match is None:
        raise InputError(f"perf counted no instructions: {text.strip()[:200]!r}.")
    return float(match[1])


def read_cachegrind(texts: list[str]) -> float:
    """The number of instructions of all processes, in the files that Cachegrind wrote.

    >>> read_cachegrind(["summary: 100", "events: Ir\\nsummary: 20 3"])
    120.0
    """
    sums = [re.search(r"^summary: (\d+)", text, re.MULTILINE) for text in texts]
    if not sums or None in sums:
        raise InputError(f"Valgrind counted no instructions in {sums.count(None)} of {len(sums)} processes.")
    return float(sum(int(match[1]) for match in sums if match is not None))
