"""`import mpifed as mf`: arrays in, runs and sweeps out, errors as exceptions, the same jobs as in files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from written_files import points_of

import mpifed as mf

RNG = np.random.default_rng(5)
X = RNG.standard_normal((240, 2, 3)).astype("f4")
Y = (X.reshape(240, 6) @ RNG.standard_normal((6, 3))).argmax(axis=1) * 10 + 5  # labels 5, 15, 25
AVERAGING = mf.FedAvg(batch_size=8, local_steps=2, client_optimizer=mf.SGD(0.5))

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> mf.FederatedDataset:
    out = tmp_path_factory.mktemp("python") / "data"
    return mf.FederatedDataset.from_arrays(X[:200], Y[:200], clients=4, test=(X[200:], Y[200:]), out=out)


def test_public_names_are_known_and_all_there() -> None:
    """Which they are is written in docs/reference/api.md."""
    for name in mf.__all__:
        assert getattr(mf, name) is not None and name in dir(mf)
    with pytest.raises(AttributeError, match="no attribute 'Fedavg'"):
        mf.Fedavg  # noqa: B018


def test_import_is_quick_and_starts_nothing() -> None:
    code = (
        "import sys, mpifed; heavy = {'mpi4py', 'numpy', 'h5py', 'torch', 'pandas', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy; mpifed.FedAvg; mpifed.run; mpifed.FederatedDataset;"
        "assert not {'mpi4py.MPI', 'torch', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_a_run_has_its_history_model_and_predictions(data: mf.FederatedDataset) -> None:
    run = mf.run(AVERAGING, data, mf.Softmax(), rounds=12, block=3, evaluate_every=4, progress="none")
    assert "block = 3\n" in (run.path / "job.toml").read_text()
    history = run.history
    assert history["round"].tolist() == [0, 4, 8, 12] and history["train_loss"].is_monotonic_decreasing
    assert sorted(run.model) == ["first", "head.bias"] and run.model["first"].shape == (6, 3)
    right = (run.predict(X[200:]) == Y[200:]).mean()
    assert right == pytest.approx(run.summary["test_accuracy"]) and right > 0.8
    assert set(run.predict(X)) <= {5, 15, 25}
    assert run.summary["rounds"] == 12 and run.summary["exit"] == 0
    same = mf.load(run.path)
    assert same.summary == run.summary and same.history.equals(history)
    assert [axes.get_xlabel() for axes in run.plot().axes][-1] == "round"
    with pytest.raises(mf.UsageError, match="samples of 5 numbers; the model was trained with 6"):
        run.predict(np.zeros((3, 5)))


def test_a_run_travels_between_ranks_as_its_folder(data: mf.FederatedDataset) -> None:
    """And not as its arrays, which each rank reads when it asks for them."""
    run = mf.run(AVERAGING, data, mf.MLP(hidden=5000), rounds=1, progress="none")
    sent = pickle.dumps(run)
    assert len(sent) < 2**13 < run.model["first"].nbytes
    received = pickle.loads(sent)
    assert np.array_equal(received.model["first"], run.model["first"]) and received.history.equals(run.history)


def test_a_run_is_none_that_takes_its_folder(data: mf.FederatedDataset) -> None:
    before, now = (
        mf.run(AVERAGING, data, mf.Softmax(), rounds=rounds, out="o", overwrite=True, progress="none")
        for rounds in (2, 1)
    )
    for read in (lambda: before.columns, lambda: before.model, lambda: before.predict(X)):
        with pytest.raises(mf.DataError, match="a run has written here since this one was read"):
            read()
    assert now.columns["round"].tolist() == [0, 1] and len(now.predict(X)) == len(X)


def test_the_same_job_from_a_file(data: mf.FederatedDataset, launch: Any, here: Path) -> None:
    settings: dict[str, Any] = {
        "minimize": mf.Norm(), "constraints": [mf.constraint(mf.Loss(), limit=0.9, margin=0.01)], "seed": 3,
        "aggregation": mf.Aggregation(security="masked"), "participation": mf.Participation(clients_per_round=3),
    }  # fmt: skip
    method = mf.SSCA(batch_size=10, rho=mf.StepSize(0.9, 0.6), tau=0.2)
    run = mf.run(method, data, mf.MLP(hidden=5), rounds=5, out=here / "a", **settings, progress="none")
    run.job.to_toml(here / "job.toml")
    assert launch(None, "run", here / "job.toml", "--out", here / "b").code == run.summary["exit"]
    by_file = mf.run(here / "job.toml", out=here / "c", progress="none")
    assert mf.load(here / "b").summary["model_sha256"] == by_file.summary["model_sha256"] == run.summary["model_sha256"]
    text = str(run.job)
    assert 'security = "masked"' in text and "limit = 0.9" in text and "decay" not in text


def test_privacy_and_schedules(data: mf.FederatedDataset) -> None:
    method = mf.FedAvg(batch_size=10, client_optimizer=mf.SGD(mf.PowerDecay(0.5, exponent=0.2)))
    private = mf.Privacy(clip=1.0, delta=1e-3, noise_multiplier=1.0, public_preparation=True)
    run = mf.run(method, data, mf.Softmax(), rounds=3, privacy=private, progress="none")
    assert run.summary["epsilon"] > 0
    assert "who learns" in mf.check(method, data, mf.Softmax(), rounds=3, privacy=private).lower()


def test_methods_are_compared_over_equal_seeds(data: mf.FederatedDataset, here: Path, launch: Any) -> None:
    methods = {"FedAvg": AVERAGING, "SSCA": mf.SSCA(batch_size=8)}
    sweep = mf.sweep(methods, data, mf.Softmax(), rounds=4, seeds=2, evaluate_every=2, out=here / "sweep")
    assert list(sweep.runs) == ["FedAvg", "SSCA"] and sweep.seeds == (1, 2)
    history = sweep.history
    assert history.groupby(["label", "seed"]).size().to_dict() == {
        ("FedAvg", 1): 3, ("FedAvg", 2): 3, ("SSCA", 1): 3, ("SSCA", 2): 3
    }  # fmt: skip
    alone = mf.run(AVERAGING, data, mf.Softmax(), rounds=4, seed=2, evaluate_every=2, progress="none")
    assert alone.summary["model_sha256"] == sweep.runs["FedAvg"][1].summary["model_sha256"]
    assert len(set(sweep.summary["model_sha256"])) == 4
    for band, said in (
        ("range", "mean and range of 2 seeds"),
        ("deviation", "standard deviation"),
        ("none", "mean of"),
    ):
        figure = sweep.plot(y="train_loss", x="bytes", band=band)
        legend = figure.legends[0]
        assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "SSCA"]
        assert said in legend.get_title().get_text()
        assert len({line.get_marker() for line in figure.axes[0].lines}) == 2  # told apart without colours
    with pytest.raises(
        mf.UsageError, match=r"no run has measured 'accuracy'; did you mean .test_accuracy..; columns are "
    ):
        sweep.plot(y="accuracy")
    with pytest.raises(mf.UsageError, match="labels: 'Fedavg' is none of this sweep; it has FedAvg, SSCA"):
        sweep.plot(labels=["Fedavg"])
    (renamed,) = sweep.plot("test_loss", labels={"SSCA": "ours"}).axes[0].lines
    assert renamed.get_label() == "ours" and sweep.plot("test_loss")._repr_png_().startswith(b"\x89PNG")
    both = mf.plot([alone, sweep], "train_loss", ["round", "bytes"], size="page")  # the run is one of the sweep's too
    assert [len(axes.lines) for axes in both.axes] == [2, 2] and both.get_figwidth() == 7
    together = mf.plot({"all": [alone, sweep.runs["SSCA"]], "folder": str(sweep.path)}, "train_loss", band="none")
    assert together.legends[0].get_title().get_text() == "mean of 3 to 4 runs"
    empty = "nothing to draw"
    for nothing, said in (([], empty), ({"FedAvg": []}, empty), (3, "a int; expected a run or a sweep")):
        with pytest.raises(mf.UsageError, match=said):
            mf.plot(nothing)  # type: ignore[arg-type]
    compared = launch(None, "compare", here / "sweep")
    assert compared.code == 0 and "FedAvg" in compared.out and "SSCA" in compared.out


def test_a_run_that_diverges_does_not_end_a_sweep(here: Path, capsys: Any) -> None:
    targets = X.reshape(240, 6)[:, 0] * 100.0
    data = mf.FederatedDataset.from_arrays(X, targets, clients=4)
    methods = {str(rate): mf.FedAvg(batch_size=8, client_optimizer=mf.SGD(rate)) for rate in (1e30, 0.01)}
    settings: dict[str, Any] = {"rounds": 4, "seeds": 2, "evaluate_every": 2, "out": here / "sweep"}
    sweep = mf.sweep(methods, data, mf.LeastSquares(), **settings)
    assert {label: [run.exit for run in runs] for label, runs in sweep.runs.items()} == {
        "1e+30": [68, 68],
        "0.01": [0, 0],
    }
    assert list(sweep.failed) == [("1e+30", 1), ("1e+30", 2)] and "2 runs failed" in repr(sweep)
    assert list(sweep.summary["exit"]) == [68, 68, 0, 0]
    assert capsys.readouterr().err.count("failed, exit 68: ") == 2
    assert [line.get_label() for line in sweep.plot(y="train_loss").axes[0].lines] == ["0.01"]
    with pytest.raises(mf.UsageError, match=r"labels: every run of 1e\+30 failed"):
        sweep.plot(labels=["1e+30"])
    first = points_of(here / "sweep")[0] / "run.json"
    written = first.read_bytes()
    again = mf.sweep(methods, data, mf.LeastSquares(), **settings, resume=True)  # it would diverge again
    assert list(again.failed) == list(sweep.failed) and first.read_bytes() == written
    with pytest.raises(mf.NumericalError, match="sweep: all of 1 run failed, the first by: "):
        mf.sweep({"a": methods["1e+30"]}, data, mf.LeastSquares(), rounds=4)
    with pytest.raises(mf.NumericalError):
        mf.run(methods["1e+30"], data, mf.LeastSquares(), rounds=4, out="alone", progress="none")
    assert mf.load("alone").exit == 68 and (here / "alone/failure.txt").exists()


def test_labels_may_be_texts() -> None:
    """Also texts of digits, which predictions give back as they were."""
    words = np.array(["7", "cat", "dog"])[np.searchsorted([5, 15, 25], Y)]
    digits = Y.astype(str)
    frame = pd.DataFrame(X.reshape(240, 6)).assign(label=words, by=[0, 1] * 120)
    for labels, data in (
        (words, mf.FederatedDataset.from_arrays(X, list(words), clients=4, test=0.2)),
        (words, mf.FederatedDataset.from_arrays(X, pd.Series(words).astype("category"), clients=4, test=(X, words))),
        (words, mf.FederatedDataset.from_clients([(X[:99], words[:99]), (X[99:], words[99:])])),
        (words, mf.FederatedDataset.from_dataframe(frame, label="label", by="by", test=0.2)),
        (digits, mf.FederatedDataset.from_arrays(X, digits, clients=4)),
    ):
        assert data.classes == tuple(sorted(set(labels)))
        run = mf.run(AVERAGING, data, mf.Softmax(), rounds=8, progress="none")
        assert (run.predict(X.reshape(240, *(data.shape or [6]))) == labels).mean() > 0.8


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
assert len(runs[0].history) and runs[0].predict(X).shape == (90,)
try:
    runs[1].job.to_toml("own.toml")
except mf.UsageError as error:
    assert "Own" in str(error)
else:
    raise AssertionError
for _ in range(20):  # the data are still there, whichever rank is the last
    runs[0].predict(X)
mf.check(method, data, mf.Softmax(), rounds=2)
Path(f"{sys.argv[1]}-{os.getpid()}.txt").write_text(" ".join(hashes))
"""


@pytest.mark.launch
def test_a_script_has_the_same_bits_on_two_ranks(launch: Any, here: Path) -> None:
    """Every rank gets every result; a class of the script runs; temporary data go when all ranks are done with them."""
    script = here / "script.py"
    script.write_text(SCRIPT)
    said = set[str]()
    for ranks in (0, 2):
        ended = launch(ranks, f"on-{ranks}", program=(str(script),), cwd=here, env={"TMPDIR": str(here)})
        assert ended.code == 0, ended.text
        assert "Traceback" not in ended.text and "mpifed: error" not in ended.text
        assert not list(here.glob("mpifed-*/*"))
        assert ended.text.count("__main__:Seen: measured failed (ValueError: whatever happens here)") == 1
        texts = [path.read_text() for path in here.glob(f"on-{ranks}-*.txt")]
        assert len(texts) == max(ranks, 1)
        said |= set(texts)
    assert len(said) == 1 and len(set(said.pop().split())) == 5  # of two runs the models are equal
