"""Faults of an image: variable names, file modes and size. Pure.

In: the variables of an image, the entries of its layers, its size. Out: a message for each fault. These are the faults
that users report most: a variable name that is invalid in a shell breaks Singularity, a folder without access for
others breaks every run as another user, and a setuid file fails a cluster's audit.
"""

import re
import stat
import tarfile
from collections.abc import Iterable, Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# part of every Debian or Ubuntu image; each drops its privileges when they are not allowed
DEBIAN_SETUID = frozenset(
    f"usr/{folder}/{name}"
    for folder in ("bin", "sbin", "lib/openssh", "lib/dbus-1.0")
    for name in (
        *("chage", "chfn", "chsh", "expiry", "gpasswd", "mount", "newgrp", "passwd", "su", "umount", "unix_chkpwd"),
        *("pam_extrausers_chkpwd", "ssh-agent", "ssh-keysign", "dbus-daemon-launch-helper"),
    )
)
# paths that Debian makes private and that no other user needs
PRIVATE = re.compile(
    r"root(/.*)?|etc/(\.pwd\.lock|g?shadow-?|ssl/private(/.*)?|security/opasswd)"
    r"|var/lib/dpkg/(lock|lock-frontend|triggers/Lock)|var/(cache|lib)/apt/.*|var/cache/ldconfig(/.*)?|var/log/.*"
)


def find_bad_variables(variables: Iterable[str]) -> list[str]:
    """The variables of an image (`NAME=value`) whose name is not valid in a shell.

    >>> find_bad_variables(["PATH=/bin", "jax-version=1"])
    ["variable 'jax-version': expected letters, digits and _, not starting with a digit"]
    """
    names = [variable.partition("=")[0] for variable in variables]
    rule = "expected letters, digits and _, not starting with a digit"
    return [f"variable {name!r}: {rule}" for name in names if not _NAME.fullmatch(name)]


def find_bad_modes(members: Iterable[tarfile.TarInfo]) -> list[str]:
    """The entries of a layer with too many or too few permissions."""
    faults = []
    for member in members:
        path = member.name.removeprefix("./").rstrip("/")
        if reason := _judge_mode(member, path):
            faults.append(f"{path or '/'} ({member.mode:04o}): {reason}")
    return faults


def find_oversize(size_bytes: int, budgets_mb: Mapping[str, int], name: str, flavor: str) -> list[str]:
    """A message if an image exceeds its budget (MB: 1,000,000 bytes, all its layers, uncompressed), or has none.

    >>> find_oversize(1_300_000_000, {"models-cpu": 1200}, "models", "cpu")
    ['models-cpu: 1300 MB, the budget is 1200 MB']
    >>> find_oversize(1_300_000_000, {"models-cpu": 1400}, "models", "cuda13")
    ['models-cuda13: 1300 MB, but it has no size budget']
    """
    budget = budgets_mb.get(f"{name}-{flavor}")
    if budget is None:
        return [f"{name}-{flavor}: {size_bytes / 1e6:.0f} MB, but it has no size budget"]
    if size_bytes <= budget * 1e6:
        return []
    return [f"{name}-{flavor}: {size_bytes / 1e6:.0f} MB, the budget is {budget} MB"]


def _judge_mode(member: tarfile.TarInfo, path: str) -> str | None:
    mode = member.mode
    if member.isfile():
        if mode & (stat.S_ISUID | stat.S_ISGID) and path not in DEBIAN_SETUID:
            return "setuid or setgid"
        if mode & stat.S_IWOTH:
            return "world-writable"
        if not mode & stat.S_IROTH and not PRIVATE.fullmatch(path) and path not in DEBIAN_SETUID:
            return "others cannot read it"
    if member.isdir():
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return "world-writable without the sticky bit"
        if mode & (stat.S_IROTH | stat.S_IXOTH) != stat.S_IROTH | stat.S_IXOTH and not PRIVATE.fullmatch(path):
            return "others cannot enter or list it"
    return None
