"""The environment variables that foreign code inherits: jobs, environment builds, tests of a bisection.

In: the caller's variables and the names that a matrix adds. Out: the inherited ones. A pattern never matches a name
that looks like a secret, nor a value with a user name or password; docs/reference/environment.md has the list.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

_TABLES = tomllib.loads(Path(__file__).with_name("inherited.toml").read_text(encoding="utf-8"))
ALLOWED, FETCHING = (tuple(chain(*_TABLES[kind].values())) for kind in ("allowed", "fetching"))
NEVER = ("TF_VAR_*",)  # Terraform's: they start like TensorFlow's and are often secrets
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_ENDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CRED", "COOKIE", "APIKEY", "JWT")
_SECRET_WORDS = frozenset(("KEY", "AUTH", "PASS", "PAT", "DSN", "PW", "PWD", "BEARER", "NETRC", "WEBHOOK"))
_CREDENTIALS = re.compile(r"//[^/\s]*@|^[^/\s@]+:[^/\s@]+@")  # scheme://user:password@host, user:password@host
_SHORTEST = 8  # characters of a value that is looked for: shorter ones occur in any file


def inherit(environ: Mapping[str, str], names: Collection[str] = ()) -> dict[str, str]:
    """The variables that pass to foreign code.

    Args:
        names: names in full and patterns that a matrix adds (`pass_env`, `secrets`).

    >>> inherit({"PATH": "/bin", "JAX_PLATFORMS": "cpu", "JAX_TOKEN": "x", "MINE": "1"}, ["MINE"])
    {'PATH': '/bin', 'JAX_PLATFORMS': 'cpu', 'MINE': '1'}
    """
    return {
        name: value for name, value in environ.items() if _passes(name, value, ALLOWED) or _is_added(name, value, names)
    }


def select(environ: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if _is_added(name, value, names)}


def inherit_for_fetching(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for a command that fetches packages, with the passwords of indexes and proxies."""
    fetching = {name: value for name, value in environ.items() if _matches(name, FETCHING)}
    return {**inherit(environ), **fetching}


def looks_secret(name: str) -> bool:
    """Whether a variable probably holds a secret, judged by its name.

    >>> [looks_secret(name) for name in ("GITHUB_TOKEN", "AWS_ACCESS_KEY_ID", "DATABASE_URL", "SLACK_WEBHOOK_URL")]
    [True, True, True, True]
    >>> [looks_secret(name) for name in ("TOKENIZERS_PARALLELISM", "PWD", "XLA_FLAGS", "KEYBOARD", "AUTHOR")]
    [False, False, False, False, False]
    """
    words = [word.rstrip("0123456789") for word in name.upper().split("_")]
    if "DATABASE_URL" in name.upper() or (name != "PWD" and _SECRET_WORDS.intersection(words)):
        return True
    return any(word.removesuffix("S").endswith(_SECRET_ENDS) for word in words if word)


def list_secrets(environ: Mapping[str, str], names: Collection[str] = ()) -> list[str]:
    """The values of variables that look like secrets, and the passwords of addresses, except those of given names.

    >>> list_secrets({"API_KEY": "0123456789", "DATABASE_URL": "postgresql://me:a%20secret@host/x", "HOME": "/home/me"})
    ['0123456789', 'a%20secret', 'a secret']
    """
    found = []
    for name, value in environ.items():
        address = _CREDENTIALS.search(value)
        if name in names or value.startswith(("/", "sqlite:")):  # a path, such as an agent's socket
            continue
        if address is not None:
            password = address[0].strip("/@").partition(":")[2]
            found += [password, unquote(password)]
        elif looks_secret(name):
            # Of a private key the other lines are in all of them.
            found.append(max(value.splitlines(), key=len, default=""))
    return [value for value in dict.fromkeys(found) if len(value) >= _SHORTEST]


def check_passed(name: str) -> str:
    if not _NAME.fullmatch(name.removesuffix("*")):
        raise ValueError("expected the name of a variable, or a prefix and '*', such as MYLAB_*")
    if not name.endswith("*") and looks_secret(name):
        raise ValueError(f"{name} looks like a secret: name it in 'secrets', whose values are masked")
    return name


def check_secret(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("expected the name of an environment variable, such as HF_TOKEN; its value stays outside")
    return name


def _is_added(name: str, value: str, names: Iterable[str]) -> bool:
    return any(name == added or ("*" in added and _passes(name, value, (added,))) for added in names)


def _passes(name: str, value: str, patterns: Iterable[str]) -> bool:
    """Whether a variable matches: by its full name, or by a pattern if it does not look like a secret."""
    if _CREDENTIALS.search(value) or _matches(name, NEVER):
        return False
    return any(name == pattern or (fnmatchcase(name, pattern) and not looks_secret(name)) for pattern in patterns)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
