"""One series at a time through the judge of histories."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.history.history import judge_screened
from nightjar_ci.judges.history.screening import ScreenedSeries, screen_all
from nightjar_ci.judges.performance.performance import Pair


def screen_series(
    series: Series, policy: HistoryPolicy, accepted: Collection[str] = (), earlier: Verdict | None = None
) -> ScreenedSeries | None:
    return screen_all([(series, policy, accepted, earlier)])[0]


def judge_history(
    series: Series,
    policy: HistoryPolicy,
    *,
    accepted: Collection[str] = (),
    rerun: tuple[str, Sequence[Pair]] | None = None,
    earlier: Verdict | None = None,
) -> Verdict | None:
    screened = screen_series(series, policy, accepted, earlier)
    return None if screened is None else judge_screened(screened, rerun)
