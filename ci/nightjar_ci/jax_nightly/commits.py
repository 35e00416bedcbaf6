"""The commits of JAX and XLA that a nightly day was built from.

In: a day. Out: JAX's commit, from the version file of its wheel, and XLA's, from a file of that commit on GitHub.

Source: jax/version.py (`_git_hash`) and third_party/xla/revision.bzl (`XLA_COMMIT`) of jax-ml/jax.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile

from nightjar_ci.errors import NightjarError
from nightjar_ci.jax_nightly.days import Day
from nightjar_ci.web.http import HttpError, request

_REVISION = "https://raw.githubusercontent.com/jax-ml/jax/{commit}/third_party/xla/revision.bzl"
_JAX_COMMIT = re.compile(rb"^_git_hash\b.*['\"]([0-9a-f]{40})['\"]", re.MULTILINE)
_XLA_COMMIT = re.compile(rb"^XLA_COMMIT\s*=\s*\"([0-9a-f]{40})\"", re.MULTILINE)


def find_jax_commit(day: Day) -> str | None:
    """The commit of JAX; None if its wheel names none."""
    wheel = day.files["jax"][0]
    try:
        body, _ = request(wheel.url)
        if wheel.sha256 is not None and (digest := hashlib.sha256(body).hexdigest()) != wheel.sha256:
            raise NightjarError(f"{wheel.name}: its SHA-256 is {digest}, but the index says {wheel.sha256}.")
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            text = archive.read("jax/version.py")
    except HttpError as error:
        raise NightjarError(f"{error}.") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise NightjarError(f"{wheel.name} is not a readable wheel: {error}.") from None
    except KeyError:
        return None
    commit = _JAX_COMMIT.search(text)
    if commit is None:
        return None
    return commit[1].decode()


def find_xla_commit(jax_commit: str) -> str | None:
    """The commit of XLA that a commit of JAX is built with; None if GitHub does not answer or has none."""
    try:
        text, _ = request(_REVISION.format(commit=jax_commit))
    except HttpError:
        return None
    commit = _XLA_COMMIT.search(text)
    if commit is None:
        return None
    return commit[1].decode()
