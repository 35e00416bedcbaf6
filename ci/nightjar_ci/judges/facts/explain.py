"""What does a difference between two compiled programs mean? In the words that a person would use.

In: the facts of a program before and after, both compiled ahead of time, and a policy. Out: one sentence for each thing
that happened: fused attention lost, a new collective, an fp8 product fell back, products in a wider type, a fusion
split, rematerialization, more memory and whose. Nothing where the kinds of kernels are not known (`Facts.ahead`).

A sentence is about a cause that the numbers allow to name, and says which facts it accounts for; what is left over is
`unexplained`. The numbers themselves follow in the verdict's details.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nightjar_ci.formats.policy import FactsPolicy
from nightjar_ci.formats.run_record import Ahead, Buffer, Facts, Work
from nightjar_ci.judges.facts.diff import changed
from nightjar_ci.judges.finding import count, percent

_NONE = Work(count=0, runs=0, bytes=0, flops=0.0)
_ATTENTION = ("cuDNN attention", "cuDNN attention backward", "TransformerEngine attention")
_FP8 = ("cuBLASLt f8", "cuDNN block-scaled matmul", "TransformerEngine matmul scaled")
_PRODUCTS = ("cuBLASLt", "cuBLAS", "Triton matmul", "TransformerEngine matmul", "cuDNN convolution", *_FP8)
_CALL = "opcodes.custom-call.*"
_STATIC = {  # which facts count the instructions of a kind of kernel, beside `kernels.<kind>.*`
    "loop fusion": ("fusions.kLoop.*", "opcodes.fusion.*"),
    "input fusion": ("fusions.kInput.*", "opcodes.fusion.*"),
    "output fusion": ("fusions.kOutput.*", "opcodes.fusion.*"),
    "Triton matmul": ("fusions.kCustom.*", "opcodes.fusion.*", "opcodes.dot.*"),
    "cuBLASLt": ("custom_calls.__cublas$lt*", _CALL),
    "cuBLASLt f8": ("custom_calls.__cublas$lt*", _CALL),
    "cuBLAS": ("custom_calls.__cublas*", _CALL),
    "cuDNN attention": ("custom_calls.__cudnn$fmha*", _CALL),
    "cuDNN attention backward": ("custom_calls.__cudnn$fmha*", _CALL),
    "cuDNN convolution": ("custom_calls.__cudnn$conv*", _CALL),
    "cuDNN block-scaled matmul": ("custom_calls.__cudnn$block*", _CALL),
    "TransformerEngine attention": ("custom_calls.te_fused_attn*", _CALL),
    "TransformerEngine matmul": ("custom_calls.te_gemm*", _CALL),
    "TransformerEngine matmul scaled": ("custom_calls.te_gemm*", _CALL),
}
_OTHER_FUSION = ("fusions.kCustom.*", "opcodes.fusion.*")  # Triton's, cuDNN's, custom ones
_LINE = re.compile(r"(?<=\.py):\d+")
_MATTERS = 0.02  # a sentence about sums (flops, memory, traffic) needs a change of more, unless the policy says less


@dataclass(frozen=True, slots=True)
class Meaning:
    """One thing that happened to a program.

    Attributes:
        text: the sentence.
        covers: the facts that it accounts for, globs of the names of `flatten`.
    """

    text: str
    covers: tuple[str, ...]


def find_meanings(before: Facts, after: Facts, policy: FactsPolicy) -> list[Meaning]:
    """What happened, what costs most first."""
    if before.ahead is None or after.ahead is None:
        return []
    old, new = before.ahead, after.ahead
    changes = changed(before, after, policy)
    found = [
        *_lost_kernels(old, new),
        *_messages(old, new),
        *_products(before, after),
        *_fusions(old, new),
        *_arguments(before, after),
        *_memory(old, new, policy),
        *_code(old, new, policy),
        *_lints(old, new),
    ]
    return [*found, *_consequences(old, new, changes, found)]


def unexplained(changes: Iterable[str], meanings: Iterable[Meaning]) -> list[str]:
    """The names of changed facts that no sentence accounts for."""
    globs = [glob for meaning in meanings for glob in meaning.covers]
    return [name for name in changes if not any(fnmatchcase(name, glob) for glob in globs)]


def _lost_kernels(old: Ahead, new: Ahead) -> Iterator[Meaning]:
    for kinds, lost, gained in (
        (_ATTENTION, "fused attention lost", "fused attention gained"),
        (_FP8, "fp8 matmul fell back", "fp8 matmul gained"),
        (("cuDNN convolution",), "cuDNN convolution lost", "cuDNN convolution gained"),
    ):
        was, now = (sum(_work(side, kind).runs for kind in kinds) for side in (old, new))
        if was != now:
            other = _instead(old, new) if now < was else ""
            instead = f", {other} {_work(new, other).runs - _work(old, other).runs:+d}" if other else ""
            text = f"{lost if now < was else gained}: {was} -> {now} runs a step{instead}"
            yield Meaning(text, _names(*kinds, *([other] if other else ())))


def _instead(old: Ahead, new: Ahead) -> str:
    more = {kind: work.runs - _work(old, kind).runs for kind, work in new.kernels.items()}
    kind = max(more, key=lambda kind: more[kind], default="")
    return kind if more.get(kind, 0) > 0 else ""


def _messages(old: Ahead, new: Ahead) -> Iterator[Meaning]:
    for kind in sorted({*old.messages, *new.messages}):
        was, now = old.messages.get(kind, _NONE), new.messages.get(kind, _NONE)
        collective, _, size = kind.partition("/")
        name = f"{collective} among {size} devices"
        if not was.runs and now.runs:
            text = f"a new {name}: {now.runs} runs, {_mib(now.bytes)} a step"
        elif was.runs and not now.runs:
            text = f"no {name} any more: it ran {was.runs} times, {_mib(was.bytes)} a step"
        elif now.runs > was.runs:
            text = f"a new {name}: {was.runs} -> {now.runs} runs, {_mib(was.bytes)} -> {_mib(now.bytes)} a step"
        elif now != was:
            text = f"{name}: {was.runs} -> {now.runs} runs, {_mib(was.bytes)} -> {_mib(now.bytes)} a step"
        else:
            continue
        static = (f"collectives.{collective}.*", f"opcodes.{collective}.*", f"opcodes.{collective}-*")
        yield Meaning(text, (f"messages.{kind}.*", *_names(collective), *static))


def _products(before: Facts, after: Facts) -> Iterator[Meaning]:
    old, new = before.ahead, after.ahead
    if old is None or new is None:
        return
    was, now = (_sum(side, (*_PRODUCTS, *_ATTENTION)) for side in (old, new))
    flops = _relative(was.flops, now.flops)
    if abs(flops) > _MATTERS:
        recomputed = "more" if flops > 0 else "less"
        cause = f"{recomputed} is recomputed in the backward pass (rematerialization), or other shapes"
        if _sum(old, _ATTENTION).runs and not _sum(new, _ATTENTION).runs:
            cause = "attention that is not fused computes the scores that it masks"
        text = f"FLOPs of matrix products changed by {percent(flops)}: {cause}"
        yield Meaning(text, ("flops", *_names(*_PRODUCTS, *_ATTENTION)))
    traffic = _relative(was.bytes, now.bytes)
    same = all(_work(old, kind).runs == _work(new, kind).runs for kind in (*_PRODUCTS, *_ATTENTION))
    if same and abs(flops) <= _MATTERS < abs(traffic):
        wide = "operands or results in a wider type" if traffic > 0 else "operands or results in a narrower type"
        text = f"matrix products move {percent(traffic)} bytes at equal FLOPs: {wide}"
        yield Meaning(text, tuple(name for name in _names(*_PRODUCTS) if not name.startswith("opcodes.fusion")))
    for kind in _PRODUCTS:
        runs = _work(old, kind).runs, _work(new, kind).runs
        if kind not in _FP8 and runs[0] != runs[1] and abs(flops) <= _MATTERS:
            text = f"{kind}: {runs[0]} -> {runs[1]} runs at equal FLOPs: products are computed by other kernels"
            yield Meaning(text, _names(kind))


def _fusions(old: Ahead, new: Ahead) -> Iterator[Meaning]:
    kinds = sorted(kind for kind in {*old.kernels, *new.kernels} if "fusion" in kind)
    more = {kind: _work(new, kind).runs - _work(old, kind).runs for kind in kinds}
    gained, lost = sum(n for n in more.values() if n > 0), -sum(n for n in more.values() if n < 0)
    if (moved := min(gained, lost)) > abs(gained - lost):
        sources, targets = (" and ".join(k for k in kinds if more[k] * sign > 0) for sign in (-1, 1))
        yield Meaning(f"{count(moved, 'run')} a step of {sources} are now {targets}", _names(*kinds))
    if gained == lost:
        return
    single = _singles(new) - _singles(old)
    extra = f", {single:+d} single operations" if single else ""
    was, now = _sum(old, kinds), _sum(new, kinds)
    what = "fusions were split" if now.runs + max(single, 0) > was.runs else "fewer fusions: merged, or gone"
    traffic = f"bytes through memory {percent(_relative(was.bytes, now.bytes))}"
    singles = _names("copy", "other *") if single else ()
    text = f"{what}: {was.runs} -> {now.runs} runs a step{extra}, {traffic}"
    yield Meaning(text, (*_names(*kinds), *singles))


def _singles(side: Ahead) -> int:
    return sum(work.runs for kind, work in side.kernels.items() if kind.startswith("other ") or kind == "copy")


def _arguments(before: Facts, after: Facts) -> Iterator[Meaning]:
    was, now = before.memory.argument_bytes, after.memory.argument_bytes
    more = _relative(was or 0, now or 0)
    if was and now and abs(more) > _MATTERS:
        cause = "split over fewer devices, or larger" if more > 0 else "split over more devices, or smaller"
        text = f"parameters, optimizer and batch take {percent(more)} on each device: {cause}"
        yield Meaning(text, tuple(f"memory.{name}_bytes" for name in ("argument", "output", "alias")))


def _memory(old: Ahead, new: Ahead, policy: FactsPolicy) -> Iterator[Meaning]:
    more = _relative(old.reserved_bytes, new.reserved_bytes)
    limit = min(_MATTERS, policy.tolerance.get("ahead.reserved_bytes", _MATTERS))
    covers = ("ahead.reserved_bytes", "memory.temp_bytes", "memory.peak_bytes")
    if abs(more) > limit:
        text = f"peak memory {percent(more)}: {_mib(old.reserved_bytes)} -> {_mib(new.reserved_bytes)}"
        largest = _largest_new(old.buffers, new.buffers)
        if more > 0 and largest is not None:
            text += f"; the largest new value is {_mib(largest.bytes)} of {_place(largest)}"
        yield Meaning(text, covers)
    if old.reserved_bytes <= old.device_bytes and new.reserved_bytes > new.device_bytes:
        yield Meaning(f"it no longer fits into the {_mib(new.device_bytes)} of a device", covers)


def _largest_new(old: Iterable[Buffer], new: Iterable[Buffer]) -> Buffer | None:
    """The largest value that has none of its size from the same function before; lines move when a file is edited."""
    known = Counter((_LINE.sub("", _place(one)), one.bytes) for one in old)
    for one in sorted(new, key=lambda one: -one.bytes):
        key = (_LINE.sub("", _place(one)), one.bytes)
        if not known[key]:
            return one
        known[key] -= 1
    return None


def _place(buffer: Buffer) -> str:
    """Where a value is from: its line, else the name of an argument."""
    return buffer.line or buffer.op_name or buffer.instruction


def _code(old: Ahead, new: Ahead, policy: FactsPolicy) -> Iterator[Meaning]:
    size = _relative(old.code_bytes, new.code_bytes)
    limit = policy.tolerance.get("ahead.code_bytes", _MATTERS)
    kernels = (sum(work.runs for work in side.kernels.values()) for side in (old, new))
    if old.code_bytes and abs(size) > limit:
        text = f"code of the kernels {percent(size)}: {_mib(old.code_bytes)} -> {_mib(new.code_bytes)} of PTX"
        if len(set(kernels)) == 1:
            text += ", as many kernels: they are written in another way"
        yield Meaning(text, ("ahead.code_bytes", "memory.generated_code_bytes"))
    if old.spill_bytes is not None and new.spill_bytes is not None and new.spill_bytes != old.spill_bytes:
        what = "kernels spill registers" if new.spill_bytes > old.spill_bytes else "kernels spill fewer registers"
        yield Meaning(f"{what}: {old.spill_bytes} -> {new.spill_bytes} bytes", ("ahead.spill_bytes",))


def _lints(old: Ahead, new: Ahead) -> Iterator[Meaning]:
    for lint in new.lints:
        if lint not in old.lints:
            yield Meaning(f"a new lint: {lint}", ("ahead.lints",))
    for lint in old.lints:
        if lint not in new.lints:
            yield Meaning(f"no longer a lint: {lint}", ("ahead.lints",))


def _consequences(old: Ahead, new: Ahead, changes: dict[str, float], causes: list[Meaning]) -> Iterator[Meaning]:
    """What follows from fewer, more or other kernels: the instructions that they are made of, and the estimate."""
    kernels = old.kernels != new.kernels
    plain = [name for name in unexplained(changes, causes) if name.startswith("opcodes.") and name.endswith(".count")]
    if kernels and causes and plain:
        opcodes = [name.split(".")[1] for name in plain]
        text = f"the kernels that changed are made of other instructions: {', '.join(opcodes[:5])}"
        more = f" and {len(opcodes) - 5} others" if len(opcodes) > 5 else ""
        yield Meaning(text + more, tuple(f"opcodes.{opcode}.*" for opcode in opcodes))
    was, now = (side.estimate.get("step_s", 0.0) for side in (old, new))
    if causes and any(name.startswith("estimate.") for name in changes):
        text = f"the estimate of a step is {percent(_relative(was, now))}: {1e3 * was:.4g} -> {1e3 * now:.4g} ms"
        yield Meaning(text, ("estimate.*",))


def _names(*kinds: str) -> tuple[str, ...]:
    """The facts about kinds of kernels."""
    static = [
        name
        for kind in kinds
        for name in _STATIC.get(kind, _OTHER_FUSION if kind.endswith("fusion") or "custom fusion" in kind else ())
    ]
    return (*(f"kernels.{kind}.*" for kind in kinds), *dict.fromkeys(static))


def _work(side: Ahead, kind: str) -> Work:
    return side.kernels.get(kind, _NONE)


def _sum(side: Ahead, kinds: Iterable[str]) -> Work:
    parts = [_work(side, kind) for kind in kinds]
    return Work(
        count=sum(part.count for part in parts),
        runs=sum(part.runs for part in parts),
        bytes=sum(part.bytes for part in parts),
        flops=sum(part.flops for part in parts),
    )


def _relative(was: float, now: float) -> float:
    return (now - was) / was if was else math.inf if now else 0.0


def _mib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
