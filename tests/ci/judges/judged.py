"""One series at a time through the judge of histories."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.history.history import judge_screened
from nightjar_ci.judges.history.screening import ScreenedSeries, screen_all
from nightjar_ci.judges.performance.performance import Pair


def make_series(
    values: npt.ArrayLike, name: str = "cell/step_time", *, better: str = "lower", machines: Iterable[str] = ()
) -> Series:
    """As the store hands it over, with a night for each value; all on one machine if no others are given."""
    values = np.asarray(values, dtype=np.float64)
    return Series(
        name=name,
        unit="s",
        better=better,  # type: ignore[arg-type]
        nights=tuple(f"{night:06d}" for night in range(len(values))),
        values=values,
        environments=tuple(machines) or ("machine",) * len(values),
    )


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
