"""Policies, the thresholds and error rates of each judge: `nightjar.policies/1` (docs/reference/policies.md).

In: a TOML file of the project, or `policies.toml` in this folder. Out: for a cell and a measure, the first table of
a judge whose globs match both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, JsonValue, model_validator

from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.globs import matches

POLICIES_SCHEMA = "nightjar.policies/1"

Fraction = Annotated[float, Field(gt=0, lt=1)]


class _Entry(StrictModel):
    """The common part of all policy tables: the cells that it is for."""

    jobs: str = "*"

    def numbers(self) -> dict[str, JsonValue]:
        quoted: dict[str, JsonValue] = self.model_dump(mode="json", exclude_none=True)
        return quoted


class ConvergencePolicy(_Entry):
    """How a curve is judged; docs/statistics.md derives the numbers.

    Attributes:
        scale: `log` compares ratios (losses); `linear` compares differences (accuracies).
        same_as: another cell of the same night whose same-seed curve this one must equal within `rtol`; that
            cell itself is not judged.
        window: with `same_as`, number of leading steps that must be equal; default: all.
        replica_args: arguments that make the job train the same with its sums in another order; with them, a
            baseline has such replicas, which show how far rounding moves the curve.
        paired_rtol: largest difference from the baseline's same seed at any step, for an intended change of numerics
            (bfloat16 for float32); replaces the tolerance from the replicas.
        early_steps, early_rtol: the same-seed comparison without replicas, of the steps before `early_steps`.
        alpha: rate of false regressions of one verdict; the same for false improvements.
        blocks: number of block means in the envelope.
        margin: how much worse the final value may be.
        too_good: how much better than the best baseline seed the final value may be before it is suspicious.
        min_seeds: number of baseline seeds that the envelope needs.
    """

    curve: str = "loss"
    scale: Literal["log", "linear"] = "log"
    same_as: str | None = None
    rtol: Annotated[float, Field(gt=0)] | None = None
    window: Annotated[int, Field(ge=1)] | None = None
    replica_args: tuple[str, ...] = ()
    paired_rtol: Annotated[float, Field(gt=0)] | None = None
    early_steps: Annotated[int, Field(ge=1)] = 25
    early_rtol: Annotated[float, Field(gt=0)] = 1e-4
    alpha: Fraction = 0.01
    blocks: Annotated[int, Field(ge=1)] = 12
    margin: Annotated[float, Field(gt=0)] = 0.03
    too_good: Annotated[float, Field(gt=0)] = 0.10
    final_fraction: Fraction = 0.1
    min_seeds: Annotated[int, Field(ge=3)] = 10

    @model_validator(mode="after")
    def _same_as_has_a_tolerance(self) -> ConvergencePolicy:
        if (self.same_as is None) != (self.rtol is None):
            raise ValueError("same_as and rtol belong together")
        if self.window is not None and self.same_as is None:
            raise ValueError("window belongs to same_as")
        return self


class FactsPolicy(_Entry):
    """How compile facts are judged.

    Attributes:
        tolerance: glob of fact names (`memory.temp_bytes`, `opcodes.*.bytes`) to the allowed relative change; the
            first matching glob counts, `inf` ignores a fact. A fact that no glob matches must be equal.
    """

    program: str = "*"
    tolerance: Mapping[str, Annotated[float, Field(ge=0)]] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_what_replaces_growth(cls, given: Any) -> Any:
        if isinstance(given, dict) and "growth" in given:
            raise ValueError("growth is gone: a [[history]] judges compile_cpu_time, and another one compiler_memory")
        return given


class _PairedPolicy(_Entry):
    """The stopping rule of interleaved pairs; docs/statistics.md derives the numbers.

    Attributes:
        looks: numbers of pairs after which a decision is tried; the last is the budget.
        alphas: for each look, the rate of false regressions (and of false improvements) that it may spend.
        floor: smallest relative change that counts as one.
    """

    looks: tuple[int, ...] = (4, 8, 12)
    alphas: tuple[Fraction, ...] = (2e-4, 3e-4, 5e-4)
    floor: Annotated[float, Field(ge=0)] = 0.003

    def _per_look(self) -> tuple[tuple[float, ...], ...]:
        return (self.alphas,)

    @model_validator(mode="after")
    def _one_number_per_look(self) -> _PairedPolicy:
        for numbers in self._per_look():
            if not len(self.looks) == len(numbers) > 0:
                raise ValueError(f"looks and the rates for each look need one length, found {self.looks}, {numbers}")
        if self.looks[0] < 3 or any(b <= a for a, b in pairwise(self.looks)):
            raise ValueError(f"looks must start at 3 or more and increase, found {list(self.looks)}")
        return self


class PerformancePolicy(_PairedPolicy):
    """How a paired comparison of two environments is judged, and how a cell is run for one.

    Attributes:
        ab_args: arguments appended to the job's command to make it short.
        ok_alphas: for each look, the rate at which a slowdown of `delta` may be passed as ok.
        delta: largest relative slowdown that may be called ok.
    """

    sample: str = "step_time"
    ab_args: tuple[str, ...] = ()
    ok_alphas: tuple[Fraction, ...] = (5e-3, 5e-3, 1e-2)
    delta: Annotated[float, Field(gt=0)] = 0.02

    def _per_look(self) -> tuple[tuple[float, ...], ...]:
        return self.alphas, self.ok_alphas


class HistoryPolicy(_PairedPolicy):
    """How the history of a measure is judged.

    Attributes:
        measure: glob of measures; with a `floor` of `inf` they are not judged.
        scale: `log` compares ratios; `linear` compares differences, for values that may be zero or negative.
        trigger: a series whose last nights stand out with a smaller p is suspicious; an unchanged series is so in at
            most this fraction of its nights.
        window: largest number of earlier nights to compare the last ones with.
        jump: three nights that are each at least this much worse, as a fraction, may be called regressed without pairs,
            if they lie far beyond the noise.
        deterministic: the measure is counted, not timed: if most nights equal the one before to a tenth of `floor`,
            one night that differs by more than `floor` is a change.
        doubts: for each look of a suspicious series' paired re-runs, the p above which the suspicion is dropped.
    """

    measure: str = "step_time"
    scale: Literal["log", "linear"] = "log"
    trigger: Fraction = 0.08
    window: Annotated[int, Field(ge=10)] = 60
    min_nights: Annotated[int, Field(ge=10)] = 12
    jump: Annotated[float, Field(gt=0)] = 0.07
    deterministic: bool = False
    looks: tuple[int, ...] = (4, 8, 16, 32)
    alphas: tuple[Fraction, ...] = (5e-5, 1e-4, 1.5e-4, 2e-4)
    doubts: tuple[Fraction, ...] = (0.4, 0.2, 0.08, 0.01)

    def _per_look(self) -> tuple[tuple[float, ...], ...]:
        return self.alphas, self.doubts


class SuitePolicy(_Entry):
    """How the tests of a job are judged.

    Attributes:
        vanished: the suite is *cannot tell* if it ran fewer tests than usual by more than this share.
        slower, slower_s, min_nights: a test is on watch if it took more than `slower` times the longest of the earlier
    """

    nights: Annotated[int, Field(ge=1)] = 30
    vanished: Fraction = 0.02
    slower: Annotated[float, Field(ge=1)] = 2.5
    slower_s: Annotated[float, Field(ge=0)] = 1.0
    min_nights: Annotated[int, Field(ge=3)] = 10


class NightPolicy(StrictModel):
    """How the verdicts of one night are judged together.

    Attributes:
        q: rate of false discoveries; if nothing changed, the fraction of nights with any.
        method: `bh` if series err independently or together (Benjamini and Hochberg), `by` for any dependence
            (Benjamini and Yekutieli).
        most_confirmations: largest number of suspicious series to re-run in a night, the smallest p first.
    """

    q: Fraction = 0.03
    method: Literal["bh", "by"] = "bh"
    most_confirmations: Annotated[int, Field(ge=0)] = 50


Table = TypeVar("Table", bound=_Entry)


class Policies(StrictModel):
    """All policies: `nightjar.policies/1`. In each list the first table that matches a series is used."""

    schema_: Annotated[Literal["nightjar.policies/1"], Field(alias="schema")]
    convergence: tuple[ConvergencePolicy, ...] = ()
    facts: tuple[FactsPolicy, ...] = ()
    performance: tuple[PerformancePolicy, ...] = ()
    history: tuple[HistoryPolicy, ...] = ()
    tests: tuple[SuitePolicy, ...] = ()
    night: NightPolicy = NightPolicy()

    def for_curve(self, cell: str, curve: str) -> ConvergencePolicy | None:
        return _first(self.convergence, cell, lambda entry: matches(curve, entry.curve))

    def for_facts(self, cell: str, program: str) -> FactsPolicy | None:
        return _first(self.facts, cell, lambda entry: matches(program, entry.program))

    def for_performance(self, cell: str) -> PerformancePolicy | None:
        return _first(self.performance, cell, lambda _: True)

    def for_pairs(self, cell: str, sample: str) -> PerformancePolicy:
        """How to run a cell to compare one of its samples: as its policy says; default: whole, default numbers."""
        policy = self.for_performance(cell) or PerformancePolicy()
        return policy.model_copy(update={"sample": sample})

    def for_history(self, cell: str, measure: str) -> HistoryPolicy | None:
        """The policy of a measure's history, or None if it is not judged."""
        policy = _first(self.history, cell, lambda entry: matches(measure, entry.measure))
        if policy is None or policy.floor == inf:
            return None
        return policy

    def for_tests(self, cell: str) -> SuitePolicy:
        """The policy of a cell's tests; tests are judged without one, too."""
        return _first(self.tests, cell, lambda _: True) or SuitePolicy()


def _first(tables: tuple[Table, ...], cell: str, fits: Callable[[Table], bool]) -> Table | None:
    return next((table for table in tables if matches(cell, table.jobs) and fits(table)), None)


def read_policies(path: Path) -> Policies:
    return read_document(path, Policies, POLICIES_SCHEMA)
