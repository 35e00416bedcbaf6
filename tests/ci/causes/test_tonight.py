"""The causes of a night folder, with the command to run next."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nightjar_ci.causes.explained import AGAINST
from nightjar_ci.causes.tonight import describe_night, find_row, gather_causes
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.verdict import NightVerdicts, Verdict
from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, open_store
from nightjar_ci.store.folder import import_night
from nightjar_ci.store.nights import StoredNight
from tests.ci.nights import CELL, failed, make_night, outcome, record
from tests.ci.site.test_site import SERIES, make_verdict, stored


def store_of(*nights: StoredNight) -> Store:
    return cast(Store, SimpleNamespace(latest_nights=lambda **_: nights, environment_of=lambda *_: None))


def commands(tmp_path: Path, *verdicts: Verdict, before: StoredNight | None = None) -> list[str | None]:
    folder = tmp_path / "night"
    make_night(folder, [(outcome(), record())])
    judged = NightVerdicts(night="2026-11-21T0300-0000", verdicts=verdicts)
    results = read_night_results(folder)
    store = store_of() if before is None else store_of(before)
    return [cause.command for cause in gather_causes(results, judged, store, tmp_path / "policies.toml")]


def test_a_regression_is_bisected_unless_pairs_would_settle_it(tmp_path: Path) -> None:
    before = stored(
        20, make_verdict("ok"), matrix="nightly-cpu", environment="current", git_sha=None, packages={"jax": "0.1"}
    )
    assert commands(tmp_path, make_verdict("regressed"), before=before) == [
        f"nightjar-ci bisect --verdict {tmp_path}/night/verdicts.json {SERIES}"
    ]
    details = ("z = 9", "pairs against uv:jax==0.10.1 would tell: `nightjar-ci gate NIGHT --rerun MATRIX`")
    (command,) = commands(tmp_path, make_verdict("regressed", details=details))
    assert command == f"nightjar-ci gate {tmp_path}/night --rerun MATRIX"
    matrix = tmp_path / "my matrix.toml"
    matrix.write_text(f'schema = "nightjar.matrix/1"\nname = "x"\n[[job]]\nname = "{CELL}"\ncommand = ["true"]\n')
    (command,) = commands(tmp_path, make_verdict("regressed", details=details))
    assert command == f"nightjar-ci gate {tmp_path}/night --rerun '{matrix}'"


def test_several_absent_series_are_accepted_as_one_cause(tmp_path: Path) -> None:
    absent = [
        make_verdict(
            "cannot_tell",
            f"{CELL}/{name}",
            judge="presence",
            details=(f"`nightjar-ci accept {name} --ended --night N`",),
        )
        for name in ("loss", "step_time")
    ]
    (command,) = commands(tmp_path, *absent)
    assert command == "nightjar-ci accept '*' --ended --night 2026-11-21T0300-1a2b --reason WHY"
    (command,) = commands(tmp_path, absent[0])
    assert command == "nightjar-ci accept loss --ended --night N"


def test_the_line_that_computes_other_numbers_comes_first(tmp_path: Path) -> None:
    folder = make_night(tmp_path / "night", [(outcome(), record())])
    (folder / "explain" / CELL).mkdir(parents=True)
    (folder / "explain" / CELL / "stdout.log").write_text('{"text": "first differs at layers.py:70"}')
    write_json(folder / "explain" / CELL / "outcome.json", outcome(env={AGAINST: "jax==0.9.1"}))
    judged = NightVerdicts(night="n", verdicts=(make_verdict("regressed", judge="convergence"),))
    (cause,) = gather_causes(read_night_results(folder), judged, store_of(), tmp_path / "policies.toml")
    assert cause.explanation.splitlines()[0] == "first differs at layers.py:70 (against jax==0.9.1)"


AGAIN = f"nightjar-ci run MATRIX --jobs '{CELL}*'"


def test_a_curve_without_a_good_night_is_run_again_and_not_bisected(tmp_path: Path) -> None:
    assert commands(tmp_path, make_verdict("regressed")) == [AGAIN]
    assert commands(tmp_path, make_verdict("cannot_tell")) == [None]
    before = stored(
        20, make_verdict("cannot_tell"), matrix="nightly-cpu", environment="current", git_sha=None,
        packages={"jax": "0.1"},
    )  # fmt: skip
    assert commands(tmp_path, make_verdict("regressed"), before=before) == [AGAIN]


def test_a_regression_without_a_change_is_run_again_and_not_bisected(tmp_path: Path) -> None:
    make_night(tmp_path / "night", [(outcome(), record())])
    results = read_night_results(tmp_path / "night")
    environment = results.records[outcome().job].environment
    before = stored(
        20, make_verdict("ok"), matrix=results.night.matrix, environment="current", git_sha=None,
        packages=environment.packages, python=environment.python,
    )  # fmt: skip
    judged = NightVerdicts(night=results.night.id, verdicts=(make_verdict("regressed"),))
    (cause,) = gather_causes(results, judged, store_of(before), tmp_path / "policies.toml")
    assert (cause.good, cause.changes, cause.command) == (before.id, (), AGAIN)
    assert cause.what_changed.startswith("No package")


def test_a_failed_job_is_run_again_alone(tmp_path: Path) -> None:
    folder = tmp_path / "night"
    make_night(folder, [(failed(f"{CELL}-s0"), None)])
    judged = NightVerdicts(night="2026-11-21T0300-0000", verdicts=())
    (cause,) = gather_causes(read_night_results(folder), judged, store_of(), tmp_path / "policies.toml")
    assert cause.command == f"nightjar-ci run MATRIX --jobs {CELL}-s0"


def test_later_nights_and_other_places_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "night"
    make_night(folder, [(outcome(), record())])
    results, judged = read_night_results(folder), NightVerdicts(night="n", verdicts=(make_verdict("regressed"),))
    matrix, here = results.night.matrix, "current"
    nights = [
        stored(19, make_verdict("ok"), matrix=matrix, environment=here),
        stored(20, make_verdict("ok"), matrix=matrix, environment="uv:jax==0.9"),
        stored(28, make_verdict("ok"), matrix=matrix, environment=here),
    ]
    row = find_row(results, judged, nights)
    assert [night.id[8:10] for night, _ in row.nights] == ["19", "21"]


@pytest.mark.parametrize(("first", "jaxlib"), [("current", "0.10.2"), ("uv:ruff", None)])
def test_a_night_from_its_folder_is_as_the_store_gives_it(tmp_path: Path, first: str, jaxlib: str | None) -> None:
    folder = tmp_path / "night"
    newer = (outcome("newer-s0", environment="uv:jax"), record(jaxlib="0.12", job="newer-s0"))  # ends first
    make_night(folder, [newer, (outcome(), record()), (failed("a-s0", environment=first), None)])
    settings = read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")})
    store = open_store(settings)
    import_night(store, folder)
    store.close()
    (of_store,) = open_store(settings).latest_nights(window=9)
    assert open_store(settings).latest_nights(window=9, matrix="another") == []
    results = read_night_results(folder)
    of_folder = describe_night(results, NightVerdicts(night=results.night.id, verdicts=()))
    for name in ("id", "matrix", "ran", "not_run", "environment", "devices", "packages", "git_sha"):
        assert getattr(of_folder, name) == getattr(of_store, name), name
    assert [job.job for job in of_folder.failed] == [job.job for job in of_store.failed]
    described = (of_store.environment, of_store.devices, of_store.packages.get("jaxlib"))
    assert described == (first, "1 x cpu", jaxlib)  # packages of another job only if in the same environment
