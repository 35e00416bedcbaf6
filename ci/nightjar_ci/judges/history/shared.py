"""The part of each night that all series of a machine share: the machine's level, or the suite's.

In: the segments of a night in one unit on one machine. Out: the segments without it, and one finding for all of them if
it lasts longer than ever before. A machine that is slower now and then or on weekends, and a drift of all series, are
found once, and a change of one series stands out. History cannot tell the machine from the program; pairs can.

Source: Tukey, Exploratory Data Analysis (1977), for the two-way fit by medians.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.drift import Drift, find_drift
from nightjar_ci.judges.history.noise import find_runs, robust_sd
from nightjar_ci.judges.history.segment import Segment

LEAST = 8  # series; fewer share nothing that one of them could not have caused
SWEEPS = 3  # of the two-way fit
ERRORS = 5.0  # standard errors of the median of all series, and
AGREE = 0.85  # the share of series on its side: half of them that became worse are no shared level
MEDIAN_ERROR = 1.2533  # of a median, relative to a mean's
NIGHTS = 2  # in a row make a finding
RECORD = 2.0  # times a jump, and times all earlier levels: one night alone makes one
USUAL = 2.0  # standard deviations of the shared level over all nights that a finding exceeds
GAP = 0.2  # of a level, to the next one of another kind of machine
QUIET = 5  # nights at the usual level that tell each series' own
TAIL = 0.1, 0.4  # quantiles of the series' shares, of the better ones: a change for the worse is in the other tail
TAIL_SD = 1.0282  # standard deviations between the two in normal noise
OUTLIER = 4.0  # standard deviations of a share that may still be the machine's
SURELY = 4.0  # times the noise of one share in the spread of all: it is twice that where a third of them changed
MAD = 1.4826  # standard deviations of a normal distribution in its median absolute deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A change that the series of a machine share tonight; its slope a night if it is a drift."""

    series: int
    shift: float
    since: str
    good_night: str
    slope: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The shared level of each night, its error, whether it is surely not 0, and each series' answer and noise.

    Attributes:
        answers: shape (series, nights); by how much more than the level a series changed on far nights.
        start: the first night since the series last answered in their own ways, for good.
    """

    nights: tuple[str, ...]
    values: Array
    error: Array
    far: NDArray[np.bool_]
    answers: Array
    start: int
    noise: Array


def take_explained(
    segments: list[Segment], machines: Sequence[Hashable], whole: Collection[int], opened: Collection[int] = ()
) -> tuple[dict[int, Shared], dict[int, Drift]]:
    """Takes the shared level and drifts out of segments.

    Args:
        segments: changed in place; the one that reports a shared finding stays whole.
        machines: the machine and unit of each; only series of one share a level.
        whole: segments that stay whole.
        opened: those with an open regression, which would hide a shared finding.

    Returns: the shared findings by the first of their series, and the drifts.
    """
    drifts = _find_drifts(segments, set(range(len(segments))) - set(whole))
    if len(segments) < LEAST or len(drifts) < AGREE * len(segments):
        _take_drifts(segments, drifts)
    before = list(segments)
    shared = _take_shared(segments, machines, whole, opened)
    changed = {number for number, segment in enumerate(before) if segments[number] is not segment}
    if len(segments) >= LEAST and len(drifts) >= AGREE * len(segments):  # the machine drifts, if they share one
        drifts = {number: drift for number, drift in drifts.items() if number not in {*changed, *shared}}
        _take_drifts(segments, drifts)
    later = _find_drifts(segments, changed - set(drifts))
    _take_drifts(segments, later)
    cut = {number: len(before[number].nights) - len(segments[number].nights) for number in drifts}
    kept = {number: replace(drift, index=max(0, drift.index - cut[number])) for number, drift in drifts.items()}
    return shared, kept | later


def _find_drifts(segments: Sequence[Segment], numbers: Collection[int]) -> dict[int, Drift]:
    drifts = {number: find_drift(segments[number].values) for number in numbers}
    return {number: drift for number, drift in drifts.items() if drift is not None}


def _take_drifts(segments: list[Segment], drifts: Mapping[int, Drift]) -> None:
    for number, drift in drifts.items():
        segments[number] = replace(segments[number], values=segments[number].values - drift.line)


def _take_shared(
    segments: list[Segment], machines: Sequence[Hashable], whole: Collection[int], opened: Collection[int]
) -> dict[int, Shared]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, segment in enumerate(segments):
        if segment.size is None and len(segment.nights) > segment.policy.min_nights:
            groups[machines[number]].append(number)
    findings: dict[int, Shared] = {}
    for machine, members in groups.items():
        if len(members) < LEAST:
            continue
        level = _fit([segments[number] for number in members])
        if not level.far.any():
            continue
        shared = _find_tonight(level, len(members), max(segments[number].jump for number in members))
        accepted = [segments[number].accepted for number, other in enumerate(machines) if other == machine]
        if shared is not None and not any(night is not None and night >= shared.since for night in accepted):
            # The series that already reports one, else one whose own regression does not hide it.
            findings[min(members, key=lambda number: (number not in whole, number in opened))] = shared
        places = {night: index for index, night in enumerate(level.nights)}
        for number, answers, noise in zip(members, level.answers, level.noise, strict=True):
            if number not in findings and number not in whole:
                here = [places[night] for night in segments[number].nights]
                applies = level.far[here] | (level.error[here] < noise / 2)
                values = segments[number].values - np.where(applies, level.values[here], 0.0) - answers[here]
                first = sum(place < level.start for place in here)
                nights = segments[number].nights
                segments[number] = replace(
                    segments[number],
                    values=values[first:],
                    nights=nights[first:],
                    elsewhere={**segments[number].elsewhere, **dict.fromkeys(nights[:first], math.nan)},
                )
    return findings


def _fit(segments: Sequence[Segment]) -> _Level:
    nights = sorted(set().union(*(segment.nights for segment in segments)))
    places = {night: index for index, night in enumerate(nights)}
    rest = np.full((len(segments), len(nights)), np.nan)
    for row, segment in enumerate(segments):
        rest[row, [places[night] for night in segment.nights]] = segment.values
    enough = np.isfinite(rest).sum(axis=0) >= LEAST
    level, own = np.zeros(len(nights)), np.zeros((len(segments), 1))
    noise = np.ones(len(segments))
    for _ in range(SWEEPS):
        own = np.nanmedian(rest - level, axis=1, keepdims=True)
        level = np.where(enough, _weighted_medians(rest - own, 1 / noise), 0.0)
        level -= np.median(level[enough]) if enough.any() else 0.0
        left = rest - own - level
        noise = np.array([float(robust_sd(row[np.isfinite(row)])) for row in left])
        noise = np.maximum(noise, max(float(np.median(noise)) / 2, 1e-9))  # so that no series decides alone
    measured = np.isfinite(rest)
    weights = np.where(measured, 1 / noise[:, None], 0.0).sum(axis=0)
    error = MEDIAN_ERROR * np.sqrt(measured.sum(axis=0)) / np.maximum(weights, 1e-12)
    side = np.where(measured, (rest - own) * np.sign(level) > 0, False).sum(axis=0)
    agree = side >= AGREE * measured.sum(axis=0)
    floor = float(np.median([segment.floor for segment in segments]))
    far = enough & agree & (np.abs(level) > np.maximum(ERRORS * error, floor))
    least = max(segment.policy.min_nights for segment in segments)
    answers, start = _find_answers(left, level, far, noise, least)
    return _Level(nights=tuple(nights), values=level, error=error, far=far, answers=answers, start=start, noise=noise)


def _find_answers(left: Array, level: Array, far: NDArray[np.bool_], noise: Array, least: int) -> tuple[Array, int]:
    """By how much more than the shared level each series changed, as far as its noise does not explain it.

    A machine that is faster is not so for all programs alike. On far nights of about one level each series has its own
    share of it; the spread of all series' shares tells how much of one is noise.

    Returns: them, and the first night since a spell of more than `least` nights began or ended, in which they differ:
        another machine, and the nights before tell nothing of one series on it.
    """
    answers, start, end = np.zeros_like(left), 0, left.shape[1]
    if end - far.sum() >= QUIET:
        left = (left.T - _weighted_medians(left.T[~far], np.ones(end - far.sum()))).T
    for alike in _find_alike(level, far):
        size = np.abs(level[alike])
        share = _weighted_medians((left[:, alike] / size).T, np.ones(alike.sum()))
        nights = np.maximum(np.isfinite(left[:, alike]).sum(axis=1), 1)
        error = (noise / size.mean()) ** 2 / nights
        low, middle = np.quantile(share, TAIL)
        spread = max(0.0, ((middle - low) / TAIL_SD) ** 2 - SURELY * float(np.median(error)))
        most = OUTLIER * np.sqrt(spread + error)
        answers[:, alike] = (np.clip(share, -most, most) * spread / (spread + error))[:, None] * size
        for first, last in zip(*find_runs(alike), strict=True):
            if spread and last - first > least:
                start = max(start, *(int(edge) for edge in (0, first, last) if end - edge > least))
    return answers, start


def _find_alike(level: Array, far: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """Far nights in groups of about one level: each as one kind of machine."""
    nights = np.flatnonzero(far)[level[far].argsort()]
    if not len(nights):
        return
    gaps = np.diff(level[nights])
    for group in np.split(nights, np.flatnonzero(gaps > GAP * np.abs(level[nights[1:]])) + 1):
        alike = np.zeros_like(far)
        alike[group] = True
        yield alike


def _weighted_medians(values: Array, weights: Array) -> Array:
    """The weighted median of each column, without its NaN; 0 if it has nothing else."""
    values = np.concatenate([values, np.where(np.isfinite(values).any(axis=0), np.nan, 0.0)[None]])
    weights = np.append(weights, 1.0)
    order = values.argsort(axis=0)  # a NaN is last
    ordered = np.take_along_axis(values, order, axis=0)
    heavy = np.where(np.isfinite(ordered), weights[order], 0.0).cumsum(axis=0)
    first = (heavy >= heavy[-1] / 2).argmax(axis=0)
    return np.asarray(np.take_along_axis(ordered, first[None], axis=0)[0], dtype=np.float64)


def _find_tonight(level: _Level, series: int, jump: float) -> Shared | None:
    """The shared change that lasts until tonight, or a drift as large as `jump`; None if it lasted as long before."""
    drift = find_drift(level.values)
    if drift is not None and drift.size > jump:
        return _describe(level, series, drift.index, drift.size, drift.slope)
    turned = level.values * np.sign(level.values[-1])
    if level.far[-1] and turned[-1] > RECORD * max(jump, float(np.abs(turned[:-1]).max())):
        return _describe(level, series, len(turned) - 1, float(level.values[-1]), None)
    usual = USUAL * MAD * float(np.median(np.abs(level.values)))
    height = float(turned[-NIGHTS:].min())
    if not level.far[-NIGHTS:].any() or height <= max(usual, float(level.error[-NIGHTS:].max())):
        return None
    height = float(turned[-NIGHTS:].mean())
    starts, ends = find_runs(turned > height / 2)
    *earlier, tonight = (ends - starts).tolist()
    if tonight < NIGHTS or tonight <= max(earlier, default=0):
        return None
    first = len(turned) - tonight
    return _describe(level, series, first, float(np.median(level.values[first:])), None)


def _describe(level: _Level, series: int, first: int, shift: float, slope: float | None) -> Shared:
    good = level.nights[max(0, first - 1)]
    return Shared(series=series, shift=shift, since=level.nights[first], good_night=good, slope=slope)
