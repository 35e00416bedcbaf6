import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nightjar_ci.images.publish.push import open_scratch

HOLD = """
import sys, time
from nightjar_ci.images.publish.push import open_scratch
with open_scratch("nightjar-test-") as folder:
    (folder / "blob").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_the_next_run_removes_only_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "nightjar-test-of-somebody").mkdir()  # without a lock: not known to be ours
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD], env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        folders = [Path(process.stdout.readline().strip()) for process in processes if process.stdout]
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        with open_scratch("nightjar-test-") as folder:
            assert not folders[0].exists()
            assert (folders[1] / "blob").exists()
        assert not folder.exists()
        assert (tmp_path / "nightjar-test-of-somebody").exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
