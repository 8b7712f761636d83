"""Names that stay, models that are applied again, and what is refused by name: one table of bad inputs."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import command
from PIL import Image
from scipy import sparse
from sklearn import metrics

import mpifed as mf
from mpifed.data.applied import read_applied
from mpifed.data.store import open_federation

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype("f4")
Y = (X[:, 0] > 0).astype(int)
BYTES = RNG.integers(0, 256, (60, 4), np.uint8)
NAMED = pd.DataFrame(X, columns=list("abcd"))
FRAME = NAMED.assign(ill=np.array(["no", "yes"])[Y])
WARDS = {"north": slice(0, 25), "south": slice(25, 45), "west": slice(45, 60)}
PAIRS = {name: (X[rows], Y[rows]) for name, rows in WARDS.items()}
WHO = np.repeat([*WARDS], [25, 20, 15])
From = mf.FederatedDataset

pytestmark = pytest.mark.usefixtures("here")


def run(data: Any, model: Any = None, **settings: Any) -> mf.Run:
    method = mf.FedAvg(batch_size=10, client_optimizer=mf.SGD(0.5))
    return mf.run(method, data, model or mf.Softmax(), **{"rounds": 3, "progress": "none"} | settings)


def names(data: mf.FederatedDataset) -> tuple[str, ...]:
    return open_federation(data.path).client_names()


def identity(data: mf.FederatedDataset) -> str:
    return open_federation(data.path).sha256


# --- names ----------------------------------------------------------------------------------------------------------


def test_names_of_clients_stay(here: Path) -> None:
    data = From.from_clients(PAIRS, client_test=0.2, out="d")
    assert names(data) == tuple(WARDS)
    trained = run(data, out="r")
    assert trained.clients["name"].tolist() == [*WARDS] and trained.clients["client"].tolist() == [0, 1, 2]
    assert Path("r/clients.csv").read_text().splitlines()[1].endswith(",north")
    labels = [text.get_text() for text in data.plot().axes[1].get_xticklabels()]
    assert labels == [*WARDS]
    private = mf.Privacy(clip=1.0, delta=1e-3, noise_multiplier=1.0, public_preparation=True)
    method = mf.FedAvg(batch_size=13, client_optimizer=mf.SGD(0.5))
    with pytest.raises(mf.UsageError, match=r"the smallest shard \(client west\) has 12 samples"):
        mf.check(method, data, mf.Softmax(), rounds=1, privacy=private)
    assert "west" in command("show", "d")[1]


def test_one_table_by_every_door_of_python_is_the_same_data() -> None:
    """Arrays with identifiers, clients in any order, frames of clients, one frame."""
    by_ids = From.from_arrays(NAMED, FRAME["ill"], clients=WHO)
    reordered = dict(reversed([(name, (NAMED[rows], FRAME["ill"][rows])) for name, rows in WARDS.items()]))
    frames = {name: FRAME[rows].sample(frac=1, random_state=1) for name, rows in WARDS.items()}
    by_frames = [
        From.from_clients(frames, label="ill", scale="none"),
        From.from_clients({**frames, "west": frames["west"][["ill", *"dcba"]]}, label="ill", scale="none"),
        From.from_dataframe(FRAME.assign(who=WHO), label="ill", by="who", scale="none"),
    ]
    assert identity(From.from_clients(reordered)) == identity(by_ids)
    assert len({identity(data) for data in by_frames}) == 1  # which have a recipe besides
    for name in ("X", "y", "clients/ids"):
        of_arrays, of_frames = (open_federation(data.path).array(name) for data in (by_ids, by_frames[0]))
        assert of_arrays.tobytes() == of_frames.tobytes()
    assert by_ids.names() == tuple("abcd") and From.from_arrays(X, Y, clients=2).names() is None


def test_who_has_no_samples_is_left_out_and_said() -> None:
    data = From.from_clients({**PAIRS, "empty": (X[:0], Y[:0]), "none": ([], [])})
    assert names(data) == tuple(WARDS) and "empty, none: no rows to train on, so no client" in str(data)
    assert names(From.from_clients([(X, Y), ([], []), (X, Y)])) == ("0", "2")


def test_print_says_what_the_data_hold() -> None:
    text = str(From.from_clients(PAIRS, test=0.1, scale="standard"))
    no, yes = (int((label == Y).sum()) for label in (0, 1))
    for said in (
        "54 to train on, 6 to test",
        "features 4",
        "natural: north, south, west",
        "scale    standard",
        "in memory",
    ):
        assert said in text
    counted = str(From.from_arrays(X, FRAME["ill"], clients=3))
    assert f"classes  2: no ({no}), yes ({yes})" in counted and "scale    none" in counted
    assert "classes  none (real targets)" in str(From.from_arrays(X, X[:, 0], clients=3))
    several = pd.DataFrame({"ill": Y, "old": 1 - Y})
    assert f"labels   2: ill ({yes}), old ({no})" in str(From.from_arrays(X, several, clients=3))


class Part:
    """As a `datasets.Dataset` has it."""

    def __init__(self, rows: slice) -> None:
        self._columns: dict[str, Any] = {**{name: NAMED[name].to_numpy()[rows] for name in NAMED}, "ill": Y[rows]}
        self.column_names, self.features = [*self._columns], dict.fromkeys(self._columns)

    def __len__(self) -> int:
        return len(self._columns["ill"])

    def with_format(self, _: str) -> Part:
        return self

    def __getitem__(self, _: slice) -> dict[str, Any]:
        return self._columns


class Partitioner:
    """As one of flwr-datasets, of natural partitions; the last one is none."""

    num_partitions = 4

    def __init__(self, size: int) -> None:
        self._size, self.partition_id_to_natural_id = size, dict(enumerate([*WARDS, "east"]))

    def load_partition(self, number: int) -> Part | None:
        rows = [*WARDS.values()][number] if number < 3 else None
        return None if rows is None else Part(slice(rows.start, rows.start + self._size))


def test_a_partitioner_has_names_and_partitions_to_test_with() -> None:
    data = From.from_partitioner(Partitioner(15), label="ill", client_test=Partitioner(5), test=Part(slice(0, 9)))
    federation = open_federation(data.path)
    assert names(data) == tuple(WARDS) and federation.test_counts.tolist() == [5, 5, 5]
    assert federation.counts.tolist() == [15, 15, 15] and federation.test_samples == 9
    assert "east: no rows to train on" in str(data)


# --- applied again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "y"), [
    (mf.Softmax(), Y), (mf.Logistic(), Y), (mf.OneVsRest(), (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)),
    (mf.MLP(hidden=4), FRAME["ill"]), (mf.MultiLabel(), (X[:, :2] > 0).astype(int)),
])  # fmt: skip
def test_probabilities_and_scores(model: Any, y: Any) -> None:
    data = From.from_arrays(X, y, clients=3, test=(X, y), scale="standard")
    trained = run(data, model, rounds=10)
    found, predicted = trained.predict_proba(X), trained.predict(X)
    assert found.shape == (60, len(data.classes)) and ((found >= 0) & (found <= 1)).all()
    if isinstance(model, mf.MultiLabel):
        np.testing.assert_array_equal(found > 0.5, predicted)
        assert trained.score(X, y) == pytest.approx(trained.summary["test_exact_match"])
        return
    np.testing.assert_allclose(found.sum(axis=1), 1)
    np.testing.assert_array_equal(np.array(data.classes)[found.argmax(axis=1)], predicted.astype(str))
    assert trained.score(X, y) == pytest.approx(trained.summary["test_accuracy"])
    assert trained.score(pd.DataFrame(X[:, ::-1], columns=list("dcba"))[list("abcd")].to_numpy(), y) <= 1


def test_several_labels_are_scored_by_their_names() -> None:
    several = pd.DataFrame({"p": X[:, 0] > 0, "q": X[:, 1] > 0}).astype(int)
    trained = run(From.from_arrays(X, several, clients=3), mf.MultiLabel())
    assert trained.score(X, several[["q", "p"]]) == trained.score(X, several) == trained.score(X, several.to_numpy())
    with pytest.raises(mf.DataError, match=r"score: y: a frame .* z, q; expected the labels p, q"):
        trained.score(X, several.rename(columns={"p": "z"}))


def test_labels_of_a_frame_are_scored_by_their_names() -> None:
    """Also where it is the one with the samples; one column may have any name."""
    frame = pd.DataFrame(X, columns=list("abcd")).assign(p=X[:, 0] > 0, q=X[:, 1] > 0).astype({"p": int, "q": int})
    trained = run(From.from_dataframe(frame, label=["p", "q"], clients=3), mf.MultiLabel())
    assert (
        trained.score(frame, frame)
        == trained.score(frame, frame[["q", "p"]])
        == trained.score(frame, frame[["p", "q"]].to_numpy())
    )
    with pytest.raises(mf.DataError, match="expected the labels p, q"):
        trained.score(frame, frame[["p"]])
    alone = run(From.from_dataframe(frame, label="p", ignore=["q"], clients=3), mf.Softmax())
    assert alone.score(frame, frame) == alone.score(frame, frame[["p"]].rename(columns={"p": "z"})) > 0.5


def test_the_score_of_real_targets_is_r2() -> None:
    targets = X[:, :2] @ [[1.0], [2.0]] + 0.1
    trained = run(From.from_arrays(X, targets, clients=3, test=(X, targets)), mf.LeastSquares(), rounds=10)
    assert trained.score(X, targets[:, 0]) == pytest.approx(trained.summary["test_r2"])
    assert trained.score(X, targets) == pytest.approx(metrics.r2_score(targets, trained.predict(X)))


def test_columns_of_frames_are_taken_by_name() -> None:
    trained = run(From.from_clients({name: (NAMED[rows], Y[rows]) for name, rows in WARDS.items()}))
    reversed_columns = NAMED[list("dcba")]
    np.testing.assert_array_equal(trained.predict_proba(reversed_columns), trained.predict_proba(X))
    assert trained.score(reversed_columns, Y) == trained.score(X, Y) > 0.6


@pytest.mark.parametrize(("wrong", "named"), [
    (lambda run: run.predict_proba(NAMED.rename(columns={"a": "z"})), "predict_proba: X: a frame .* a, z differs"),
    (lambda run: run.predict(X[:, :3]), "predict: X: samples of .* 3|3 numbers"),
    (lambda run: run.score(X, Y[:5]), r"score: y is int64 \[5\], and predictions are int64 \[60\]"),
    (lambda run: run.score(X, FRAME["ill"]), r"score: y is <U3 \[60\], and predictions are int64"),
    (lambda run: run.score(X, Y + 0.5), "score: y is float64"),
    (lambda run: run.predict(BYTES), "predict: X: uint8, and the data are no bytes"),
    (lambda run: run.predict(np.where(X > 1, np.nan, X)), "predict: X: .* nan is not a finite number"),
    (lambda _: run(From.from_arrays(X, Y, clients=3), mf.Hinge()).predict_proba(X), "Hinge has no probabilities"),
    (lambda _: run(From.from_arrays(BYTES, Y, clients=3, scale="unit")).predict(BYTES / 255),
     "predict: X: float32, and the data are bytes"),
])  # fmt: skip
def test_what_cannot_be_applied_is_named(wrong: Callable[[mf.Run], object], named: str) -> None:
    trained = run(From.from_arrays(NAMED, Y, clients=3))
    with pytest.raises(mf.MpifedError, match=named):
        wrong(trained)


@pytest.mark.parametrize(("scale", "noise"), [
    ("unit-rows", None), ("none,unit-rows", 0.1), ("unit-rows,standard", None), ("standard", None), (None, 0.1),
])  # fmt: skip
@pytest.mark.parametrize("frame", [True, False])
def test_rows_are_scaled_as_those_to_train_on(scale: str | None, noise: float | None, frame: bool) -> None:
    rows = NAMED * 7 + 3
    settings: dict[str, Any] = {"clients": 1, "scale": "none" if frame and scale is None else scale}
    if frame:
        whole = rows.assign(ill=Y)
        data = From.from_dataframe(whole, label="ill", test=whole, feature_noise=noise, **settings)
    else:
        data = From.from_arrays(rows, Y, test=(rows, Y), feature_noise=noise, **settings)
    trained = run(data)
    assert trained.score(rows, Y) == pytest.approx(trained.summary["test_accuracy"])


def test_a_run_is_applied_without_its_data(tmp_path: Path) -> None:
    """Its folder alone says how samples become inputs, of bytes and frames too, and after what was done for good."""
    for samples, settings in (
        (X, {"scale": "minmax,unit-rows"}), (X, {"scale": "standard,unit-rows,minmax", "feature_noise": 0.1}),
        (BYTES, {"feature_noise": 0.1}), (NAMED, {}), (sparse.csr_matrix(X), {"scale": "unit"}),
    ):  # fmt: skip
        data = From.from_arrays(
            samples, Y, test=(samples, Y), clients=3, out=tmp_path / "d", overwrite=True, **settings
        )
        trained = run(data, out=tmp_path / "r", overwrite=True)
        shutil.rmtree(tmp_path / "d")
        assert trained.score(samples, Y) == pytest.approx(trained.summary["test_accuracy"])
        moved = shutil.move(tmp_path / "r", tmp_path / "moved")
        np.testing.assert_array_equal(mf.load(moved).predict(samples), trained.predict(samples))
        (moved / "data.json").write_text((moved / "data.json").read_text() + " ")
        with pytest.raises(mf.DataError, match=r"data\.json: was changed or damaged since the run ended"):
            mf.load(moved).predict(samples)
        shutil.rmtree(moved)


@pytest.mark.parametrize(("labels", "task"), [
    (Y.astype(float), "auto"), (Y * 2, "regression"), (np.array(["e\u0301", "b "])[Y], "auto"), (Y > 0, "auto"),
])  # fmt: skip
def test_labels_are_scored_as_they_were_given(labels: Any, task: str) -> None:
    frame = NAMED.assign(ill=labels)
    trained = run(
        From.from_dataframe(frame, label="ill", clients=3, task=task, test=frame),
        mf.LeastSquares() if task == "regression" else None,
    )
    known = trained.summary["test_r2" if task == "regression" else "test_accuracy"]
    assert trained.score(frame, labels) == trained.score(frame, frame["ill"]) == pytest.approx(known)


@pytest.mark.parametrize(
    "recipe", [[], [{"name": "b"}], [{"name": "a", "fill": "x"}], [{"name": "a", "one_hot": True}]]
)
def test_a_stranger_s_recipe_is_of_its_columns(tmp_path: Path, recipe: Any) -> None:
    run(From.from_dataframe(FRAME[["a", "ill"]], label="ill", clients=3), out=(folder := tmp_path / "r"))
    table = json.loads((folder / "data.json").read_text())
    (folder / "run.json").unlink()  # and with it the digest
    (folder / "data.json").write_text(json.dumps(table | {"recipe": recipe}))
    with pytest.raises(mf.DataError, match="names, recipe, shape, steps or labels do not fit 1 features"):
        read_applied(folder / "data.json")


@pytest.mark.parametrize("factor", [1e300, 1e38])
def test_a_stranger_s_factors_make_no_inputs_that_are_not_finite(tmp_path: Path, factor: float) -> None:
    folder = tmp_path / "r"
    stranger = run(From.from_arrays(X, Y, clients=3, scale="standard"), out=folder)
    table = json.loads((folder / "data.json").read_text())
    table["steps"] = [{"scale": [factor], "shift": [0.0]}] * 2
    (folder / "run.json").unlink()
    (folder / "data.json").write_text(json.dumps(table))
    with pytest.raises(mf.DataError, match=r"data.json: samples, scaled by its factors, are no finite numbers"):
        read_applied(folder / "data.json").inputs(X, stranger.job.job.compute.dtype)


# --- bad inputs -----------------------------------------------------------------------------------------------------


def masked(values: Any) -> Any:
    return np.ma.masked_array(values, np.arange(values.size).reshape(values.shape) == 2)


def ordered(*sizes: str) -> pd.DataFrame:
    return pd.DataFrame({"size": pd.Categorical(sizes, sizes, ordered=True), "ill": np.arange(len(sizes)) % 2})


class Drawn:
    """A data set whose items are transformed at random."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return RNG.standard_normal(3), number % 2


@pytest.mark.parametrize(("wrong", "named"), [
    (lambda: From.from_arrays(masked(X), Y, clients=3), "X: 1 masked entries"),
    (lambda: From.from_arrays(X, masked(Y), clients=3), "y: 1 masked entries"),
    (lambda: From.from_arrays(list(masked(X)), Y, clients=3), "X: 1 masked entries"),
    (lambda: From.from_arrays(sparse.csr_matrix(X * 1j), Y, clients=3), "X: a sparse array of complex64"),
    (lambda: From.from_arrays((np.arange(60)[:, None] / 1e6 + [1.7e9, 0]).astype(">f8"), Y, clients=3), "are 1 in"),
    (lambda: From.from_arrays(X, np.array(["a", np.nan, "b"] * 20), clients=3), "y: row 1 has the label 'nan', a gap"),
    (lambda: From.from_arrays(X, ["1", 1, "2"] * 20, clients=3), "y: row 1 has 1, and not a text"),
    (lambda: From.from_clients({"a": ordered("low", "high"), "b": ordered("low", "mid", "high")}, label="ill",
                               categorical="ordinal"), "client b: .*'size' has the ordered .* low, mid, high, others"),
    (lambda: From.from_torch([(Image.new("P", (2, 2)), n % 2) for n in range(8)], clients=2), "numbers of a palette"),
    (lambda: From.from_torch([*zip(BYTES, Y, strict=True), (X[0], 1)], clients=2), "some samples are bytes, others"),
    (lambda: From.from_arrays(sparse.csr_matrix(([2**24, 1], [0, 0], [0, 2, 2]), (2, 1)), [0, 1], clients=1),
     "X: column 0: integers up to 16777217"),
    (lambda: From.from_arrays(X, np.array(3), clients=3), r"y: labels are int64 \(\)"),
    (lambda: From.from_clients({1: (X, Y), "1": (X, Y)}), "from_clients: 2 clients are called '1'"),
    (lambda: From.from_clients({"\u00e9": (X, Y), "e\u0301": (X, Y)}), "2 clients are called '\u00e9'"),
    (lambda: From.from_clients([(X, Y)] * 2, client_test=[(X, Y)] * 3), "3 pairs for 2 clients; 2 differ"),
    (lambda: From.from_clients({"a": FRAME, "b": FRAME.assign(a="x")}, label="ill"), "row 1, column 'a': 'x'"),
    (lambda: From.from_clients({"1": FRAME, "1.0 ": FRAME}, label="ill"), "2 clients are called '1'"),
    (lambda: From.from_arrays(NAMED, FRAME["ill"][::-1], clients=3), "X and y: the frames have other indices"),
    (lambda: From.from_arrays(NAMED, Y, clients=FRAME["ill"][::-1]), "X and clients: the frames have other indices"),
    (lambda: From.from_arrays(X, Y, clients=masked(np.arange(60) % 3)), "clients: 1 masked entries"),
    (lambda: From.from_arrays(np.arange(60)[:, None] + [1_700_000_000, 0], Y, clients=3), "column 0: integers up"),
    (lambda: From.from_arrays(np.arange(60)[:, None] / 1e6 + [1.7e9, 0], Y, clients=3), "column 0: 60 .* are 1 in"),
    (lambda: From.from_arrays(X, Y.astype("u8") + np.uint64(2**63), clients=3), "label of row 0 is 92233720368547758"),
    (lambda: From.from_arrays(X, Y, clients=3, test=(X, Y + 0.6)), "test: labels are float64 .* to train on int64"),
    (lambda: From.from_arrays(X, Y, clients=3, test=(X, np.where(Y > 0, np.nan, 0))), "test: y: label of row .* nan"),
    (lambda: From.from_arrays(BYTES, Y, clients=3, test=(BYTES / 255, Y)), "test: samples are float32, .* on uint8"),
    (lambda: From.from_arrays(NAMED.assign(d=pd.Timestamp("2020-01-01")), Y, clients=3), "X: no array of numbers"),
    (lambda: From.from_arrays(NAMED.assign(d="x"), Y, clients=3), "X: an array of object"),
    (lambda: From.from_arrays(X, Y, clients=3, names=["a"]), "1 names for 4 features"),
    (lambda: From.from_arrays(X, Y, clients=[1, 2]), r"clients: \(2,\); expected how many, or an integer or text for"),
    (lambda: From.from_clients({"a\nb": (X, Y)}), "'a.*b' has a control character"),
    (lambda: From.from_clients({"a": (X, Y), "b": (BYTES, Y)}), "client b: samples are uint8, .* on float32"),
    (lambda: From.from_clients({"a": (X, Y), "b": (X, Y + 0.5)}), "client b: labels are float64"),
    (lambda: From.from_clients({"a": (X, Y), "b": (NAMED, Y), "c": (NAMED[["a"]], Y)}), "client c: X: a frame with"),
    (lambda: From.from_clients({"a": (X, Y), "b": ([], [])}, client_test={"a": (X, Y), "b": (X, Y)}), "no samples to"),
    (lambda: From.from_clients({"a": (X, Y)}, client_test={"b": (X, Y)}), "1 pairs for 1 clients; a, b dif"),
    (lambda: From.from_clients({"a": FRAME, "b": FRAME.drop(columns="c")}, label="ill"), "client b: other .*: c dif"),
    (lambda: From.from_clients([], label="ill"), "from_clients: no clients; expected a frame of each"),
    (lambda: From.from_clients({"a": FRAME, "b": (X, Y)}, label="ill"), "client b: a tuple .*expected a DataFrame"),
    (lambda: From.from_clients(PAIRS, partition="dirichlet:1"), "partition: .* leave it out"),
    (lambda: From.from_clients(PAIRS, min_row=1), "min_row: no argument here; did you mean .min_rows"),
])  # fmt: skip
def test_bad_inputs_are_named(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(mf.MpifedError, match=named):
        wrong()


def test_what_is_drawn_at_random_is_said() -> None:
    with pytest.warns(UserWarning, match="from_torch: items are drawn at random; each is read once"):
        From.from_torch(Drawn(), clients=2)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_both_kinds_of_sparse_are_one(kind: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = From.from_arrays(kind(X), Y, clients=WHO, test=(X, Y))
    assert identity(data) == identity(From.from_arrays(sparse.csr_matrix(X), Y, clients=WHO, test=(X, Y)))
    assert run(data).predict(kind(X[:5])).shape == (5,)
