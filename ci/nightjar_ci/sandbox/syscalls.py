"""The system calls that a job lacks, as a filter of seccomp(2): a program in classic BPF for `bwrap --seccomp`.

Refused is what crosses namespaces and mounts: the keyrings of the caller, sockets of a virtual machine's host, and
files that run with the rights of their owner wherever a job may write. What a filter cannot see into (io_uring, openat2
and the calls of 32-bit programs) is absent, as on an old kernel, and libraries then use other calls.
"""

from __future__ import annotations

import errno
import platform
import socket
import stat
import struct

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # places in its seccomp_data
_X32 = 0x40000000  # a second set of numbers on x86-64
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: without them open's mode means nothing
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

_ABSENT = ("add_key", "request_key", "keyctl", "io_uring_setup", "openat2")
_MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}  # argument
_OPENS = {"open": 1, "openat": 2}  # argument of the flags; the mode follows
_SHARED = {"io_uring_setup": 425, "openat2": 437, "fchmodat2": 452}
# By machine: its audit architecture (linux/audit.h) and its numbers (asm/unistd_64.h, asm-generic/unistd.h).
_MACHINES = {
    "x86_64": (
        0xC000003E,
        {"open": 2, "socket": 41, "creat": 85, "chmod": 90, "fchmod": 91, "mknod": 133, "add_key": 248}
        | {"request_key": 249, "keyctl": 250, "openat": 257, "mknodat": 259, "fchmodat": 268},
    ),
    "aarch64": (
        0xC00000B7,
        {"mknodat": 33, "fchmod": 52, "fchmodat": 53, "openat": 56, "socket": 198, "add_key": 217}
        | {"request_key": 218, "keyctl": 219},
    ),
}


def render_filter(machine: str = platform.machine()) -> bytes | None:
    """The filter of a machine; None if its numbers are not known."""
    if machine not in _MACHINES:
        return None
    architecture, numbers = _MACHINES[machine]
    absent, allow = [_end(errno.ENOSYS)], [_step(_RETURN, _ALLOW)]
    program = [_load(_ARCHITECTURE), _step(_EQUAL, architecture, 1), *absent, _load(_NUMBER)]
    program += [_step(_AT_LEAST, _X32, 0, 1), *absent]
    for name, number in (numbers | _SHARED).items():
        if name in _ABSENT:
            block = absent
        elif name == "socket":
            known = [_step(_EQUAL, family, len(_FAMILIES) - at) for at, family in enumerate(_FAMILIES)]
            block = [_load(_ARGUMENTS), *known, _end(errno.EAFNOSUPPORT), *allow]
        elif name in _OPENS:
            flags = _OPENS[name]
            block = [_load(_ARGUMENTS + 8 * flags), _step(_ANY_BIT, _CREATES, 1), *allow, *_check_mode(flags + 1)]
        else:
            block = _check_mode(_MODES[name])
        program += [_step(_EQUAL, number, 0, len(block)), *block]
    return b"".join(program + allow)


def _check_mode(argument: int) -> list[bytes]:
    is_owner = _step(_ANY_BIT, stat.S_ISUID, 0, 1)
    return [_load(_ARGUMENTS + 8 * argument), is_owner, _end(errno.EPERM), _step(_RETURN, _ALLOW)]


def _load(offset: int) -> bytes:
    return _step(_LOAD, offset)


def _end(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
