"""What the observers bring to TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import struct
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jobs_in_python import checked, fedavg, job_table

import mpifed as mf
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.run.api import run
from mpifed.testing import Job, Solo

pytestmark = pytest.mark.usefixtures("without_torch")


def job(folder: Path, **changes: Any) -> Job:
    often = {"evaluate_every": 2, "checkpoint_every": 2}
    base = {"name": "watched", "rounds": 6, "algorithm": fedavg(4, 0.2), "record": often}
    return checked(job_table(folder, **base | changes))


def steps(folder: Path) -> list[Any]:
    """The (round, train_loss) of the event files in a folder: records of length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack("<Q", data[at : at + 8])
            event = Event.FromString(data[at + 12 : at + 12 + length])
            values = {value.tag: value.simple_value for value in event.summary.value}
            assert "round" not in values
            found += [(event.step, values["train_loss"])] if values else []
            at += 16 + length
    return found


def test_event_files_of_tensorboard(classes: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(job(classes, observe=[{"name": "tensorboard"}]), Solo(), out)
    losses = read_history(out)["train_loss"].astype("f4").tolist()
    assert steps(out / "tensorboard") == list(zip([0, 2, 4, 6], losses, strict=True))
    mf.run(str(out / "job.toml"), out=out, overwrite=True, progress="none")  # the events are a run's own
    assert len(steps(out / "tensorboard")) == 4


class Client:
    """MLflow's client, by its documented calls."""

    store: ClassVar[dict[str, Any]] = {}

    def __init__(self, tracking_uri: str) -> None:
        self.store.setdefault("uris", []).append(tracking_uri)

    def get_experiment_by_name(self, name: str) -> Any:
        return types.SimpleNamespace(experiment_id="7") if name in self.store else None

    def create_experiment(self, name: str) -> str:
        self.store[name] = "7"
        return "7"

    def create_run(self, experiment_id: str, tags: dict[str, str], run_name: str) -> Any:
        self.store["run"] = {"name": run_name, "tags": tags, "params": {}, "steps": [], "status": ["RUNNING"]}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert run_id == "r1" and len(params) <= 100
        self.store["run"]["params"] |= dict(params)
        self.store["run"]["steps"] += [metric[3] for metric in metrics if metric[0] == "train_loss"]

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.store["run"]["tags"][key] = value

    def update_run(self, run_id: str, status: str) -> None:
        self.store["run"]["status"].append(status)

    def set_terminated(self, run_id: str, status: str) -> None:
        self.store["run"]["status"].append(status)


def test_calls_of_mlflow(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client, of 100 MB with what it needs, is none of the tests' libraries."""
    library, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    library.__spec__ = sys.__spec__
    library.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Metric, entities.Param = lambda *of: of, lambda *of: of  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", library)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for name in ("TRACKING_URI", "EXPERIMENT_NAME", "DISABLE_TELEMETRY", "ALLOW_FILE_STORE"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    monkeypatch.setattr(Client, "store", {})
    monkeypatch.chdir(tmp_path)
    out, task = tmp_path / "run", job(classes, observe=[{"name": "mlflow"}])
    with pytest.raises(mf.Interrupted):
        run(task, Solo(), out, max_hours=0)
    run(task, Solo(), out, resume=True)
    told = Client.store["run"]
    assert Client.store["uris"] == [(tmp_path / "mlruns").as_uri()] * 2 and "watched" in Client.store
    assert (told["name"], told["steps"]) == ("watched", [0, 2, 4, 6])
    assert told["status"] == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    assert told["params"]["client_optimizer.learning_rate"] == "0.2" and "observe" not in str(told["params"])
    assert told["tags"]["mpifed.model_sha256"] == summary(out)["model_sha256"] and told["tags"]["mpifed.exit"] == "0"
    assert mf.MLflow(tracking_uri="https://me:secret@host/x").destination() == "MLflow at host/x"


class Logged:
    """A run of Weights & Biases, by its documented calls."""

    def __init__(self, **how: Any) -> None:
        self.how, self.rows, self.summary, self.code = how, {}, {}, None

    def log(self, row: dict[str, float], step: int) -> None:
        self.rows[step] = row

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


def test_calls_of_weights_and_biases(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline unless told; a run that goes on keeps its identifier, and one that takes its place has another."""
    logged: list[Logged] = []
    library = types.ModuleType("wandb")
    library.__spec__ = sys.__spec__
    library.init = lambda **how: logged.append(Logged(**how)) or logged[-1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    out, task = tmp_path / "run", job(classes, observe=[{"name": "wandb"}])
    with pytest.raises(mf.Interrupted):
        run(task, Solo(), out, max_hours=0)
    run(task, Solo(), out, resume=True)
    online = job(classes, observe=[{"name": "wandb", "project": "mine", "online": True}])
    run(online, Solo(), out, overwrite=True)
    first, second, third = (one.how for one in logged)
    assert first["id"] == second["id"] != third["id"] and first["dir"] == str(out)
    assert [one["mode"] for one in (first, second, third)] == ["offline", "offline", "online"]
    assert [one["project"] for one in (first, third)] == ["watched", "mine"] and third["resume"] == "allow"
    assert [one.code for one in logged] == [75, 0, 0] and list(logged[2].rows) == [0, 2, 4, 6]
    assert [sorted(logged[number].rows) for number in range(2)] == [[0], [2, 4, 6]]
    assert first["config"]["client_optimizer"]["learning_rate"] == 0.2 and "observe" not in first["config"]
    assert "train_loss" in logged[2].rows[2] and "round" not in logged[2].rows[2]
    assert logged[2].summary == {"mpifed.exit": 0, "mpifed.model_sha256": summary(out)["model_sha256"]}
    assert "sends" in mf.WandB().destination() and "network" in mf.WandB(online=True).destination()
