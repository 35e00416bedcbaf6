"""The suspects of a cause: by tests and by traceback."""

from pathlib import Path

from nightjar_ci.causes.causes import Cause
from nightjar_ci.causes.suspects import find_frames, find_suspects
from nightjar_ci.formats.night_folder import job_folder
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.suite import Case, Suite
from tests.ci.nights import failed, make_night, outcome, record
from tests.ci.site.test_site import make_verdict

TRACEBACK = """Traceback (most recent call last):
  File "/repo/train.py", line 3, in main
    step(state)
  File "/env/lib/python3.11/site-packages/optax/transforms/_clipping.py", line 105, in update_fn
    return jnp.where(x, y)
  File "/env/lib/python3.11/site-packages/jax/_src/numpy/util.py", line 9, in check
    raise TypeError("shapes")
TypeError: shapes
"""


def make_cause(kind: str = "failed", jobs: tuple[str, ...] = ("a-s0",), cells: tuple[str, ...] = ()) -> Cause:
    return Cause(
        kind=kind,  # type: ignore[arg-type]
        title="",
        explanation="",
        verdicts=tuple(make_verdict("regressed", f"{cell}/loss") for cell in cells),
        jobs=jobs,
        since="n",
        good=None,
        nights=1,
    )


def test_the_innermost_frame_outside_jax_comes_before_the_one_that_raised(tmp_path: Path) -> None:
    folder = make_night(tmp_path, [(failed("a-s0", cell="a"), None)])
    log = job_folder(folder, "a-s0") / "stderr.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(TRACEBACK)
    suspects = find_suspects(make_cause(), read_night_results(folder))
    assert [str(suspect) for suspect in suspects] == [
        "optax/transforms/_clipping.py:105 in update_fn (in the traceback)",
        "jax/_src/numpy/util.py:9 in check (in the traceback)",
    ]


def test_the_traceback_of_a_failing_test_is_read(tmp_path: Path) -> None:
    case = Case(name="command", state="failed", quote=TRACEBACK)
    result = record(0).model_copy(update={"tests": Suite(cases=(case,))})
    folder = make_night(tmp_path, [(outcome("a-s0", cell="a", kind="test"), result)])
    suspects = find_suspects(make_cause("regressed", (), ("a",)), read_night_results(folder))
    assert [suspect.library for suspect in suspects] == ["optax", "jax"]


def test_a_fault_of_optax_that_fails_tests_of_flax_too_is_optaxs(tmp_path: Path) -> None:
    names = ("test_flax_nnx_training.test_optimizer", "test_flax_nnx_training.test_train_state", "test_optax.test_sgd")
    result = record(0).model_copy(update={"tests": Suite(cases=tuple(Case(name=n, state="failed") for n in names))})
    folder = make_night(tmp_path, [(outcome("a-s0", cell="a", kind="test"), result)])
    suspects = find_suspects(make_cause("regressed", (), ("a",)), read_night_results(folder))
    assert [str(suspect) for suspect in suspects] == [
        "optax (1 test of it, such as test_optax.test_sgd)",
        "flax (2 tests of it, such as test_flax_nnx_training.test_optimizer)",
    ]


def test_frames_of_pytest_and_of_a_checkout_are_read() -> None:
    text = "/src/flax/flax/nnx/rnglib.py:12: \n    x\n/repo/tests/test_x.py:3: AssertionError\n"
    assert list(find_frames(text)) == [("flax", "flax/nnx/rnglib.py:12")]


def test_a_missing_log_and_a_cause_that_is_not_red_have_no_suspects(tmp_path: Path) -> None:
    results = read_night_results(make_night(tmp_path, [(failed("a-s0", cell="a"), None)]))
    assert find_suspects(make_cause(), results) == ()
    assert find_suspects(make_cause("improved", (), ("a",)), results) == ()
