"""What does each command take? The reference of the command lines, from the code that parses them.

In: the tables of subcommands and their Typer apps. Out: the text of docs/reference/cli.md. `nox -s generate_docs`
writes it; a test compares.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main

import noxfile

PAGE = noxfile.ROOT / "docs" / "reference" / "cli.md"
PROGRAMS = ("nightjar-ci", "nightjar-models", "nightjar-profiling")
HEAD = """# Command line

Made from the code by `nox -s generate_docs`. Every command takes `--help`; `--debug` prints the traceback of an error.
Exit codes: 0 yes, 1 no, 2 wrong input, 3 a tool or machine failed, 4 cannot tell.
"""


def render_reference() -> str:
    parts = [HEAD]
    for program in PROGRAMS:
        parts.append(f"\n## {program}\n")
        for name, command in sorted(find_commands(program)):
            parts.append(render_command(f"{program} {name}", command))
    return "".join(parts)


def find_commands(program: str) -> Iterator[tuple[str, Any]]:
    cli = import_module(f"{program.replace('-', '_')}.cli")
    if not hasattr(cli, "COMMANDS"):
        for name, command in typer.main.get_command(cli.app).commands.items():  # type: ignore[attr-defined]
            yield from _leaves(name, command)
        return
    for name in cli.COMMANDS:  # a module is imported only where it is asked for
        yield from _leaves(name, typer.main.get_command(cli.make_app(name)).commands[name])  # type: ignore[attr-defined]


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner, one in command.commands.items():
        yield from _leaves(f"{name} {inner}", one)


def render_command(words: str, command: Any) -> str:
    help_text = inspect.cleandoc(command.help or "")
    epilog = f"\n\n{command.epilog}" if command.epilog else ""
    said, _, example = f"{help_text}{epilog}".partition("Example: ")
    rows = [_row(one) for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    table = f"\n| option | default | meaning |\n|---|---|---|\n{''.join(rows)}" if rows else ""
    shown = f"\n```sh\n{example.strip()}\n```\n" if example else ""
    return f"\n### {words}\n\n{_escape(said.strip())}\n{table}{shown}"


def _row(one: Any) -> str:
    if one.param_type_name == "argument":
        metavar = one.metavar or (one.name or "").upper()
        name = metavar if one.required else f"[{metavar}]"
    else:
        name = ", ".join((*one.opts, *one.secondary_opts))
    default = one.default
    told = (
        ""
        if default is None or callable(default) or default in ((), "", False)
        else str(getattr(default, "value", default))
    )
    meaning = _escape(" ".join((getattr(one, "help", None) or "").split()))
    return f"| `{name}` | {f'`{told}`' if told else ''} | {meaning} |\n"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    Path(PAGE).write_text(render_reference())
    print(PAGE)
