"""Client of a Slurm cluster: submits batches, reads job states, cancels and requeues jobs.

If the cluster keeps accounts (slurmdbd), states come from `sacct`, which spares the controller. Jobs that `sacct` does
not know, and all jobs of a cluster without accounts, are read from `squeue` and, for the exit code, from `scontrol show
job`. So are states that accounts may report too early: they show a requeued job as `NODE_FAIL` or `PREEMPTED` until it
is pending again. The parsers are pure. If the accounts do not answer, they are not queried for a while; if the
controller does not answer, calls are retried for `PATIENCE_S`, so a restart of the controller does not end a night.

Source: sacct(1), squeue(1), scontrol(1), sinfo(1), sbatch(1) of Slurm 22.05.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nightjar_ci.errors import ExecutorError
from nightjar_ci.untrusted.inheritance import inherit, select

PATIENCE_S = 300.0
ACCOUNTS_PAUSE_S = (5.0, 300.0)  # pause of queries to accounts that do not answer: first and longest
_COMMAND_TIMEOUT_S = 60
_IDS_PER_CALL = 500  # job ids on one command line
_UNREACHED = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|reset|timed out)"
    r"|Unexpected message received|Resource temporarily unavailable|Slurm backup controller in standby"
    r"|Zero Bytes were transmitted|authentication|munge",
    re.IGNORECASE,
)
ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    )
)
_ENDED_FOR_GOOD = frozenset(("COMPLETED", "OUT_OF_MEMORY", "TIMEOUT"))  # never followed by a requeue
_EXPORTS = ("SBATCH_EXPORT", "SBATCH_GET_USER_ENV")  # would add login variables, or drop ours
_OVER_LIMIT = re.compile(r"(QOS|Assoc)(Max\w*PerJob|Min)|MaxMemPerLimit|\w+NotAllowed|JobHoldMax")  # of one job alone
NEVER_STARTS = frozenset(  # pending reasons that do not go away when other jobs end
    (
        *("BadConstraints", "InvalidAccount", "InvalidQOS", "JobHeldAdmin", "JobHeldUser"),
        *("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "launch failed requeued held"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Slurm's state of a job.

    Attributes:
        state: Slurm job state, unabbreviated, such as `RUNNING`.
        elapsed_s: wall time of the current attempt, in whole seconds.
        nodes: nodes it runs or ran on; empty if it has not started.
        reason: why it is pending or has ended.
        exit_code: of the batch script; None if unknown.
    """

    state: str
    elapsed_s: float = 0.0
    nodes: str = ""
    reason: str = ""
    exit_code: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def needs_controller(self) -> bool:
        """Whether the controller may know better when accounts report this state."""
        return self.state != "RUNNING" and self.state not in _ENDED_FOR_GOOD

    def superseded_by(self, other: JobState) -> bool:
        """Whether the controller's state replaces this one; accounts know more about a job that has ended."""
        return not (self.ended and other.ended)

    @property
    def never_starts(self) -> bool:
        return self.state == "PENDING" and (self.reason in NEVER_STARTS or _OVER_LIMIT.match(self.reason) is not None)


@dataclass(slots=True)
class Cluster:
    """The cluster of this machine's Slurm commands."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _config: dict[str, str] = field(default_factory=dict)
    _accounts_pause_s: float = 0.0
    _accounts_retry_at: float = 0.0

    def submit(self, script: str, environ: Mapping[str, str] | None = None) -> str:
        """Submits a batch script and returns its job id.

        Args:
            environ: variables that the job gets, without the variables of an allocation we run in; if None, those that
                every job inherits. sbatch also gets its own options (`SBATCH_*`), except which variables to export.
        """
        job_variables = inherit(self.environ) if environ is None else environ
        variables = {
            name: value
            for name, value in {**select(self.environ, ("SBATCH_*",)), **job_variables}.items()
            if name not in _EXPORTS and (not name.startswith("SLURM_") or name in ("SLURM_CONF", "SLURM_CLUSTERS"))
        }
        # A busy controller may take a job though it does not answer: before another try, that one goes.
        name = re.search(r"--job-name=(\S+)", script)
        named = f"--job-name={'nightjar' if name is None else name[1]}-{secrets.token_hex(4)}"
        output = self._call(("sbatch", "--parsable", named), variables, script)
        job, _, cluster = output.strip().partition(";")
        if cluster:  # not this machine's: the other commands ask it, too
            self.environ = {**self.environ, "SLURM_CLUSTERS": cluster}
        return job

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """The states of jobs; a job that Slurm has forgotten is left out."""
        states: dict[str, JobState] = {}
        for chunk in _chunks(ids):
            states |= self._read_accounts(chunk)
            unsure = [job for job in chunk if job not in states or states[job].needs_controller]
            if unsure:
                for job, state in self._read_controller(unsure).items():
                    if job not in states or states[job].superseded_by(state):
                        states[job] = state
        return {job: states[job] for job in ids if job in states}

    def cancel(self, ids: Sequence[str]) -> None:
        for chunk in _chunks(ids):
            with contextlib.suppress(ExecutorError):
                self._call(("scancel", "--quiet", *chunk), self.environ)

    def keeps_accounts(self) -> bool:
        kind = self.config("AccountingStorageType")
        return kind not in ("", "(null)") and not kind.endswith("/none")

    def config(self, key: str) -> str:
        """A cluster setting (`scontrol show config`); empty if there is none with that name."""
        if not self._config:
            text = self._call(("scontrol", "show", "config"), self.environ)
            pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
            self._config.update((name.strip(), value.strip()) for name, _, value in pairs)
        return self._config.get(key, "")

    def _read_accounts(self, ids: Sequence[str]) -> dict[str, JobState]:
        """The states in `sacct`; none without slurmdbd, or while it does not answer."""
        if not self.keeps_accounts() or time.monotonic() < self._accounts_retry_at:
            return {}
        command = ("sacct", "--noheader", "--parsable2", f"--format={SACCT_FIELDS}", f"--jobs={','.join(ids)}")
        try:
            states = read_sacct(self._call(command, self.environ, patience_s=0))
        except ExecutorError:
            shortest_s, longest_s = ACCOUNTS_PAUSE_S
            self._accounts_pause_s = min(max(shortest_s, 2 * self._accounts_pause_s), longest_s)
            self._accounts_retry_at = time.monotonic() + self._accounts_pause_s
            return {}
        self._accounts_pause_s = 0.0
        return states

    def _read_controller(self, ids: Sequence[str]) -> dict[str, JobState]:
        options = ("--noheader", "--array", "--states=all", f"--format={SQUEUE_FORMAT}")
        try:
            states = read_squeue(self._call(("squeue", *options, f"--jobs={','.join(ids)}"), self.environ))
        except ExecutorError as error:
            if "Invalid job id" not in error.message:
                raise
            states = {}  # Slurm has forgotten the only job of the query
        for job in [job for job, state in states.items() if state.ended and job in ids]:
            with contextlib.suppress(ExecutorError):  # forgotten between two calls: keep the state
                states[job] = read_scontrol(self._call(("scontrol", "--oneliner", "show", "job", job), self.environ))
        return states

    def _call(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        text: str | None = None,
        patience_s: float | None = None,
    ) -> str:
        """Runs a Slurm command; retries with growing pauses while the daemon does not answer."""
        if patience_s is None:
            patience_s = PATIENCE_S
        start, pause = time.monotonic(), 0.5
        while True:
            problem = "no answer"
            try:
                done = subprocess.run(
                    command,
                    env=dict(environ),
                    input=text,
                    stdin=None if text is not None else subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_COMMAND_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                pass
            except OSError as error:
                raise ExecutorError(
                    f"cannot run {command[0]}: {error}.",
                    "use a login node of a Slurm cluster, with the Slurm commands on PATH",
                ) from None
            else:
                if done.returncode == 0:
                    return done.stdout
                problem = done.stderr.strip() or f"exit code {done.returncode}"
                if not _UNREACHED.search(problem):
                    raise ExecutorError(f"`{' '.join(command[:3])}` failed: {problem}")
            if time.monotonic() - start >= patience_s:
                raise ExecutorError(
                    f"the Slurm controller has not answered for {patience_s:g} s: {problem}",
                    "check the controller with `scontrol ping`",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 30.0)
            if command[0] == "sbatch":
                with contextlib.suppress(ExecutorError):
                    self._call(
                        ("scancel", "--quiet", command[-1].replace("--job-name", "--name")), environ, patience_s=0
                    )


SACCT_FIELDS = "JobID,State,ElapsedRaw,NodeList,ExitCode"
SQUEUE_FORMAT = "%i|%T|%M|%N|%r"


def read_sacct(text: str) -> dict[str, JobState]:
    """The jobs of `sacct --parsable2 --format=SACCT_FIELDS`.

    A job with a step that ran out of memory counts as out of memory; Slurm reports `FAILED` if its script continued.

    >>> read_sacct("7|CANCELLED by 0|12|n1|0:15\\n8_[1-3]|PENDING|0|None assigned|0:0\\n")["7"].state
    'CANCELLED'
    >>> read_sacct("7|FAILED|2|n1|1:0\\n7.batch|FAILED|2|n1|1:0\\n7.0|OUT_OF_MEMORY|2|n1|0:125\\n")["7"].state
    'OUT_OF_MEMORY'
    """
    states: dict[str, JobState] = {}
    for line in text.splitlines():
        job_id, state, elapsed, nodes, exit_code = line.split("|")
        word, _, reason = state.partition(" ")
        job, dot, _ = job_id.partition(".")
        if dot and word == "OUT_OF_MEMORY" and job in states and states[job].state == "FAILED":
            states[job] = replace(states[job], state=word)
        elif not dot and "[" not in job_id:  # pending array elements share one line, without their numbers
            states[job_id] = JobState(
                state=word,
                elapsed_s=float(elapsed or 0),
                nodes="" if nodes == "None assigned" else nodes,
                reason=reason,
                exit_code=_read_code(exit_code),
            )
    return states


def read_squeue(text: str) -> dict[str, JobState]:
    """The jobs of `squeue --array --format=SQUEUE_FORMAT`.

    >>> read_squeue("7_1|RUNNING|1:05|n[1-2]|None\\n")["7_1"].elapsed_s
    65.0
    """
    states = {}
    for line in text.splitlines():
        job_id, state, elapsed, nodes, reason = line.split("|", 4)
        if reason == "None":
            reason = ""
        states[job_id] = JobState(state=state, elapsed_s=read_elapsed(elapsed), nodes=nodes, reason=reason)
    return states


def read_scontrol(text: str) -> JobState:
    """The job of `scontrol --oneliner show job ID`.

    >>> read_scontrol("JobId=7 JobState=FAILED Reason=NonZeroExitCode RunTime=00:00:02 NodeList=n1 ExitCode=7:0")
    JobState(state='FAILED', elapsed_s=2.0, nodes='n1', reason='NonZeroExitCode', exit_code=7)
    """
    fields = dict(re.findall(r"(?:^|\s)(JobState|Reason|RunTime|NodeList|ExitCode|Restarts)=(\S*)", text))
    nodes, reason = fields.get("NodeList", ""), fields.get("Reason", "")
    return JobState(
        state=fields["JobState"],
        elapsed_s=read_elapsed(fields.get("RunTime", "")),
        nodes="" if nodes == "(null)" else nodes,
        reason="" if reason == "None" else reason,
        exit_code=_read_code(fields.get("ExitCode", "")),
    )


def read_elapsed(text: str) -> float:
    """Seconds of Slurm's `[days-][hours:]minutes:seconds`; 0 for anything else.

    >>> read_elapsed("1-02:03:04"), read_elapsed("5:06"), read_elapsed("INVALID")
    (93784.0, 306.0, 0.0)
    """
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _read_code(text: str) -> int | None:
    """The exit code of `code:signal`; 128 + n if signal n ended the batch script."""
    code, _, signal = text.partition(":")
    if not code.isdigit():
        return None
    if signal in ("", "0"):
        return int(code)
    return 128 + int(signal)


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + _IDS_PER_CALL] for start in range(0, len(ids), _IDS_PER_CALL))
