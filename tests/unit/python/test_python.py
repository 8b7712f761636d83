"""`import mpifed as mf`: runs and sweeps out, errors as exceptions in words of Python, the same jobs as in files."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_files import points_of

import mpifed as mf

RNG = np.random.default_rng(5)
X = RNG.standard_normal((240, 2, 3)).astype("f4")
Y = (X.reshape(240, 6) @ RNG.standard_normal((6, 3))).argmax(axis=1) * 10 + 5  # labels 5, 15, 25
FEDAVG = mf.FedAvg(batch_size=8, local_steps=2, client_optimizer=0.5)  # type: ignore[arg-type]  # a learning rate
SSCA = mf.SSCA(batch_size=8)

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> mf.FederatedDataset:
    out = tmp_path_factory.mktemp("python") / "data"
    return mf.FederatedDataset.from_arrays(X[:200], Y[:200], clients=4, test=(X[200:], Y[200:]), out=out)


def run(data: Any, **settings: Any) -> mf.Run:
    return mf.run(FEDAVG, data, mf.Softmax(), **{"rounds": 2, "progress": "none", **settings})


def test_public_names_are_there_and_import_starts_nothing() -> None:
    for name in mf.__all__:
        assert getattr(mf, name) is not None and name in dir(mf)
    code = (
        "import sys, mpifed; heavy = {'mpi4py', 'numpy', 'h5py', 'torch', 'pandas', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy; mpifed.FedAvg; mpifed.run; mpifed.FederatedDataset; mpifed.compare; mpifed.plot;"
        "assert not {'mpi4py.MPI', 'torch', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_help_signature_and_an_error_without_our_frames(data: mf.FederatedDataset) -> None:
    """Whatever of the package `mpifed.run` was imported before."""
    import_module("mpifed.run.command")
    for function in (mf.run, mf.check, mf.sweep, mf.tune, mf.submit):
        assert {"rounds", "seed", "observers", "privacy"} <= set(inspect.signature(function).parameters)
        assert inspect.isfunction(function) and (function.__doc__ or "").split()[0] in pydoc.render_doc(function)
    for wrong in (lambda: mf.run(FEDAVG, "nowhere", mf.Softmax(), rounds=2), lambda: mf.load("nowhere")):
        with pytest.raises(mf.DataError) as caught:
            wrong()
        assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-2:] == ["<lambda>", "call"]


def test_a_run_has_its_history_model_and_predictions(data: mf.FederatedDataset) -> None:
    """And travels between ranks as its folder, not as its arrays."""
    done = mf.run(FEDAVG, data, mf.MLP(hidden=5000), rounds=12, block=3, evaluate_every=4, progress="none")
    assert "block = 3\n" in (done.path / "job.toml").read_text()
    assert done.history["round"].tolist() == [0, 4, 8, 12] and done.summary["rounds"] == 12 and done.exit == 0
    sent = pickle.dumps(done)
    right = (done.predict(X[200:]) == Y[200:]).mean()
    assert right == pytest.approx(done.summary["test_accuracy"]) and right > 0.8 and set(done.predict(X)) <= {5, 15, 25}
    assert len(sent) < 2**13 < done.model["first"].nbytes
    for same in (mf.load(done.path), pickle.loads(sent)):
        assert same.summary == done.summary and same.history.equals(done.history)
    assert [axes.get_xlabel() for axes in done.plot().axes][-1] == "round"


def test_a_run_is_none_that_takes_its_folder(data: mf.FederatedDataset) -> None:
    before, now = (run(data, rounds=rounds, out="o", overwrite=True) for rounds in (2, 1))
    for read in (lambda: before.columns, lambda: before.model, lambda: before.predict(X)):
        with pytest.raises(mf.DataError, match="a run has written here since this one was read"):
            read()
    assert now.columns["round"].tolist() == [0, 1] and len(now.predict(X)) == len(X)


def test_the_same_job_from_a_file_and_a_dict(data: mf.FederatedDataset, launch: Any, here: Path) -> None:
    settings: dict[str, Any] = {
        "minimize": mf.Norm(), "constraints": [mf.constraint(mf.Loss(), limit=0.9, margin=0.01)], "seed": 3,
        "aggregation": mf.Aggregation(security="masked"), "participation": 0.75,
    }  # fmt: skip
    method = mf.SSCA(batch_size=10, rho=mf.StepSize(0.9, 0.6), tau=0.2)
    done = mf.run(method, data, mf.MLP(hidden=5), rounds=5, out=here / "a", **settings, progress="none")
    assert "clients_per_round = 3\n" in str(done.job)
    done.job.to_toml(here / "job.toml")
    assert launch(None, "run", here / "job.toml", "--out", here / "b").code == done.summary["exit"]
    others = [
        mf.load(here / "b"),
        mf.run(here / "job.toml", progress="none"),
        mf.run(done.job.job.table(), progress=False),
    ]
    assert {other.summary["model_sha256"] for other in others} == {done.summary["model_sha256"]}


def test_privacy(data: mf.FederatedDataset) -> None:
    private = mf.Privacy(clip=1.0, delta=1e-3, noise_multiplier=1.0, public_preparation=True)
    assert run(data, privacy=private).summary["epsilon"] > 0
    assert "who learns" in mf.check(FEDAVG, data, mf.Softmax(), rounds=3, privacy=private).lower()


def test_methods_are_compared_over_equal_seeds(data: mf.FederatedDataset, here: Path, launch: Any) -> None:
    settings: dict[str, Any] = {"rounds": 4, "evaluate_every": 2}
    sweep = mf.sweep({"FedAvg": FEDAVG, "SSCA": SSCA}, data, mf.Softmax(), seeds=2, out=here / "sweep", **settings)
    sizes = sweep.history.groupby(["label", "seed"]).size().to_dict()
    assert sizes == {(label, seed): 3 for label in ("FedAvg", "SSCA") for seed in (1, 2)}
    alone = run(data, seed=2, **settings)
    assert alone.summary["model_sha256"] == sweep.runs["FedAvg"][1].summary["model_sha256"]
    assert len(set(sweep.summary["model_sha256"])) == 4
    figure = sweep.plot(y="train_loss", x="bytes", band="deviation")
    assert "standard deviation" in figure.legends[0].get_title().get_text()
    assert len({line.get_marker() for line in figure.axes[0].lines}) == 2  # told apart without colours
    (renamed,) = mf.plot({"ours": sweep.runs["SSCA"]}, "test_loss").axes[0].lines
    assert renamed.get_label() == "ours" and sweep.plot("test_loss")._repr_png_().startswith(b"\x89PNG")
    both = mf.plot([alone, sweep], "train_loss", ["round", "bytes"], size="page")  # the run is one of the sweep's too
    assert [len(axes.lines) for axes in both.axes] == [2, 2] and both.get_figwidth() == 7
    joined = mf.plot({"all": [alone, sweep.runs["SSCA"]], "folder": str(sweep.path)}, "train_loss", band="none")
    assert joined.legends[0].get_title().get_text() == "mean of 3 to 4 runs"
    with pytest.raises(mf.UsageError, match=r"no run has measured 'accuracy'; did you mean .test_accuracy..; columns"):
        sweep.plot(y="accuracy")
    for nothing, said in (([], "no run"), ({"FedAvg": []}, "no run"), (3, "a int; expected a run or a sweep")):
        with pytest.raises(mf.UsageError, match=f"plot: {said}"):
            mf.plot(nothing)  # type: ignore[arg-type]
    assert str(sweep) == str(mf.compare([sweep])) and str(sweep) in launch(None, "compare", here / "sweep").out


def test_a_run_that_diverges_does_not_end_a_sweep(here: Path, capsys: Any) -> None:
    data = mf.FederatedDataset.from_arrays(X, X.reshape(240, 6)[:, 0] * 100.0, clients=4)
    methods = {str(rate): mf.FedAvg(batch_size=8, client_optimizer=mf.SGD(rate)) for rate in (1e30, 0.01)}
    settings: dict[str, Any] = {"rounds": 4, "seeds": 2, "evaluate_every": 2, "out": here / "sweep"}
    sweep = mf.sweep(methods, data, mf.LeastSquares(), **settings)
    assert list(sweep.summary["exit"]) == [68, 68, 0, 0] and list(sweep.failed) == [("1e+30", 1), ("1e+30", 2)]
    assert "2 runs failed" in repr(sweep) and capsys.readouterr().err.count("failed, exit 68: ") == 2
    again = mf.sweep(methods, data, mf.LeastSquares(), **settings, resume=True)  # it diverges again
    assert list(again.failed) == list(sweep.failed)
    with pytest.raises(mf.NumericalError, match="sweep: all of 1 run failed, the first by: "):
        mf.sweep({"a": methods["1e+30"]}, data, mf.LeastSquares(), rounds=4)


def test_a_sweep_goes_on(data: mf.FederatedDataset, here: Path) -> None:
    methods, settings = {"A": FEDAVG, "B": SSCA}, {"rounds": 2, "seeds": 2, "out": "sweep"}
    with pytest.raises(mf.Interrupted, match=r"go on with resume=True, out='sweep'"):
        mf.sweep(methods, data, mf.Softmax(), **settings, max_hours=0)  # type: ignore[arg-type]
    with pytest.raises(mf.Interrupted, match=r"go on with resume=True, out='run'"):
        run(data, out="run", max_hours=0)
    assert mf.load("run").exit == 75 and mf.load("run").model
    first = mf.sweep(methods, data, mf.Softmax(), **settings, resume=True)  # type: ignore[arg-type]
    for wrong, said in (
        (lambda: mf.sweep({"C": FEDAVG}, data, mf.Softmax(), rounds=2, out="sweep"), "of a sweep already; keep these"),
        (lambda: mf.sweep(methods, data, mf.Softmax(l2=1.0), rounds=2, out="sweep", resume=True),
         "holds another sweep .* replace it with overwrite=True"),
        (lambda: mf.load("sweep"), "holds a sweep; .*resume=True"),
    ):  # fmt: skip
        with pytest.raises(mf.UsageError, match=said):
            wrong()
    model = points_of(here / "sweep")[0] / "model.safetensors"
    written = model.stat().st_mtime_ns
    again = mf.sweep(methods, data, mf.Softmax(), **settings, resume=True)  # type: ignore[arg-type]
    assert again.summary.equals(first.summary)
    assert model.stat().st_mtime_ns == written
    assert len(mf.sweep({"C": FEDAVG}, data, mf.Softmax(), rounds=2, out="sweep", overwrite=True).summary) == 1


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda data: mf.run(data, FEDAVG, mf.Softmax(), rounds=2), "the order is algorithm, data, model"),
    (lambda data: run((X, Y)), "data: a tuple; expected a mpifed.FederatedDataset"),
    (lambda data: mf.run(FEDAVG, data, mf.Softmax()), "rounds: missing"),
    (lambda data: run(data, round=2), 'did you mean "rounds"'),
    (lambda data: mf.run("fedavg", data, mf.Softmax(), rounds=2), "'fedavg' is taken for the path of a whole job"),
    (lambda data: run(data, progress="tqdm"), "progress = 'tqdm': expected one of 'auto'"),
    (lambda data: mf.run(mf.FedAvg, data, mf.Softmax(), rounds=1), "the class FedAvg; an object of Algorithm"),  # type: ignore
    (lambda data: mf.run(FEDAVG, data, mf.Softmax, rounds=1), r"the class Softmax; .* such as mpifed.MLP\(...\)"),  # type: ignore
    (lambda data: mf.run(FEDAVG, data), "needs algorithm, data and model"),
    (lambda data: run(data, resume=True), "resume=True without out"),
    (lambda data: run(data, participation=1.5), "participation = 1.5: expected a table"),
    (lambda data: run(data, observers=mf.TensorBoard()), "observers: a TensorBoard; expected a list"),
    (lambda data: run(data, constraints=mf.constraint(mf.Loss(), 1.0)), "constraints: expected a list"),
    (lambda data: mf.run(mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1), server_optimizer=mf.SGD(0.1)), data,  # type: ignore
     mf.Softmax(), rounds=2), r"\[server_optimizer\]: a SGD; an object of ServerOptimizer .*mpifed.ServerSGD"),
    (lambda data: run(data, aggregation=mf.Aggregation(security="mask"), seed=True),  # type: ignore
     "seed = True: expected an integer\n  aggregation.security = 'mask': expected \"plain\", \"masked\" or"),
    (lambda data: mf.sweep([FEDAVG], data, mf.Softmax(), rounds=2), "methods: a list; give algorithms by label"),  # type: ignore
    (lambda data: mf.sweep({"A": FEDAVG}, data, mf.Softmax(), rounds=2, seeds=[1, 1]), "twice; list it once"),
    (lambda data: mf.load("nowhere"), "no such folder"),
    (lambda data: run(data).predict(X[0, 0]), r"one sample x is x\[None\]"),
    (lambda data: mf.FedAvg(batchsize=4, client_optimizer=mf.SGD(0.1)), 'FedAvg: batchsize: .* mean "batch_size"'),  # type: ignore
    (lambda data: mf.SGD(lr=0.1), 'SGD: lr: .* mean "learning_rate"\\?; known are learning_rate, momentum'),  # type: ignore
    (lambda data: mf.Participation(clients=3), "Participation: clients: no argument .*; known are clients_per_round"),  # type: ignore
])  # fmt: skip
def test_wrong_arguments(data: mf.FederatedDataset, wrong: Callable[[Any], object], message: str) -> None:
    with pytest.raises((mf.MpifedError, TypeError), match=message):
        wrong(data)


def test_a_class_of_this_process_runs_and_stands_in_no_file(data: mf.FederatedDataset, here: Path) -> None:
    @dataclass(frozen=True)
    class SignServer(mf.FedAvg):
        """As FedAvg."""

    done = mf.run(SignServer(batch_size=4, client_optimizer=mf.SGD(0.1)), data, mf.Softmax(), rounds=1, progress="none")
    with pytest.raises(mf.UsageError, match=r"to_toml: .*SignServer \(of .*cannot be imported by another process"):
        done.job.to_toml("job.toml")
    assert not (here / "job.toml").exists() and "rounds=1" in repr(done)


def test_two_threads(data: mf.FederatedDataset) -> None:
    """The second is refused, and says so; the first is as it would be alone."""
    begun, told = threading.Event(), list[BaseException]()

    class Waiting(mf.Observer):
        def measured(self, row: Any) -> None:
            if row["round"] == 1:
                begun.set()
                other.join(60)

    def refused() -> None:
        begun.wait(60)
        try:
            run(data)
        except mf.UsageError as error:
            told.append(error)

    other = threading.Thread(target=refused)
    other.start()
    watched = run(data, evaluate_every=1, observers=[Waiting()])
    assert "another thread of this process is in a call of mpifed; call this after it" in str(told[0])
    assert watched.summary["model_sha256"] == run(data, evaluate_every=1).summary["model_sha256"]


SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np, mpifed as mf
from dataclasses import dataclass

@dataclass(frozen=True)
class Own(mf.Softmax):
    pass

class Seen(mf.Observer):  # on rank 0 alone
    def begin(self, run):
        Path(f"{sys.argv[1]}-{run.name}.seen").touch(exist_ok=False)

    def measured(self, row):
        np.random.seed(0)
        raise ValueError("whatever happens here")

rng = np.random.default_rng(0)
X, y = rng.standard_normal((90, 4)), rng.integers(0, 3, 90)
data = mf.FederatedDataset.from_arrays(X, y, clients=5, test=0.2)
method = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.2))
runs = [
    mf.run(method, data, model, rounds=3, progress="none", observers=observers)
    for model, observers in ((mf.Softmax(), []), (Own(), [Seen()]))
]
swept = mf.sweep({"a": method, "b": mf.SSCA(batch_size=4)}, data, mf.Softmax(), rounds=2, seeds=2)
hashes = [run.summary["model_sha256"] for run in (*runs, *swept.runs["a"], *swept.runs["b"])]
for _ in range(20):  # the data are still there, whichever rank is the last
    assert runs[0].predict(X).shape == (90,)
mf.check(method, data, mf.Softmax(), rounds=2)
Path(f"{sys.argv[1]}-{os.getpid()}.txt").write_text(" ".join(hashes))
if len(sys.argv) > 2:
    mf.run(method, data, mf.Softmax(), rounds=0)
"""


@pytest.mark.launch
def test_a_script_has_the_same_bits_on_two_ranks(launch: Any, here: Path) -> None:
    """Every rank gets every result; errors end all and are said once; temporary data go when all ranks are done."""
    (script := here / "script.py").write_text(SCRIPT)
    said = set[str]()
    for ranks, *more in ((0,), (2, "wrong")):
        ended = launch(ranks, f"on-{ranks}", *more, program=(str(script),), cwd=here, env={"TMPDIR": str(here)})
        assert ended.code == (2 if more else 0) and "Traceback" not in ended.text, ended.text
        assert ended.text.count("mpifed: error") == len(more) and ended.text.count("rounds = 0") == len(more)
        assert not list(here.glob("mpifed-*/*"))
        assert ended.text.count("__main__:Seen: measured failed (ValueError: whatever happens here)") == 1
        texts = [path.read_text() for path in here.glob(f"on-{ranks}-*.txt")]
        assert len(texts) == max(ranks, 1)
        said |= set(texts)
    assert len(said) == 1 and len(set(said.pop().split())) == 5  # of two runs the models are equal
