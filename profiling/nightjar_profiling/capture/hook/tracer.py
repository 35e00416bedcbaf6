"""The tracer inside the traced program: it starts and stops the trace.

With steps A:B, the trace starts when a step annotation (`jax.profiler.StepTraceAnnotation`) of that range is entered,
and stops when the annotation that ends the range is left and the device is idle. Without steps, it runs from the moment
that the program's first use of JAX made the backends until the program ends. Each process leaves `<pid>.xplane.pb`, and
`<pid>.json` with what happened, in the folder that $NIGHTJAR_CAPTURE_RAW names. A failure here never reaches the
program. Standard library only.

Under Nsight Systems, JAX's profiler makes no trace. The first step calls `cuProfilerStart` and the last calls
`cuProfilerStop`, for which nsys waits. XLA dumps its programs to `<pid>.dump`, because nsys knows only their names.

Source: jax-ml/jax:jax/_src/profiler.py, jax/_src/xla_bridge.py
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .devices import call_driver, wait_for_devices
from .executed import find_caller, read_texts
from .exits import arm_exits, guard, undisturbed
from .host_time import HostSampler
from .lowered import keep_lowered
from .own_traces import share_with_own_traces

COMPILE_PHASES = ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile", "cache_retrieval_time_sec")
PATIENCE_S = 10  # another thread may be ending the trace when the program leaves
MOST_COMPILES = 100_000  # a program that compiles more often has recorded enough


class Tracer:
    """Starts at most one trace in this process, and always ends it.

    Args:
        steps: first and last step to trace, or None for the whole run.
    """

    def __init__(self, profiler: ModuleType, folder: Path, steps: tuple[int, int] | None) -> None:
        self.profiler = profiler
        self.start_trace, self.stop_trace = profiler.start_trace, profiler.stop_trace
        self.folder = folder
        self.steps = steps
        self.pid = os.getpid()
        self.state = "waiting"  # then tracing, then done
        self.annotation: str | None = None  # name of the annotation that started the trace
        self.session: Any = None  # jaxlib's, of a JAX whose own trace takes no options
        self.lock = threading.RLock()
        self.own_trace: Path | None = None  # log folder of a trace that the program itself started
        self.seconds = 0.0  # the longest trace; 0 for any
        self.own_steps: list[int] = []  # first and last step in it
        self.missed = False  # ours was to begin during it
        self.guards = False  # whether signals end the trace before they end the program
        self.exiting: tuple[signal.Signals, ...] = ()  # at the end: signals that have no more to end
        self.listening = True  # to the compiler
        self.steps_inside = 0  # annotations of the steps that were traced
        self.used: dict[str, float] = {}  # by this process when the trace began
        self.compiles: list[str] = []  # spans of tracing, lowering and compiling, each as a line of JSON
        self.host = HostSampler()
        self.notes: dict[str, Any] = {"pid": self.pid, "state": self.state, "error": None, "seen": None, "traced": None}
        self.write_notes()
        atexit.register(self.at_exit)

    def start(self) -> None:
        """Starts the trace: device and runtime events only, since a Python tracer would slow the program."""
        if self.guards and self.state == "waiting":
            guard(self)
        with self.lock, undisturbed():
            if self.state != "waiting" or os.getpid() != self.pid:
                return
            if self.own_trace is not None:  # JAX runs one trace at a time, and may hold its lock now
                self.missed = True
                return
            self.state = "tracing"
            atexit.register(self.stop)  # again, and late: exit handlers run last first, JAX's take the backends away
            try:
                if self.steps is not None:  # what earlier steps have queued is no part of them
                    wait_for_devices()
                self.begin()
                self.used = self.read_usage()
                self.host.start()
                if self.seconds:  # the devices are not waited for: the program goes on giving them work
                    why = f"the trace ended after {self.seconds:g} s, as asked, and the program ran on"
                    timer = threading.Timer(self.seconds, self.stop, [why], {"wait": False})
                    timer.daemon = True
                    timer.start()
            except Exception as error:
                self.finish(f"the trace did not start: {error}")
            self.write_notes()

    def stop(self, reason: str | None = None, *, wait: bool = True) -> None:
        """Ends the trace and puts it in its place."""
        with self.lock, undisturbed(drop=self.exiting):
            if self.state != "tracing" or os.getpid() != self.pid:
                return
            try:
                with contextlib.suppress(Exception):  # samples never cost the trace
                    self.host.stop(self.folder / f"{self.pid}.host")
                if wait:
                    wait_for_devices()
                self.notes["usage"] = {name: value - self.used[name] for name, value in self.read_usage().items()}
                self.describe()
                self.end()
                self.finish(reason)
            except Exception as error:
                self.finish(f"the trace did not end: {error}")

    def adopt_own_trace(self) -> None:
        """The program's own trace has ended: if ours was to run at that time, a copy of it is ours."""
        folder, self.own_trace = self.own_trace, None
        if not self.missed or folder is None or self.state != "waiting" or os.getpid() != self.pid:
            return
        try:
            newest = max(folder.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime_ns)
            shutil.copyfile(newest, self.folder / f"{self.pid}.xplane.pb")
            self.notes["traced"] = self.own_steps or None
            self.describe()
            self.finish(f"the program's own trace was running: this profile is a copy of it ({newest})")
        except (OSError, ValueError) as error:
            self.finish(f"the program's own trace was running, and could not be copied from {folder}: {error}")

    def read_usage(self) -> dict[str, float]:
        """The resources that this process has used so far, and its steps and compilations."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "elapsed_s": time.perf_counter(),
            "user_s": used.ru_utime,
            "system_s": used.ru_stime,
            "page_faults": used.ru_minflt,
            "steps": self.steps_inside,
            "compiles": len(self.compiles),
        }

    def begin(self) -> None:
        """Starts JAX's profiler; if `start_trace` takes no options yet, the options of jaxlib's own session are set."""
        public = hasattr(self.profiler, "ProfileOptions")
        if public:
            source = self.profiler
        else:
            source = sys.modules[self.start_trace.__module__].xla_client.profiler
        options = source.ProfileOptions()
        options.python_tracer_level = 0
        # The lowest level at which CPU thunks are recorded; JAX 0.6.1 to 0.8.0 need 2 despite their options.
        options.host_tracer_level = 1 if public and sys.modules["jax"].__version_info__ >= (0, 8, 1) else 2
        if public:
            self.start_trace(str(self.scratch), profiler_options=options)
        else:
            sys.modules["jax"].devices()  # a session that starts before the backends misses the TPUs
            self.session = source.ProfilerSession(options)

    def end(self) -> None:
        """Stops JAX's profiler, and gives the trace its name."""
        if self.session is None:
            self.stop_trace()
        else:
            self.session.export(self.session.stop(), str(self.scratch))
        for trace in self.scratch.glob("**/*.xplane.pb"):
            trace.replace(self.folder / f"{self.pid}.xplane.pb")
        shutil.rmtree(self.scratch, ignore_errors=True)

    def enter_step(self, name: str, number: int) -> None:
        """A step annotation is about to begin."""
        seen = self.notes["seen"]
        self.notes["seen"] = [number, number] if seen is None else [min(seen[0], number), max(seen[1], number)]
        if self.own_trace is not None:
            self.own_steps = [min([number, *self.own_steps]), max([number, *self.own_steps])]
        if self.steps is None:
            return
        if self.state == "waiting" and self.steps[0] <= number <= self.steps[1]:
            self.annotation = name
            self.start()
        elif name == self.annotation and number > self.steps[1]:
            self.stop()
        if self.state == "tracing" and name == self.annotation:
            self.notes["traced"] = [(self.notes["traced"] or [number])[0], number]
            self.steps_inside += 1

    def leave_step(self, name: str, number: int) -> None:
        """A step annotation has ended."""
        if self.steps is not None and name == self.annotation and number >= self.steps[1]:
            self.stop()

    def listen_to_compiler(self) -> None:
        """Notes from now on when JAX traces, lowers and compiles, and which function; also outside the traced steps."""
        monitoring = sys.modules.get("jax._src.monitoring")
        register = getattr(monitoring, "register_event_duration_secs_listener", None)
        if register is None:  # another JAX
            return

        def note(event: str, duration_s: float, **about: Any) -> None:
            phase = event.rpartition("/")[2]
            is_phase = phase.removesuffix("_duration") in COMPILE_PHASES
            if is_phase and self.listening and len(self.compiles) < MOST_COMPILES:
                took_ns = int(duration_s * 1e9)
                name, thread = str(about.get("fun_name", "")), threading.get_native_id()
                span = [phase, name, thread, time.time_ns() - took_ns, took_ns]
                self.compiles.append(json.dumps([*span, find_caller()]))

        register(note)

    def keep_lowered(self) -> Callable[[], None]:
        """Keeps JAX's programs from now on, before XLA optimizes them; returns a function that stops it."""
        return keep_lowered(self.folder / f"{self.pid}.lowered", lambda: self.listening and os.getpid() == self.pid)

    def at_exit(self) -> None:
        """Ends the trace with the program, and notes its steps."""
        if os.getpid() == self.pid:
            self.exiting = (signal.SIGINT,)
            self.stop()
            self.report_own_trace()
            self.write_notes()

    def leave(self) -> None:
        """The program ends without its exit handlers; the devices may hang, and are not waited for."""
        if os.getpid() == self.pid and self.lock.acquire(timeout=PATIENCE_S):
            try:
                self.stop(wait=False)
                self.report_own_trace()
                self.write_notes()
            finally:
                self.lock.release()

    def report_own_trace(self) -> None:
        """Notes that ours did not run because of one of the program's that never stopped."""
        if self.missed and self.state == "waiting":
            self.notes["error"] = f"the program's own trace was running, and never stopped ({self.own_trace})"

    def disarm(self) -> None:
        """Leaves nothing to do at the program's end, and notes no more."""
        self.listening = False
        atexit.unregister(self.stop)
        atexit.unregister(self.at_exit)

    def finish(self, error: str | None) -> None:
        """No more tracing in this process."""
        self.state = "done"
        self.notes["error"] = error
        self.write_notes()

    def describe(self) -> None:
        """Notes which process and which devices these are; the backends exist by now."""
        jax = sys.modules["jax"]
        self.notes["process_index"] = jax.process_index()
        self.notes["devices"] = [device.device_kind for device in jax.local_devices()]
        self.notes["versions"] = {
            name: module.__version__
            for name in ("jax", "jaxlib", "flax", "optax")
            if (module := sys.modules.get(name)) is not None and hasattr(module, "__version__")
        }

    def write_notes(self) -> None:
        """Leaves the notes for the command that started this program."""
        self.notes |= {"state": self.state, "cwd": str(Path.cwd()), "python": sys.version.split()[0]}
        with contextlib.suppress(OSError):
            texts = read_texts() if self.state == "done" else {}
            if texts:
                (self.folder / f"{self.pid}.sources").write_text(json.dumps(texts), encoding="utf-8")
            (self.folder / f"{self.pid}.json").write_text(json.dumps(self.notes), encoding="utf-8")
            if self.compiles:
                (self.folder / f"{self.pid}.jsonl").write_text("\n".join(self.compiles), encoding="utf-8")

    @property
    def scratch(self) -> Path:
        """Where the profiler writes before the trace gets its name."""
        return self.folder / f".{self.pid}"


class NsysTracer(Tracer):
    """The same for a program that runs under nsys, which itself writes the report."""

    def begin(self) -> None:
        """With steps, tells nsys to collect from now on; without, it has since the start."""
        if self.steps is not None:
            call_driver("cuProfilerStart")

    def end(self) -> None:
        """Tells nsys that the last step is over."""
        if self.steps is not None:
            call_driver("cuProfilerStop")


def dump_programs(tracer: Tracer) -> None:
    """Has XLA dump its programs; the user's own dump flags come last and win.

    If the user has a folder for dumps, they stay there unchanged, protobufs are added, and the notes name the folder:
    the command that started this program copies them.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    theirs = re.findall(r"--xla_dump_to=(\S+)", flags)
    if theirs:
        text = "" if "--xla_dump_hlo_as_" in flags else " --xla_dump_hlo_as_text"  # XLA's default
        ours = f"--xla_dump_hlo_as_proto{text}"
        tracer.notes["dumped_to"] = str(Path(theirs[-1]).absolute())
        tracer.notes["dumped_since_ns"] = time.time_ns()
        tracer.write_notes()
    else:
        ours = f"--xla_dump_to={tracer.folder / str(tracer.pid)}.dump --xla_dump_hlo_as_proto"
    os.environ["XLA_FLAGS"] = f"{ours} {flags}".strip()


def arm(profiler: ModuleType) -> None:
    """Puts the tracer's ears on the program's step annotations, backends and own traces."""
    first, colon, last = os.environ.get("NIGHTJAR_CAPTURE_STEPS", "").partition(":")
    steps = (int(first), int(last)) if colon else None
    raw = Path(os.environ["NIGHTJAR_CAPTURE_RAW"])
    under_nsys = os.environ.get("NIGHTJAR_CAPTURE_BACKEND") == "nsys"
    tracer = (NsysTracer if under_nsys else Tracer)(profiler, raw, steps)
    tracer.seconds = float(os.environ.get("NIGHTJAR_CAPTURE_FOR") or 0)
    profiler.StepTraceAnnotation = listening_annotation(profiler.StepTraceAnnotation, tracer)  # type: ignore[attr-defined]
    if under_nsys:
        on_backends(before=lambda: dump_programs(tracer))
    else:
        tracer.listen_to_compiler()
        share_with_own_traces(tracer)
    arm_exits(tracer)
    if not under_nsys:
        on_backends(before=tracer.keep_lowered)
    if steps is None:
        on_backends(after=tracer.start)


def listening_annotation(original: type, tracer: Tracer) -> type:
    """A `StepTraceAnnotation` that tells the tracer of every step; unnumbered steps are counted."""
    count = iter(range(sys.maxsize))

    class StepTraceAnnotation(original):  # type: ignore[misc]
        __doc__ = original.__doc__

        def __init__(self, name: str, **kwargs: Any) -> None:
            super().__init__(name, **kwargs)
            self._nightjar_again: Any = None
            self._nightjar_arguments = (name, kwargs)
            try:
                number = int(kwargs["step_num"])
            except (KeyError, TypeError, ValueError):
                number = next(count)
            self._nightjar_step = (name, number)

        def __enter__(self) -> Any:
            waiting = tracer.state == "waiting"
            tracer.enter_step(*self._nightjar_step)
            if waiting and tracer.state == "tracing":  # arrays made before the trace began are not in it
                name, kwargs = self._nightjar_arguments
                self._nightjar_again = original(name, **kwargs)
                return self._nightjar_again.__enter__()
            return super().__enter__()

        def __exit__(self, *exception: Any) -> Any:
            again, self._nightjar_again = self._nightjar_again, None
            if again is None:
                result = super().__exit__(*exception)
            else:
                result = again.__exit__(*exception)
            tracer.leave_step(*self._nightjar_step)
            return result

    return StepTraceAnnotation


def on_backends(before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None) -> None:
    """Does something as the program itself first makes the backends: until then, it may still configure them."""
    bridge = sys.modules["jax._src.xla_bridge"]
    original = bridge.backends
    waiting = [before]

    def backends() -> Any:
        while waiting:
            waiting.pop()()
        clients = original()
        after()
        return clients

    bridge.backends = backends  # type: ignore[attr-defined]
