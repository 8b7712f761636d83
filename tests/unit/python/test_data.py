"""Data from Python: by every door the same, names that stay, models that are applied again, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import command
from scipy import sparse
from sklearn import metrics

import mpifed as mf
from mpifed.data.applied import read_applied
from mpifed.data.store import Federation, open_federation

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype("f4")
Y = (X[:, 0] > 0).astype(int)
BYTES = RNG.integers(0, 256, (60, 4), np.uint8)
IMAGES = RNG.standard_normal((60, 3, 4, 4)).astype("f4")
LAST = IMAGES.transpose(0, 2, 3, 1)
DAY, DAYS = pd.Timestamp("2024-01-01"), np.full(60, "2024-01-01", "M8[D]")
NAMED = pd.DataFrame(X, columns=list("abcd"))
REVERSED = NAMED[list("dcba")]
FRAME = NAMED.assign(ill=np.array(["no", "yes"])[Y])
WARDS = {"north": slice(0, 25), "south": slice(25, 45), "west": slice(45, 60)}
PAIRS = {name: (X[rows], Y[rows]) for name, rows in WARDS.items()}
WHO = np.repeat([*WARDS], [25, 20, 15])
From = mf.FederatedDataset

pytestmark = pytest.mark.usefixtures("here")


def run(data: Any, model: Any = None, **settings: Any) -> mf.Run:
    method = mf.FedAvg(batch_size=10, client_optimizer=mf.SGD(0.5))
    return mf.run(method, data, model or mf.Softmax(), **{"rounds": 3, "progress": "none"} | settings)


def arrays(x: Any = X, y: Any = Y, **settings: Any) -> mf.FederatedDataset:
    return From.from_arrays(x, y, **{"clients": 3, **settings})


def of_frame(frame: Any = FRAME, **settings: Any) -> mf.FederatedDataset:
    return From.from_dataframe(frame, **{"label": "ill", "clients": 3, **settings})


def stored(data: mf.FederatedDataset) -> Federation:
    return open_federation(data.path, verify=True)


# --- doors and names ------------------------------------------------------------------------------------------------


def test_names_of_clients_stay_and_who_has_no_samples_is_left_out(here: Path) -> None:
    """Faults 26 and 39."""
    data = From.from_clients({**PAIRS, "empty": ([], [])}, client_test=0.2, out="d", test=(X[:9], Y[:9]))
    assert stored(data).client_names() == tuple(WARDS) and stored(data).test_samples == 9
    for said in ("empty: no rows to train on, so no client", "features 4", "natural: north, south, west", "9 to test"):
        assert said in str(data)
    trained = run(data, out="r")
    assert trained.clients["name"].tolist() == [*WARDS]
    assert Path("r/clients.csv").read_text().splitlines()[1].endswith(",north")
    assert "in memory" in str(arrays()) and "west" in command("show", "d")[1]


def test_an_index_is_no_feature_and_said() -> None:
    """Fault 21."""
    read = FRAME.rename_axis("Unnamed: 0").reset_index()
    with pytest.warns(UserWarning, match="from_dataframe: Unnamed: 0 numbers rows, and is left out"):
        data = of_frame(read)
    assert data.names() == tuple("abcd")
    assert np.array_equal(run(data).predict(read), run(data).predict(X))
    named = FRAME.rename(columns={"ill": "rownames", "a": 4})
    assert of_frame(named, label="rownames", ignore=pd.Index([4])).names() == of_frame(ignore="a").names()
    with pytest.warns(UserWarning, match="from_dataframe: a numbers rows, and is left out; .reset_index"):
        assert of_frame(FRAME.set_index("a")).names() == tuple("bcd")


# --- applied again --------------------------------------------------------------------------------------------------


def test_columns_are_matched_by_name() -> None:
    """Fault 20."""
    for data in (arrays(test=(X, Y), names=list("abcd")), of_frame(NAMED.assign(ill=Y), test=REVERSED.assign(ill=Y))):
        trained = run(data, rounds=20)
        assert data.names() == tuple("abcd") and trained.summary["test_accuracy"] > 0.9
        np.testing.assert_allclose(trained.predict_proba(REVERSED), trained.predict_proba(X))


@pytest.mark.parametrize(("model", "y"), [
    (mf.Softmax(), Y), (mf.Logistic(), Y),
    (mf.MLP(hidden=4), FRAME["ill"]), (mf.Softmax(), Y.astype(str)), (mf.MultiLabel(), (X[:, :2] > 0).astype(int)),
    (mf.LeastSquares(), X[:, :2] @ [[1.0], [2.0]] + 0.1),
])  # fmt: skip
def test_predictions_and_scores_are_those_of_the_run(model: Any, y: Any) -> None:
    data = arrays(X, y, test=(X, y), scale="standard")
    trained = run(data, model, rounds=10)
    predicted = trained.predict(X)
    if isinstance(model, mf.LeastSquares):
        assert trained.score(X, y) == pytest.approx(metrics.r2_score(y, predicted))
        return
    found = trained.predict_proba(X)
    assert found.shape == (60, len(data.classes)) and ((found >= 0) & (found <= 1)).all()
    if isinstance(model, mf.MultiLabel):
        np.testing.assert_array_equal(found > 0.5, predicted)
        assert trained.score(X, y) == pytest.approx(trained.summary["test_exact_match"])
        return
    np.testing.assert_array_equal(np.array(data.classes)[found.argmax(axis=1)], predicted.astype(str))
    assert trained.score(X, y) == pytest.approx(trained.summary["test_accuracy"])


def test_labels_of_a_frame_are_scored_by_their_names() -> None:
    frame = NAMED.assign(p=X[:, 0] > 0, q=X[:, 1] > 0).astype({"p": int, "q": int})
    trained = run(From.from_dataframe(frame, label=["p", "q"], clients=3), mf.MultiLabel())
    scores = [trained.score(frame, y) for y in (frame, frame[["q", "p"]], frame[["p", "q"]].to_numpy())]
    assert len(set(scores)) == 1
    with pytest.raises(mf.DataError, match=r"score: y: a frame .*expected the labels p, q"):
        trained.score(frame, frame[["p"]])


def test_real_targets_of_a_frame_with_texts_are_scored() -> None:
    frame = NAMED.assign(sex=RNG.choice(["m", "f"], 60)).assign(dose=lambda rows: 3 * rows["a"] + (rows["sex"] == "f"))
    trained = run(of_frame(frame, label="dose", categorical="one-hot"), mf.LeastSquares(), rounds=20)
    assert trained.score(frame[::-1], frame["dose"][::-1]) > 0.95
    with pytest.raises(mf.UsageError, match="LeastSquares has no probabilities"):
        trained.predict_proba(frame)


def test_a_run_is_applied_without_its_data(tmp_path: Path) -> None:
    """Its folder alone says how samples become inputs, of bytes and frames too, and after what was done for good."""
    for samples, settings in (
        (X, {"scale": "minmax,unit-rows"}), (X, {"scale": "standard,unit-rows,minmax"}),
        (BYTES, {}), (X[:, :1], {}), (sparse.csr_matrix(X), {"scale": "unit"}),
    ):  # fmt: skip
        data = arrays(samples, test=(samples, Y), out=tmp_path / "d", overwrite=True, **settings)
        trained = run(data, out=tmp_path / "r", overwrite=True)
        shutil.rmtree(tmp_path / "d")
        assert trained.score(samples, Y) == pytest.approx(trained.summary["test_accuracy"])
        (tmp_path / "r/data.json").write_text((tmp_path / "r/data.json").read_text() + " ")
        with pytest.raises(mf.DataError, match=r"data\.json: was changed or damaged since the run ended"):
            mf.load(tmp_path / "r").predict(samples)


def test_a_private_model_does_not_take_the_scaling_of_data_made_after_it(here: Path) -> None:
    private = mf.Privacy(clip=1.0, noise_multiplier=1.0, delta=1e-5, public_preparation=True)
    trained = run(arrays(scale="standard", out="d"), rounds=1, privacy=private, out="r")
    assert trained.predict(X).shape == Y.shape and not Path("r/data.json").exists()
    about = json.loads(Path("r/run.json").read_text())
    del about["sha256"]
    Path("r/run.json").write_text(json.dumps(about | {"started": "2000-01-01T00:00:00+00:00"}))
    with pytest.raises(mf.UsageError, match=r"r: began at 2\S+, and .*d was made at 2\S+: they may be other data"):
        mf.load("r").predict(X)


def test_runs_on_other_data_at_one_path_are_no_seeds(here: Path) -> None:
    for seed, scale in ((1, 1), (2, 1), (3, 5)):
        arrays(X * scale, out="d", overwrite=True)
        run("d", rounds=2, seed=seed, out=f"r{seed}")
    sha = [str(json.loads(Path(f"r{seed}/run.json").read_text())["data_sha256"])[:12] for seed in (1, 3)]
    assert list(dict.fromkeys(mf.compare("r1", "r2", "r3").frame["label"])) == [f"d {digits}" for digits in sha]
    assert [len(mf.plot([*runs], "train_loss").axes[0].lines) for runs in (("r1", "r2"), ("r1", "r2", "r3"))] == [1, 2]
    code, text = command("audit", "r1")
    assert code == 2 and re.search(r"r1: was trained on other data than .*d holds now \(SHA-256", text)


@pytest.mark.parametrize(("recipe", "factor", "said"), [
    ([{"name": "b"}], None, "names, recipe, shape, steps or labels do not fit 1 features"),
    ([{"name": "a", "fill": "x"}], None, "names, recipe, shape, steps or labels do not fit 1 features"),
    (None, 1e38, "data.json: samples, scaled by its factors, are no finite numbers"),
])  # fmt: skip
def test_a_stranger_s_recipe(tmp_path: Path, recipe: Any, factor: float | None, said: str) -> None:
    run(of_frame(FRAME[["a", "ill"]]), out=(folder := tmp_path / "r"))
    table = json.loads((folder / "data.json").read_text())
    table |= {"recipe": recipe} if factor is None else {"steps": [{"scale": [factor], "shift": [0.0]}] * 2}
    (folder / "run.json").unlink()  # and with it the digest
    (folder / "data.json").write_text(json.dumps(table))
    with pytest.raises(mf.DataError, match=said):
        read_applied(folder / "data.json").inputs(X[:, :1], "float32")


# --- bad inputs -----------------------------------------------------------------------------------------------------


STAMPS = 1_700_000_000_000_000_000 + np.arange(240).reshape(60, 4)
LAYOUT = r"\(4, 4, 3\); .*\(3, 4, 4\)"
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: arrays(np.ma.masked_array(X, mask=X[2, 1] == X)), "arrays: X: 1 masked entries; fill them in"),  # 37
    (lambda: arrays(sparse.coo_array(X * np.nan)), r"arrays: X\[0, 0\]: nan is not a finite number"),  # 37
    (lambda: arrays(np.where(X[4, 1] == X, np.nan, X)), r"X\[4, 1\]: nan is not a finite number in float32, as are 0"),
    (lambda: arrays(np.where(IMAGES[1, 2, 3, 0] == IMAGES, np.inf, IMAGES)), r"X\[1, 2, 3, 0\]: inf is not a finite"),
    (lambda: arrays(STAMPS), r"X\[:, 0\]: 60 different numbers, such as 1.7.*, are 1 in float32; .* identifiers"),
    (lambda: arrays(X[:, 0]), r"expected numbers \[samples, ...\]; one sample x is x\[None\]"),
    (lambda: arrays(clients=[None, *WHO[1:]]), "clients: 1 rows have no value"),
    (lambda: arrays(clients=np.ma.masked_equal(np.arange(60) % 3, 1)), "20 masked entries"),  # 37
    (lambda: arrays(clients=[" ", "nan ", *["x", "y"] * 29]), "clients: 2 rows have no value"),  # 22
    (lambda: arrays(clients=X[:, 0]), "clients: float32, such as .*; expected integers or texts"),
    (lambda: arrays(clients=WHO[:4]), r"ids of shape \(4,\); expected one for each of 60 rows"),
    (lambda: arrays(y=np.array(["a", "b", None] * 20, object)), r"y\[2\]: the label None is "),
    (lambda: arrays(y=2 * np.eye(60, dtype=int)), r"labels are int64 \(60, 60\), such as 2; several labels"),
    (lambda: arrays(shape=(2, 3)), r"shape \(2, 3\) for 4 features; their product must be that number"),
    (lambda: arrays(test=(X[:2, :1], Y[:2])), r"test: samples of shape \(1,\); expected \(4,\)"),
    (lambda: arrays(test=(X[:2], [0, 7])), r"test: y\[1\]: no training row has the label 7"),
    (lambda: arrays(X, np.array(["a", np.nan, "b"] * 20)), r"y\[1\]: the label 'nan' is a gap"),
    (lambda: arrays(X, test=(NAMED, Y)), "test: a DataFrame, whose columns"),
    (lambda: run(arrays(), rounds=1).predict(NAMED), "predict: X: a frame, and the data have no names"),
    (lambda: arrays(X, FRAME["ill"][::-1], clients=FRAME["ill"]), "y and clients: the frames have other indices"),
    (lambda: run(of_frame(), rounds=1).score(FRAME, FRAME["ill"][::-1]), "X and y: the frames have other indices"),
    (lambda: arrays(X, Y, test=(X, Y + 0.6)), "test: labels are float64 .* to train on int64"),  # 36
    (lambda: arrays(BYTES, Y, test=(BYTES / 255, Y)), "test: samples are float32, .* on uint8"),  # 38
    (lambda: arrays(X, Y, clients=[2**63 + 1, 2**63 + 3, -1] * 20), "clients: .* would be rounded"),
    (lambda: arrays(X, Y, clients=[(1, 2)] * 60), r"clients: an array \(60, 2\); expected an identifier for each row"),
    (lambda: arrays(X, Y, names=list("aabc")), "3 different names for 4 features"),
    (lambda: arrays(sparse.coo_array(X[:, 0]), Y), r"X: a sparse array of float32 \(60,\)"),
    (
        lambda: of_frame(FRAME.assign(e=pd.Categorical([DAY] * 60)), categorical="one-hot"),
        "'e' is of type dict",
    ),
    (lambda: of_frame(FRAME.assign(e=pd.cut(X[:, 0], 2)), categorical="one-hot"), "'e' is of type .*interval"),
    (lambda: of_frame(FRAME.assign(e=DAY.isoformat()), categorical="one-hot"), "'2024-01-01T00:00:00' is not a number"),
    (lambda: run(of_frame()).predict(NAMED[NAMED < 1]), "predict: X: row 13, column 'a' is a missing value; train"),
    (lambda: arrays(X, [2**64 + 1, 2**64 + 3] * 30), "y: .* would be rounded"),
    (lambda: of_frame(ignore=0), "ignore = 0: .*no such column; expected the names a, b"),
    (lambda: of_frame(FRAME.assign(e=[2**64 + 1, 1] * 30)), "int too (large|big) to convert"),
    (lambda: arrays(X, Y, clients=2.5), "clients = 2.5: expected an integer"),
    (lambda: run(arrays(IMAGES)).predict(LAST), f"predict: X: .*{LAYOUT}"),  # 35
    (lambda: arrays(IMAGES, Y, test=(LAST, Y)), f"test: samples.*{LAYOUT}"),  # 35
    (lambda: run(arrays(X, np.eye(3, dtype=int)[Y])), r"several labels of each row; .* y.argmax\(axis=1\)"),
    (lambda: run(arrays(X, Y.astype(float))), r"give integer labels, as by y.astype\(int\)"),
    (lambda: From.from_clients([(X, Y)] * 2, client_test=[(X, Y)] * 3), "3 pairs for 2 clients; 2 differ"),
    (lambda: From.from_clients([(X, Y, Y)]), "client 0: a tuple, no pair"),
    (lambda: From.from_clients([]), "from_clients: no rows of any client"),
    (
        lambda: From.from_clients({"a": (X, Y), "b": ([], [])}, client_test={"a": (X, Y), "b": (X, Y)}),
        "client 1: all its rows are test rows",
    ),
    (lambda: From.from_clients({"a": FRAME, "b": FRAME.drop(columns="c")}, label="ill"), "client b: other .*: c dif"),
    (lambda: From.from_clients({"a": FRAME, "b": (X, Y)}, label="ill"), "client b: a tuple: .*expected a DataFrame"),
    (
        lambda: From.from_clients({"a": FRAME}, label="ill", client_test={"a": FRAME}),
        r"client_test = (.|\n)*a number above 0",
    ),
    (lambda: of_frame(categorcal="one-hot"), "categorcal: no argument here; did you mean .categorical"),
    (lambda: From.from_clients([], label="ill"), "from_clients: no clients; expected a frame of each"),
    (lambda: of_frame(by="a"), "give either by, the column that names clients, or clients, how many"),
    (lambda: of_frame(test=FRAME.assign(ill="maybe")), "from_dataframe: test: row 1, column 'ill': no .* label maybe"),
    (lambda: From.from_torch([(X[0], 1)], clients=1, test=np.array(0.2)), "from_torch: test: ndarray"),
    (lambda: of_frame(test=FRAME.drop(columns="d")), "test: other columns than .*: d differs"),
    (lambda: arrays(client_test_fraction=0.3), 'client_test_fraction: no argument here; did you mean "client_test"'),
    (lambda: run(arrays()).score(X, Y[:5]), r"score: y is int64 \[5\], and predictions are int64 \[60\]"),
    (lambda: run(arrays()).score(X, Y + 0.5), "score: y is float64"),
    (lambda: run(arrays()).predict(BYTES), "predict: X: uint8, and the data are no bytes"),
    (lambda: run(arrays(BYTES, scale="unit")).predict(BYTES / 255), "predict: X: float32, and the data are bytes"),
    (lambda: run(arrays(), mf.Hinge()).predict_proba(X), "Hinge has no probabilities"),
]


@pytest.mark.parametrize(("wrong", "named"), WRONG)
def test_bad_inputs_are_named(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(mf.MpifedError, match=named):
        wrong()
