"""The history of one measure of one cell, night after night.

The store makes a `Series`; the judges and the report read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """The history of a measure, oldest night first.

    Attributes:
        name: `<cell>/<measure>`, as in a verdict.
        unit: of the values.
        better: which direction is good.
        nights: N ids of nights.
        values: shape (N,); one value a night, the median over its runs; nan where the night has none.
        environments: N keys of the machine (device, driver, runner); values of two machines are not compared. Versions
            of software are no part of it.
    """

    name: str
    unit: str
    better: Literal["lower", "higher"]
    nights: tuple[str, ...]
    values: npt.NDArray[np.float64]
    environments: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that the three columns are of one length."""
        if not len(self.nights) == len(self.values) == len(self.environments):
            found = f"{len(self.nights)}, {len(self.values)}, {len(self.environments)}"
            raise ValueError(f"{self.name}: nights, values and environments are of different lengths: {found}")
