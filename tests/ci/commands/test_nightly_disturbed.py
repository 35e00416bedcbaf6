"""A nightly in which one job hangs, one crashes, one prints a gigabyte and one dies: the others are judged as ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.executors.process import STDERR, STDOUT
from nightjar_ci.formats.night_folder import job_folder, read_night
from nightjar_ci.formats.verdict import read_verdicts

BAD = {
    "hangs": "import subprocess, time; subprocess.Popen(['sleep', '1000']); time.sleep(1000)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "prints": "import sys\nfor _ in range(1024): sys.stdout.write('x' * 2**20)",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}
MOST_BYTES = 64 << 20  # of a log, far below what the job prints


@pytest.mark.slow
def test_no_job_disturbs_another(tmp_path: Path) -> None:
    jobs = {"before": "assert True", **BAD, "after": "assert True", "wrong": "assert False"}
    lines = ['schema = "nightjar.matrix/1"', 'name = "guests"', '[defaults]\nkind = "test"\ntimeout_s = 60']
    for name, program in jobs.items():
        limit = "timeout_s = 3" if name == "hangs" else ""
        lines.append(f"[[job]]\nname = {name!r}\n{limit}\ncommand = ['python', '-c', '''{program}''']")
    (tmp_path / "m.toml").write_text("\n".join(lines))
    (tmp_path / "policies.toml").write_text('schema = "nightjar.policies/1"\n')
    command = [sys.executable, "-m", "nightjar_ci", "nightly", "m.toml", "--policies", "policies.toml"]
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [*command, "--baselines", "."], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    folder = Path(done.stdout.strip()).parent
    states = {outcome.job: outcome.state for outcome in read_night(folder).jobs}
    assert states == {
        **dict.fromkeys(("before", "prints", "after", "wrong"), "completed"),
        "hangs": "timeout",
        "crashes": "killed",
        "dies": "killed",
    }
    verdicts = read_verdicts(folder / "verdicts.json").verdicts
    red = {verdict.cell for verdict in verdicts if verdict.status == "regressed"}
    assert red == {"wrong"}
    assert {"before", "after"} <= {verdict.cell for verdict in verdicts}
    logs = [job_folder(folder, "prints") / name for name in (STDOUT, STDERR)]
    assert sum(log.stat().st_size for log in logs) < MOST_BYTES
    assert (folder / "report.html").is_file()
