"""What people try: any kind of arrays, mistakes in arguments, folders in use, runs that are stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_files import points_of

import mpifed as mf

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 6))
Y = (X @ RNG.standard_normal((6, 3))).argmax(axis=1)
FEDAVG = mf.FedAvg(batch_size=4, local_steps=2, client_optimizer=mf.SGD(0.3))

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def data() -> mf.FederatedDataset:
    return mf.FederatedDataset.from_arrays(X, Y, clients=4, test=0.2)


def _run(data: Any, **settings: Any) -> mf.Run:
    return mf.run(FEDAVG, data, mf.Softmax(), **{"rounds": 2, "progress": "none", **settings})


def _arrays(X: Any = X, y: Any = Y, **settings: Any) -> mf.FederatedDataset:
    return mf.FederatedDataset.from_arrays(X, y, **{"clients": 4, **settings})


def _frame(**columns: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(X).assign(**{"label": Y, "by": ["b", "a"] * 60, **columns})


def _of_frame(frame: Any = None, **settings: Any) -> mf.FederatedDataset:
    frame = _frame() if frame is None else frame
    return mf.FederatedDataset.from_dataframe(frame, **{"label": "label", "by": "by", **settings})


def test_the_same_data_in_many_kinds() -> None:
    pd, sparse = pytest.importorskip("pandas"), pytest.importorskip("scipy.sparse")
    kinds = [
        (X, Y), (X.tolist(), Y.tolist()), (pd.DataFrame(X), pd.Series(Y)),
        (X.astype(object), Y.astype(object)), (sparse.csr_matrix(X), Y[:, None]), (X, pd.Series(Y).astype("category")),
    ]  # fmt: skip
    found = {_run(_arrays(*kind)).summary["train_loss"] for kind in kinds}
    assert len({round(loss, 6) for loss in found}) == 1
    assert _arrays(y=Y > 0).classes == ("0", "1")
    image = _arrays(RNG.integers(0, 256, (120, 7, 7), dtype=np.uint8), scale="unit", clients=np.int64(4))
    assert image.shape == (7, 7) and _run(image).predict(np.zeros((2, 7, 7), np.uint8)).shape == (2,)
    nullable = _frame().convert_dtypes()
    assert _of_frame(nullable).clients == 2 and _of_frame(_frame().rename(columns={"label": 9}), label=9).features == 6


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(X, requires_grad=True)
    run = _run(_arrays(tensor, torch.tensor(Y)))
    assert np.array_equal(run.predict(tensor), run.predict(X))
    pairs = {"north": (tensor, torch.tensor(Y)), "south": (tensor, torch.tensor(Y))}
    assert mf.FederatedDataset.from_clients(pairs).clients == 2


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: _arrays(y=np.array(list("abc"), dtype=object)[Y][:, None].repeat(2, axis=1)), r"are <U1 \(120, 2\)"),
    (lambda: _run(_arrays(y=np.eye(3, dtype=int)[Y])), r"several labels of each row; .* y.argmax\(axis=1\)"),
    (lambda: _run(_arrays(y=Y.astype(float))), r"give integer labels, as by y.astype\(int\)"),
    (lambda: _arrays(test=1.5), "test = 1.5: expected a number above 0 and below 1"),
    (lambda: _arrays(test=(X[:, :3], Y)), r"test: samples of shape \(3,\); expected \(6,\)"),
    (lambda: _arrays(clients=0), "give 1 to 120 clients"),
    (lambda: _arrays(clients=2.5), "clients = 2.5: expected an integer"),
    (lambda: _arrays(scale="zscore"), "scale = zscore: 'zscore' is not a scaling; expected one of none, unit"),
    (lambda: _arrays(split="row"), "split = 'row': expected"),
    (lambda: _arrays(partition="diriclet:1"), "partition = diriclet:1: no partition; did you mean \"dirichlet\""),
    (lambda: _of_frame(X), "a ndarray .*expected a DataFrame"),
    (lambda: _of_frame(by=None, clients=0), "column 'by': 'b' is not a number; .* categorical='one-hot'"),
    (lambda: _of_frame(_frame().drop(columns="by"), by=None, clients=0), "give 1 to 120 clients"),
    (lambda: _of_frame(categorical="hash"), "categorical = 'hash': expected one of one-hot, ordinal"),
    (lambda: _of_frame(featurenoise=1), "no argument here; did you mean \"feature_noise\""),
    (lambda: _of_frame(label="lable"), "label = lable: .* has no such column; .*did you mean \"label\""),
    (lambda: _of_frame(test=_frame().drop(columns="label")), "test: other columns than .*: label differs"),
    (lambda: _of_frame(test=(X, Y)), "test: a tuple .*expected a DataFrame"),
    (lambda: mf.FederatedDataset.from_clients([(X, Y, Y)]), "client 0: a tuple, no pair"),
    (lambda: mf.FederatedDataset.from_clients([]), "from_clients: no samples to train on"),
    (lambda: mf.FederatedDataset.from_clients([(X, Y), (X[:3], Y[:2])]), "client 1: 3 rows and 2 labels"),
    (lambda: mf.FederatedDataset.from_clients([(X, Y)] * 7, client_test=[(X, Y)]), "1 pairs for 7 clients"),
    (lambda: mf.FederatedDataset.from_clients([(X, Y)], client_test=1.5), "client_test = 1.5: exp"),
])  # fmt: skip
def test_wrong_data(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(mf.MpifedError, match=message):
        wrong()


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda data: mf.run(data, FEDAVG, mf.Softmax(), rounds=2), "the order is algorithm, data, model"),
    (lambda data: _run((X, Y)), "data: a tuple; expected a mpifed.FederatedDataset"),
    (lambda data: mf.run(FEDAVG, data, mf.Softmax()), "rounds: missing"),
    (lambda data: _run(data, round=2), 'did you mean "rounds"'),
    (lambda data: mf.sweep({"A": FEDAVG}, data, mf.Softmax(), round=2), 'round: no argument .* did you mean "rounds"'),
    (lambda data: mf.run("fedavg", data, mf.Softmax(), rounds=2), "'fedavg' is taken for the path of a job file"),
    (lambda data: _run(data, progress="tqdm"), "progress = 'tqdm': expected one of 'auto'"),
    (lambda data: mf.run(mf.FedAvg, data, mf.Softmax(), rounds=1), "the class FedAvg; an object of Algorithm"),  # type: ignore
    (lambda data: mf.run(FEDAVG, data, mf.Softmax, rounds=1), r"the class Softmax; .* such as mpifed.MLP\(...\)"),  # type: ignore
    (lambda data: mf.run(FEDAVG, data), "needs algorithm, data and model"),
    (lambda data: mf.sweep({}, data, mf.Softmax(), rounds=1), "no method"),
    (lambda data: _run(data, resume=True), "resume=True without out"),
    (lambda data: _run(data, constraints=mf.constraint(mf.Loss(), 1.0)), "constraints: expected a list"),
    (lambda data: mf.run(mf.FedAvg(batch_size=4, client_optimizer=0.1), data, mf.Softmax(), rounds=2),  # type: ignore
     r"\[client_optimizer\]: a float; an object of ClientOptimizer is expected, such as mpifed.SGD\(...\)"),
    (lambda data: mf.run(mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1), server_optimizer=mf.SGD(0.1)), data,  # type: ignore
     mf.Softmax(), rounds=2), r"\[server_optimizer\]: a SGD; an object of ServerOptimizer .*mpifed.ServerSGD"),
    (lambda data: _run(data, aggregation=mf.Aggregation(security="mask"), seed=True),  # type: ignore
     "seed = True: expected an integer\n  aggregation.security = 'mask': expected \"plain\", \"masked\" or"),
    (lambda data: mf.sweep([FEDAVG], data, mf.Softmax(), rounds=2), "methods: a list; give algorithms by label"),  # type: ignore
    (lambda data: mf.sweep({"A": FEDAVG}, data, mf.Softmax(), rounds=2, seeds=[1, 1]), "a list of different ones"),
    (lambda data: mf.sweep({"A": FEDAVG}, data, mf.Softmax(), rounds=2, seeds="3"), "seeds = '3'"),  # type: ignore
    (lambda data: mf.load("nowhere"), "no such folder"),
    (lambda data: _run(data).plot(x="rounds"), "no run has measured 'rounds'; did you mean .round..; columns are "),
    (lambda data: _run(data).predict(X[0]), r"one sample x is x\[None\]"),
])  # fmt: skip
def test_wrong_arguments(data: mf.FederatedDataset, wrong: Callable[[Any], object], message: str) -> None:
    with pytest.raises(mf.MpifedError, match=message):
        wrong(data)


@pytest.mark.parametrize(("made", "message"), [
    (lambda: mf.FedAvg(batchsize=4, client_optimizer=mf.SGD(0.1)), "FedAvg: batchsize: .* mean \"batch_size\""),  # type: ignore
    (lambda: mf.SGD(lr=0.1), "SGD: lr: .* mean \"learning_rate\"\\?; known are learning_rate, momentum"),  # type: ignore
    (lambda: mf.Norm(limit=1), "Norm: limit: no argument of that name; known are none"),  # type: ignore
    (lambda: mf.Participation(clients=3), "Participation: clients: no argument .*; known are clients_per_round"),  # type: ignore
    (lambda: mf.Participation(n_clients_per_round=3), "did you mean \"clients_per_round\""),  # type: ignore
    (lambda: mf.TensorBoard(foldr="a"), "TensorBoard: foldr: .* mean \"folder\""),  # type: ignore
])  # fmt: skip
def test_misspelt_keywords(made: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        made()


def test_numbers_of_numpy(data: mf.FederatedDataset) -> None:
    method = mf.FedAvg(batch_size=np.int64(4), client_optimizer=mf.SGD(np.float64(0.25)))  # type: ignore[arg-type]
    plain = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.25))
    runs = [mf.run(one, data, mf.Softmax(), rounds=number(2), seed=number(3), progress="none")
            for one, number in ((method, np.int64), (plain, int))]  # fmt: skip
    assert runs[0].summary["model_sha256"] == runs[1].summary["model_sha256"]
    assert mf.sweep({"A": plain}, data, mf.Softmax(), rounds=1, seeds=np.arange(2, 4)).seeds == (2, 3)


def test_a_sweep_goes_on(data: mf.FederatedDataset, here: Path) -> None:
    methods = {"A": FEDAVG, "B": mf.SSCA(batch_size=4)}
    first = mf.sweep(methods, data, mf.Softmax(), rounds=2, seeds=2, out="sweep")
    table = (here / "sweep/sweep.csv").read_text()
    with pytest.raises(mf.UsageError, match="holds a sweep already; give another out, continue a sweep with resume"):
        mf.sweep({"C": FEDAVG}, data, mf.Softmax(), rounds=2, out="sweep")
    with pytest.raises(mf.UsageError, match=r"holds another sweep .*; give another out, or replace it with overwr"):
        mf.sweep(methods, data, mf.Softmax(l2=1.0), rounds=2, out="sweep", resume=True)
    with pytest.raises(mf.UsageError, match=r"holds a sweep; .*resume=True"):
        mf.load("sweep")
    assert (here / "sweep/sweep.csv").read_text() == table
    model = points_of(here / "sweep")[0] / "model.safetensors"
    written = model.stat().st_mtime_ns
    again = mf.sweep(methods, data, mf.Softmax(), rounds=2, seeds=2, out="sweep", resume=True)
    assert again.summary.equals(first.summary)
    assert model.stat().st_mtime_ns == written
    assert len(mf.sweep({"C": FEDAVG}, data, mf.Softmax(), rounds=2, out="sweep", overwrite=True).summary) == 1


def test_a_class_of_this_process_runs_and_stands_in_no_file(data: mf.FederatedDataset, here: Path) -> None:
    @dataclass(frozen=True)
    class SignServer(mf.FedAvg):
        """As FedAvg."""

    method = SignServer(batch_size=4, client_optimizer=mf.SGD(0.1))
    run = mf.run(method, data, mf.Softmax(), rounds=1, progress="none")
    with pytest.raises(mf.UsageError, match=r"to_toml: .*SignServer \(of .*cannot be imported by another process"):
        run.job.to_toml("job.toml")
    assert not (here / "job.toml").exists() and "rounds=1" in repr(run)


@pytest.mark.parametrize("many", [False, True])
def test_control_c_leaves_a_run_that_goes_on(data: mf.FederatedDataset, here: Path, many: bool) -> None:
    def stop() -> None:
        while not list(here.glob("run/**/history.csv")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(mf.Interrupted, match=r"resume=True, out='run'"):
        if many:
            mf.sweep({"A": FEDAVG}, data, mf.Softmax(), rounds=10**7, out="run")
        else:
            _run(data, rounds=10**7, out="run")
    stopped = mf.load(points_of(here / "run")[0] if many else "run")
    assert stopped.summary["exit"] == 75 and stopped.summary["rounds"] < 10**7 and stopped.model


CHECKED = """
import numpy as np, mpifed as mf
X, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 3
data = mf.FederatedDataset.from_arrays(X, y, clients=CLIENTS)
method = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1))
mf.run(method, data, mf.Softmax(), rounds=ROUNDS, progress="none")
"""


@pytest.mark.launch
def test_errors_end_all_ranks_and_are_said_once(launch: Any, here: Path) -> None:
    for clients, rounds, message in (("500", "2", "500 clients for 60 rows"), ("5", "0", "rounds = 0")):
        script = here / "script.py"
        script.write_text(CHECKED.replace("CLIENTS", clients).replace("ROUNDS", rounds))
        ended = launch(2, program=(str(script),), cwd=here, env={"TMPDIR": str(here)})
        assert ended.code == 2, ended.text
        assert "Traceback" not in ended.text and ended.text.count("mpifed: error") == 1
        assert message in ended.text and not list(here.glob("mpifed-*/*"))
