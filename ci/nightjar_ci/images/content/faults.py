"""What would break an image for somebody? Names of variables, modes of files, size. Pure.

In: the variables of an image, the entries of its layers, its size. Out: what is wrong with each, in words. Users report
these most: a variable whose name no shell takes stops Singularity, a folder that is closed to others stops everyone who
runs as another user, a setuid file fails the audit of a cluster.
"""

from __future__ import annotations

import re
import stat
import tarfile
from collections.abc import Iterable, Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Debian's own, which any Debian or Ubuntu image has; each of them drops the right where it may not be used
DEBIAN_SETUID = frozenset(
    f"usr/{folder}/{name}"
    for folder in ("bin", "sbin", "lib/openssh", "lib/dbus-1.0")
    for name in (
        *("chage", "chfn", "chsh", "expiry", "gpasswd", "mount", "newgrp", "passwd", "su", "umount", "unix_chkpwd"),
        *("pam_extrausers_chkpwd", "ssh-agent", "ssh-keysign", "dbus-daemon-launch-helper"),
    )
)
# what Debian closes to others, and nobody else needs
PRIVATE = re.compile(
    r"root(/.*)?|etc/(\.pwd\.lock|g?shadow-?|ssl/private(/.*)?|security/opasswd)"
    r"|var/lib/dpkg/(lock|lock-frontend|triggers/Lock)|var/(cache|lib)/apt/.*|var/cache/ldconfig(/.*)?|var/log/.*"
)


def find_bad_variables(variables: Iterable[str]) -> list[str]:
    """The variables of an image (`NAME=value`) whose name a shell does not take.

    >>> find_bad_variables(["PATH=/bin", "jax-version=1"])
    ["variable 'jax-version': a name is letters, digits and _, no digit first"]
    """
    names = [variable.partition("=")[0] for variable in variables]
    return [
        f"variable {name!r}: a name is letters, digits and _, no digit first"
        for name in names
        if not _NAME.fullmatch(name)
    ]


def find_bad_modes(members: Iterable[tarfile.TarInfo]) -> list[str]:
    """The entries of a layer that give a right too much, or one too few."""
    found = []
    for member in members:
        path = member.name.removeprefix("./").rstrip("/")
        if reason := _judge_mode(member, path):
            found.append(f"{path or '/'} ({member.mode:04o}): {reason}")
    return found


def find_oversize(size_bytes: int, budgets_mb: Mapping[str, int], name: str, flavor: str) -> list[str]:
    """Whether an image is larger than its budget (MB: 1,000,000 bytes, all its layers, uncompressed), or has none.

    >>> find_oversize(1_300_000_000, {"models-cpu": 1200}, "models", "cpu")
    ['models-cpu: 1300 MB, the budget is 1200 MB']
    >>> find_oversize(1_300_000_000, {"models-cpu": 1400}, "models", "cuda13")
    ['models-cuda13: 1300 MB, and no budget to judge it by: unknown, not ok']
    """
    budget = budgets_mb.get(f"{name}-{flavor}")
    if budget is None:
        return [f"{name}-{flavor}: {size_bytes / 1e6:.0f} MB, and no budget to judge it by: unknown, not ok"]
    if size_bytes <= budget * 1e6:
        return []
    return [f"{name}-{flavor}: {size_bytes / 1e6:.0f} MB, the budget is {budget} MB"]


def _judge_mode(member: tarfile.TarInfo, path: str) -> str | None:
    mode = member.mode
    if member.isfile():
        if mode & (stat.S_ISUID | stat.S_ISGID) and path not in DEBIAN_SETUID:
            return "setuid or setgid"
        if mode & stat.S_IWOTH:
            return "anybody may write it"
        if not mode & stat.S_IROTH and not PRIVATE.fullmatch(path) and path not in DEBIAN_SETUID:
            return "others cannot read it"
    if member.isdir():
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return "anybody may write in it"
        if mode & (stat.S_IROTH | stat.S_IXOTH) != stat.S_IROTH | stat.S_IXOTH and not PRIVATE.fullmatch(path):
            return "others cannot enter or read it"
    return None
