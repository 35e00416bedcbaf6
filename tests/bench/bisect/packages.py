"""What does a change in one of several packages look like, to a search over one timeline and to one per package?

In: a cell and a seed. Out: versions of three packages with dates, and results for any choice of versions. One in three
changes is an interaction: the test fails only where two packages are both new enough.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.bench.bisect.worlds import Cell, World

SHARES = {"xla": 0.5, "jax": 0.3, "flax": 0.2}

Versions = dict[str, list[tuple[int, float]]]


class PackageWorld(World):
    """A ladder whose rungs are the merged history of several packages: each rung takes one step in one of them."""

    def __init__(self, cell: Cell, seed: int) -> None:
        super().__init__(cell, seed)
        names = list(SHARES)
        steps = self.random.choice(len(names), size=cell.n - 1, p=list(SHARES.values()))
        self.steps = [names[step] for step in steps]
        self.states = np.zeros((cell.n, len(names)), dtype=int)
        for rung, step in enumerate(steps, start=1):
            self.states[rung] = self.states[rung - 1]
            self.states[rung, step] += 1
        self.needs = {self.steps[self.culprits[0] - 1]: self.version_at(self.culprits[0])}
        earlier = [rung for rung in range(1, self.culprits[0]) if self.steps[rung - 1] not in self.needs]
        if earlier and self.random.random() < 1 / 3:
            rung = int(self.random.choice(earlier))
            self.needs[self.steps[rung - 1]] = self.version_at(rung)
        self.installed: set[tuple[int, ...]] = set()

    def version_at(self, rung: int) -> int:
        """The version that a rung brings, of the package that it steps."""
        return int(self.states[rung, list(SHARES).index(self.steps[rung - 1])])

    def versions(self) -> Versions:
        """Of each package, oldest first, with dates: as a search per package wants them."""
        return {
            name: [(0, 0.0)]
            + [(self.version_at(rung), float(rung)) for rung in range(1, self.cell.n) if self.steps[rung - 1] == name]
            for name in SHARES
        }

    def run_versions(self, chosen: Mapping[str, int]) -> float:
        """One test of any choice of versions."""
        self.tests += 1
        self.installed.add(tuple(chosen[name] for name in SHARES))
        return self.measure(int(all(chosen[name] >= least for name, least in self.needs.items())))

    def accepts_version(self, package: str, version: int) -> bool:
        """Whether a version is one that the failure needs."""
        return self.needs.get(package) == version
