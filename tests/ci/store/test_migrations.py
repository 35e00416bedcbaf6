"""A store that an older version wrote keeps everything it knew."""

import json
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

import nightjar_ci.store
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.engine import open_engine
from tests.ci.nights import outcome, record

NIGHTS = {"2026-11-01T0300-aaaa": "2026-11-01T03:00:00.000+00:00", "2026-11-02T0300-bbbb": "not a time"}
VERDICT = {"series": "gpt-train-cpu-f32-dp1/loss", "judge": "convergence", "status": "ok", "explanation": "as ever"}


def write_first_version(engine: Engine) -> None:
    """A store as version 0001 left it: two nights of two jobs, one of which failed."""
    config = Config()
    config.set_main_option("script_location", str(Path(nightjar_ci.store.__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for number, (night, started_at) in enumerate(NIGHTS.items()):
            connection.execute(
                text("INSERT INTO night VALUES (:id, 'm', :start, :start, 'abc')"), {"id": night, "start": started_at}
            )
            for seed, state in enumerate(("completed", "failed")):
                one = record(seed, values=[3.0, 2.0 + number])
                ended = outcome(f"gpt-train-cpu-f32-dp1-s{seed}", state=state)
                run = 2 * number + seed + 1
                values: dict[str, Any] = {
                    "id": run,
                    "night": night,
                    **ended.model_dump(include={"job", "cell", "replicate", "kind", "state"}),
                    "facts_key": one.environment.facts_key,
                    "outcome": ended.model_dump_json(),
                    "result": one.model_dump_json(by_alias=True),
                }
                names = ", ".join(values)
                connection.execute(
                    text(
                        f"INSERT INTO run ({names}) VALUES (:id, :night, :job, :cell, :replicate, :kind, :state, "
                        ":facts_key, :outcome, :result)"
                    ),
                    values,
                )
                for name, value in (("loss", 2.0 + number), ("accuracy", None)):
                    connection.execute(
                        text("INSERT INTO measure VALUES (:run, 'curve', :name, 'nats', 'lower', :value)"),
                        {"run": run, "name": name, "value": value},
                    )
            connection.execute(
                text("INSERT INTO verdict VALUES (:night, 0, :series, 'convergence', 'ok', :body)"),
                {"night": night, "series": VERDICT["series"], "body": json.dumps(VERDICT)},
            )
    engine.dispose()


def check_upgrade(url: str) -> None:
    write_first_version(open_engine(url))
    for _ in range(2):  # the second opening finds nothing to do
        store = open_store(read_settings({"NIGHTJAR_DATABASE_URL": url}))
        assert [(one.id, one.completed, one.runs) for one in store.nights()] == [(night, 1, 2) for night in NIGHTS]
        accuracy, loss = store.series_before("2026-11-02T0300-bbbb")
        assert loss.values.tolist() == [2.0, 3.0]
        assert str(accuracy.values.tolist()) == "[nan, nan]"
        assert set(loss.environments) == {record(0).environment.measured_on}
        cell, key = "gpt-train-cpu-f32-dp1", record(0).environment.facts_key
        facts = store.latest_facts(cell, key, "2026-11-02T0300-bbbb")
        assert facts == record(0).facts
        again = outcome(f"{cell}-s0")
        store.add_run("2026-11-01T0300-aaaa", again, record(0, values=[3.0, 2.0]))  # known: no further attempt
        assert len(store.history(cell, "loss")) == 2
        store.close()
    engine = open_engine(url)
    with engine.connect() as connection:
        attempts = connection.execute(text("SELECT max(attempt) FROM run")).scalar()
        series = connection.execute(text("SELECT series FROM verdict ORDER BY night")).scalars().all()
    engine.dispose()
    assert attempts == 1
    assert series == [VERDICT["series"]] * 2


def test_a_store_of_the_first_version_is_upgraded_with_all_it_knew(tmp_path: Path) -> None:
    check_upgrade(f"sqlite:///{tmp_path / 'store.sqlite'}")


def test_a_postgresql_store_of_the_first_version_is_upgraded_too(postgres: str) -> None:
    check_upgrade(postgres)
