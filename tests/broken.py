"""`python -m tests.broken`: every test that asks for a part of the machine, once where each part is there by half.

PATH begins with programs that refuse, a Chromium that hangs and a `docker` that is Podman. Out: pytest's summary, in
which each part is skipped with its reason; exit code 1 where a test failed, because it asks too late or not at all.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.machine import CHROMIUMS, PARTS
from tests.places import ROOT
from tests.stand_ins import write_programs

REFUSES = '#!/bin/sh\necho "$0: refused" >&2\nexit 1\n'
HANGS = "#!/bin/sh\nexec sleep 3600\n"
PODMAN = '#!/bin/sh\n[ "$1" = --version ] && exec echo podman version 4.3.1\nexit 125\n'


def render_programs() -> dict[str, str]:
    programs = dict.fromkeys((name for part in PARTS.values() for name in part.programs), REFUSES)
    return {**programs, "docker": PODMAN, CHROMIUMS[0]: HANGS}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = write_programs(Path(folder), render_programs())
        path.chmod(0o755)  # PostgreSQL is started as another user
        asking = " or ".join(name for name, part in PARTS.items() if part.programs or part.on)
        marked = f"({asking}) and (weekly or not weekly)"  # to name them keeps them
        command = [sys.executable, "-m", "pytest", "tests", "-q", "-m", marked]
        environ = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
