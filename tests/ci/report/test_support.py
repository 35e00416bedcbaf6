"""The support matrix from made nights: the newest JAX that works, since when not, and why."""

from pathlib import Path

from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.formats.suite import Case, Suite
from nightjar_ci.report.support import make_rows, render_support
from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, open_store
from tests.ci.jobs import make_job
from tests.ci.nights import record


def outcome(cell: str, jax: str, message: str | None = None, *, kind: str = "train") -> Outcome:
    job = make_job("true", id=cell, cell=cell, replicate=None, kind=kind)
    state = "completed" if message is None or kind == "test" else "failed"
    made = make_outcome(job, state=state, started_at="2026-11-25T03:00:00.000+00:00", message=message)  # type: ignore[arg-type]
    return made.model_copy(update={"jax": jax})


def add(store: Store, day: int, *outcomes: Outcome, failing: str | None = None) -> None:
    night = Night(
        id=f"2026-11-{day:02}T0300-0000",
        matrix="nightly-ecosystem",
        started_at=f"2026-11-{day:02}T03:00:00.000+00:00",
        finished_at=f"2026-11-{day:02}T04:00:00.000+00:00",
        git=None,
        jobs=outcomes,
    )
    store.add_night(night)
    for one in outcomes:
        result = None
        if one.kind == "test":
            case = Case(name="tests.test_a.test_clip", state="failed" if failing else "passed", message=failing)
            passed = Case(name="tests.test_a.test_add", state="passed", message=None)
            result = record(0, values=[1.0], job=one.job).model_copy(update={"tests": Suite(cases=(passed, case))})
        store.add_run(night.id, one, result)


def test_the_newest_jax_that_works_and_the_first_that_does_not(tmp_path: Path) -> None:
    store = open_store(read_settings({"NIGHTJAR_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}))
    add(store, 1, outcome("haiku", "0.9.2"), outcome("optax-tests", "0.9.2", kind="test"))
    add(store, 2, outcome("haiku", "0.10.2"), outcome("optax-tests", "0.10.2", kind="test"))
    add(store, 3, outcome("haiku", "0.12.0", "haiku: haiku 0.0.17 with jax 0.12.0: ImportError: no core"))
    add(store, 4, outcome("haiku", "0.12.0.1", "haiku: haiku 0.0.17 with jax 0.12.0.1: ImportError: no core"))
    add(store, 5, outcome("optax-tests", "0.12.0", kind="test"), failing="AssertionError: 1 != 2")
    haiku, optax = make_rows(store.tried("nightly-ecosystem"))
    assert (haiku.newest, haiku.breaks, haiku.since) == ("0.10.2", "0.12.0", "2026-11-03T0300-0000")
    assert haiku.why == "haiku 0.0.17 with jax 0.12.0: ImportError: no core"
    assert haiku.works == {"0.9.2": True, "0.10.2": True, "0.12.0": False, "0.12.0.1": False}
    assert (optax.newest, optax.why) == ("0.10.2", "tests.test_a.test_clip: AssertionError: 1 != 2")
    page = render_support([haiku, optax], "today")
    assert "| | newest that works | 0.9.2 | 0.10.2 | 0.12.0 | 0.12.0.1 | why not newer |" in page.replace("|  |", "| |")
    assert "| haiku | 0.10.2 | yes | yes | **no** | **no** | JAX 0.12.0, night 2026-11-03T0300-0000: haiku" in page
    assert store.tried("another") == []


def test_the_latest_night_counts_and_a_cell_may_never_have_worked(tmp_path: Path) -> None:
    store = open_store(read_settings({"NIGHTJAR_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}))
    add(store, 1, outcome("a", "0.10.2", "broken"), outcome("b", "0.10.2", "a: broken"))
    add(store, 2, outcome("a", "0.10.2"))
    a, b = make_rows(store.tried())
    assert (a.newest, a.breaks, a.why) == ("0.10.2", None, None)
    assert (b.newest, b.breaks, b.why) == (None, "0.10.2", "a: broken")
    assert "| b | none | **no** |" in render_support([a, b], "today")
