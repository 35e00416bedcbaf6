"""Supervisor program: runs one job and kills every descendant that outlives it.

In: the command, on the command line; fd 0, a pipe that the caller holds open: `t` requests a graceful end, and the end
of the pipe (the caller has exited or closed it) an immediate one. Out: one line on a pipe, `end STATUS PEAK OWN_PEAK`
(wait status; peak resident sets of the job and of this program, in the system's unit) or `error ERRNO`. The job's
stdout and stderr come through pipes and go to our own, which are files. A long log keeps its head and its tail, so that
a job that prints for ever does not fill the disk.

It is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): a process that leaves the job's process group or session by setsid
becomes its child, so it is killed, too. It runs by path and imports only the interpreter's built-in modules, because a
job of one second must not wait for imports. On systems without prctl it kills the process group only.
"""

# pathlib and contextlib would take a third of the start-up time of this program:
# ruff: noqa: PTH123, PTH208, SIM105

import os
import resource
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
CONTROL = 0
END_BYTES = 8 * 2**20  # kept of a long log, at either end
CHUNK_BYTES = 65536  # capacity of a pipe
MOST_PIPED_BYTES = 2**20  # proc_sys_fs(5): capacity of an enlarged pipe
LEFT_OUT = b"\n[nightjar left out %20d bytes here]\n"


def main(report_to: int, grace_s: float, cpus: str, outside: list[str], command: list[str]) -> int:
    """Runs the command until it ends and reports how.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL.
        cpus: the CPUs that the job may use, such as `0-3,8`; empty for all.
        outside: a command that ends remote parts of the job, run if the caller has exited; may be empty.
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
        logs[pipe] = Log(descriptor, os.environ.get("NIGHTJAR_KEEP_LINES", "").encode())
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
    floor = own_peak()  # before logs grow: the size at which the kernel counts the job until it executes its command
    for end in ends:
        os.close(end)
    caller_gone = wait_for_end(job, wake, grace_s, logs)
    kill_descendants(job)
    status, peak = reap(job)
    for pipe, log in logs.items():
        os.set_blocking(pipe, False)
        for _ in range(MOST_PIPED_BYTES // CHUNK_BYTES):
            if not copy_chunk(pipe, log):
                break
        log.close()
    if caller_gone and outside:
        os.spawnvp(os.P_WAIT, outside[0], outside)
    report(report_to, f"end {status} {peak} {floor}")
    return 0


def read_cpus(text: str) -> set[int]:
    """The CPU numbers of a list.

    >>> sorted(read_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    ends = [part.split("-") for part in text.split(",")]
    return {number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)}


class Log:
    """A file that keeps the head and the tail of its input, and the number of bytes left out between.

    Until it is closed it may hold two tails. When both are full, the second replaces the first, so each byte is written
    at most twice, and the file always contains the end of the log.
    """

    def __init__(self, descriptor: int, keep: bytes = b"") -> None:
        self.descriptor = descriptor
        self.keep = keep  # a word: the last line with it before the tail, followed by `=` or `:`, is kept, too
        self.kept = b""
        try:
            os.lseek(descriptor, 0, os.SEEK_CUR)
            self.is_pipe = False
        except OSError:
            self.is_pipe = True  # its reader masks the output and limits its size
        self.size = 0
        self.tail_at = END_BYTES  # start of the tail: after the head and the line about left-out bytes
        self.left_out = 0
        self.lost, self.why_lost = 0, ""

    def write(self, data: bytes) -> None:
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
        """Moves the tail to directly after the head."""
        source = self.size - END_BYTES
        try:
            source += os.pread(self.descriptor, CHUNK_BYTES, source).find(b"\n") + 1  # begin with a whole line
            kept = self.find_kept(self.tail_at if self.left_out else 0, source) if self.keep else b""
            self.kept = kept or self.kept
            self.left_out += source - self.tail_at
            line = LEFT_OUT % self.left_out + self.kept
            os.pwrite(self.descriptor, line, END_BYTES)
            self.tail_at = target = END_BYTES + len(line)
            while chunk := os.pread(self.descriptor, min(CHUNK_BYTES, self.size - source), source):
                os.pwrite(self.descriptor, chunk, target)
                source, target = source + len(chunk), target + len(chunk)
            os.ftruncate(self.descriptor, target)
            self.size = target
        except OSError as error:
            self.why_lost = str(error.strerror)

    def find_kept(self, start: int, stop: int) -> bytes:
        """The last line with the kept word in a part of the file, cut to 1 KiB around it; empty if there is none."""
        at = stop
        while at > start:
            begin = max(start, at - MOST_PIPED_BYTES)
            data = os.pread(self.descriptor, at - begin + len(self.keep), begin)
            found = len(data)
            while (found := data.rfind(self.keep, 0, found)) >= 0:
                around = os.pread(self.descriptor, 1024, max(start, begin + found - 512))
                word = min(512, begin + found - start)
                rest = around[word + len(self.keep) :].lstrip(b" \t")
                if rest[:1] in (b"=", b":"):
                    end = around.find(b"\n", word)
                    return around[around.rfind(b"\n", 0, word) + 1 : end if end >= 0 else len(around)] + b"\n"
            at = begin
        return b""

    def close(self) -> None:
        """Leaves one tail, and notes the number of bytes that could not be written."""
        if self.is_pipe:
            return
        if self.size > self.tail_at + END_BYTES:
            self.shorten()
        if self.lost:
            self.write(b"\n[nightjar: %d bytes could not be written: %s]\n" % (self.lost, self.why_lost.encode()))
        os.lseek(self.descriptor, self.size, os.SEEK_SET)  # for our own messages


def copy_chunk(pipe: int, log: Log) -> bool:
    """Copies the content of a pipe to a log; returns whether there was any."""
    try:
        data = os.read(pipe, CHUNK_BYTES)
    except BlockingIOError:
        return False
    log.write(data)
    return bool(data)


def wait_for_end(job: int, wake: int, grace_s: float, logs: dict[int, Log]) -> bool:
    """Waits until the job has ended or must end, and copies its logs; returns whether the caller has exited."""
    inputs = [CONTROL, wake, *logs]
    deadline = None
    while os.waitid(os.P_PID, job, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        left = None
        if deadline is not None:
            left = max(0.0, deadline - time.monotonic())
        ready = select.select(inputs, [], [], left)[0]
        for pipe in logs:
            if pipe in ready and not copy_chunk(pipe, logs[pipe]):
                inputs.remove(pipe)  # all its writers have exited
        if wake in ready:
            os.read(wake, 512)
        if CONTROL in ready:
            if not os.read(CONTROL, 1):
                return True
            for pid in find_descendants(job):
                send_signal(pid, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
        elif deadline is not None and time.monotonic() >= deadline:
            return False
        reap_orphans(job)
    return False


def kill_descendants(job: int) -> None:
    """Kills the job's process group and all other descendants, until none is left."""
    send_signal(-job, signal.SIGKILL)
    for _ in range(1000):  # the next scan sees a process forked between scan and signal
        left = [pid for pid in find_descendants(job) if pid != job]
        if not left:
            break
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        reap_orphans(job)
        select.select([], [], [], 0.002)


def find_descendants(job: int) -> list[int]:
    """The job and all other descendants of this process; the job's process group if there is no /proc."""
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
    pids = list(children.get(os.getpid(), []))
    for pid in pids:
        pids += children.get(pid, [])
    return pids


def reap_orphans(job: int) -> None:
    """Reaps ended children except the job itself, whose pid must stay reserved until last."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None or ended.si_pid == job:
                return
            os.waitpid(ended.si_pid, 0)
        except ChildProcessError:
            return


def reap(job: int) -> tuple[int, int]:
    """The job's wait status, and the peak resident set of the largest of its processes that was waited for.

    The job's own usage is not enough: bubblewrap leaves without waiting for the process that it started.
    """
    _, status = os.waitpid(job, 0)
    reap_orphans(job)
    return status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def own_peak() -> int:
    """Our own peak resident set, which hides a smaller job's; 0 if it is unknown."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"VmHWM:"))
    except (OSError, StopIteration):
        return 0


def become_subreaper() -> None:
    """Makes orphaned descendants our children; does nothing if the system cannot."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def send_signal(pid: int, number: int) -> None:
    """Signals a process, or a process group if negative, that may have exited."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def report(report_to: int, line: str) -> None:
    try:
        os.write(report_to, line.encode())
    except OSError:
        pass


if __name__ == "__main__":
    first = 5 + int(sys.argv[4])
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[5:first], sys.argv[first:]))
