"""Help pages in groups: commands of a program, options of a command by their `rich_help_panel`; plain text, no rich."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup

OTHER_OPTIONS = "Options"


class GroupedCommand(TyperCommand):
    """A command whose options are listed by panel, as these first appear, and whose example can be copied as a line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_text = formatter.write_text
        formatter.write_text = lambda text: write_text(re.sub(r"(\A|\n\n)(?=Example: )", "\\1\b\n", text))
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes one section per panel."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            panel = getattr(parameter, "rich_help_panel", None) or OTHER_OPTIONS
            if parameter.param_type_name == "argument":
                panel = "Arguments"
            sections.setdefault(panel, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def sectioned(sections: Mapping[str, Iterable[str]]) -> type[TyperGroup]:
    """A class of command group whose help lists its commands under these titles, with their whole summaries.

    A command that no section names stands under "Others".
    """

    class Sectioned(TyperGroup):
        def format_commands(self, ctx: Any, formatter: Any) -> None:
            named = [name for names in sections.values() for name in names]
            others = [name for name in self.list_commands(ctx) if name not in named]
            for title, names in {**sections, "Others": others}.items():
                rows = [(name, _summarize(self.get_command(ctx, name))) for name in names]
                if rows:
                    with formatter.section(title):
                        formatter.write_dl(rows)

    return Sectioned


def _summarize(command: Any) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())
