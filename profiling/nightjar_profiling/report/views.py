"""The views of a capture's page as tables, for programs that read them.

In: tables and manifest of a capture. Out: a `View` by name: the rows of each section of the page and of its
instructions, with units in the names of columns (`time_ns`, `message_bytes`) and lines as `file:line`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import polars as pl

from nightjar_profiling.analyses.roofline import read_peak
from nightjar_profiling.attribution.apportion import INSTRUCTION, apportion_time
from nightjar_profiling.attribution.stacks import NO_STACK, StackTree, build_stacks
from nightjar_profiling.capture_folder.manifest import Manifest
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.capture_folder.usercode import user_code_test
from nightjar_profiling.report.contents import instruction_data
from nightjar_profiling.report.sections import find_sections

UNITS = {"ns": "_ns", "bytes": "_bytes", "fraction": "_fraction"}
COPIED = ("name", "opcode", "category", "shape", "sharding", "global_shape", "how", "count", "total_ns", "op_name")
INSTRUCTIONS_NOTE = "every instruction that ran; uncertain_ns: by how much the ends of its runs may be off"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A table of the page; `note` describes the rows."""

    frame: pl.DataFrame
    note: str


def read_views(tables: Tables, manifest: Manifest) -> dict[str, View]:
    """The views for which the capture has data, by name."""
    tree = build_stacks(tables)
    instructions = instruction_data(tables, apportion_time(tables, by=(), fusion="root"), tree)
    lines = _Lines(tree, manifest)
    views = {"instructions": View(frame=_instructions(tables, instructions, lines), note=INSTRUCTIONS_NOTE)}
    for section in find_sections(tables, instructions["lines"], read_peak(manifest.environment)):
        columns = {_name_column(column): _values(column, lines) for column in section["columns"]}
        views[section["id"]] = View(frame=pl.DataFrame(columns, strict=False), note=section["note"])
    return views


class _Lines:
    """The user line of a stack's node, as text."""

    def __init__(self, tree: StackTree, manifest: Manifest) -> None:
        self.tree = tree
        self.is_user = user_code_test(manifest.user_code)

    def name(self, node: int | None) -> str | None:
        if node is None or node == NO_STACK:
            return None
        path = [self.tree.places[site] for site in self.tree.path(node)]
        file, line, _ = next((place for place in reversed(path) if self.is_user(place[0])), path[-1])
        return f"{PurePath(file).name}:{line}"


def _name_column(column: dict[str, Any]) -> str:
    name = str(column["name"]).replace(" ", "_")
    unit = UNITS.get(column["kind"], "")
    return name if name.endswith(unit) else f"{name}{unit}"


def _values(column: dict[str, Any], lines: _Lines) -> list[Any]:
    if column["kind"] == "line":
        return [lines.name(node) for node in column["values"]]
    return list(column["values"])


def _instructions(tables: Tables, data: dict[str, Any], lines: _Lines) -> pl.DataFrame:
    uncertain = tables.ops.group_by(INSTRUCTION).agg(pl.col("uncertain_ns").sum()).rows()
    uncertain_ns = {(program, name): ns for program, name, ns in uncertain}
    keys = list(data["keys"])
    columns = {name: list(data[name]) for name in COPIED}
    return pl.DataFrame(
        {
            "instruction": columns.pop("name"),
            "time_ns": [int(ns) for ns in columns.pop("total_ns")],
            "runs": [int(count) for count in columns.pop("count")],
            "uncertain_ns": [uncertain_ns.get((program, name)) for program, name, _ in keys],
            "line": [lines.name(int(node)) for node in data["frame"]],
            **columns,
        },
        strict=False,
    )
