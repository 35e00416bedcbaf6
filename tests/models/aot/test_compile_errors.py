"""What a user reads where XLA does not compile a program: a workaround, or the end of the log of a dead process."""

import os
import subprocess
import sys
from pathlib import Path

from nightjar_models.aot.compile_errors import HINTS, LOG, find_hint, make_error, tail_log

ENDED = (
    "LLVM Fatal Error while compiling Triton kernel: size mismatch when packing elements for LLVM struct Context: "
    "Fusion: all-reduce.49.0-fusion.1 = f32[] fusion(param_0.1388), kind=kCustom"
)


def test_a_kernel_of_triton_that_does_not_compile_is_laid_to_messages_only_where_it_is_one() -> None:
    hint = HINTS["compiling Triton kernel", "all-reduce"]
    assert make_error(ENDED).hint == hint
    assert hint.startswith("add --xla xla_gpu_experimental_use_collective_kernels=: ")
    assert find_hint(ENDED.replace("all-reduce", "softmax")) is None


def test_what_the_compiler_said_before_it_ended_the_process_is_shown(tmp_path: Path) -> None:
    program = f"""
import os, sys
from nightjar_models.aot.compile_errors import LOG, watched_folder
with watched_folder() as folder:
    (folder / LOG).write_text({ENDED!r} + "\\n*** a frame\\n")
    if sys.argv[1] == "end":
        os._exit(1)
"""
    shown = {}
    for how in ("end", "go on"):
        command = [sys.executable, "-c", program, how]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        shown[how] = done.returncode, done.stderr
    assert shown["end"][0] == 1
    assert shown["end"][1].splitlines()[-2:] == [ENDED, f"Hint: {find_hint(ENDED)}"]
    assert "the compiler's process died" in shown["end"][1]
    assert shown["go on"] == (0, "")
    assert not list(tmp_path.iterdir())


def test_the_last_words_hold_what_failed_and_no_stack(tmp_path: Path) -> None:
    assert tail_log(tmp_path) == ["no output; it may have been killed for lack of memory"]
    said = """I0000 00:00:1 a.cc:1] loading
F0000 00:00:1 b.cc:2] Check failed: tiles > 0
*** Check failure stack trace: ***
    @     0x7f00  somewhere::else()
----
Fatal Python error: Aborted
"""
    (tmp_path / LOG).write_text(said)
    assert tail_log(tmp_path) == ["F0000 00:00:1 b.cc:2] Check failed: tiles > 0", "Fatal Python error: Aborted"]
