"""The answer as markdown, to paste into an issue of the package that changed. Pure.

In: an `Answer`. Out: text in GitHub's markdown: the change and its size, a line that runs each side, the changes
between them with links, and the compiled programs. Text from a test or a package cannot break out of its block.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from nightjar_ci.bisect.result.answer import Answer, Side
from nightjar_ci.bisect.result.difference import Change

_MOST_CHANGES, _MOST_DETAILS, _MOST_NOTES = 20, 12, 12
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(answer: Answer) -> str:
    lines = [f"**{_plain(answer.title)}**", ""]
    if answer.effect is not None:
        measure = "Failed tests"
        if answer.metric:
            measure = f"`{_code(answer.metric)}`"
        lines += [f"{measure}: {_plain(answer.effect)}", ""]
    elif not answer.found:
        lines += [_plain(answer.message), ""]
    lines += [f"Test: `{_code(shlex.join(answer.command))}`", ""]
    for old, new, changes in answer.steps:
        lines += _sides(old, new)
        lines += _changes(changes)
    if answer.programs:
        lines += ["Compiled programs, before and after:", "", *_block("\n".join(answer.programs), "diff"), ""]
    for text in answer.explained:
        lines += ["<details><summary>Captures</summary>", "", *_block(text, "text"), "", "</details>", ""]
    lines += [*_table(answer), ""]
    if answer.notes:
        lines += [*(f"- {_plain(note)}" for note in answer.notes[:_MOST_NOTES]), ""]
    lines.append(f"{answer.tests} tests and {answer.builds} builds by `nightjar-ci bisect`.")
    return "\n".join(lines) + "\n"


def _sides(old: Side, new: Side) -> list[str]:
    lines = []
    for side in (old, new):
        lines += [f"{_plain(side.name)} ({side.answers}):", "", *_block(side.reproduce, "sh"), ""]
    return lines


def _changes(changes: Sequence[Change]) -> list[str]:
    lines = []
    for change in changes[:_MOST_CHANGES]:
        text = f"- {_plain(change.name)}"
        if change.old or change.new:
            text += f" {_plain(change.old or 'absent')} → {_plain(change.new or 'absent')}"
        lines.append(" ".join([text, *(f"<{link}>" for link in change.links)]))
        lines += [f"  - {_plain(detail)}" for detail in change.details[:_MOST_DETAILS]]
    if len(changes) > _MOST_CHANGES:
        lines.append(f"- and {len(changes) - _MOST_CHANGES} more")
    if lines:
        lines.append("")
    return lines


def _table(answer: Answer) -> list[str]:
    """The rungs that were tested."""
    rows = ["| rung | tests | probability |", "| --- | --- | ---: |"]
    for rung in answer.places:
        values = " ".join(f"{value:.4g}" for value in rung.values[:12])
        if len(rung.values) > 12:
            values += f" … ({len(rung.values)})"
        counts = ((rung.good, "good"), (rung.bad, "bad"), (rung.cannot_tell, "cannot tell"))
        tests = ", ".join(filter(None, (values, *(f"{count} {word}" for count, word in counts if count))))
        if tests:
            chance = ""
            if rung.probability is not None:
                chance = f"{rung.probability:.4f}"
            rows.append(f"| {_plain(rung.name)} | {tests} | {chance} |")
    return rows


def _block(text: str, language: str) -> list[str]:
    longest = max((len(fence) for fence in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text, fence]


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("@", "@\u200b")


def _code(text: str | None) -> str:
    return " ".join((text or "").replace("`", "'").split())
