"""The shell command that runs the test on one rung again by hand, without nightjar-ci.

In: a rung and the question. Out: one line to copy and paste. Packages are named one by one, so that the line works on
another machine too; `uv` makes the environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nightjar_ci.bisect.ladders.commits import find_place, list_submodules
from nightjar_ci.bisect.ladders.rung import Checkout, Ladder, Rung
from nightjar_ci.bisect.probing.rung_setup import LOCK
from nightjar_ci.bisect.result.difference import find_public_address
from nightjar_ci.bisect.state import Question
from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.installed import freeze
from nightjar_ci.environments.project import choose_python, is_package, is_project, parse_project
from nightjar_ci.untrusted.files import read_untrusted


def render_reproduction(rung: Rung, ladder: Ladder, question: Question, folder: Path) -> str:
    command = [part.replace("{out}", "/tmp") for part in rung.fill(question.command, folder)]
    variables = [f"NIGHTJAR_RUNG={rung.argument}", f"NIGHTJAR_SEED={question.replicate or 0}"]
    variables += ["NIGHTJAR_JOB=again", "NIGHTJAR_OUT=/tmp"]
    if rung.kind == "packages":
        return shlex.join([*_uv_run(rung, rung.lock, ladder, question.python), "--", "env", *variables, *command])
    if rung.kind == "image":
        mount = '--mount type=bind,source="$PWD",target=/work,readonly --workdir /work'
        passed = [word for variable in variables for word in ("--env", variable)]
        inside = shlex.join([*passed, "--entrypoint", command[0], rung.source, *command[1:]])
        return f"docker run --rm --network none {mount} {inside}"
    variables.insert(0, "env")
    if rung.kind != "commit" or question.prepare:
        variables.append(f"NIGHTJAR_RUNG_FOLDER={folder}")
    lines = [shlex.join([*variables, *command])]
    if question.prepare:
        lines.insert(0, shlex.join([*variables, *rung.fill(question.prepare, folder)]))
    if rung.kind == "listed":
        return " && ".join(lines)
    clean, checkout = 'cd /; rm -rf "$tree"', list[str]()
    for part in ladder.checkouts(rung):
        checkout += _check_out(part)
        if find_public_address(part.repository) is None:
            clean += f"; git -C {shlex.quote(str(part.repository))} worktree prune"
    checkout = ["tree=$(mktemp -d)", f"trap {shlex.quote(clean)} EXIT", *checkout]
    if ladder.package is not None:
        lock: Sequence[str] = rung.lock
        with suppress(OSError):  # it was not made, or a test put a link there
            lock = read_untrusted(folder, LOCK).decode().splitlines()
        run = shlex.join(_uv_run(rung, lock, ladder, question.python))
        return _join([*checkout, f'{run} --with "$tree" -- {lines[-1]}'])
    if is_project(question.environment) and ladder.repository is not None:
        lines[-1] = f"{_in_project(question, Path(ladder.repository))} -- {lines[-1]}"
    elif question.environment == "current" and ladder.repository is not None and not question.prepare:
        frozen = freeze()
        folders = [_in_tree(folder, Path(ladder.repository)) for folder, _ in frozen.folders.values()]
        words = [f"--with-editable {folder}" for folder in folders]
        if '"$tree"' in " ".join(words):
            run = shlex.join(_uv_run(rung, sorted(frozen.pins.values()), ladder, question.python))
            lines[-1] = " ".join([run, *words, "--", lines[-1]])
    root = Path(ladder.repository or "/")
    return _join([*checkout, f"cd {_in_tree(root / find_place(ladder.repository), root)}", *lines])


def _in_project(question: Question, repository: Path) -> str:
    """The beginning of a command in the environment of a project, as the commit in `$tree` has the project."""
    wanted = parse_project(question.environment.removeprefix("project:"))
    folder = _in_tree(wanted.folder, repository)
    words = [f"--with {folder}{wanted.extras and shlex.quote(wanted.extras)}"] if is_package(wanted.folder) else []
    words += [f"--with-requirements {_in_tree(path, repository)}" for path in wanted.files]
    words += [f"--with {shlex.quote(requirement)}" for requirement in wanted.requirements]
    project = "--no-project"
    if wanted.groups or wanted.is_listed:
        extras = wanted.render_extras() if wanted.is_listed else ()
        project = " ".join([f"--project {folder}", *extras, *(f"--group {name}" for name in wanted.groups)])
    python = question.python or choose_python(wanted.folder) or find_current().version
    return " ".join([f"uv run --isolated --python {shlex.quote(python)}", project, *words])


def _in_tree(path: Path, repository: Path) -> str:
    whole, root = path.expanduser().resolve(), repository.resolve()
    if whole == root:
        return '"$tree"'
    if whole.is_relative_to(root):
        return f'"$tree"/{shlex.quote(str(whole.relative_to(root)))}'
    return shlex.quote(str(whole))


def _check_out(checkout: Checkout) -> list[str]:
    """Commands that check a commit out into `$tree`, or into a folder of it; anyone who can clone it can run them."""
    tree = '"$tree"'
    if checkout.path != ".":
        tree += f"/{shlex.quote(checkout.path)}"
    address = find_public_address(checkout.repository)
    if address is None:
        add = shlex.join(["git", "-C", str(checkout.repository), "worktree", "add", "--detach"])
        lines = [f"{add} {tree} {checkout.sha}"]
    else:
        lines = [
            f"git clone --quiet {shlex.quote(address)} {tree}",
            f"git -C {tree} checkout --quiet {checkout.sha}",
        ]
    if checkout.picks:
        lines.append(f"git -C {tree} cherry-pick --no-commit {' '.join(checkout.picks)}")
    submodules = list_submodules(checkout.repository, checkout.sha)
    others = [path for path in submodules if path not in checkout.nested]
    if others:
        update = f"git -C {tree} -c submodule.active=. submodule --quiet update --recursive"
        if len(others) < len(submodules):
            update += f" -- {shlex.join(others)}"
        lines.append(update)
    return lines


def _join(lines: Sequence[str]) -> str:
    return f"({' && '.join(lines)})"


def _uv_run(rung: Rung, lines: Sequence[str], ladder: Ladder, python: str | None) -> list[str]:
    arguments = ["uv", "run", "--no-project", "--isolated", "--python"]
    arguments.append(rung.python or python or find_current().version)
    for line in lines:
        arguments += ["--with", line]
    for source, editable in ladder.folders.values():
        arguments += ["--with-editable" if editable else "--with", str(source)]
    return arguments
