"""Runs of MLflow, by its own client."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mpifed.core.errors import Interrupted
from mpifed.core.tables import dotted
from mpifed.files.ends import FINISHED
from mpifed.files.json_file import read_json, write_json
from mpifed.observers.base import ObservedRun, Observer, RunOutcome

NOTED = "mlflow.json"  # in the run's folder: the identifiers of its runs of MLflow, by store
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
        return f"MLflow at {self._uri().rpartition('@')[2]}"  # without a password

    def begin(self, run: ObservedRun) -> None:
        # both are read when MLflow is imported: it reports its use over the network unless told not to, and refuses
        # folders of its own since 3.7
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = client = MlflowClient(tracking_uri=self._uri())
        path, key = run.folder / NOTED, self._uri().rpartition("@")[2]
        noted = read_json(path) if path.exists() else {}
        if run.resumed_after is not None and key in noted:
            self._run_id = str(noted[key])
            client.update_run(self._run_id, "RUNNING")
            return
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.name
        with suppress(Exception):  # it is there already, or another task of a job array has made it just now
            client.create_experiment(experiment)
        number = client.get_experiment_by_name(experiment).experiment_id
        tags = {"mpifed.folder": str(run.folder.absolute())}
        self._run_id = client.create_run(number, tags=tags, run_name=run.full_name).info.run_id
        write_json(path, {**noted, key: self._run_id})
        parameters = [Param(key, str(value)[:_LONGEST]) for key, value in dotted(run.settings)]
        for start in range(0, len(parameters), _BATCH):
            client.log_batch(self._run_id, params=parameters[start : start + _BATCH])

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
