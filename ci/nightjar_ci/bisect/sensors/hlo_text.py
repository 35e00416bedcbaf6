"""The text of an HLO module, as far as a bisection needs it: its instructions and the Python line of each.

In: text as `--xla_dump_hlo_as_text` writes it, of any XLA since 2023. Out: `Instruction`s. Newer XLA keeps the lines in
tables at the top of the module (`FileNames`, `FileLocations`, `StackFrames`), older XLA in each instruction's metadata.

Source: openxla/xla xla/hlo/ir/hlo_module.cc (printing of stack frames) and hlo_instruction.cc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

_INSTRUCTION = re.compile(
    r"^[ \t]+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>\(.*?\)|\S+) (?P<opcode>[a-z][a-z0-9-]*)\((?P<rest>.*)$",
    re.MULTILINE,
)
_FUSION = re.compile(r"\bkind=(k\w+)")
_CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_LINE = re.compile(r'source_file="(?P<file>[^"]+)"(?: source_line=(?P<line>\d+))?')
_ROW = re.compile(r"^(\d+) (.*)$", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\d+)")
_COMMENT = re.compile(r"/\*.*?\*/")
_LIBRARY = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    Attributes:
        kind: its opcode; with the kind of a fusion, or the target of a custom call.
        shape: type and layout of its result.
        line: `file:line` of the Python code that it comes from; None if XLA does not say.
    """

    name: str
    kind: str
    shape: str
    line: str | None


@dataclass(frozen=True, slots=True)
class _Frames:
    """The tables of stack frames."""

    files: Mapping[int, str] = field(default_factory=dict)
    locations: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    frames: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def line(self, frame: int) -> str | None:
        """The innermost line of a frame that is not in an installed package; else the innermost of all."""
        innermost: str | None = None
        seen: set[int] = set()
        while frame in self.frames and frame not in seen:
            seen.add(frame)
            location = self.locations.get(self.frames[frame].get("file_location_id", 0), {})
            file = self.files.get(location.get("file_name_id", 0))
            if file is not None:
                line = f"{file}:{location.get('line', 0)}"
                innermost = innermost or line
                if not set(PurePath(file).parts) & set(_LIBRARY):
                    return line
            frame = self.frames[frame].get("parent_frame_id", 1) - 1  # written with 1 added; 0 is none
        return innermost


def read_instructions(text: str) -> list[Instruction]:
    """All instructions of a module, including its fusions'.

    >>> text = "  ROOT %a.1 = (f64[3]{0}, s32[]) while(%t), body=%b\\n  %x = f64[3]{0} fusion(%p), kind=kLoop"
    >>> [(instruction.kind, instruction.shape) for instruction in read_instructions(text)]
    [('while', '(f64[3]{0}, s32[])'), ('fusion kLoop', 'f64[3]{0}')]
    """
    frames = _read_frames(text)
    return [
        Instruction(
            name=match["name"],
            kind=_kind(match["opcode"], match["rest"]),
            shape=_COMMENT.sub("", match["type"]),
            line=_line(match["rest"], frames),
        )
        for match in _INSTRUCTION.finditer(text)
    ]


def _kind(opcode: str, rest: str) -> str:
    detail = {"fusion": _FUSION, "custom-call": _CUSTOM_CALL}.get(opcode)
    if detail is None or not (match := detail.search(rest)):
        return opcode
    return f"{opcode} {match[1]}"


def _line(rest: str, frames: _Frames) -> str | None:
    if match := _FRAME.search(rest):
        return frames.line(int(match[1]))
    if match := _LINE.search(rest):
        return f"{match['file']}:{match['line'] or 0}"
    return None


def _read_frames(text: str) -> _Frames:
    head = text.partition("\n%")[0].partition("\nENTRY")[0]
    tables = {block.partition("\n")[0]: block.partition("\n")[2] for block in head.split("\n\n")}
    rows = {name: {int(number): row for number, row in _ROW.findall(table)} for name, table in tables.items()}
    fields = {
        name: {
            number: {key: int(value) for key, value in _FIELD.findall(row)}
            for number, row in rows.get(name, {}).items()
        }
        for name in ("FileLocations", "StackFrames")
    }
    files = {number: name.strip('"') for number, name in rows.get("FileNames", {}).items()}
    return _Frames(files, fields["FileLocations"], fields["StackFrames"])
