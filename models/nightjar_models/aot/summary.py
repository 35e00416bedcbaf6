"""Table of a compiled program for people: kernels, messages, memory and whether it fits, estimated time.

In: a `nightjar.run/1` document of `compile`. Out: text.

JAX allocates a fraction of the device's memory at start: `XLA_CLIENT_MEM_FRACTION`, 0.75 by default. The remainder is
for CUDA's context and kernels, NCCL and cuDNN. A step cannot use all of JAX's part: the next batch, evaluation and
fragmentation need some. Both fractions are assumptions, not measured.

Source: openxla/xla, xla/pjrt/gpu/gpu_helpers.cc (CreateBFCAllocator: total memory x fraction); jaxlib/xla_client.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHOWN_BUFFERS = 4
DEFAULT_FRACTION = 0.75  # of a device's memory that JAX takes at its start
MOST_FRACTION = 0.9  # of an H100 it leaves 7.9 GiB to CUDA, NCCL and cuDNN
OF_STEP = 0.95  # of JAX's memory
SMALLER = "--set compute.remat=full, --set compute.accumulate=2 (more microbatches), or a mesh with more fsdp or tp"


def describe_fit(reserved_bytes: int, device_bytes: int) -> str:
    """Whether a step fits on a device, and what helps if it does not.

    >>> describe_fit(40 * 2**30, 80 * 2**30), describe_fit(60 * 2**30, 80 * 2**30)
    ('fits', 'fits with XLA_CLIENT_MEM_FRACTION=0.79')
    """
    fraction = math.ceil(100 * reserved_bytes / OF_STEP / device_bytes) / 100
    if reserved_bytes > MOST_FRACTION * OF_STEP * device_bytes:
        return (
            f"does not fit: JAX takes at most {MOST_FRACTION:.0%} of a device, and a step at most {OF_STEP:.0%} of "
            f"that; a preset takes less with {SMALLER}"
        )
    if fraction > DEFAULT_FRACTION:
        return f"fits with XLA_CLIENT_MEM_FRACTION={fraction:.2f}"
    return "fits"


def summarize(document: dict[str, Any], path: Path) -> str:
    """A table of kernels, messages, memory and time, and the result's path."""
    aot = document["facts"][0]["ahead"]
    time_of = {sample["name"]: sample["values"][0] for sample in document["samples"]}
    rows = [f"{'per step and device':30} {'instr.':>7} {'runs':>7} {'MiB':>12} {'GFLOP':>12}"]
    for kind, work in sorted(aot["kernels"].items(), key=lambda item: (-item[1]["flops"], -item[1]["bytes"])):
        rows.append(
            f"{kind:30} {work['count']:7} {work['runs']:7} {_mib(work['bytes']):12.1f} {work['flops'] / 1e9:12.2f}"
        )
    for kind, work in aot["messages"].items():
        rows.append(f"{'message ' + kind:30} {work['count']:7} {work['runs']:7} {_mib(work['bytes']):12.1f}")
    rows += _describe_memory(aot)
    if times := aot["estimate"]:
        rows.append(
            f"estimated step {times['step_s'] * 1e3:.3f} ms (roofline with measured efficiencies, not measured): "
            f"compute {times['compute_s'] * 1e3:.3f}, memory {times['memory_s'] * 1e3:.3f}, "
            f"launches {times['latency_s'] * 1e3:.3f}, communication {times['communication_s'] * 1e3:.3f} "
            f"of which {times['exposed_s'] * 1e3:.3f} exposed"
        )
    code = ""
    if aot["code_bytes"]:
        code = f"; PTX {aot['code_bytes']} bytes"
    rows.append(
        f"compiled in {time_of['compile_time']:.1f} s ({time_of['compile_cpu_time']:.1f} s of CPU), "
        f"{_mib(time_of['compiler_memory']):.0f} MiB{code}"
    )
    return "\n".join([*rows, *(f"warning: {warning}" for warning in aot["lints"]), str(path)])


def _describe_memory(aot: dict[str, Any]) -> Iterator[str]:
    memory = f"memory {_mib(aot['reserved_bytes']):.1f} MiB"
    if aot["device_bytes"]:
        fraction = aot["reserved_bytes"] / aot["device_bytes"]
        fits = describe_fit(aot["reserved_bytes"], aot["device_bytes"])
        memory += f" of {_mib(aot['device_bytes']):.0f} ({fraction:.1%}, {fits})"
    yield memory
    for temporary, title in ((True, "largest temporary values at the peak"), (False, "largest persistent values")):
        buffers = [buffer for buffer in aot["buffers"] if (buffer["kind"] == "temp") is temporary]
        if buffers:
            yield title
        for buffer in buffers[:SHOWN_BUFFERS]:
            origin = buffer["line"] or buffer["op_name"]
            yield f"  {_mib(buffer['bytes']):10.1f} MiB {buffer['kind']:9} {buffer['instruction']}  {origin}"


def _mib(size: float) -> float:
    return size / 2**20
