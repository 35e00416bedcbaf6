"""The history of one measure of one cell, night after night.

The store makes a `Series`; the judges and the report read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from nightjar_ci.formats.series_name import parse_series_name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """The history of a measure, oldest night first.

    Attributes:
        name: `<cell>/<measure>`, as in a verdict.
        unit: of the values.
        better: which direction is good.
        nights: N night ids.
        values: shape (N,); one value per night, the median over its runs; nan if the night has none.
        environments: N machine keys (device, driver, runner) without software versions; values of different machines
            are not compared.
        worst: shape (N,); of each night the value of its worst run, if nights have several runs; else None.
        of_worst: whether `values` are those of the worst runs.
    """

    name: str
    unit: str
    better: Literal["lower", "higher"]
    nights: tuple[str, ...]
    values: npt.NDArray[np.float64]
    environments: tuple[str, ...]
    worst: npt.NDArray[np.float64] | None = None
    of_worst: bool = False

    @property
    def cell(self) -> str:
        return parse_series_name(self.name).cell

    @property
    def measure(self) -> str:
        return parse_series_name(self.name).measure

    def take_worst(self) -> Series | None:
        """The same nights by their worst runs; None if they have only one run."""
        if self.worst is None:
            return None
        return replace(self, values=self.worst, worst=None, of_worst=True)

    def __post_init__(self) -> None:
        lengths = len(self.nights), len(self.values), len(self.environments)
        if len(set(lengths)) > 1:
            raise ValueError(f"{self.name}: nights, values and environments have different lengths: {lengths}")
