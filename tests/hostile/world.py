"""A user's world with secrets in it, and a way to look whether one got out.

In: a folder. Out: a home folder, a working directory and variables in which every secret contains `SECRET`, commands
run there, and the check that what they print and write contains none and is not called a bug.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

SECRET = "5ecret-ae41"  # of every planted secret, so that one search finds all
HOST_FILE = "host-file.txt"
VARIABLES = {
    "GITHUB_ACTIONS": "true",  # its runner takes lines for commands
    "GITHUB_TOKEN": f"ghp_{SECRET}",
    "NIGHTJAR_DATABASE_URL": "",
    "AWS_SECRET_ACCESS_KEY": f"aws-{SECRET}",
    "WANDB_API_KEY": f"wandb-{SECRET}",
    "HF_TOKEN": f"hf-{SECRET}",
    "TF_VAR_db": f"terraform-{SECRET}",
    "HTTPS_PROXY": f"http://user:{SECRET}@127.0.0.1:9",
    "PIP_EXTRA_INDEX_URL": f"http://user:{SECRET}@127.0.0.1:9",
}
_COMMANDS = re.compile(r"^\s*::.*|.*##\[.*", re.MULTILINE)  # of GitHub's runner

# Several commands in one process, since each start takes as long as its work.
_DRIVER = """import contextlib, io, json, sys
from nightjar_ci.cli import main
done = []
for words in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    done.append([code, out.getvalue(), err.getvalue()])
json.dump(done, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    stdout: str
    stderr: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class World:
    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def host_file(self) -> Path:
        return self.folder / HOST_FILE

    def make(self) -> None:
        home = self.folder / "home"
        for path in (".netrc", ".ssh/id_ed25519", ".aws/credentials", ".docker/config.json", ".config/gh/hosts.yml"):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(f'{{"text": "{path} {SECRET}"}}\n')
        self.work.mkdir(exist_ok=True, parents=True)
        self.host_file.write_text(f"a host file {SECRET}\n")

    def run(self, *arguments: object, **variables: str) -> Done:
        start = time.monotonic()
        done = self._start([sys.executable, "-m", "nightjar_ci", *map(str, arguments)], "", variables)
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - start)

    def run_each(self, *commands: Iterable[object]) -> list[Done]:
        given = json.dumps([[*map(str, words)] for words in commands])
        process = self._start([sys.executable, "-c", _DRIVER], given, {})
        assert process.returncode == 0, process.stderr[-2000:]
        return [Done(code, out, err, 0.0) for code, out, err in json.loads(process.stdout)]

    def _start(self, command: list[str], given: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **VARIABLES, "HOME": str(self.folder / "home"), **variables}
        environ.pop("NIGHTJAR_STATE_DIR", None)
        return subprocess.run(
            command, input=given, cwd=self.work, env=environ, capture_output=True, text=True, errors="replace",
            check=False, timeout=300,
        )  # fmt: skip

    def find_leaks(self, done: Iterable[Done]) -> list[str]:
        """Where a secret can be read outside of the places that hold it."""
        leaks = [text[-500:] for end in done for text in (end.stdout, end.stderr) if SECRET in text]
        for path in self.work.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                if SECRET.encode() in file.read(64 * 2**20):
                    leaks.append(str(path))
        return leaks


def check_manners(done: Done) -> None:
    """A command that met something hostile says so: no traceback, no bug of ours, nothing that acts."""
    assert "nightjar_ci/" not in done.stderr, done.stderr[-2000:]  # a line of a traceback of ours
    assert "bug in nightjar" not in done.stderr, done.stderr[-2000:]
    assert "\x1b" not in done.stdout + done.stderr
    assert _COMMANDS.findall(done.stdout + "\n" + done.stderr) == []
