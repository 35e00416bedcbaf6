"""The trainer of all models.

In: a config, a seed, a mesh and an output folder (for checkpoints). Out: a `Run`: curves, samples and facts.

The host waits for each step, so that step times do not overlap: a step lasts from its start until its loss is on the
host. While the devices compute a step, the host prepares the next batch.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax

from nightjar_models.data.pipeline import Data, Share, held_out_batches, train_batches
from nightjar_models.errors import EndedError
from nightjar_models.kernels.fused_attention import note_choices
from nightjar_models.measuring.facts import read_facts
from nightjar_models.measuring.front_end import Calls, count_calls, note_loads, time_lowering
from nightjar_models.measuring.result import Curve, Run, Sample
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import find_share, make_mesh, put_batch, use_mesh
from nightjar_models.presets.config import TrainConfig, describe_config
from nightjar_models.program.kernels import count_flops_on_gpu
from nightjar_models.training.checkpoint import Checkpoints, History
from nightjar_models.training.ending import Ending
from nightjar_models.training.flops import find_peak, masked_flops, train_flops
from nightjar_models.training.idioms import make_program
from nightjar_models.training.progress import SILENT, Progress
from nightjar_models.training.step import Program
from nightjar_models.training.tasks import Task, find_task

WARMUP_STEPS = 5  # XLA:CPU is steady from the second step; a GPU's clocks and allocator need a few


def train(
    config: TrainConfig,
    *,
    seed: int,
    mesh: MeshShape,
    out: Path,
    checkpoint_every: int = 0,
    nudged: bool = False,
    counted: bool = False,
    progress: Progress = SILENT,
) -> Run:
    """Trains until `config.steps`, or until the loss stops being finite.

    Args:
        config: of the run.
        seed: of initialisation and data order.
        mesh: the number of devices along each axis.
        out: the folder whose `checkpoints/` is continued from and, with `checkpoint_every`, written.
        checkpoint_every: steps between two checkpoints; 0 writes none.
        nudged: start each parameter one unit in the last place higher or lower, which is the same up to rounding also
            if examples have random numbers of their own, as for dropout.
        counted: count the Python functions that tracing and one call of the step run; the step is traced once more.
        progress: is told of each step, and of each phase before the first and after the last.

    Raises:
        InputError: mesh, batch and sizes do not fit together, or the folder holds a checkpoint of another run.
        OutputError: a checkpoint could not be written.
        EndedError: received SIGTERM; with `checkpoint_every` the last step is saved.
    """
    task = find_task(config)
    program = make_program(config, task, make_mesh(mesh))
    progress.phase("reading the data")
    data = task.read()
    share = Share(*find_share(program.batch, config.batch_size))
    batches = train_batches(data, config.batch_size, seed, config.data.loader, share)
    held_out = held_out_batches(data, config.batch_size)
    identity = {**describe_config(config), "seed": seed, "data_digest": data.digest, "nudged": nudged}
    identity.pop("data.images", None)  # the digest identifies the images in any folder
    with (
        Checkpoints(out / "checkpoints", checkpoint_every, identity, progress.phase) as checkpoints,
        Ending(checkpoint_every > 0) as ending,
        use_mesh(program.mesh),
    ):
        progress.phase("initialising the parameters")
        loop = Loop(config, program, batches, checkpoints, ending, counted=counted)
        loop.begin(seed, nudged)
        progress.phase("compiling the train step")
        with note_choices() as notes:
            compiled, timing = compile_step(program, put_batch(held_out[0], program.batch), counted)
        loop.run(program.bind(compiled), progress.step)
        diverged = not program.is_finite(loop.state) or not math.isfinite(loop.history.losses[-1])
    if loop.ended and not diverged:
        raise EndedError(
            f"received SIGTERM; stopped after step {loop.done} of {config.steps}.",
            "rerun the same command to continue" if checkpoint_every else "with --checkpoint-every it could continue",
        )
    if not diverged:
        progress.phase(f"evaluating {len(held_out)} held-out batches")
    scores = {} if diverged else program.evaluate(loop.state, held_out)
    return Run(
        status="diverged" if diverged else "completed",
        config=describe(config, mesh, program, data) | ({"attention": "; ".join(sorted(notes))} if notes else {}),
        curves=[loss_curve(task, loop.history, config.first_step), *score_curves(task, scores, loop.done)],
        samples=[
            *speed(config, task, loop.history),
            *use_of_peak(config, mesh, loop.history),
            *input_wait(loop.waits, loop.history),
            *dispatch(loop.dispatches, loop.dispatch_calls),
            *timing,
            *peak_memory(compiled_here=any(sample.name == "compile_time" for sample in timing)),
        ],
        facts=[read_facts("train_step", compiled, count_flops_on_gpu(compiled))],
    )


class Loop:
    """The steps of a run, each with the next batch made ready while the devices compute.

    Attributes:
        state: the program's state; the only reference to it, so that the old one is released at once.
        waits: seconds per step of this process that devices may have waited for a batch.
        dispatches: seconds per step until the call of the compiled step returned.
        dispatch_calls: Python functions that one such call runs, if they are counted.
        ended: whether a signal stopped the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        program: Program,
        batches: Any,
        checkpoints: Checkpoints,
        ending: Ending,
        *,
        counted: bool,
    ) -> None:
        self._config, self._program, self._batches = config, program, batches
        self._checkpoints, self._ending = checkpoints, ending
        self._counted = counted
        self.state: Any = None
        self.history = History()
        self.waits: list[float] = []
        self.dispatches: list[float] = []
        self.dispatch_calls: Calls | None = None
        self.ended = False
        self._ready: list[dict[str, jax.Array]] = []

    @property
    def done(self) -> int:
        """Number of the next step."""
        return self._config.first_step + len(self.history.losses)

    def begin(self, seed: int, nudged: bool) -> None:
        """Takes the newest checkpoint's state, or the first one of a seed."""
        restored = self._checkpoints.restore(self._program.abstract)
        if restored is None:
            self.state = self._program.initialize(seed, nudged)
            for _ in range(self._config.first_step):
                next(self._batches)
        else:
            self.state, self.history = self._program.load(restored.state), restored.history
            self._batches.set_state(restored.position)

    def run(self, step: Callable[[Any, Any], tuple[Any, Any]], progress: Callable[[int, float], None]) -> None:
        """Runs the steps that are left, until a loss is not finite or a signal comes."""
        first = self.done
        if first < self._config.steps:
            self._fetch()
        for index in range(first, self._config.steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=index):
                begin = time.perf_counter()
                batch = self._ready.pop()
                position = self._batches.get_state()  # from here a run that continues after this step reads on
                counts = self._counted and index - first == WARMUP_STEPS - 1
                with count_calls() if counts else nullcontext() as calls:
                    called = time.perf_counter()
                    self.state, coming = step(self.state, batch)
                    self.dispatches.append(time.perf_counter() - called)
                self.dispatch_calls = calls or self.dispatch_calls
                self._fetch_during(coming, last=index + 1 == self._config.steps)
                loss = wait_for(coming)
                self.history.step_times.append(time.perf_counter() - begin)
            self.history.losses.append(loss)
            progress(index + 1, loss)
            if not self._goes_on(loss, position):
                break

    def _fetch(self, between: Callable[[], None] = lambda: None) -> None:
        batch = next(self._batches)
        between()
        self._ready.append(put_batch(batch, self._program.batch, self._config.batch_size))

    def _fetch_during(self, loss: Any, *, last: bool) -> None:
        """Makes the next batch ready, and notes how long the devices may have waited for it."""
        begin = time.perf_counter()

        def restart() -> None:  # so far no device waited
            nonlocal begin
            if not loss.is_ready():
                begin = time.perf_counter()

        if not last:
            self._fetch(restart)
        self.waits.append(time.perf_counter() - begin if loss.is_ready() else 0.0)

    def _goes_on(self, loss: float, position: Any) -> bool:
        """Checks and saves the state after a step."""
        last = self.done == self._config.steps
        self.ended = not last and self._ending.is_asked(self.done)
        save = self._checkpoints.is_due(self.done, last or self.ended)
        if not math.isfinite(loss) or (save and not self._program.is_finite(self.state)):
            return False
        if save:
            self._checkpoints.save(self.done, self._program.save(self.state), position, self.history)
        return not self.ended


def compile_step(program: Program, batch: Mapping[str, Any], counted: bool = False) -> tuple[Any, list[Sample]]:
    """Traces, lowers and compiles the train step, each timed; if `counted`, traces it again to count calls.

    A step that was loaded from the compilation cache has no `compile_time`.
    """
    lowered, trace_s, lower_s = time_lowering(lambda: program.lower(batch))
    begin = time.perf_counter()
    with note_loads() as loads:
        compiled = lowered.compile()
    times = {"trace_time": trace_s, "lower_time": lower_s}
    if not loads:
        times["compile_time"] = time.perf_counter() - begin
    samples = [Sample(name=name, unit="s", better="lower", values=[value]) for name, value in times.items()]
    if counted:
        with count_calls() as calls:
            program.lower(batch)
        if calls.count is not None:
            samples.append(Sample(name="trace_call_count", unit="calls", better="lower", values=[float(calls.count)]))
    return compiled, samples


def wait_for(loss: jax.Array) -> float:
    """Waits until every device has finished its step, and copies the loss to the host.

    The loss is the last value that a device computes. `item` waits for the first device only.
    """
    value: float = loss.item()
    loss.block_until_ready()
    return value


def describe(config: TrainConfig, mesh: MeshShape, program: Program, data: Data) -> dict[str, Any]:
    """The run's configuration as names to scalars; `trivial.*` are the scores that any useful model beats."""
    return {
        **describe_config(config),
        "mesh": str(mesh),
        "parameters": program.parameter_count,
        "data_digest": data.digest,
        **{f"trivial.{name}": value for name, value in data.trivial.items()},
    }


def loss_curve(task: Task, history: History, first: int) -> Curve:
    """The training loss of each step, on its batch and before its update."""
    unit, better = task.units["loss"]
    steps = list(range(first, first + len(history.losses)))
    return Curve(name="loss", unit=unit, better=better, steps=steps, values=history.losses)


def score_curves(task: Task, scores: Mapping[str, float], steps: int) -> Iterable[Curve]:
    """One point per held-out score, after all steps."""
    for name, value in scores.items():
        unit, better = task.units[name]
        yield Curve(name=f"eval_{name}", unit=unit, better=better, steps=[steps], values=[value])


def speed(config: TrainConfig, task: Task, history: History) -> list[Sample]:
    """Step times, and items per second over the steps after warm-up."""
    warmup = min(WARMUP_STEPS, len(history.step_times) - 1)
    rate = task.items_per_example * example_rate(config, history)
    return [
        Sample(name="step_time", unit="s", better="lower", values=history.step_times, warmup=warmup),
        Sample(name="throughput", unit=f"{task.item}/s", better="higher", values=[rate]),
    ]


def example_rate(config: TrainConfig, history: History) -> float:
    """Examples per second over the steps after warm-up."""
    steady = history.step_times[min(WARMUP_STEPS, len(history.step_times) - 1) :]
    return config.batch_size * len(steady) / sum(steady)


def input_wait(waits: Sequence[float], history: History) -> list[Sample]:
    """Upper bound on the fraction of step time that devices waited for a batch; empty if no step was run."""
    warmup = min(WARMUP_STEPS, len(waits) - 1)
    steady = waits[warmup:]
    if not steady:
        return []
    fraction = sum(steady) / sum(history.step_times[-len(steady) :])
    return [Sample(name="input_wait", unit="fraction", better="lower", values=[fraction])]


def dispatch(seconds: Sequence[float], calls: Calls | None) -> list[Sample]:
    """How long the call of the compiled step takes to return, by step, and how many Python functions it calls."""
    if not seconds:
        return []
    warmup = min(WARMUP_STEPS, len(seconds) - 1)
    samples = [Sample(name="dispatch_time", unit="s", better="lower", values=list(seconds), warmup=warmup)]
    if calls is not None and calls.count is not None:
        samples.append(Sample(name="dispatch_call_count", unit="calls", better="lower", values=[float(calls.count)]))
    return samples


def use_of_peak(config: TrainConfig, mesh: MeshShape, history: History) -> list[Sample]:
    """The model's operations per second over the steps after warm-up, and MFU for a GPU with a known peak.

    MFU is given in both conventions: with all pairs of positions, and without the pairs that a causal mask hides.
    """
    rate = train_flops(config.model) * example_rate(config, history)
    samples = [Sample(name="flop_rate", unit="FLOP/s", better="higher", values=[rate])]
    dtype = config.compute.dtype if config.compute.layers == "plain" else "bf16"  # TransformerEngine's type
    peak = find_peak(jax.local_devices()[0].device_kind, dtype, config.compute.products)
    if peak is not None:
        mfu = rate / (peak * mesh.size)
        samples.append(Sample(name="mfu", unit="fraction", better="higher", values=[mfu]))
        if hidden := masked_flops(config.model):
            causal = mfu * (1 - hidden / train_flops(config.model))
            samples.append(Sample(name="mfu_causal", unit="fraction", better="higher", values=[causal]))
    return samples


def peak_memory(*, compiled_here: bool) -> list[Sample]:
    """The device's peak memory if it reports one, else the peak resident set of this process, compiler included.

    Args:
        compiled_here: whether this process compiled its step; without the compiler its resident set is not comparable.
    """
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if peak is None:
        if not compiled_here:
            return []
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = resident if sys.platform == "darwin" else resident * 1024  # bytes on macOS, KiB on Linux
    return [Sample(name="peak_memory", unit="bytes", better="lower", values=[float(peak)])]
