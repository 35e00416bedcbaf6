"""What a job tries against the allow-list of the sandbox (`attempts.toml`), and the program that tries it."""

import tomllib
from pathlib import Path

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SECRET_FILES: list[str] = _TABLES["secret_files"]
ATTEMPTS = {f"reads ~/{name}": f"assert open(f'{{HOME}}/{name}').read(1)" for name in SECRET_FILES}
ATTEMPTS |= {**_TABLES["reads"], **_TABLES["writes"], **_TABLES["privileges"]}

PROGRAM = """import ctypes, json, mmap, os, platform, shutil, socket, struct, subprocess, sys
globals().update(json.load(open(sys.argv[1])))
def run(*command):
    subprocess.run(command, check=True, capture_output=True)
KEYCTL = 250 if platform.machine() == 'x86_64' else 219
def call(number, *arguments):
    assert ctypes.CDLL(None).syscall(number, *arguments) >= 0
def call32(number, path, mode):  # int 0x80, with a path below 4 GiB
    assert platform.machine() == 'x86_64'
    low = ctypes.CDLL(None).mmap
    low.restype = ctypes.c_void_p
    at = low(None, 4096, 7, 0x62, -1, None)  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT
    ctypes.memmove(at + 2048, path.encode() + bytes(1), len(path.encode()) + 1)
    code = bytes([0x53, 0xB8]) + struct.pack('<I', number) + bytes([0xBB]) + struct.pack('<I', at + 2048)
    code += bytes([0xB9]) + struct.pack('<I', mode) + bytes([0xCD, 0x80, 0x5B, 0xC3])
    ctypes.memmove(at, code, len(code))
    assert ctypes.CFUNCTYPE(ctypes.c_int)(at)() >= 0
done = []
for name, text in ATTEMPTS.items():
    try:
        exec(text)
        done.append(name)
    except BaseException:
        pass
print(json.dumps(done))
"""
