"""The table of a compiled program for people."""

from pathlib import Path

from nightjar_models.aot.summary import summarize


def test_a_summary_tells_work_memory_and_time() -> None:
    work = {"count": 2, "runs": 3, "bytes": 3 * 2**20, "flops": 4.5e9}
    buffers = [
        {"kind": "temp", "bytes": 2**21, "instruction": "dot.1", "line": "a.py:3", "op_name": "jit(f)/dot"},
        *(
            {"kind": "parameter", "bytes": 2**19, "instruction": f"p.{n}", "line": None, "op_name": "w"}
            for n in range(5)
        ),
    ]
    times = {"step": 1e-3, "compute": 2e-3, "memory": 3e-3, "latency": 4e-3, "communication": 5e-3, "exposed": 6e-3}
    aot = {
        "kernels": {"copy": {**work, "flops": 0}, "dot": work, "move": {**work, "bytes": 2**22, "flops": 0}},
        "messages": {"all-reduce": work},
        **{"reserved_bytes": 60 * 2**30, "device_bytes": 80 * 2**30, "buffers": buffers, "code_bytes": 77},
        **{"estimate": {f"{name}_s": time for name, time in times.items()}, "lints": ["slow"]},
    }
    measured = {"compile_time": 1.25, "compile_cpu_time": 2.5, "compiler_memory": 3 * 2**20}
    samples = [{"name": name, "values": [value]} for name, value in measured.items()]
    assert summarize({"facts": [{"ahead": aot}], "samples": samples}, Path("r.json")).splitlines() == [
        "per step and device             instr.    runs          MiB        GFLOP",
        "dot                                  2       3          3.0         4.50",
        "move                                 2       3          4.0         0.00",
        "copy                                 2       3          3.0         0.00",
        "message all-reduce                   2       3          3.0",
        "memory 61440.0 MiB of 81920 (75.0%, fits with XLA_CLIENT_MEM_FRACTION=0.79)",
        "largest temporary values at the peak",
        "         2.0 MiB temp      dot.1  a.py:3",
        "largest persistent values",
        *(f"         0.5 MiB parameter p.{n}  w" for n in range(4)),
        "estimated step 1.000 ms (roofline with measured efficiencies, not measured): compute 2.000, memory 3.000, "
        "launches 4.000, communication 5.000 of which 6.000 exposed",
        "compiled in 1.2 s (2.5 s of CPU), 3 MiB; PTX 77 bytes",
        "warning: slow",
        "r.json",
    ]
