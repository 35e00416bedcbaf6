"""What does a difference between two compiled programs mean? In the words that a person would use.

In: the facts of a program before and after, both compiled ahead of time, and a policy. Out: one sentence for each thing
that happened: fused attention lost, a new collective, an fp8 product fell back, products in a wider type, a fusion
split, rematerialization, more memory and whose. Nothing where the kinds of kernels are not known (`Facts.ahead`).

A sentence is about a cause that the numbers allow to name; the numbers themselves follow in the verdict's details.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from nightjar_ci.judges.finding import percent
from nightjar_ci.policy import FactsPolicy
from nightjar_ci.record import Ahead, Facts, Work

_NONE = Work(count=0, runs=0, bytes=0, flops=0.0)
_ATTENTION = ("cuDNN attention", "cuDNN attention backward")
_FP8 = ("cuBLASLt f8", "cuDNN block-scaled matmul")
_PRODUCTS = ("cuBLASLt", "cuBLAS", "Triton matmul", "cuDNN convolution", *_FP8)
_FUSIONS = ("loop fusion", "input fusion", "output fusion", "Triton fusion")
_MATTERS = 0.02  # a sentence about sums (flops, memory, traffic) needs a change of more, unless the policy says less


def find_meanings(before: Facts, after: Facts, policy: FactsPolicy) -> list[str]:
    """The sentences, what costs most first."""
    if before.ahead is None or after.ahead is None:
        return []
    old, new = before.ahead, after.ahead
    return [
        *_lost_kernels(old, new),
        *_messages(old, new),
        *_products(before, after),
        *_fusions(old, new),
        *_arguments(before, after),
        *_memory(old, new, policy),
        *_code(old, new, policy),
        *(f"new in the compiler's log: {lint}" for lint in new.lints if lint not in old.lints),
    ]


def _lost_kernels(old: Ahead, new: Ahead) -> Iterator[str]:
    for kinds, lost, gained in (
        (_ATTENTION, "fused attention lost", "fused attention gained"),
        (_FP8, "fp8 matmul fell back", "fp8 matmul gained"),
        (("cuDNN convolution",), "cuDNN convolution lost", "cuDNN convolution gained"),
    ):
        was, now = (sum(_work(side, kind).runs for kind in kinds) for side in (old, new))
        if was != now:
            word, instead = (lost, _instead(old, new)) if now < was else (gained, "")
            yield f"{word}: {was} -> {now} runs a step{instead}"


def _instead(old: Ahead, new: Ahead) -> str:
    more = {kind: work.runs - _work(old, kind).runs for kind, work in new.kernels.items()}
    kind = max(more, key=lambda kind: more[kind], default="")
    return f", {kind} {more[kind]:+d}" if more.get(kind, 0) > 0 else ""


def _messages(old: Ahead, new: Ahead) -> Iterator[str]:
    for kind in sorted({*old.messages, *new.messages}):
        was, now = old.messages.get(kind, _NONE), new.messages.get(kind, _NONE)
        collective, _, size = kind.partition("/")
        name = f"{collective} among {size} devices"
        if not was.runs and now.runs:
            yield f"a new {name}: {now.runs} runs, {_mib(now.bytes)} a step"
        elif was.runs and not now.runs:
            yield f"no {name} any more: it ran {was.runs} times, {_mib(was.bytes)} a step"
        elif now.runs > was.runs:
            yield f"a new {name}: {was.runs} -> {now.runs} runs, {_mib(was.bytes)} -> {_mib(now.bytes)} a step"
        elif now != was:
            yield f"{name}: {was.runs} -> {now.runs} runs, {_mib(was.bytes)} -> {_mib(now.bytes)} a step"


def _products(before: Facts, after: Facts) -> Iterator[str]:
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
        yield f"FLOPs of matrix products changed by {percent(flops)}: {cause}"
    traffic = _relative(was.bytes, now.bytes)
    same = all(_work(old, kind).runs == _work(new, kind).runs for kind in (*_PRODUCTS, *_ATTENTION))
    if same and abs(flops) <= _MATTERS < abs(traffic):
        wide = "operands or results in a wider type" if traffic > 0 else "operands or results in a narrower type"
        yield f"matrix products move {percent(traffic)} bytes at equal FLOPs: {wide}"
    for kind in _PRODUCTS:
        runs = _work(old, kind).runs, _work(new, kind).runs
        if kind not in _FP8 and runs[0] != runs[1] and abs(flops) <= _MATTERS:
            yield f"{kind}: {runs[0]} -> {runs[1]} runs at equal FLOPs: products are computed by other kernels"


def _fusions(old: Ahead, new: Ahead) -> Iterator[str]:
    was, now = _sum(old, _FUSIONS), _sum(new, _FUSIONS)
    if was.runs == now.runs:
        return
    single = _singles(new) - _singles(old)
    extra = f", {single:+d} single operations" if single else ""
    what = "fusions were split" if now.runs + max(single, 0) > was.runs else "fewer fusions: merged, or gone"
    moved = _relative(was.bytes, now.bytes)
    yield f"{what}: {was.runs} -> {now.runs} runs a step{extra}, bytes through memory {percent(moved)}"


def _singles(side: Ahead) -> int:
    return sum(work.runs for kind, work in side.kernels.items() if kind.startswith("other ") or kind == "copy")


def _arguments(before: Facts, after: Facts) -> Iterator[str]:
    was, now = before.memory.argument_bytes, after.memory.argument_bytes
    more = _relative(was or 0, now or 0)
    if was and now and abs(more) > _MATTERS:
        cause = "split over fewer devices, or larger" if more > 0 else "split over more devices, or smaller"
        yield f"parameters, optimizer and batch take {percent(more)} on each device: {cause}"


def _memory(old: Ahead, new: Ahead, policy: FactsPolicy) -> Iterator[str]:
    more = _relative(old.reserved_bytes, new.reserved_bytes)
    limit = min(_MATTERS, policy.tolerance.get("ahead.reserved_bytes", _MATTERS))
    if abs(more) > limit:
        text = f"peak memory {percent(more)}: {_mib(old.reserved_bytes)} -> {_mib(new.reserved_bytes)}"
        known = {(buffer.line, buffer.bytes) for buffer in old.buffers}
        largest = next((one for one in new.buffers if (one.line, one.bytes) not in known), None)
        if more > 0 and largest is not None:
            text += f"; the largest new value is {_mib(largest.bytes)} of {largest.line or largest.instruction}"
        yield text
    if old.reserved_bytes <= old.device_bytes and new.reserved_bytes > new.device_bytes:
        yield f"it no longer fits into the {_mib(new.device_bytes)} of a device"


def _code(old: Ahead, new: Ahead, policy: FactsPolicy) -> Iterator[str]:
    size = _relative(old.code_bytes, new.code_bytes)
    limit = policy.tolerance.get("ahead.code_bytes", _MATTERS)
    if old.code_bytes and abs(size) > limit and _sum(old, _FUSIONS).runs == _sum(new, _FUSIONS).runs:
        text = f"code of the kernels {percent(size)}: {_mib(old.code_bytes)} -> {_mib(new.code_bytes)} of PTX"
        yield f"{text}, as many fusions: they are written in another way"
    if old.spill_bytes is not None and new.spill_bytes is not None and new.spill_bytes > old.spill_bytes:
        yield f"kernels spill registers: {old.spill_bytes} -> {new.spill_bytes} bytes"


def _work(side: Ahead, kind: str) -> Work:
    return side.kernels.get(kind, _NONE)


def _sum(side: Ahead, kinds: tuple[str, ...]) -> Work:
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
