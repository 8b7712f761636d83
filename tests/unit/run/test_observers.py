"""Observers: what their calls get, that they change nothing, and that one that fails is left out."""

from __future__ import annotations

import dataclasses
import struct
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table
from written_files import read_json, write_json

import mpifed as mf
from mpifed.core.errors import NumericalError
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.observers.base import ObservedRun, RunOutcome
from mpifed.run.api import run
from mpifed.testing import Job, Solo

pytestmark = pytest.mark.usefixtures("without_torch")


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("an error without a text")


@dataclasses.dataclass
class Recorder(mf.Observer):
    """Notes its calls, and fails in one of them."""

    fails: str = ""
    error: str = "ValueError"

    def __post_init__(self) -> None:
        self.calls: list[Any] = []

    def _note(self, call: str, what: Any) -> None:
        self.calls.append(what)
        np.random.seed(1)  # noqa: NPY002
        np.seterr(all="raise")
        if self.fails == call:
            raise {"ValueError": ValueError, "SystemExit": SystemExit, "Silent": Silent}[self.error]("why\n\x1b[31m")

    def begin(self, run: ObservedRun) -> None:
        self._note("begin", run)

    def measured(self, row: Mapping[str, float]) -> None:
        own = dict(row)
        row.clear()  # type: ignore[attr-defined]  # no other observer, and no file, may lack anything
        self._note("measured", own)

    def end(self, outcome: RunOutcome) -> None:
        self._note("end", outcome)

    @property
    def rounds(self) -> list[float]:
        return [call["round"] for call in self.calls if isinstance(call, dict)]


def job(folder: Path, **changes: Any) -> Job:
    often = {"evaluate_every": 2, "checkpoint_every": 2}
    base = {"name": "watched", "rounds": 6, "algorithm": fedavg(4, 0.2), "record": often}
    return checked(job_table(folder, **base | changes))


def test_what_each_call_gets(classes: Path, tmp_path: Path) -> None:
    first, second, task, out = Recorder(), Recorder(), job(classes), tmp_path / "run"
    run(task, Solo(), out, observers=[first, second])
    begun = ObservedRun("watched", task.resumed({"data": {"block": 2}}).table(), out, 6, None)
    history = read_history(out)
    cells = [{name: float(values[number]) for name, values in history.items()} for number in range(4)]
    rows = [{name: value for name, value in row.items() if not np.isnan(value)} for row in cells]
    assert first.calls == second.calls == [begun, *rows, RunOutcome(0, summary(out))]
    names = ("test_observers:Recorder", "test_observers:Recorder 2")
    assert first.rounds == [0, 2, 4, 6] and read_json(out / "run.json")["observed"] == dict.fromkeys(names)


@pytest.mark.parametrize(("call", "error"), [("begin", "SystemExit"), ("measured", "ValueError"), ("end", "Silent")])
def test_one_that_fails_is_left_out(classes: Path, tmp_path: Path, capsys: Any, call: str, error: str) -> None:
    """The model, the exit code and the other observer are as without it; a warning says so once."""
    bad, good = Recorder(call, error), Recorder()
    state, handling = np.random.get_state()[1], np.geterr()  # noqa: NPY002
    run(job(classes), Solo(), tmp_path / "run", observers=[bad, good])
    run(job(classes), Solo(), tmp_path / "without")
    assert np.array_equal(np.random.get_state()[1], state) and np.geterr() == handling  # noqa: NPY002
    first, second = summary(tmp_path / "run"), summary(tmp_path / "without")
    assert (first["exit"], first["model_sha256"]) == (0, second["model_sha256"])
    said, text = capsys.readouterr().err, error if error == "Silent" else f"{error}: why\\n\\x1b[31m"
    assert said.count("warning") == 1 and f"observer test_observers:Recorder: {call} failed ({text})" in said
    assert len(bad.calls) == {"begin": 1, "measured": 2, "end": 6}[call] and len(good.calls) == 6


def test_the_end_of_a_run_that_fails(classes: Path, tmp_path: Path) -> None:
    """By an error on this rank; one that fails before round 0 has not begun."""
    observer = Recorder()
    for method, error in ((fedavg(4, 1e30), NumericalError), (fedavg(local_steps=1, local_epochs=1), mf.UsageError)):
        with pytest.raises(error):
            run(job(classes, algorithm=method), Solo(), tmp_path / error.__name__, observers=[observer])
    (end,) = (call for call in observer.calls if isinstance(call, RunOutcome))
    assert (end.exit, end.summary["exit"], end.summary["rounds"]) == (68, 68, 0)


def test_rows_that_are_measured_again_are_not_given_again(classes: Path, tmp_path: Path) -> None:
    """Observers may come and go: they are in no digest of a run, whose bits are the same."""
    out, first, second = tmp_path / "run", Recorder(), Recorder()
    keep = job(classes, record={"evaluate_every": 1, "checkpoint_every": 2})
    run(replace(keep, rounds=2), Solo(), out, observers=[first])
    with pytest.raises(mf.Interrupted):
        run(keep, Solo(), out, resume=True, max_hours=0, observers=[second])
    assert (first.rounds, second.rounds) == ([0, 1, 2], [])
    assert (second.calls[0].resumed_after, second.calls[-1].exit) == (2, 75)
    commas = "," * ((out / "history.csv").read_text().split("\n")[0].count(","))
    with open(out / "history.csv", "a") as history:  # as a kill leaves it: rounds 3 and 4 measured, 5 in part
        history.write(f"3{commas}\n4{commas}\n5,")
    write_json(out / "run.json", read_json(out / "run.json") | {"exit": None, "digests": None})
    with pytest.raises(mf.Interrupted):  # killed again before those rounds are done again
        run(keep, Solo(), out, resume=True, max_hours=0, observers=[Recorder()])
    run(keep, Solo(), out, resume=True, observers=[third := Recorder(), added := Recorder()])
    assert third.rounds == [5, 6]  # it has had rounds 3 and 4
    assert added.rounds == [3, 4, 5, 6]  # a second one was not there
    run(keep, Solo(), tmp_path / "whole")
    assert summary(out)["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]


WRONG: list[tuple[Any, str]] = [
    ({"name": "tensorbord"}, r'\[observe 1\] name = "tensorbord": .*; did you mean "tensorboard"'),
    ({"name": "tensorboard", "folder": 3}, r"\[observe 1\] folder = 3: expected text"),
    ({"name": "test_observers:job"}, r"\[observe 1\] name = .*: is no class"),
    ({"name": "test_observers:Silent"}, "is no Observer; derive it from"),
    ({"name": "test_observers:Recorder", "fail": "begin"}, "fail: unknown key"),
]  # fmt: skip


def test_what_is_wrong_is_said_before_the_run(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table, message in WRONG:
        with pytest.raises(mf.UsageError, match=message):
            job(classes, observe=[table])
    monkeypatch.setattr(mf.MLflow, "requires", {"no_such_module": "mlflow-skinny"})
    with pytest.raises(mf.UsageError, match="no_such_module is missing; pip install mlflow-skinny"):
        run(job(classes, observe=[{"name": "mlflow"}]), Solo(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    method = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.2))
    told = mf.check(method, classes, mf.Softmax(), rounds=1, observers=[mf.TensorBoard(), Recorder()])
    assert "observer tensorboard gets" in told and "observer test_observers:Recorder gets" in told


def test_objects_and_tables_from_python(classes: Path, here: Path) -> None:
    """An object is called itself; what another process could make is in the job as well."""

    class Local(mf.Observer):  # no dataclass, and no import gives it
        def measured(self, row: Mapping[str, float]) -> None:
            seen.append(row["round"])

    seen, of_module = list[float](), Recorder()
    method = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.2))
    observers = [Local(), of_module, mf.TensorBoard(folder="logs"), {"name": "tensorboard"}]
    trained = mf.run(method, classes, mf.Softmax(), observers=observers, out="run", rounds=2, progress="none")
    assert seen == of_module.rounds == [0, 2]
    named = ["test_observers:Recorder", "tensorboard", "tensorboard"]
    assert [table["name"] for table in trained.job.job.observe] == named
    again = mf.run(trained.job.to_toml("job.toml"), observers=observers[:1], progress="none")
    assert seen == [0, 2, 0, 2] and again.summary["model_sha256"] == trained.summary["model_sha256"]
    sweep = mf.sweep({"a": method, "b": method}, classes, mf.Softmax(), rounds=2, observers=observers[:3], out="sweep")
    paths = {run.path.name for runs in sweep.runs.values() for run in runs}
    assert len(seen) == 8 and {path.name for path in Path("logs").iterdir() if path.is_dir()} == paths


# --- what they bring to TensorBoard, MLflow, and Weights & Biases ----------------------------------------------------


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

    set_terminated = update_run


def interrupted_and_resumed(task: Job, out: Path) -> None:
    with pytest.raises(mf.Interrupted):
        run(task, Solo(), out, max_hours=0)
    run(task, Solo(), out, resume=True)


def library(monkeypatch: pytest.MonkeyPatch, name: str, **has: Any) -> None:
    """What is none of the tests' libraries, of 100 MB with what it needs."""
    module = types.ModuleType(name)
    module.__spec__ = sys.__spec__
    vars(module).update(has)
    monkeypatch.setitem(sys.modules, name, module)


def test_calls_of_mlflow(classes: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, "mlflow", MlflowClient=Client)
    library(monkeypatch, "mlflow.entities", Metric=lambda *of: of, Param=lambda *of: of)
    for name in ("TRACKING_URI", "EXPERIMENT_NAME", "DISABLE_TELEMETRY", "ALLOW_FILE_STORE"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    monkeypatch.setattr(Client, "store", {})
    interrupted_and_resumed(job(classes, observe=[{"name": "mlflow"}]), here / "run")
    told = Client.store["run"]
    assert Client.store["uris"] == [(here / "mlruns").as_uri()] * 2 and "watched" in Client.store
    assert (told["name"], told["steps"]) == ("watched", [0, 2, 4, 6])
    assert told["status"] == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    assert told["params"]["client_optimizer.learning_rate"] == "0.2" and "observe" not in str(told["params"])
    tags = {"mpifed.model_sha256": summary(here / "run")["model_sha256"], "mpifed.exit": "0"}
    assert told["tags"].items() >= tags.items()
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
    library(monkeypatch, "wandb", init=lambda **how: logged.append(Logged(**how)) or logged[-1])
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    out = tmp_path / "run"
    interrupted_and_resumed(job(classes, observe=[{"name": "wandb"}]), out)
    online = job(classes, observe=[{"name": "wandb", "project": "mine", "online": True}])
    run(online, Solo(), out, overwrite=True)
    first, second, third = (each.how for each in logged)
    assert first["id"] == second["id"] != third["id"] and first["dir"] == str(out)
    assert [how["mode"] for how in (first, second, third)] == ["offline", "offline", "online"]
    assert [how["project"] for how in (first, third)] == ["watched", "mine"] and third["resume"] == "allow"
    assert [(each.code, sorted(each.rows)) for each in logged] == [(75, [0]), (0, [2, 4, 6]), (0, [0, 2, 4, 6])]
    assert first["config"]["client_optimizer"]["learning_rate"] == 0.2 and "observe" not in first["config"]
    assert "train_loss" in logged[2].rows[2] and "round" not in logged[2].rows[2]
    assert logged[2].summary == {"mpifed.exit": 0, "mpifed.model_sha256": summary(out)["model_sha256"]}
    assert "sends" in mf.WandB().destination() and "network" in mf.WandB(online=True).destination()
