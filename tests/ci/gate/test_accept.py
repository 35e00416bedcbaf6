"""A change that is wanted: a file to commit, and what the gate makes of it."""

import math
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.baselines.accepted import ACCEPTED_SCHEMA, Entry, accepted_path, add_entry, read_accepted
from nightjar_ci.baselines.baseline import make_facts, read_convergence, read_facts, write_facts
from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.suite import SUITE
from nightjar_ci.formats.verdict import NightVerdicts, Verdict
from nightjar_ci.gate.accept import _check_name, find_person
from nightjar_ci.gate.gate import gate_night
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.folder import import_night
from tests.called import call
from tests.ci.nights import CELL, make_night, outcome, program_facts, record, tally
from tests.ci.site.test_site import make_verdict

Run = Callable[..., tuple[int, str, str]]
POLICIES = 'schema = "nightjar.policies/1"\n[[history]]\nmeasure = "step_time"\n[[facts]]\n[[convergence]]\n'
NIGHTS, CHANGE = 60, 35
IDS = [f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}T0300-0000" for day in range(NIGHTS)]
SERIES = f"{CELL}/step_time"


def entry(night: str = IDS[0], **changes: object) -> Entry:
    values = {"night": night, "level": 0.05, "unit": "s", "reason": "wanted", "by": "Ada", "at": "2026-11-21T03:00:00Z"}
    return Entry.model_validate(values | changes)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in a folder with sixty nights, slower by 8 % from the thirty-fifth on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    write_text(tmp_path / "ci" / "policies.toml", POLICIES)
    store = open_store(read_settings())
    rng = np.random.default_rng(4)
    for day, night in enumerate(IDS):
        seconds = 0.05 * (1.08 if day >= CHANGE else 1.0) * float(np.exp(rng.normal(0, 0.004)))
        folder = make_night(tmp_path / night, [(outcome(), record(0, step_times=(0.9, seconds, seconds)))], night)
        import_night(store, folder)
    store.close()

    def accept(*arguments: str) -> tuple[int, str, str]:
        done = call(main, "accept", *arguments)
        return done.returncode, done.stdout, done.stderr

    return accept


def gate(folder: Path) -> NightVerdicts:
    store = open_store(read_settings())
    verdicts = gate_night(
        read_night_results(folder), read_policies(Path("ci/policies.toml")), Path("ci/baselines"), store
    )
    store.close()
    return verdicts


def history_verdict(folder: Path) -> Verdict:
    (found,) = [one for one in gate(folder).verdicts if one.judge == "history"]
    return found


def test_an_accepted_change_is_where_the_history_shows_it_and_the_gate_starts_anew(run: Run, tmp_path: Path) -> None:
    tonight = tmp_path / IDS[-1]
    assert history_verdict(tonight).status == "regressed"
    code, out, _ = run(SERIES, "--reason", "twice the vocabulary")
    assert (code, out) == (0, f"ci/baselines/{CELL}/accepted/step_time.toml\n")
    (accepted,) = read_accepted(Path("ci/baselines"))[SERIES]
    assert (accepted.night, accepted.reason, accepted.by, accepted.unit) == (
        IDS[CHANGE],
        "twice the vocabulary",
        find_person(),
        "s",
    )
    assert accepted.level == pytest.approx(0.054, rel=0.02)
    after = history_verdict(tonight)
    assert after.status == "ok"
    assert any("accepted" in line for line in after.details)


def test_a_level_that_lasts_is_red_again_though_it_was_called_a_false_alarm(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(SERIES, "--false-alarm", "--reason", "a backup ran")
    assert (code, out) == (0, f"ci/baselines/{CELL}/accepted/step_time.toml\n")
    (accepted,) = read_accepted(Path("ci/baselines"))[SERIES]
    assert (accepted.night, accepted.false_alarm) == (IDS[CHANGE], True)
    assert history_verdict(tmp_path / IDS[-1]).status == "regressed"


def test_accepting_changes_no_history(run: Run) -> None:
    store = open_store(read_settings())
    before = [str(point) for point in store.history(CELL, "step_time")]
    run(SERIES, "--reason", "wanted")
    assert [str(point) for point in store.history(CELL, "step_time")] == before
    store.close()


def test_a_second_entry_leaves_the_first_as_it_is(run: Run) -> None:
    run(SERIES, "--reason", "first", "--night", IDS[10])
    path = accepted_path(Path("ci/baselines"), SERIES)
    first = path.read_text()
    run(SERIES, "--reason", "second", "--night", IDS[20])
    assert path.read_text().startswith(first.rstrip())
    assert [one.reason for one in read_accepted(Path("ci/baselines"))[SERIES]] == ["first", "second"]
    code, _, err = run(SERIES, "--reason", "again", "--night", IDS[20])
    assert code == 2
    assert "is already accepted" in err


def test_a_series_with_a_long_name_has_a_file_and_another_one_has_another(tmp_path: Path) -> None:
    names = [f"asv/time.solve(<class 'a.solver.{'x' * 300}'>, {end})" for end in "ab"]
    for name in names:
        entry = Entry(night=IDS[3], reason="wanted", by="me", at="2026-11-03T03:00:00+00:00")
        path, text = add_entry(tmp_path, name, entry)
        write_text(path, text)
    assert sorted(read_accepted(tmp_path)) == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([f"{CELL}/steptime", "--reason", "x"], f"did you mean '{SERIES}'?"),
        (["x/y", "--reason", "x"], f"expected CELL/MEASURE, one of {CELL}/"),
        ([SERIES, "--reason", "  "], "--reason is empty"),
        ([SERIES, "--ended", "--reason", "  "], "--reason is empty"),
        ([SERIES, "--ended", "--false-alarm", "--reason", "x"], "--false-alarm excludes --ended"),
        ([CELL, "--renamed-to", SERIES, "--reason", "x"], "is a cell"),
        ([SERIES, "--reason", "x", "--night", "2020-01-01T0000-0000"], f"the latest are {IDS[-3]}"),
    ],
)
def test_what_cannot_be_accepted_is_refused(run: Run, arguments: list[str], message: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
    assert not Path("ci/baselines").exists()
    with pytest.raises(InputError, match=r"expected CELL/MEASURE\."):
        _check_name("x/y", ())


def test_a_dry_run_prints_the_file_and_writes_nothing(run: Run) -> None:
    code, out, _ = run(SERIES, "--reason", "wanted", "--dry-run")
    assert code == 0
    assert f'schema = "{ACCEPTED_SCHEMA}"' in out
    assert not Path("ci/baselines").exists()


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        (["gpt*/step_time"], ["gpt-a/step_time", "gpt-b/step_time"]),
        (["gpt-a"], ["gpt-a/loss", "gpt-a/step_time"]),
        (["*", "--night", IDS[-1]], ["gpt-a/loss", "gpt-a/step_time", "gpt-b/step_time", "t5/step_time"]),
        (["*", "--ended"], ["gpt-b/gone"]),
        (["gpt-a", "--false-alarm"], ["gpt-a/loss", "gpt-a/step_time", "gpt-a/t.test_x"]),
        (["*", "--night", IDS[-2]], []),
        (["*", "--night", IDS[10]], ["vae/step_time"]),  # before the nights that a report reads
        (["vit*"], []),
    ],
)
def test_a_pattern_accepts_all_that_is_red_or_absent_and_no_more(
    run: Run, arguments: list[str], accepted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightjar_ci.causes.tonight.WINDOW", 5)
    red = ["gpt-a/step_time", "gpt-a/loss", "gpt-b/step_time", "t5/step_time"]
    verdicts = [make_verdict("regressed", series) for series in red]
    verdicts += [make_verdict("ok", "gpt-c/step_time"), make_verdict("cannot_tell", "gpt-b/gone", judge="presence")]
    verdicts += [make_verdict("regressed", "vae/step_time", policy={"since": IDS[10], "good_night": IDS[9]})]
    verdicts += [make_verdict("regressed", "gpt-a/t.test_x", judge="tests")]  # which only a false alarm can be
    judge(*verdicts)
    code, _, err = run(*arguments, "--reason", "wanted")
    assert (code, sorted(read_accepted(Path("ci/baselines")))) == (0 if accepted else 2, accepted)
    assert accepted or "in the latest nights" in err
    if accepted:  # nothing is left that the pattern means
        assert run(*arguments, "--reason", "again")[0] == 2


def test_a_test_is_not_accepted_but_listed_as_a_known_failure(run: Run) -> None:
    judge(*(make_verdict("regressed", f"{CELL}/{name}", judge="tests") for name in ("t.test_x", SUITE)))
    code, _, err = run(f"{CELL}/t.test_x", "--reason", "wanted")
    assert (code, "known_failure" in err) == (2, True)
    assert run(f"{CELL}/{SUITE}", "--reason", "wanted")[0] == 0


def judge(*verdicts: Verdict) -> None:
    store = open_store(read_settings())
    store.add_verdicts(IDS[-1], [verdict.model_dump(mode="json") for verdict in verdicts])
    store.close()


def test_a_series_that_was_gone_for_a_while_can_be_accepted_by_a_pattern(run: Run) -> None:
    write_text(*add_entry(Path("ci/baselines"), SERIES, entry(IDS[CHANGE + 3], ended=True, level=None, unit=None)))
    judge(make_verdict("regressed", SERIES, policy={"since": IDS[CHANGE], "good_night": IDS[CHANGE - 1]}))
    assert run("gpt*/step_time", "--reason", "wanted")[0] == 0
    assert [one.ended for one in read_accepted(Path("ci/baselines"))[SERIES]] == [True, False]


def programs(**changes: object) -> list[dict[str, Any]]:
    return [program_facts(fusions={"kLoop": tally(7)}), program_facts(program="eval_step", **changes)]


def test_compile_facts_become_the_baseline_from_what_the_store_remembers(run: Run, tmp_path: Path) -> None:
    history_verdict(tmp_path / IDS[-1])  # the facts judge has now seen it
    code, out, err = run(f"{CELL}/train_step", "--reason", "new fusion")
    path = Path("ci/baselines") / CELL / "facts" / "jaxlib-0.10.2-cpu-x1.json"
    assert (code, out.splitlines()[1:], err) == (0, [str(path)], "")
    assert read_facts(Path("ci/baselines"), CELL, "jaxlib-0.10.2-cpu-x1") == make_facts(CELL, [record(0)])
    path.write_text(f'{path.read_text().rstrip()[:-1]}, "compiler": {{"compile_cpu_time": 9}}}}')  # of an older release
    assert read_facts(Path("ci/baselines"), CELL, "jaxlib-0.10.2-cpu-x1") is not None


def test_only_the_accepted_program_of_a_baseline_changes(run: Run, tmp_path: Path) -> None:
    old = make_facts(CELL, [record(0, facts=[program_facts(), *programs()[1:]])])
    write_facts(Path("ci/baselines"), old)
    changed = record(0, facts=programs(flops=1.0))
    folder = make_night(tmp_path / "new", [(outcome(), changed)], "2026-12-01T0300-0000")
    gate(folder)
    code, _, _ = run(f"{CELL}/train_step", "--reason", "new fusion")
    assert code == 0
    found = read_facts(Path("ci/baselines"), CELL, old.environment.facts_key)
    assert found is not None
    assert {one.program: one for one in found.facts} == {
        "train_step": changed.facts[0],
        "eval_step": old.facts[1],
    }
    assert [one.night for one in read_accepted(Path("ci/baselines"))[f"{CELL}/train_step"]] == ["2026-12-01T0300-0000"]


def test_ten_seeds_become_the_baseline_of_the_curves(run: Run, tmp_path: Path) -> None:
    runs = [
        (outcome(f"{CELL}-s{seed}", command=("train", f"{tmp_path}/new/jobs/{CELL}-s{seed}")), record(seed))
        for seed in range(10)
    ]
    folder = make_night(tmp_path / "new", runs, "2026-12-01T0300-0000")
    gate(folder)
    code, _, err = run(f"{CELL}/loss", "--reason", "another schedule", "--dry-run")
    path = Path("ci/baselines") / CELL / "convergence.json"
    assert (code, path.exists()) == (0, False)
    assert f"would write {path}" in err
    assert run(f"{CELL}/loss", "--reason", "another schedule")[0] == 0
    made = read_convergence(Path("ci/baselines"), CELL)
    assert made is not None
    assert sorted(made.curves[0].seeds) == list(range(10))
    assert made.command == ("train", "{out}")


def test_a_curve_that_is_not_finite_becomes_no_baseline(run: Run, tmp_path: Path) -> None:
    runs = [(outcome(f"{CELL}-s{seed}"), record(seed)) for seed in range(9)]
    runs.append((outcome(f"{CELL}-s9"), record(9, values=[2.0, math.nan, math.nan])))
    folder = make_night(tmp_path / "new", runs, "2026-12-01T0300-0000")
    gate(folder)
    _, _, err = run(f"{CELL}/loss", "--reason", "another schedule")
    assert "loss of seed 9 is NaN from step 1 on" in err
    assert not (Path("ci/baselines") / CELL / "convergence.json").exists()


def test_where_the_results_do_not_suffice_the_command_can_be_pasted(run: Run, tmp_path: Path) -> None:
    job = f'[[job]]\nname = "{CELL}"\nseeds = [0]\ncommand = ["train", "{{seed}}"]\n'
    write_text(tmp_path / "ci" / "matrix" / "small.toml", f'schema = "nightjar.matrix/1"\nname = "small"\n{job}')
    folder = make_night(tmp_path / "new", [(outcome(), record(0))], "2026-12-01T0300-0000")
    gate(folder)
    code, _, err = run(f"{CELL}/loss", "--reason", "another schedule")
    assert code == 0
    assert "1 different seeds, expected at least 10" in err
    command = shlex.split(err.splitlines()[-1])
    assert command[:3] == ["nightjar-ci", "baseline", "ci/matrix/small.toml"]
    assert call(main, *command[1:], "--dry-run").returncode == 0


@given(st.text(min_size=1), st.text(min_size=1), st.floats() | st.none())
def test_whatever_is_written_is_read_back(measure: str, reason: str, level: float | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, series = Path(name), f"cell/{measure}"
        try:
            path, text = add_entry(folder, series, entry(reason=reason, level=level))
            write_text(path, text)
        except (OSError, UnicodeEncodeError):
            return  # a name of more than 255 bytes, or half of a surrogate pair
        assert path.parent == folder / "cell" / "accepted"
        (found,) = read_accepted(folder)[series]
        assert found.reason == reason
        assert str(found.level) == str(level)


def test_a_file_of_another_series_is_refused(tmp_path: Path) -> None:
    path, text = add_entry(tmp_path, SERIES, entry())
    write_text(path.with_name("loss.toml"), text)
    with pytest.raises(InputError, match="which belongs in"):
        read_accepted(tmp_path)


@pytest.mark.git
@pytest.mark.parametrize(
    ("lines", "person"),
    [("name = Ada\nemail = a@x.org", "Ada <a@x.org>"), ("name = Ada", "Ada"), ("email = a@x.org", "a@x.org")],
)
def test_who_accepts_is_what_git_has_of_name_and_address(
    lines: str, person: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"[user]\n{lines}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.chdir(tmp_path)
    assert find_person() == person
