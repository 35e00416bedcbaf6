"""Explanation of the difference between two compiled programs, in sentences.

In: the facts of a program before and after, both compiled ahead of time, and a policy. Out: one sentence per change:
fused attention lost, a new collective, an fp8 fallback, products in a wider type, a split fusion, rematerialization,
more memory and its origin. Empty if the kinds of kernels are unknown (`Facts.ahead`).

A sentence names a cause that the numbers support, and the facts that it accounts for; the other facts are
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
from nightjar_ci.judges.facts.diff import COMPUTATION, changed
from nightjar_ci.judges.facts.lines import explain_lines
from nightjar_ci.judges.finding import count, percent

_NONE = Work(count=0, runs=0, bytes=0, flops=0.0)
_ATTENTION = ("cuDNN attention", "cuDNN attention backward", "TransformerEngine attention")
_FP8 = ("cuBLASLt f8", "cuDNN block-scaled matmul", "TransformerEngine matmul scaled")
_PRODUCTS = ("cuBLASLt", "cuBLAS", "Triton matmul", "TransformerEngine matmul", "cuDNN convolution", *_FP8)
_CALL = "opcodes.custom-call.*"
_STATIC = {  # the facts that count the instructions of a kernel kind, in addition to `kernels.<kind>.*`
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
_MATTERS = 0.02  # minimum change of sums (flops, memory, traffic) for a sentence; a policy may lower it


@dataclass(frozen=True, slots=True)
class Explanation:
    """One explained change of a program.

    Attributes:
        facts: the facts that it accounts for, as globs of names from `flatten`.
    """

    text: str
    facts: tuple[str, ...]


def explain_changes(before: Facts, after: Facts, policy: FactsPolicy) -> list[Explanation]:
    if before.ahead is None or after.ahead is None:
        return []
    old, new = before.ahead, after.ahead
    changes = changed(before, after, policy)
    causes = [
        *_lost_kernels(old, new),
        *_messages(old, new),
        *_products(before, after),
        *_fusions(old, new),
        *_arguments(before, after),
        *_memory(old, new, policy),
        *_code(old, new, policy),
        *_lints(old, new),
    ]
    consequences = list(_consequences(old, new, changes, causes))
    lines = [Explanation(text, (COMPUTATION,)) for text in explain_lines(old.lines, new.lines) if changes]
    return [*causes, *lines, *consequences]


def unexplained(changes: Iterable[str], explanations: Iterable[Explanation]) -> list[str]:
    globs = [glob for explanation in explanations for glob in explanation.facts]
    return [name for name in changes if not any(fnmatchcase(name, glob) for glob in globs)]


def _lost_kernels(old: Ahead, new: Ahead) -> Iterator[Explanation]:
    for kinds, lost, gained in (
        (_ATTENTION, "fused attention lost", "fused attention gained"),
        (_FP8, "fp8 matmul fell back", "fp8 matmul gained"),
        (("cuDNN convolution",), "cuDNN convolution lost", "cuDNN convolution gained"),
    ):
        was, now = (sum(_work(side, kind).runs for kind in kinds) for side in (old, new))
        if now > was:
            yield Explanation(f"{gained}: {was} -> {now} runs a step", _names(*kinds))
        elif now < was:
            text = f"{lost}: {was} -> {now} runs a step"
            gains = {kind: work.runs - _work(old, kind).runs for kind, work in new.kernels.items()}
            if substitute := max((kind for kind in gains if gains[kind] > 0), key=gains.__getitem__, default=""):
                text += f", {substitute} {gains[substitute]:+d}"
                kinds = (*kinds, substitute)
            yield Explanation(text, _names(*kinds))


def _messages(old: Ahead, new: Ahead) -> Iterator[Explanation]:
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
        yield Explanation(text, (f"messages.{kind}.*", *_names(collective), *static))


def _products(before: Facts, after: Facts) -> Iterator[Explanation]:
    old, new = before.ahead, after.ahead
    if old is None or new is None:
        return
    was, now = (_sum(side, (*_PRODUCTS, *_ATTENTION)) for side in (old, new))
    flops = _relative(was.flops, now.flops)
    if abs(flops) > _MATTERS:
        recomputed = "less"
        if flops > 0:
            recomputed = "more"
        cause = f"{recomputed} is recomputed in the backward pass (rematerialization), or other shapes"
        if _sum(old, _ATTENTION).runs and not _sum(new, _ATTENTION).runs:
            cause = "attention that is not fused computes the scores that it masks"
        text = f"FLOPs of matrix products changed by {percent(flops)}: {cause}"
        yield Explanation(text, ("flops", *_names(*_PRODUCTS, *_ATTENTION)))
    traffic = _relative(was.bytes, now.bytes)
    same = all(_work(old, kind).runs == _work(new, kind).runs for kind in (*_PRODUCTS, *_ATTENTION))
    if same and abs(flops) <= _MATTERS < abs(traffic):
        width = "narrower"
        if traffic > 0:
            width = "wider"
        text = f"matrix products move {percent(traffic)} bytes at equal FLOPs: operands or results in a {width} type"
        yield Explanation(text, tuple(name for name in _names(*_PRODUCTS) if not name.startswith("opcodes.fusion")))
    for kind in _PRODUCTS:
        runs = _work(old, kind).runs, _work(new, kind).runs
        if kind not in _FP8 and runs[0] != runs[1] and abs(flops) <= _MATTERS:
            text = f"{kind}: {runs[0]} -> {runs[1]} runs at equal FLOPs: products are computed by other kernels"
            yield Explanation(text, _names(kind))


def _fusions(old: Ahead, new: Ahead) -> Iterator[Explanation]:
    kinds = sorted(kind for kind in {*old.kernels, *new.kernels} if "fusion" in kind)
    changes = {kind: _work(new, kind).runs - _work(old, kind).runs for kind in kinds}
    gained, lost = sum(n for n in changes.values() if n > 0), -sum(n for n in changes.values() if n < 0)
    if (moved := min(gained, lost)) > abs(gained - lost):
        sources, targets = (" and ".join(k for k in kinds if changes[k] * sign > 0) for sign in (-1, 1))
        yield Explanation(f"{count(moved, 'run')} a step of {sources} are now {targets}", _names(*kinds))
    if gained == lost:
        return
    single = _singles(new) - _singles(old)
    extra, singles = "", tuple[str, ...]()
    if single:
        extra, singles = f", {single:+d} single operations", _names("copy", "other *")
    was, now = _sum(old, kinds), _sum(new, kinds)
    change = "fewer fusions: merged or removed"
    if now.runs + max(single, 0) > was.runs:
        change = "fusions were split"
    traffic = f"bytes through memory {percent(_relative(was.bytes, now.bytes))}"
    text = f"{change}: {was.runs} -> {now.runs} runs a step{extra}, {traffic}"
    yield Explanation(text, (*_names(*kinds), *singles))


def _singles(side: Ahead) -> int:
    return sum(work.runs for kind, work in side.kernels.items() if kind.startswith("other ") or kind == "copy")


def _arguments(before: Facts, after: Facts) -> Iterator[Explanation]:
    was, now = before.memory.argument_bytes, after.memory.argument_bytes
    growth = _relative(was or 0, now or 0)
    if was and now and abs(growth) > _MATTERS:
        cause = "split over more devices, or smaller"
        if growth > 0:
            cause = "split over fewer devices, or larger"
        text = f"parameters, optimizer and batch take {percent(growth)} on each device: {cause}"
        yield Explanation(text, tuple(f"memory.{name}_bytes" for name in ("argument", "output", "alias")))


def _memory(old: Ahead, new: Ahead, policy: FactsPolicy) -> Iterator[Explanation]:
    growth = _relative(old.reserved_bytes, new.reserved_bytes)
    limit = min(_MATTERS, policy.tolerance.get("ahead.reserved_bytes", _MATTERS))
    facts = ("ahead.reserved_bytes", "memory.temp_bytes", "memory.peak_bytes")
    if abs(growth) > limit:
        text = f"peak memory {percent(growth)}: {_mib(old.reserved_bytes)} -> {_mib(new.reserved_bytes)}"
        largest = _largest_new(old.buffers, new.buffers)
        if growth > 0 and largest is not None:
            text += f"; the largest new value is {_mib(largest.bytes)} of {_origin(largest)}"
        yield Explanation(text, facts)
    if old.reserved_bytes <= old.device_bytes and new.reserved_bytes > new.device_bytes:
        yield Explanation(f"it no longer fits into the {_mib(new.device_bytes)} of a device", facts)


def _largest_new(old: Iterable[Buffer], new: Iterable[Buffer]) -> Buffer | None:
    """The largest value without an earlier value of equal size from the same function; line numbers may change."""
    unmatched = Counter((_LINE.sub("", _origin(buffer)), buffer.bytes) for buffer in old)
    for buffer in sorted(new, key=lambda buffer: -buffer.bytes):
        key = (_LINE.sub("", _origin(buffer)), buffer.bytes)
        if not unmatched[key]:
            return buffer
        unmatched[key] -= 1
    return None


def _origin(buffer: Buffer) -> str:
    return buffer.line or buffer.op_name or buffer.instruction


def _code(old: Ahead, new: Ahead, policy: FactsPolicy) -> Iterator[Explanation]:
    size = _relative(old.code_bytes, new.code_bytes)
    limit = policy.tolerance.get("ahead.code_bytes", _MATTERS)
    kernels = (sum(work.runs for work in side.kernels.values()) for side in (old, new))
    if old.code_bytes and abs(size) > limit:
        text = f"code of the kernels {percent(size)}: {_mib(old.code_bytes)} -> {_mib(new.code_bytes)} of PTX"
        if len(set(kernels)) == 1:
            text += ", same number of kernels: their code changed"
        yield Explanation(text, ("ahead.code_bytes", "memory.generated_code_bytes"))
    if old.spill_bytes is not None and new.spill_bytes is not None and new.spill_bytes != old.spill_bytes:
        change = "kernels spill fewer registers"
        if new.spill_bytes > old.spill_bytes:
            change = "kernels spill registers"
        yield Explanation(f"{change}: {old.spill_bytes} -> {new.spill_bytes} bytes", ("ahead.spill_bytes",))


def _lints(old: Ahead, new: Ahead) -> Iterator[Explanation]:
    texts = [f"a new lint: {lint}" for lint in new.lints if lint not in old.lints]
    texts += [f"no longer a lint: {lint}" for lint in old.lints if lint not in new.lints]
    yield from (Explanation(text, ("ahead.lints",)) for text in texts)


def _consequences(
    old: Ahead, new: Ahead, changes: dict[str, float], causes: list[Explanation]
) -> Iterator[Explanation]:
    """Consequences of changed kernels: their instructions, and the estimated step time."""
    kernels = old.kernels != new.kernels
    plain = [name for name in unexplained(changes, causes) if name.startswith("opcodes.") and name.endswith(".count")]
    if kernels and causes and plain:
        opcodes = [name.split(".")[1] for name in plain]
        text = f"the changed kernels consist of other instructions: {', '.join(opcodes[:5])}"
        if len(opcodes) > 5:
            text += f" and {len(opcodes) - 5} others"
        yield Explanation(text, tuple(f"opcodes.{opcode}.*" for opcode in opcodes))
    was, now = (side.estimate.get("step_s", 0.0) for side in (old, new))
    if causes and any(name.startswith("estimate.") for name in changes):
        text = (
            f"the estimated step time changed by {percent(_relative(was, now))}: {1e3 * was:.4g} -> {1e3 * now:.4g} ms"
        )
        yield Explanation(text, ("estimate.*",))


def _names(*kinds: str) -> tuple[str, ...]:
    static: list[str] = []
    for kind in kinds:
        is_fusion = kind.endswith("fusion") or "custom fusion" in kind
        static += _STATIC.get(kind, _OTHER_FUSION if is_fusion else ())
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
    if was:
        return (now - was) / was
    return math.inf if now else 0.0


def _mib(size: int) -> str:
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.2f} MiB"
