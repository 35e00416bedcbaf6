"""Names of a foreign trace on a terminal."""

from pathlib import Path

import pytest

from nightjar_profiling.cli import main
from tests.profiling import builders

EVIL = "/x/\x1b[2J\x1b]0;pwned\x07evil.py\u202e"


def test_a_file_name_in_a_trace_cannot_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = {number: (parent, EVIL, line, name) for number, (parent, _, line, name) in builders.FRAMES.items()}
    monkeypatch.setattr(builders, "FRAMES", frames)
    builders.training_trace().write(tmp_path / "trace")
    (trace,) = (tmp_path / "trace").rglob("*.xplane.pb")
    for words in (["report", str(trace), "--out", str(tmp_path / "capture")], ["summary", str(tmp_path / "capture")]):
        monkeypatch.setattr("sys.argv", ["nightjar-profiling", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
    said = capsys.readouterr()
    assert "evil.py" in said.out
    assert not {"\x1b", "\x07", "\u202e"} & set(said.out + said.err)
