"""The options of the bisection that a red verdict asks for.

In: `verdicts.json` of a night and a series that regressed. Out: options as a person would give them. The series names
the test, and two nights name the ends. The bad end is the red night. The good end is the latest earlier night in the
same folder of nights whose verdict on the series was good (`ok` or `improved`), with two special cases:

- If the verdict names a good night, as one on a history does, that night counts as good and no later one is taken.
- The gate compares compile facts that have no baseline with the latest earlier night. So if no earlier night is good,
  the latest one whose verdict on the facts was *cannot tell* is taken.

If the job ran in an image, the ladder is the nightly images between the two nights. Otherwise it is the packages whose
versions differ between the two results, or, if none differ, the commits of the working folder.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nightjar_ci.bisect.options.choose_ladder import Asked
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Environment, RunRecord
from nightjar_ci.formats.verdict import Verdict, read_verdicts, sort_worst_first

_GOOD = ("ok", "improved")
_DATED_IMAGE = re.compile(r"image:(?P<image>.+:.+?)-(?P<date>\d{4}-\d\d-\d\d)(?:@\S+)?")


def ask_from_verdict(asked: Asked, path: Path, series: str) -> Asked:
    """The options that a verdict stands for; options that are given stay.

    Args:
        asked: what is given besides.
        path: `verdicts.json` of the red night.
        series: `CELL/NAME`.

    Raises:
        InputError: the series did not regress, there is no good night, or nothing differs that could be bisected.
    """
    verdict = _find(path, series)
    outcome, tonight = _result(path.parent, verdict)
    night, earlier, before = _last_good(path.parent, verdict)
    command, executor = _template(outcome, path.parent), asked.executor or outcome.executor
    asked = _with_oracle(replace(asked, command=command, executor=executor), verdict, tonight)
    if outcome.environment.startswith("image:"):
        return _image_ends(asked, earlier, outcome)
    return _ends(asked, before.environment, tonight.environment, night)


def find_worst(path: Path) -> str | None:
    """The series of the worst regression of a `verdicts.json`, or None where nothing regressed.

    Raises:
        InputError: the file cannot be read.
    """
    red = [verdict for verdict in sort_worst_first(read_verdicts(path).verdicts) if verdict.status == "regressed"]
    return red[0].series if red else None


def _find(path: Path, series: str) -> Verdict:
    verdicts = read_verdicts(path).verdicts
    red = [verdict for verdict in verdicts if verdict.status == "regressed"]
    found = next((verdict for verdict in red if verdict.series == series), None)
    if found is None:
        near = difflib.get_close_matches(series, [verdict.series for verdict in red], n=1, cutoff=0.3)
        known = ", ".join(verdict.series for verdict in red) or "nothing"
        hint = f"did you mean {near[0]!r}?" if near else None
        raise InputError(f"{path}: {series!r} did not regress; regressed: {known}.", hint)
    return found


def _result(folder: Path, verdict: Verdict) -> tuple[Outcome, RunRecord]:
    """A completed job of the verdict's cell, and its result."""
    for outcome, record in read_night_results(folder):
        if outcome.cell == verdict.cell and outcome.kind == "train" and outcome.completed and record is not None:
            return outcome, record
    raise InputError(f"{folder}: no job of {verdict.cell} completed, so there is no test.")


def _last_good(folder: Path, verdict: Verdict) -> tuple[str, Outcome, RunRecord]:
    """The latest earlier night that was good, and a job of the cell in it with its result."""
    tonight = read_night(folder)
    known_good = verdict.policy.get("good_night")  # nights after it may have been ok while nobody had seen it yet
    nights = []
    for other in folder.absolute().parent.glob("*/verdicts.json"):
        try:
            night = read_night(other.parent)
            found = [
                one
                for one in read_verdicts(other).verdicts
                if (one.series, one.judge) == (verdict.series, verdict.judge)
            ]
            sure = bool(found) and found[0].status in _GOOD
            compared = bool(found) and (found[0].judge, found[0].status) == ("facts", "cannot_tell")
            if isinstance(known_good, str):
                sure, compared = night.id == known_good or (sure and night.id < known_good), False
            if night.started_at < tonight.started_at and (sure or compared):
                nights.append((sure, night.started_at, night.id, *_result(other.parent, verdict)))
        except InputError:
            continue  # another night's damage is not this one's
    if not nights:
        raise InputError(
            f"no earlier night beside {folder} was good for {verdict.series}.",
            "name both ends yourself: --good NAME==VERSION --bad NAME==VERSION",
        )
    _, _, night_id, outcome, record = max(nights, key=lambda found: found[:3])
    return night_id, outcome, record


def _template(outcome: Outcome, folder: Path) -> tuple[str, ...]:
    """The command as the matrix had it: the job's folder, wherever it was then, is `{out}` again."""
    place = re.compile(rf"\S*{re.escape(folder.name)}/jobs/{re.escape(outcome.job)}(?![\w.-])")
    return tuple(place.sub("{out}", part) for part in outcome.command)


def _with_oracle(asked: Asked, verdict: Verdict, record: RunRecord) -> Asked:
    name = verdict.series.partition("/")[2]
    if verdict.judge in ("facts", "convergence", "performance"):
        return replace(asked, judge=verdict.judge, cell=verdict.cell)
    measure = record.sample(name) or record.curve(name)
    if measure is None:
        raise InputError(f"{verdict.series}: tonight's result has no {name!r}.")
    return replace(asked, metric=name, better=measure.better)


def _image_ends(asked: Asked, good: Outcome, bad: Outcome) -> Asked:
    """The nightly images between two nights, where both ran in dated tags of one image."""
    ends = [_DATED_IMAGE.fullmatch(one.environment) for one in (good, bad)]
    if ends[0] is None or ends[1] is None or ends[0]["image"] != ends[1]["image"]:
        raise InputError(
            f"{bad.job} ran in {bad.environment}, and {good.job} in {good.environment} when it was good.",
            "expected dated tags of one image; or name the nights: --images REPOSITORY:NAME --good DATE --bad DATE",
        )
    if ends[0]["date"] == ends[1]["date"]:
        raise InputError(f"both nights ran in {bad.environment}.", "the image did not change: look at the machine")
    return replace(asked, images=ends[1]["image"], good=(ends[0]["date"],), bad=(ends[1]["date"],))


def _ends(asked: Asked, good: Environment, bad: Environment, night: str) -> Asked:
    moving = _moving(good.packages, bad.packages)
    if moving:
        ends = [tuple(f"{name}=={one.packages[name]}" for name in moving) for one in (good, bad)]
        return replace(asked, good=ends[0], bad=ends[1], current=True)
    if good.git is not None and bad.git is not None and good.git.sha != bad.git.sha:
        return replace(asked, repository=".", good=(good.git.sha,), bad=(bad.git.sha,))
    raise InputError(
        f"neither packages nor the commit differ from the last good night, {night}.",
        "the machine may: docs/gating.md says how the machine is told from the program",
    )


def _moving(good: dict[str, str], bad: dict[str, str]) -> Sequence[str]:
    return [name for name in good if name in bad and good[name] != bad[name]]
