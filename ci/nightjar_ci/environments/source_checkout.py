"""The repository of a package at the tag of a release, for tests that are in no archive of the package index.

In: the package, its version and the address of its repository, perhaps with a revision. Out: the folder of a checkout
of that one commit, without history. It is kept: the tag of a release does not move, so no network is needed again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from nightjar_ci.environments.git_tree import run_git
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.untrusted.git import git_command
from nightjar_ci.untrusted.inheritance import inherit_for_fetching
from nightjar_ci.web.http import hide_passwords

# How projects name the tag of a release, tried in this order.
TAGS = ("v{version}", "{name}-v{version}", "{version}", "{name}-{version}", "release-{version}")
_ADDRESS = re.compile(
    r"git\+(?P<address>(?:https|http|ssh|file)://[^@\s]*(?:@[^@/\s]+/[^@\s]*)?)(?:@(?P<revision>\S+))?"
)
_SHA = re.compile(r"[0-9a-f]{40}")


def parse_address(url: str) -> tuple[str, str | None]:
    """The address of a repository, and the revision, if named.

    >>> parse_address("git+https://github.com/jax-ml/jax@jax-v0.10.2")
    ('https://github.com/jax-ml/jax', 'jax-v0.10.2')
    >>> parse_address("git+ssh://git@github.com/jax-ml/jax")
    ('ssh://git@github.com/jax-ml/jax', None)
    """
    match = _ADDRESS.fullmatch(url)
    if match is None or (match["revision"] or "").startswith("-"):
        raise ValueError(f"{url!r} is not a repository: expected git+https://HOST/PATH, perhaps with @REVISION")
    return match["address"], match["revision"]


def make_checkout(name: str, version: str | None, url: str, cache: Path) -> Path:
    """The checkout of a release's tag, or of the revision that the address names; made unless it exists already.

    Args:
        version: of the release; None if the address names a revision.
    """
    address, revision = parse_address(url)
    origin = hashlib.sha256(address.encode()).hexdigest()[:8]
    folder = cache / f"{name}-{version}-git-{origin}"
    if version is not None and folder.is_dir():
        return folder
    commit, reference = _find_commit(name, version, address, revision)
    if version is None:
        folder = cache / f"{name}-{commit[:16]}-git-{origin}"
        if folder.is_dir():
            return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        tree = Path(temporary, "tree")
        tree.mkdir()
        _git(tree, "init", "--quiet")
        _git(tree, "fetch", "--quiet", "--depth=1", "--no-tags", "--", address, reference)
        _git(tree, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        try:
            tree.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was quicker
                raise
            shutil.rmtree(tree)
    return folder


def _find_commit(name: str, version: str | None, address: str, revision: str | None) -> tuple[str, str]:
    if revision is not None and _SHA.fullmatch(revision):
        return revision, revision
    lines = _git(Path.cwd(), "ls-remote", "--", address).splitlines()
    commits = {reference: commit for commit, _, reference in (line.partition("\t") for line in lines)}
    if revision is None:
        wanted = [f"refs/tags/{tag.format(name=name, version=version)}" for tag in TAGS]
    else:
        wanted = [f"refs/tags/{revision}", f"refs/heads/{revision}", revision]
    for reference in wanted:
        if reference in commits:
            return commits.get(f"{reference}^{{}}", commits[reference]), reference
    tried = ", ".join(reference.removeprefix("refs/tags/") for reference in wanted)
    raise EnvironmentFailedError(
        f"source of {name}: {hide_passwords(address)} has none of {tried}.",
        f"name a tag, a branch or a full commit: source = '{name} @ git+ADDRESS@REVISION'",
    )


def _git(folder: Path, *arguments: str) -> str:
    # Git would wait for a password that nobody types.
    environ = {**inherit_for_fetching(os.environ), "GIT_TERMINAL_PROMPT": "0"}
    return run_git(git_command(folder, *arguments), f"`git {hide_passwords(' '.join(arguments))}`", environ)
