"""Verdicts on due series that are absent, and the judges of the rest.

In: the entries of the ledger and the verdicts of a night. Out: a verdict for each due series that no judge could judge
(*cannot tell*: it may have ended, or only its measuring), and the ledger with its judges.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from nightjar_ci.formats.ledger import Due
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.smallest_change import find_smallest_change
from nightjar_ci.judges.history.screening import ScreenedSeries

_HEAD = {
    "missing": "missing",
    "not_finite": "not a finite number",
    "unit_changed": "not comparable with earlier nights",
    "zero": "not usable",
}


def judge_presence(due: Sequence[Due], verdicts: Sequence[Verdict], night: str) -> Iterator[Verdict]:
    """A verdict for each series that is due and was not judged, unless another judge already reports a problem."""
    reported = {  # pairs and histories omit absent series without a note
        verdict.series
        for verdict in verdicts
        if verdict.judge in ("convergence", "facts", "tests") and verdict.status in ("regressed", "cannot_tell")
    }
    counted = {verdict.series for verdict in verdicts if verdict.judge == "tests"}  # they explain why no test passes
    for entry in due:
        if entry.measured in ("yes", "not_run") or entry.series in reported:
            continue
        if entry.measured == "zero" and entry.series in counted:
            continue
        yield Verdict(
            series=entry.series,
            judge="presence",
            status="cannot_tell",
            n=entry.of,
            policy={
                "reason": entry.measured,
                "since": entry.since or night,
                **{part: getattr(entry, part) for part in ("kind", "unit", "better", "had", "of")},
            },
            runs=(),
            explanation=_explain(entry),
            details=(_advise(entry, night),),
        )


def _explain(entry: Due) -> str:
    name = entry.name
    text = f"{name} is {_HEAD[entry.measured]}: {entry.not_judged}."
    if entry.since:
        text += f" It is so since night {entry.since}."
    elif entry.of:
        nights = "The night before"
        if entry.of > 1:
            nights = f"{entry.had} of the last {entry.of} nights"
        text += f" {nights} had it."
    if entry.named_by:
        text += f" A {' and a '.join(entry.named_by)} names it."
    if entry.renamed_to:
        text += f" {entry.renamed_to} is new, in the same unit and near its level: perhaps its new name."
    return text


def _advise(entry: Due, night: str) -> str:
    command = ["nightjar-ci", "accept", entry.series, "--night", night, "--reason", "WHY"]
    if entry.measured == "zero":
        return f"if that is wanted: `{shlex.join(command)}`"
    if entry.renamed_to:
        renamed = shlex.join([*command[:3], "--renamed-to", entry.renamed_to, *command[3:]])
        return f"if it has another name now: `{renamed}`"
    return f"if it has ended: `{shlex.join([*command[:3], '--ended', *command[3:]])}`"


def add_judges(
    due: Sequence[Due], verdicts: Sequence[Verdict], policies: Policies, screened: Mapping[str, ScreenedSeries]
) -> tuple[Due, ...]:
    """The entries with the judges of each, or why there are none, and its smallest detectable change."""
    judged: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.judge != "presence":
            judged[verdict.series].append(verdict)
    tests = sum(verdict.p is not None for verdict in verdicts)
    entries = []
    for entry in due:
        by = judged.get(entry.series, [])
        update: dict[str, object] = {"judges": tuple(verdict.judge for verdict in by)}
        if entry.measured == "yes":
            smallest = [find_smallest_change(verdict, policies, screened, tests / policies.night.q) for verdict in by]
            if any(smallest):
                update["smallest_change"], update["how"] = min(filter(None, smallest))
        if not by and entry.not_judged is None:
            update["not_judged"] = "no policy judges it"
            if entry.kind != "facts" and policies.for_history(entry.cell, entry.name) is not None:
                update["not_judged"] = "too few nights in this environment"
        entries.append(entry.model_copy(update=update))
    return tuple(entries)
