"""How does nothing of a job outlive it, whatever it starts? This small program stands between us and the job.

In: the command, on its command line; fd 0, a pipe that we hold open, where `t` asks for an end with grace and the end
of the pipe (we are gone, or want no more) for an end at once. Out: one line on a pipe: `end STATUS PEAK OWN_PEAK`
(wait status, peak resident sets of the job and of this program, in the system's unit) or `error ERRNO`. What the job
writes to stdout and stderr comes through pipes into our own, which are files: of a long log its head and its tail are
kept, so that a job that prints for ever fills no disk.

It is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): what leaves the job's process group or session by setsid becomes
its child and is found. It runs alone, by path, with nothing but the interpreter's built-in modules, for a job of one
second must not pay for imports; on systems without prctl it ends the process group only.
"""

# pathlib and contextlib would be a third of the time that this program takes to start:
# ruff: noqa: PTH123, PTH208, SIM105

import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
CONTROL = 0
END_BYTES = 8 * 2**20  # of a log that are kept, on either side
CHUNK_BYTES = 65536  # what a pipe holds
MOST_PIPED_BYTES = 2**20  # proc_sys_fs(5): what an enlarged pipe holds
LEFT_OUT = b"\n[nightjar left out %20d bytes here]\n"


def main(report_to: int, grace_s: float, cpus: str, outside: list[str], command: list[str]) -> int:
    """Runs the command to its end and reports it.

    Args:
        report_to: the pipe to report on.
        grace_s: between SIGTERM and SIGKILL.
        cpus: the processors that the job may use, such as `0-3,8`; empty for all.
        outside: a command that ends what runs elsewhere for the job, for when we are gone; may be empty.
        command: the job's argument list, looked up on PATH.
    """
    become_subreaper()
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    nothing = os.open(os.devnull, os.O_RDONLY)
    logs, ends = {}, []
    for descriptor in (1, 2):
        pipe, end = os.pipe()
        logs[pipe] = Log(descriptor)
        ends.append(end)
    try:
        if cpus:
            os.sched_setaffinity(0, read_cpus(cpus))
        job = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, ends[0], 1),
                (os.POSIX_SPAWN_DUP2, ends[1], 2),
                (os.POSIX_SPAWN_CLOSE, report_to),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD],
        )
    except (OSError, ValueError) as error:
        report(report_to, f"error {getattr(error, 'errno', None) or 22}")
        return 1
    floor = own_peak()  # before logs grow: what the job was counted with until it became its command
    for end in ends:
        os.close(end)
    gone = follow(job, wake, grace_s, logs)
    kill(job)
    status, peak = reap(job)
    for pipe, log in logs.items():
        os.set_blocking(pipe, False)
        for _ in range(MOST_PIPED_BYTES // CHUNK_BYTES):
            if not take(pipe, log):
                break
        log.close()
    if gone and outside:
        os.spawnvp(os.P_WAIT, outside[0], outside)
    report(report_to, f"end {status} {peak} {floor}")
    return 0


def read_cpus(text: str) -> set[int]:
    """The numbers of a list of processors.

    >>> sorted(read_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    ends = [part.split("-") for part in text.split(",")]
    return {number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)}


class Log:
    """A file that keeps the head and the tail of what is written to it, and how many bytes were left out between.

    Until it is closed it may hold two tails: the second is moved over the first when both are full, so that each byte
    is written twice at most, and the end of the log is in the file whenever somebody looks.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        try:
            os.lseek(descriptor, 0, os.SEEK_CUR)
            self.is_pipe = False
        except OSError:
            self.is_pipe = True  # whoever reads it masks what is written, and keeps it short
        self.size = 0
        self.tail_at = END_BYTES  # where the tail begins, behind the head and the line that says what is left out
        self.left_out = 0
        self.lost, self.why_lost = 0, ""

    def write(self, data: bytes) -> None:
        """Adds data; what the disk does not take is counted."""
        try:
            while data and self.is_pipe:
                data = data[os.write(self.descriptor, data) :]
            while data:
                written = os.pwrite(self.descriptor, data, self.size)
                self.size += written
                data = data[written:]
        except OSError as error:
            self.lost, self.why_lost = self.lost + len(data), str(error.strerror)
        if self.size >= self.tail_at + 2 * END_BYTES:
            self.shorten()

    def shorten(self) -> None:
        """Moves the last bytes behind the head."""
        source = self.size - END_BYTES
        try:
            source += os.pread(self.descriptor, CHUNK_BYTES, source).find(b"\n") + 1  # a whole line is the first
            self.left_out += source - self.tail_at
            line = LEFT_OUT % self.left_out
            os.pwrite(self.descriptor, line, END_BYTES)
            self.tail_at = target = END_BYTES + len(line)
            while chunk := os.pread(self.descriptor, min(CHUNK_BYTES, self.size - source), source):
                os.pwrite(self.descriptor, chunk, target)
                source, target = source + len(chunk), target + len(chunk)
            os.ftruncate(self.descriptor, target)
            self.size = target
        except OSError as error:
            self.why_lost = str(error.strerror)

    def close(self) -> None:
        """Leaves one tail, and says what the disk did not take."""
        if self.is_pipe:
            return
        if self.size > self.tail_at + END_BYTES:
            self.shorten()
        if self.lost:
            self.write(b"\n[nightjar: %d bytes could not be written: %s]\n" % (self.lost, self.why_lost.encode()))
        os.lseek(self.descriptor, self.size, os.SEEK_SET)  # for what we ourselves may say


def take(pipe: int, log: Log) -> bool:
    """Moves what a pipe holds into a log; whether there was anything."""
    try:
        data = os.read(pipe, CHUNK_BYTES)
    except BlockingIOError:
        return False
    log.write(data)
    return bool(data)


def follow(job: int, wake: int, grace_s: float, logs: dict[int, Log]) -> bool:
    """Waits until the job has ended or must, and keeps its logs; whether we are gone."""
    watched = [CONTROL, wake, *logs]
    deadline = None
    while os.waitid(os.P_PID, job, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select(watched, [], [], left)[0]
        for pipe in logs:
            if pipe in ready and not take(pipe, logs[pipe]):
                watched.remove(pipe)  # nobody can write to it any more
        if wake in ready:
            os.read(wake, 512)
        if CONTROL in ready:
            if not os.read(CONTROL, 1):
                return True
            for pid in family(job):
                signal_one(pid, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
        elif deadline is not None and time.monotonic() >= deadline:
            return False
        reap_orphans(job)
    return False


def kill(job: int) -> None:
    """Ends the job's group and whatever else has come from it, until nothing is left."""
    signal_one(-job, signal.SIGKILL)
    for _ in range(1000):  # a fork between the look and the signal is found by the next look
        left = [pid for pid in family(job) if pid != job]
        if not left:
            break
        for pid in left:
            signal_one(pid, signal.SIGKILL)
        reap_orphans(job)
        select.select([], [], [], 0.002)


def family(job: int) -> list[int]:
    """The job and every descendant of ours, found by their parents; the job's group where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return [-job]
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found += children.get(pid, [])
    return found


def reap_orphans(job: int) -> None:
    """Waits for what has become our child and has ended; the job itself is waited for last, its number kept."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None or ended.si_pid == job:
                return
            os.waitpid(ended.si_pid, 0)
        except ChildProcessError:
            return


def reap(job: int) -> tuple[int, int]:
    """The job's wait status and its peak resident set."""
    _, status, usage = os.wait4(job, 0)
    return status, usage.ru_maxrss


def own_peak() -> int:
    """Our own peak resident set, from which that of a smaller job cannot be told; 0 where it is not known."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"VmHWM:"))
    except (OSError, StopIteration):
        return 0


def become_subreaper() -> None:
    """Makes the orphans among our descendants our children; where the system cannot, they are not found."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def signal_one(pid: int, number: int) -> None:
    """Signals a process, or a negative number's group, that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def report(report_to: int, line: str) -> None:
    """Tells how it went; nobody may listen any more."""
    try:
        os.write(report_to, line.encode())
    except OSError:
        pass


if __name__ == "__main__":
    first = 5 + int(sys.argv[4])
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[5:first], sys.argv[first:]))
