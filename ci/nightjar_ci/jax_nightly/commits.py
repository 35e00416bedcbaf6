"""The commits of JAX and XLA that a nightly day was built from.

In: a day. Out: JAX's commit, from the version file of its wheel, and XLA's, from the tree of that commit. Two days give
the range of XLA's commits between them.

Source: jax/version.py (`_git_hash`) and third_party/xla/revision.bzl (`XLA_COMMIT`) of jax-ml/jax.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

from nightjar_ci.errors import NightjarError
from nightjar_ci.jax_nightly.days import Day
from nightjar_ci.untrusted.git import git_command
from nightjar_ci.untrusted.inheritance import inherit_for_fetching
from nightjar_ci.web.http import HttpError, request

JAX_REPOSITORY = "https://github.com/jax-ml/jax"
XLA_REPOSITORY = "https://github.com/openxla/xla"
REPOSITORIES = {"jax": JAX_REPOSITORY, "xla": XLA_REPOSITORY}
_REVISION_FILE = "third_party/xla/revision.bzl"
_JAX_COMMIT = re.compile(rb"^_git_hash\b.*['\"]([0-9a-f]{40})['\"]", re.MULTILINE)
_XLA_COMMIT = re.compile(r"^XLA_COMMIT\s*=\s*\"([0-9a-f]{40})\"", re.MULTILINE)
_GIT_TIMEOUT_S = 120


def find_jax_commit(day: Day) -> str | None:
    """The commit of JAX; None if its wheel names none."""
    wheel = day.files["jax"][0]
    try:
        body = request(wheel.url)[0] if "://" in wheel.url else Path(wheel.url).read_bytes()
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


def find_xla_commit(jax_commit: str, repository: str = JAX_REPOSITORY) -> str | None:
    """The commit of XLA that a commit of JAX is built with; None if the repository does not answer or names none."""
    environment = {**inherit_for_fetching(os.environ), "GIT_TERMINAL_PROMPT": "0"}
    with tempfile.TemporaryDirectory(prefix="nightjar-xla-") as folder:

        def git(*arguments: str) -> str:
            argv = git_command(Path(folder), *arguments)
            done = subprocess.run(
                argv, env=environment, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_S
            )
            return done.stdout

        try:
            git("init", "--quiet")
            git("fetch", "--quiet", "--depth", "1", "--filter=blob:none", repository, jax_commit)
            git("remote", "add", "origin", repository)  # from which git fetches the file that it shows
            git("config", "remote.origin.promisor", "true")
            text = git("show", f"{jax_commit}:{_REVISION_FILE}")
        except (OSError, subprocess.SubprocessError):
            return None
    commit = _XLA_COMMIT.search(text)
    if commit is None:
        return None
    return commit[1]


def render_compare_link(repository: str, old: str, new: str) -> str:
    """The web page of the commits between two commits.

    >>> render_compare_link(XLA_REPOSITORY, "a" * 40, "b" * 40)[:45]
    'https://github.com/openxla/xla/compare/aaaaaa'
    """
    return f"{repository.removesuffix('.git')}/compare/{old}...{new}"
