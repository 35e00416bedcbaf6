"""Programs read from XLA's dumps, and compared."""

import os
import subprocess
import sys
from pathlib import Path

from nightjar_ci.bisect.sensors.programs import Program, compare_programs, digest_programs, dump_flags, read_programs

ADD = '  %x.1 = f32[3]{0} add(%a, %b), metadata={source_file="/t.py" source_line=%LINE}\n'


def dump(folder: Path, *, adds: int = 1, traced: int = 1, size: int = 12, line: int = 4) -> Path:
    folder.mkdir()
    text = ADD.replace("%LINE", str(line))
    (folder / "module_0001.jit_f.cpu_after_optimizations.txt").write_text(text * adds)
    (folder / "module_0001.jit_f.before_optimizations.txt").write_text(text * traced)
    (folder / "module_0001.jit_f.cpu_after_optimizations-memory-usage-report.txt").write_text(
        f"BufferAssignment\nTotal bytes used: {size} (12B)\n"
    )
    (folder / "module_0002.jit_g.sm_9.0_gpu_after_optimizations.txt").write_text(text)
    (folder / "module_0001.jit_f.debug_options.txt").write_text("not a module")
    return folder


def test_a_program_is_its_instructions_and_what_it_allocates(tmp_path: Path) -> None:
    programs = read_programs(dump(tmp_path / "a", adds=3, traced=9))
    assert programs["jit_f"] == Program(
        traced={"add f32[3]{0}": 9},
        compiled={"add f32[3]{0}": 3},
        allocated_bytes=12,
        lines={"add f32[3]{0}": "x.1 at /t.py:4"},
    )
    assert set(programs) == {"jit_f", "jit_g"}


def test_moved_lines_are_no_other_program_but_other_instructions_and_sizes_are(tmp_path: Path) -> None:
    usual = read_programs(dump(tmp_path / "usual"))
    digest = digest_programs(usual)
    assert digest_programs(read_programs(dump(tmp_path / "moved", line=99))) == digest
    for name, changes in (("more", {"adds": 2}), ("traced", {"traced": 2}), ("size", {"size": 13})):
        other = read_programs(dump(tmp_path / name, **changes))
        assert digest_programs(other) != digest
        assert compare_programs(usual, other)[0].startswith("JAX hands")
    assert compare_programs(usual, usual) == ["Both sides compile the same 2 programs."]
    assert compare_programs(usual, {}) == []


def test_a_comparison_says_who_changed_what_and_where_it_is_in_python(tmp_path: Path) -> None:
    usual = read_programs(dump(tmp_path / "usual"))
    compiled = compare_programs(usual, read_programs(dump(tmp_path / "xla", adds=2, line=7)))
    assert compiled[0] == "JAX hands the same programs to XLA on both sides; XLA compiles them to others:"
    assert compiled[1:] == ["jit_f: 1 -> 2 instructions", "  + 1 add f32[3]{0}  (x.1 at /t.py:7)"]
    assert (
        compare_programs(usual, read_programs(dump(tmp_path / "jax", traced=2)))[0]
        == "JAX hands other programs to XLA:"
    )
    assert compare_programs(usual, {"jit_g": usual["jit_g"]})[1:] == ["jit_f is gone: 1 instructions"]


def test_a_link_in_the_dump_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(ADD)
    (tmp_path / "hlo").mkdir()
    (tmp_path / "hlo" / "module_0001.jit_f.cpu_after_optimizations.txt").symlink_to(tmp_path / "secret.txt")
    assert read_programs(tmp_path / "hlo") == {}


def test_xla_dumps_into_a_folder_whose_name_has_spaces(tmp_path: Path) -> None:
    program = "import jax; jax.jit(lambda x: x + 1)(1.0)"
    environ = {**os.environ, "XLA_FLAGS": dump_flags(f"{tmp_path}/a b/hlo"), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, capture_output=True)
    assert read_programs(tmp_path / "a b" / "hlo")
