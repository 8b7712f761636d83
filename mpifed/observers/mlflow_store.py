"""Runs of MLflow, by its own client."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mpifed.core.errors import FINISHED, Interrupted
from mpifed.core.tables import ReadOnlyTable
from mpifed.files.json_file import read_json, write_json
from mpifed.observers.base import ObservedRun, Observer, RunOutcome

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOTED = "mlflow.json"  # in the run's folder: the identifiers of its runs of MLflow
_BATCH = 100  # parameters that a server takes at once
_LONGEST = 500  # characters of a parameter


@dataclass
class MLflow(Observer):
    """A run of MLflow: settings of the job as parameters, columns of the history as metrics, by round.

    Nothing leaves this machine unless a server is named. Needs `pip install mlflow` or `mlflow-skinny`.
    """

    experiment: str | None = None
    """Name of the experiment; where absent, `$MLFLOW_EXPERIMENT_NAME`, or the name of the job."""
    tracking_uri: str | None = None
    """A store of MLflow, as "sqlite:///mlflow.db" or the address of a server; where absent, `$MLFLOW_TRACKING_URI`, or
    files in the folder `mlruns`."""

    requires: ClassVar[Mapping[str, str]] = {"mlflow": "mlflow-skinny"}

    def destination(self) -> str:
        uri = self._uri()
        return f"MLflow at {uri.rpartition('@')[2] or uri}"  # without a password

    def begin(self, run: ObservedRun) -> None:
        self._client, self._run_id = self._opened(), ""
        path, key = run.folder / NOTED, hashlib.sha256(self._uri().encode()).hexdigest()[:12]
        noted = read_json(path) if path.exists() else {}
        if run.resumed_after is not None and key in noted:
            self._run_id = str(noted[key])
            self._client.update_run(self._run_id, "RUNNING")
            return
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.name
        in_sweep = (run.folder.parent / "sweep.csv").exists()
        name = f"{run.name}/{run.folder.name}" if in_sweep else run.name
        tags = {"mpifed.folder": str(run.folder.absolute())}
        created = self._client.create_run(self._experiment_id(experiment), tags=tags, run_name=name)
        self._run_id = created.info.run_id
        write_json(path, {**noted, key: self._run_id})
        self._log_parameters(run.settings)

    def measured(self, row: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now, done = time.time_ns() // 10**6, int(row["round"])
        metrics = [Metric(name, value, now, done) for name, value in row.items() if name != "round"]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, outcome: RunOutcome) -> None:
        for name in ("exit", "model_sha256"):
            if (value := outcome.summary.get(name)) is not None:
                self._client.set_tag(self._run_id, f"mpifed.{name}", str(value))
        ended = {Interrupted.exit_code: "KILLED"} | dict.fromkeys(FINISHED, "FINISHED")
        self._client.set_terminated(self._run_id, ended.get(outcome.exit, "FAILED"))

    def _uri(self) -> str:
        return self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").absolute().as_uri()

    def _opened(self) -> MlflowClient:
        # read when MLflow is imported: it reports its use over the network unless told not to
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        uri = self._uri()
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else refused by MLflow 3.7 and later
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri)

    def _experiment_id(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name))
            except Exception:  # another task of a job array may have made it just now
                known = self._client.get_experiment_by_name(name)
                if known is None:
                    raise
        return str(known.experiment_id)

    def _log_parameters(self, settings: ReadOnlyTable) -> None:
        from mlflow.entities import Param

        parameters = [Param(key, str(value)[:_LONGEST]) for key, value in _flat(settings)]
        for start in range(0, len(parameters), _BATCH):
            self._client.log_batch(self._run_id, params=parameters[start : start + _BATCH])


def _flat(table: ReadOnlyTable, above: str = "") -> Iterator[tuple[str, object]]:
    """("table.key", value) of nested tables and lists of tables, which are numbered from 1."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif isinstance(value, list) and value and all(isinstance(element, Mapping) for element in value):
            yield from _flat({str(number): element for number, element in enumerate(value, 1)}, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
