"""What a job tries against the allow-list of the sandbox (`attempts.toml`), and the program that tries it."""

import tomllib
from pathlib import Path

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SECRET_FILES: list[str] = _TABLES["secret_files"]
ATTEMPTS = {f"reads ~/{name}": f"assert open(f'{{HOME}}/{name}').read(1)" for name in SECRET_FILES}
ATTEMPTS |= {**_TABLES["reads"], **_TABLES["writes"], **_TABLES["privileges"]}

PROGRAM = """import json, os, shutil, socket, subprocess, sys
globals().update(json.load(open(sys.argv[1])))
def run(*command):
    subprocess.run(command, check=True, capture_output=True)
done = []
for name, text in ATTEMPTS.items():
    try:
        exec(text)
        done.append(name)
    except BaseException:
        pass
print(json.dumps(done))
"""
