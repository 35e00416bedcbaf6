"""The shell command that runs the test on one rung again by hand, without nightjar-ci.

In: a rung and the question. Out: one line to copy and paste. Packages are named one by one, so that the line works on
another machine too; `uv` makes the environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import Ladder, Rung
from nightjar_ci.bisect.state import Question
from nightjar_ci.environments.current import find_current


def render_reproduction(
    rung: Rung,
    ladder: Ladder,
    question: Question,
    *,
    folder: Path,
    python: str | None,
    submodules: bool = False,
    address: str | None = None,
) -> str:
    """The command line.

    Args:
        rung: what to test.
        ladder: the ladder that it is on.
        question: the test.
        folder: the rung's folder.
        python: interpreter or version; that of this process where None.
        submodules: whether a commit records some.
        address: from which anybody can clone the repository of a commit; None where that is not known.
    """
    command = [part.replace("{rung}", rung.source or rung.name) for part in question.command]
    command = [part.replace("{folder}", str(folder)).replace("{out}", "/tmp") for part in command]
    if rung.kind == "packages":
        return shlex.join([*_uv_run(rung, ladder, python), "--", *command])
    if rung.kind == "image":
        mount = '--mount type=bind,source="$PWD",target=/work,readonly --workdir /work'
        inside = shlex.join(["--entrypoint", command[0], rung.source, *command[1:]])
        return f"docker run --rm --network none {mount} {inside}"
    prepare = [part.replace("{rung}", rung.source or rung.name) for part in question.prepare]
    prepare = [part.replace("{folder}", str(folder)) for part in prepare]
    variables = ["env", f"NIGHTJAR_RUNG={rung.source or rung.name}"]
    if rung.kind != "commit" or prepare:
        variables.append(f"NIGHTJAR_RUNG_FOLDER={folder}")
    lines = [shlex.join([*variables, *command])]
    if prepare:
        lines.insert(0, shlex.join([*variables, *prepare]))
    if rung.kind == "commit":
        assert ladder.repository is not None, "a commit is of a repository"
        checkout = ["tree=$(mktemp -d)", *_check_out(ladder.repository, rung.source, address)]
        if submodules:
            checkout.append('git -C "$tree" submodule --quiet update --init --recursive')
        if ladder.package is not None:
            run = shlex.join(_uv_run(rung, ladder, python))
            return _join([*checkout, f'{run} --with "$tree" -- {lines[-1]}'])
        if question.install:
            lines[-1] = f'uv run --no-project --with "$tree" -- {lines[-1]}'
        return _join([*checkout, 'cd "$tree"', *lines])
    return " && ".join(lines)


def _check_out(repository: str, sha: str, address: str | None) -> list[str]:
    """Commands that check a commit out into `$tree`."""
    if address is None:
        add = shlex.join(["git", "-C", repository, "worktree", "add", "--detach"])
        return [f'{add} "$tree" {shlex.quote(sha)}']
    return [f'git clone --quiet {shlex.quote(address)} "$tree"', f'git -C "$tree" checkout --quiet {shlex.quote(sha)}']


def _join(lines: Sequence[str]) -> str:
    """Commands that run one after the other in a shell of their own."""
    return f"({' && '.join(lines)})"


def _uv_run(rung: Rung, ladder: Ladder, python: str | None) -> list[str]:
    arguments = ["uv", "run", "--no-project", "--isolated", "--python", python or find_current().version]
    for line in rung.lock:
        arguments += ["--with", line]
    for source, editable in ladder.folders.values():
        arguments += ["--with-editable" if editable else "--with", source]
    return arguments
