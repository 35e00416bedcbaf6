"""What does Slurm say? Submits a batch, asks what became of jobs, cancels them or puts them back into the queue.

`sacct` is asked where the cluster keeps accounts (slurmdbd), for it spares the controller; what it does not know, and
every job of a cluster without accounts, comes from `squeue` and, with its exit code, from `scontrol show job`. So does
what it may say too early: accounts have a requeued job as `NODE_FAIL` or `PREEMPTED` until it waits again. The parsers
are pure. Accounts that do not answer are left alone for a while; a controller that does not answer is asked again for
`PATIENCE_S`: one restart must not end a night.

Source: sacct(1), squeue(1), scontrol(1), sinfo(1), sbatch(1) of Slurm 22.05.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nightjar_ci.errors import ExecutorError
from nightjar_ci.executors.slurm.drain import SINFO_OPTIONS, read_drained
from nightjar_ci.untrusted.inheritance import inherit, select

PATIENCE_S = 300.0
ACCOUNTS_PAUSE_S = (5.0, 300.0)  # between two questions to accounts that do not answer: the first time, and at most
_ASK_TIMEOUT_S = 60
_AT_ONCE = 500  # job ids on one command line
_UNREACHED = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|reset|timed out)"
    r"|Unexpected message received|Resource temporarily unavailable|Slurm backup controller in standby"
    r"|Zero Bytes were transmitted",
    re.IGNORECASE,
)
ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    )
)
_ENDED_FOR_GOOD = frozenset(("COMPLETED", "OUT_OF_MEMORY", "TIMEOUT"))  # what no requeue follows
_EXPORTS = ("SBATCH_EXPORT", "SBATCH_GET_USER_ENV")  # would add variables of the login, or drop those that we give
HOPELESS = frozenset(  # reasons to wait that no other job's end removes
    (
        *("BadConstraints", "InvalidAccount", "InvalidQOS", "JobHeldAdmin", "JobHeldUser"),
        *("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "launch failed requeued held"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What Slurm says of a job.

    Attributes:
        state: a state of Slurm in full, such as `RUNNING`.
        elapsed_s: wall time of the present attempt, in whole seconds.
        nodes: where it runs or ran; empty where nowhere yet.
        reason: why it waits, or ended.
        exit_code: of the batch script; None where it is not known (yet).
        restarts: how often it was put back into the queue; known to `Cluster.show` alone.
    """

    state: str
    elapsed_s: float = 0.0
    nodes: str = ""
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing will happen any more."""
        return self.state in ENDED

    @property
    def doubtful(self) -> bool:
        """Whether the controller may know better, where accounts say this."""
        return self.state != "RUNNING" and self.state not in _ENDED_FOR_GOOD

    def outdated_by(self, other: JobState) -> bool:
        """Whether what the controller says holds instead; of two ends, accounts know more."""
        return not (self.ended and other.ended)

    @property
    def hopeless(self) -> bool:
        """Whether it waits for what will not come."""
        return self.state == "PENDING" and self.reason in HOPELESS


@dataclass(slots=True)
class Cluster:
    """The cluster that this machine's Slurm commands speak to."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _config: dict[str, str] = field(default_factory=dict)
    _accounts_pause_s: float = 0.0
    _accounts_again_at: float = 0.0

    def submit(self, script: str, environ: Mapping[str, str] | None = None) -> str:
        """Submits a batch script; its job id.

        Args:
            script: the text.
            environ: variables that reach the job; those that every job inherits where None. Those of an allocation
                around us do not. sbatch also gets its own options (`SBATCH_*`), but not which variables to export.

        Raises:
            ExecutorError: Slurm refuses it, or there is none.
        """
        given = inherit(self.environ) if environ is None else environ
        variables = {
            name: value
            for name, value in {**select(self.environ, ("SBATCH_*",)), **given}.items()
            if name not in _EXPORTS and (not name.startswith("SLURM_") or name in ("SLURM_CONF", "SLURM_CLUSTERS"))
        }
        answer = self._ask(("sbatch", "--parsable"), variables, script)
        return answer.strip().partition(";")[0]

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """What Slurm knows of jobs; one that it has forgotten is not in the answer.

        Raises:
            ExecutorError: no answer for `PATIENCE_S`.
        """
        found: dict[str, JobState] = {}
        for part in _parts(ids):
            found |= self._ask_accounts(part)
            rest = [one for one in part if one not in found or found[one].doubtful]
            if rest:
                known = self._ask_controller(rest)
                found |= {
                    one: state for one, state in known.items() if one not in found or found[one].outdated_by(state)
                }
        return {one: found[one] for one in ids if one in found}

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancels jobs; those that have ended stay as they are."""
        for part in _parts(ids):
            with contextlib.suppress(ExecutorError):
                self._ask(("scancel", "--quiet", *part), self.environ)

    def drained_nodes(self) -> dict[str, str]:
        """The nodes that are to take no more jobs, with the operator's reasons; none where Slurm does not say."""
        try:
            return read_drained(self._ask(("sinfo", *SINFO_OPTIONS), self.environ, patience_s=0))
        except ExecutorError:
            return {}

    def show(self, job: str) -> JobState:
        """What the controller says of a job now.

        Raises:
            ExecutorError: it says nothing, or does not know the job.
        """
        return read_scontrol(self._ask(("scontrol", "--oneliner", "show", "job", job), self.environ, patience_s=0))

    def requeue(self, job: str) -> bool:
        """Puts a job that runs back into the queue; False where it was submitted so that this cannot be.

        Its processes get SIGTERM, and SIGKILL after the cluster's `KillWait`. One that has ended stays as it is.

        Raises:
            ExecutorError: Slurm refuses it for another reason, or does not answer.
        """
        try:
            self._ask(("scontrol", "requeue", "incomplete", job), self.environ, patience_s=0)
        except ExecutorError as error:
            if "presently disabled" not in error.message:
                raise
            return False
        return True

    def keeps_accounts(self) -> bool:
        """Whether `sacct` knows anything here."""
        kind = self.config("AccountingStorageType")
        return kind not in ("", "(null)") and not kind.endswith("/none")

    def config(self, key: str) -> str:
        """A setting of the cluster (`scontrol show config`); empty where it has none of that name."""
        if not self._config:
            text = self._ask(("scontrol", "show", "config"), self.environ)
            pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
            self._config.update((name.strip(), value.strip()) for name, _, value in pairs)
        return self._config.get(key, "")

    def _ask_accounts(self, ids: Sequence[str]) -> dict[str, JobState]:
        """What `sacct` knows: nothing without slurmdbd, or while it does not answer."""
        if not self.keeps_accounts() or time.monotonic() < self._accounts_again_at:
            return {}
        command = ("sacct", "--noheader", "--parsable2", f"--format={SACCT_FIELDS}", f"--jobs={','.join(ids)}")
        try:
            found = read_sacct(self._ask(command, self.environ, patience_s=0))
        except ExecutorError:
            shortest_s, longest_s = ACCOUNTS_PAUSE_S
            self._accounts_pause_s = min(max(shortest_s, 2 * self._accounts_pause_s), longest_s)
            self._accounts_again_at = time.monotonic() + self._accounts_pause_s
            return {}
        self._accounts_pause_s = 0.0
        return found

    def _ask_controller(self, ids: Sequence[str]) -> dict[str, JobState]:
        options = ("--noheader", "--array", "--states=all", f"--format={SQUEUE_FORMAT}")
        try:
            found = read_squeue(self._ask(("squeue", *options, f"--jobs={','.join(ids)}"), self.environ))
        except ExecutorError as error:
            if "Invalid job id" not in error.message:
                raise
            found = {}  # the only job asked for is forgotten
        for one in [one for one, state in found.items() if state.ended and one in ids]:
            with contextlib.suppress(ExecutorError):  # forgotten between two questions: the state stays
                found |= {one: read_scontrol(self._ask(("scontrol", "--oneliner", "show", "job", one), self.environ))}
        return found

    def _ask(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        text: str | None = None,
        patience_s: float | None = None,
    ) -> str:
        """Runs a command of Slurm; again and again, ever less often, while the daemon behind it does not answer."""
        patience_s = PATIENCE_S if patience_s is None else patience_s
        start, pause = time.monotonic(), 0.5
        while True:
            problem = "no answer"
            try:
                asked = subprocess.run(
                    command,
                    env=dict(environ),
                    input=text,
                    stdin=None if text is not None else subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_ASK_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                pass
            except OSError as error:
                raise ExecutorError(
                    f"{command[0]} cannot be run: {error}.", "is this a login node of a Slurm cluster, Slurm on PATH?"
                ) from None
            else:
                if asked.returncode == 0:
                    return asked.stdout
                problem = asked.stderr.strip() or f"exit code {asked.returncode}"
                if not _UNREACHED.search(problem):
                    raise ExecutorError(f"`{' '.join(command[:3])}` failed: {problem}")
            if time.monotonic() - start >= patience_s:
                raise ExecutorError(
                    f"the Slurm controller has not answered for {patience_s:g} s: {problem}", "`scontrol ping`"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 30.0)


SACCT_FIELDS = "JobID,State,ElapsedRaw,NodeList,ExitCode"
SQUEUE_FORMAT = "%i|%T|%M|%N|%r"


def read_sacct(text: str) -> dict[str, JobState]:
    """The jobs of `sacct --parsable2 --format=SACCT_FIELDS`.

    A job whose step was out of memory is so itself; Slurm has it as failed when its batch script went on after that.

    >>> read_sacct("7|CANCELLED by 0|12|n1|0:15\\n8_[1-3]|PENDING|0|None assigned|0:0\\n")["7"].state
    'CANCELLED'
    >>> read_sacct("7|FAILED|2|n1|1:0\\n7.batch|FAILED|2|n1|1:0\\n7.0|OUT_OF_MEMORY|2|n1|0:125\\n")["7"].state
    'OUT_OF_MEMORY'
    """
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        job_id, state, elapsed, nodes, exit_code = line.split("|")
        word, _, reason = state.partition(" ")
        job, dot, _ = job_id.partition(".")
        if dot and word == "OUT_OF_MEMORY" and job in found and found[job].state == "FAILED":
            found[job] = replace(found[job], state=word)
        elif not dot and "[" not in job_id:  # the elements of an array that wait are one line without their numbers
            found[job_id] = JobState(
                state=word,
                elapsed_s=float(elapsed or 0),
                nodes="" if nodes == "None assigned" else nodes,
                reason=reason,
                exit_code=_read_code(exit_code),
            )
    return found


def read_squeue(text: str) -> dict[str, JobState]:
    """The jobs of `squeue --array --format=SQUEUE_FORMAT`.

    >>> read_squeue("7_1|RUNNING|1:05|n[1-2]|None\\n")["7_1"].elapsed_s
    65.0
    """
    found = {}
    for line in text.splitlines():
        job_id, state, elapsed, nodes, reason = line.split("|", 4)
        found[job_id] = JobState(
            state=state, elapsed_s=read_elapsed(elapsed), nodes=nodes, reason="" if reason == "None" else reason
        )
    return found


def read_scontrol(text: str) -> JobState:
    """The job of `scontrol --oneliner show job ID`.

    >>> read_scontrol("JobId=7 JobState=FAILED Reason=NonZeroExitCode RunTime=00:00:02 NodeList=n1 ExitCode=7:0")
    JobState(state='FAILED', elapsed_s=2.0, nodes='n1', reason='NonZeroExitCode', exit_code=7, restarts=0)
    """
    found = dict(re.findall(r"(?:^|\s)(JobState|Reason|RunTime|NodeList|ExitCode|Restarts)=(\S*)", text))
    return JobState(
        state=found["JobState"],
        elapsed_s=read_elapsed(found.get("RunTime", "")),
        nodes="" if found.get("NodeList", "(null)") == "(null)" else found["NodeList"],
        reason="" if found.get("Reason", "None") == "None" else found["Reason"],
        exit_code=_read_code(found.get("ExitCode", "")),
        restarts=int(found.get("Restarts", "0")),
    )


def read_elapsed(text: str) -> float:
    """Seconds of Slurm's `[days-][hours:]minutes:seconds`; 0 where it is none.

    >>> read_elapsed("1-02:03:04"), read_elapsed("5:06"), read_elapsed("INVALID")
    (93784.0, 306.0, 0.0)
    """
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _read_code(text: str) -> int | None:
    """The exit code of `code:signal`; 128 + n where signal n ended the batch script."""
    code, _, signal = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) if signal in ("", "0") else 128 + int(signal)


def _parts(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
