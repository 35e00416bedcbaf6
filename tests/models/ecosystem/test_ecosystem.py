"""A cell answers with checked numbers, or names the versions that did not go together. No library is needed here."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.formats.run_record import read_run
from nightjar_models import ecosystem
from nightjar_models.ecosystem.blame import describe_versions, find_pair
from nightjar_models.ecosystem.cell import Check, Finding, compile_quickly
from nightjar_models.ecosystem.run import describe, judge, run_cell
from nightjar_models.ecosystem.table import CELLS, Entry, find_cell
from nightjar_models.errors import BrokenError, InputError
from tests.models.conftest import Command

WORKS = """
from nightjar_models.ecosystem.cell import Check, Finding, time_calls
def run():
    import jax.numpy as jnp
    return Finding(
        checks=[Check(name="two", value=float(jnp.ones(2).sum()), expected=2.0, tolerance=0, why="1 + 1")],
        samples=time_calls(lambda: jnp.ones(2) + 1, items=2, unit="ones/s", calls=3),
    )
"""
OTHERS = ("ppo", "cache", "pmap", "fp8_linen", "hartree_fock", "genomics", "imagen", "orbax_tiers")


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "oldlib.py").write_text(
        "def ask():\n    import jax.tree\n    return jax.tree.no_such_function\n"
        "def take():\n    from jax.tree import no_such_name\n"
        "def lack():\n    import no_such_module_at_all\n"
        "def refuse():\n    import jax.numpy\n    jax.numpy.ones(2) @ jax.numpy.ones(3)\n"
        "def err():\n    raise ValueError('own fault')\n"
    )
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    sys.modules.pop("oldlib", None)


@pytest.mark.parametrize(
    ("call", "pair"),
    [
        ("ask", ("oldlib", "jax")),
        ("take", ("oldlib", "jax")),
        ("lack", ("oldlib",)),
        ("refuse", ("oldlib", "jax")),
        ("err", ("oldlib", "jax")),
    ],
)
def test_the_library_that_met_the_error_is_named(library: Path, call: str, pair: tuple[str, ...]) -> None:
    import oldlib  # type: ignore[import-not-found]

    known = {"oldlib": "oldlib", "jax": "jax"}
    with pytest.raises((AttributeError, ImportError, TypeError, ValueError)) as caught:
        getattr(oldlib, call)()
    assert find_pair(caught.value, ["wrapper"], lambda module: known.get(module.partition(".")[0])) == pair


def test_an_error_of_the_cell_itself_is_laid_at_its_library() -> None:
    with pytest.raises(TypeError) as caught:
        len(3)  # type: ignore[arg-type]
    assert find_pair(caught.value, ["numpyro", "scikit-learn"], lambda _: None) == ("numpyro", "jax")
    assert find_pair(caught.value, ["numpyro"], lambda _: "jax") == ("numpyro", "jax")


def test_versions_are_those_installed() -> None:
    assert describe_versions(["jaxtyping", "absent"]).endswith(" with absent (not installed)")


def test_a_wrong_number_is_told_with_both_versions_and_what_was_expected() -> None:
    wrong = Check(name="mass", value=1.5, expected=1.0, tolerance=0.1, why="mass is kept")
    true = Check(name="other", value=1.0, expected=1.0, tolerance=0.0, why="")
    with pytest.raises(BrokenError, match=r"with jax [\d.]+: mass is 1.5, expected 1 \+- 0.1 \(mass is kept\)\.$"):
        judge(CELLS["xlb"], Finding(checks=[true, wrong]))
    with pytest.raises(BrokenError, match="checked nothing"):
        judge(CELLS["xlb"], Finding(checks=[]))


def test_every_number_and_what_it_had_to_be_is_recorded() -> None:
    check = Check(name="mass", value=1.0, expected=1.0, tolerance=0.1, why="mass is kept")
    assert describe(Finding(checks=[check])) == {"check.mass": 1.0, "expected.mass": "1 +- 0.1: mass is kept"}


def test_what_is_compiled_quickly_is_optimized_little_and_nothing_after_it() -> None:
    from jax._src.compiler import get_compile_options

    def settings() -> tuple[int, bool]:
        built = get_compile_options(num_replicas=1, num_partitions=1).executable_build_options.debug_options
        return int(built.xla_backend_optimization_level), bool(built.xla_llvm_disable_expensive_passes)

    @compile_quickly()
    def fail() -> None:
        raise ValueError(f"inside {settings()}")

    before = settings()
    assert not before[1]  # the level is that of all tests here: tests/models/conftest.py
    with pytest.raises(ValueError, match=re.escape("inside (0, True)")):
        fail()
    assert settings() == before


def test_an_unknown_cell_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'numpyro'"):
        find_cell("numpiro")


def test_every_cell_has_its_module_and_imports_its_library_only_when_run() -> None:
    for cell in CELLS.values():
        assert callable(cell.load())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", *(pytest.param(name, marks=pytest.mark.weekly) for name in OTHERS)])
def test_a_cell_of_jax_itself_finds_its_numbers_right(nightjar_models: Command, name: str) -> None:
    done = nightjar_models("smoke", name, "--out", "o", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workload"] == f"ecosystem.{name}"


def test_the_command_lists_runs_and_refuses(called: Command, tmp_path: Path) -> None:
    assert set(json.loads(called("smoke", "--json").stdout)) == set(CELLS)
    absent = called("smoke", "xlb", "--out", "o")
    assert absent.returncode == 3
    assert "xlb, warp-lang is not installed here" in absent.stderr
    assert called("smoke", "xlb").returncode == 2


def test_a_broken_cell_names_versions_and_the_command_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_it() -> Finding:
        import jax

        raise AttributeError("gone", obj=jax)

    entry = Entry(name="own", packages=("optax",), summary="")
    monkeypatch.setattr(Entry, "load", lambda _: break_it)
    with pytest.raises(BrokenError, match=r"^optax [\d.]+ with jax [\d.]+: AttributeError: gone Hint: ") as caught:
        run_cell(entry)
    assert f"`{sys.prefix}/bin/nightjar-models --debug smoke own --out OUT`" in (caught.value.hint or "")


@pytest.mark.parametrize(("change", "code"), [("", 0), ("2.0, tolerance->3.0, tolerance", 1)])
def test_a_cell_leaves_a_result_that_ci_reads_only_where_its_numbers_are_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, code: int
) -> None:
    from typer.testing import CliRunner

    from nightjar_models.cli import app

    before, _, after = change.partition("->")
    (tmp_path / "own.py").write_text(WORKS.replace(before, after) if change else WORKS)
    monkeypatch.setattr(ecosystem, "__path__", [*ecosystem.__path__, str(tmp_path)])
    monkeypatch.setitem(CELLS, "own", Entry(name="own", packages=("optax",), summary=""))
    monkeypatch.delitem(sys.modules, "nightjar_models.ecosystem.own", raising=False)
    ended = CliRunner().invoke(app, ["smoke", "own", "--out", str(tmp_path / "o"), "--job", "own-cpu"])
    if code:
        assert isinstance(ended.exception, BrokenError)
        assert ended.exception.exit_code == code
        assert "two is 2, expected 3" in ended.exception.message
        assert not (tmp_path / "o" / "result.json").exists()
        return
    assert ended.exit_code == 0, ended.output
    run = read_run(tmp_path / "o" / "result.json")
    assert (run.job, run.workload, run.config["check.two"]) == ("own-cpu", "ecosystem.own", 2.0)
    assert "optax" in run.environment.packages
    assert re.fullmatch(r"optax [\d.]+ with jax [\d.]+", str(run.config["versions"]))
    throughput, steps = run.sample("throughput"), run.sample("step_time")
    assert throughput is not None
    assert steps is not None
    assert len(steps.values) == 3
    assert throughput.unit == "ones/s"
