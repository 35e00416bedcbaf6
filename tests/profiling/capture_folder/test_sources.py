from pathlib import Path

import pytest

from nightjar_profiling.capture_folder.sources import collect, place_of, reader


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_source_is_copied_and_its_lines_are_quoted(tmp_path: Path) -> None:
    script = tmp_path / "run" / "train.py"
    script.parent.mkdir()
    script.write_text("import jax\n    loss = f(x)  \n")
    copies = tmp_path / "capture" / "sources"
    assert collect([str(script), "train.py"], str(script.parent), copies) == sorted([str(script), "train.py"])
    script.unlink()
    source_of = reader(copies, str(tmp_path / "run"))
    assert source_of(str(script), 2) == "loss = f(x)"
    assert source_of("train.py", 2) == "loss = f(x)"
    assert source_of(str(script), 3) is None
    assert source_of("/no/such.py", 1) is None


@pytest.mark.parametrize(
    "name",
    [
        "../../../outside.py",
        "/../../outside.py",
        "/a/../../../b.py",
        "a\\..\\b.py",
        "x\0y.py",
        "/etc/passwd",
        "<stdin>",
    ],
)
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.py").write_text("secret = 1\n")
    sources = tmp_path / "capture" / "sources"
    before = written(tmp_path)
    collect([name], str(tmp_path / "capture"), sources)
    assert [new for new in written(tmp_path) if new not in before and not new.startswith("capture/sources/")] == []
    place = place_of(name, str(tmp_path))
    assert place is None or (".." not in place.parts and not place.is_absolute())


def test_only_python_files_are_copied(tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("secret")
    (tmp_path / "folder.py").mkdir()
    assert collect([str(tmp_path / "id_rsa"), str(tmp_path / "folder.py")], None, tmp_path / "sources") == []


def test_a_link_that_leads_out_of_a_capture_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("password = 1\n")
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "a.py").symlink_to(tmp_path / "secret.py")
    assert reader(tmp_path / "sources", None)("/a.py", 1) is None


def test_a_source_in_a_declared_encoding_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("# coding: latin-1\ngröße = 1\n".encode("latin-1"))
    assert reader(tmp_path, None)("/a.py", 2) == "größe = 1"
