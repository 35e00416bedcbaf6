"""Runs for MLflow, written with its own client to the server or file that `MLFLOW_TRACKING_URI` names.

In: runs and the name of an experiment. Out: a run of MLflow for each that the experiment lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.trackers.tracked_run import TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

_KEY = "nightjar.run"
_FORBIDDEN = re.compile(r"[^\w\-. :/]")  # in MLflow's names of metrics, parameters and tags
_LONGEST_NAME, _LONGEST_VALUE = 250, 5000  # characters that MLflow stores
_PARAMETERS, _METRICS = 100, 1000  # of one request, at most


def write_mlflow(runs: Sequence[TrackedRun], experiment: str) -> Iterator[str]:
    """Writes runs; one that was written before is left as it is, one that was cut off is written anew.

    Args:
        runs: what to write.
        experiment: the experiment's name; it is made where it does not exist.

    Yields:
        a line for each run that says what was done.

    Raises:
        InputError: MLflow is not installed.
        NightjarError: the server refused it or was not reached.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise InputError(f"--mlflow: {error}.", "pip install 'nightjar-ci[mlflow]'") from None
    try:
        client = MlflowClient()
        named = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if named is None else named.experiment_id
        for run in runs:
            yield f"mlflow: {run.job}: {_write(client, number, run)}"
    except MlflowException as error:
        raise NightjarError(f"mlflow: {str(error).splitlines()[0]}", "check MLFLOW_TRACKING_URI") from None


def _write(client: MlflowClient, experiment: str, run: TrackedRun) -> str:
    from mlflow.entities import Param

    for earlier in client.search_runs([experiment], f"tags.`{_KEY}` = '{run.key}'"):
        if earlier.info.status in ("FINISHED", "FAILED"):
            return "written before"
        client.delete_run(earlier.info.run_id)
    tags = {_clean(name): value[:_LONGEST_VALUE] for name, value in run.tags.items()}
    tags |= {_KEY: run.key, "nightjar.night": run.night}
    created = client.create_run(experiment, int(run.started.timestamp() * 1000), tags, run.job)
    config = iter([Param(_clean(name), str(value)[:_LONGEST_VALUE]) for name, value in run.config.items()])
    while parameters := list(islice(config, _PARAMETERS)):
        client.log_batch(created.info.run_id, params=parameters)
    values = _list_metrics(run)
    while metrics := list(islice(values, _METRICS)):
        client.log_batch(created.info.run_id, metrics=metrics)
    status = "FINISHED" if run.completed else "FAILED"
    client.set_terminated(created.info.run_id, status, int(run.ended.timestamp() * 1000))
    return f"written as {created.info.run_id}"


def _list_metrics(run: TrackedRun) -> Iterator[Metric]:
    from mlflow.entities import Metric

    ended = int(run.ended.timestamp() * 1000)
    numbered = {name: list(enumerate(values)) for name, values in run.samples.items()}
    for name, values in {**numbered, **run.curves}.items():
        for step, value in values:
            yield Metric(_clean(name), value, ended, step)
    for name, value in run.scalars.items():
        yield Metric(_clean(name), value, ended, 0)


def _clean(name: str) -> str:
    """A name that MLflow takes.

    >>> _clean("test[1024-float32]")
    'test_1024-float32_'
    """
    return _FORBIDDEN.sub("_", name)[:_LONGEST_NAME]
