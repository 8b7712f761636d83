"""Named columns, identifiers, layouts, and data that were made anew: what users bring, and what they are told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import command, held
from numpy.typing import NDArray

import mpifed as mf
from mpifed.data.store import open_federation

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((80, 2)) * [1, 0.1]).astype("f4")
Y = (X[:, 0] > 0).astype(int)
IMAGES = RNG.standard_normal((60, 3, 4, 4)).astype("f4")
COLOURS = (IMAGES[:, 0].mean((1, 2)) > 0).astype(int)
NAMED = pd.DataFrame(X, columns=["age", "crp"])
REVERSED = NAMED[["crp", "age"]]
PATIENTS = NAMED.assign(ill=Y, who=[1, 2] * 40)
TESTED = PATIENTS[:10].astype({"who": float})
GAP = TESTED.assign(who=[1.0, 2.0, None, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
ONE_HOT = pd.DataFrame({"age": X[:, 0], "sex": ["f", "m"] * 40, "bp": X[:, 1], "ill": Y, "who": [1, 2] * 40})
METHOD = mf.FedAvg(batch_size=10, client_optimizer=mf.SGD(0.5))
From = mf.FederatedDataset
Facts = tuple[tuple[str, ...] | None, tuple[str, ...], int, list[int]]

pytestmark = pytest.mark.usefixtures("here")


def trained(data: mf.FederatedDataset | str, rounds: int = 20, **settings: Any) -> mf.Run:
    return mf.run(METHOD, data, mf.Softmax(), rounds=rounds, progress="none", **settings)


def of_frame(frame: pd.DataFrame = PATIENTS, **settings: Any) -> mf.FederatedDataset:
    return From.from_dataframe(frame, label="ill", by="who", **settings)


def facts(data: mf.FederatedDataset) -> Facts:
    """(names of the features, identifiers of the clients, common test rows, each client's own)."""
    folder = open_federation(data.path)
    return folder.names(), folder.client_names(), folder.test_samples, folder.test_counts.tolist()


def values(data: mf.FederatedDataset, client: int, tests: bool = False) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = held(open_federation(data.path), client, tests, "f4")
    return rows


# --- columns are matched by name ------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [
    lambda: From.from_clients([(NAMED[:40], Y[:40]), (REVERSED[40:], Y[40:])], test=(NAMED, Y)),
    lambda: From.from_clients([(X[:40], Y[:40]), (NAMED[40:], Y[40:])], test=(REVERSED, Y)),
    lambda: From.from_clients([(REVERSED[:40], Y[:40]), (NAMED[40:], Y[40:])], test=(NAMED, Y), names=["age", "crp"]),
    lambda: From.from_arrays(NAMED, Y, clients=2, test=(REVERSED, Y)),
    lambda: From.from_arrays(X, Y, clients=2, test=(REVERSED, Y), names=["age", "crp"]),
    lambda: From.from_arrays(REVERSED, Y, clients=2, test=(X, Y), names=["age", "crp"]),
    lambda: of_frame(test=PATIENTS[["ill", "crp", "who", "age"]]),
])  # fmt: skip
def test_columns_are_matched_by_name(made: Callable[[], mf.FederatedDataset]) -> None:
    data = made()
    run = trained(data)
    assert facts(data)[0] == ("age", "crp") and run.summary["test_accuracy"] > 0.9
    assert np.array_equal(run.predict(REVERSED), run.predict(X)) and np.array_equal(run.predict(NAMED), run.predict(X))


@pytest.mark.parametrize(("wrong", "named"), [
    (lambda run: run.predict(pd.get_dummies(ONE_HOT[["bp", "age", "sex"]]).rename(columns={"sex_f": "f"})),
     "predict: X: no column 'sex'; .* of bp, age, f, sex_m"),
    (lambda run: run.predict(ONE_HOT[["age", "bp"]]), "predict: X: no column 'sex'"),
    (lambda _: From.from_arrays(NAMED, Y, clients=2, test=(NAMED.add_suffix("_"), Y)), "age, age_, crp, crp_ dif"),
    (lambda _: From.from_arrays(NAMED, Y, clients=2, names=["a", "b"]), "X: .* age, crp; .* a, b"),
    (lambda _: From.from_clients([(NAMED, Y), (NAMED.assign(z=1), Y)]), "client 1: X: .* z differs"),
    (lambda _: From.from_arrays(pd.concat([NAMED, NAMED], axis=1), Y, clients=2), "a name that is there twice"),
    (lambda _: of_frame(test=PATIENTS.drop(columns="crp")), "test: other columns than .*: crp differs"),
])  # fmt: skip
def test_other_columns_are_named(wrong: Callable[[mf.Run], object], named: str) -> None:
    with pytest.raises(mf.DataError, match=named):
        wrong(trained(of_frame(ONE_HOT, categorical="one-hot"), rounds=1))


# --- the index of a frame is no feature ----------------------------------------------------------------------------


def test_an_index_is_left_out_of_files_and_said(here: Path) -> None:
    by_class = PATIENTS.sort_values("ill")
    by_class.to_parquet("i.parquet")
    PATIENTS.set_index("who").to_parquet("n.parquet")
    by_class.to_csv("i.csv")
    pd.read_csv("i.csv").to_csv("u.csv", index=False)
    for source, file, said in (
        ("parquet", "i.parquet", "index    __index_level_0__: numbers rows, left out"),
        ("csv", "u.csv", "index    Unnamed: 0: numbers rows, left out"),
        ("csv", "i.csv", "index    : numbers rows, left out"),
        ("parquet", "n.parquet", "natural: 1, 2"),  # an index that has a role
    ):
        code, text = command("data", source, file, "--label", "ill", "--by", "who", "--out", "d", "--force")
        assert code == 0 and "features 2\n" in text and said in text
        assert said in command("show", "d")[1] and facts(From.open("d"))[0] == ("age", "crp")
    code, text = command(
        "data", "parquet", "n.parquet", "--label", "ill", "--split", "rows", "--clients", 2, "--out", "e"
    )
    assert code == 0 and "index    who: numbers rows, left out" in text
    code, text = command(
        "data", "parquet", "i.parquet", "--label", -1, "--by", "who", "--task", "regression", "--out", "f"
    )
    assert code == 2 and "--label, --by: i.parquet has '__index_level_0__' there, which numbers rows" in text
    code, text = command("data", "csv", "i.csv", "--by", "0", "--label", "ill", "--out", "f")
    assert code == 2 and "--by: i.csv has '' there, which numbers rows; name it" in text
    code, text = command("data", "csv", "u.csv", "--label", "Unnamed: 0,ill", "--by", "who", "--out", "f")
    assert code == 0 and "features 2\n" in text


def test_an_index_is_left_out_of_frames_and_said() -> None:
    read = PATIENTS.rename_axis("Unnamed: 0").reset_index()
    features = read[["Unnamed: 0", "age", "crp"]]
    with pytest.warns(UserWarning, match="from_dataframe: column Unnamed: 0 numbers rows, and is left out"):
        data = of_frame(read)
    run = trained(data)
    assert facts(data)[0] == ("age", "crp") and np.array_equal(run.predict(features), run.predict(X))
    with pytest.warns(UserWarning, match="X: column Unnamed: 0 numbers rows"):
        assert facts(From.from_arrays(features, Y, clients=2, test=(NAMED, Y)))[0] == ("age", "crp")
    with pytest.warns(UserWarning, match="client 0: X: column Unnamed: 0 numbers rows"):
        assert facts(From.from_clients([(features, Y), (NAMED, Y)]))[0] == ("age", "crp")


def test_an_index_of_clients_tables_is_refused(here: Path) -> None:
    (here / "t").mkdir()
    (here / "t/a.csv").write_text("Unnamed: 0,id,a,y\n0,p,1,0\n1,q,2,1\n")
    code, text = command("data", "tables", "t", "--id", "id", "--label", "y", "--out", "d")
    assert code == 3 and "t/a.csv: column 'Unnamed: 0' numbers rows" in text
    (here / "t/a.csv").write_text("rownames,a,y\np,1,0\nq,2,1\n")
    assert command("data", "tables", "t", "--id", "rownames", "--label", "y", "--out", "d")[0] == 0


# --- identifiers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ids", "expected"), [
    ([1, 2], ("1", "2")),
    ([1.0, 2.0], ("1", "2")),
    (np.array([1, 2], "f4"), ("1", "2")),
    (["h1", "h2"], ("h1", "h2")),
    (pd.Series([1, 2], dtype="Int64"), ("1", "2")),
    (pd.Series(["h1", "h2"], dtype="category"), ("h1", "h2")),
    (pd.Series([2.0, 10.0], dtype="category"), ("2", "10")),
    (np.array([True, False]), ("False", "True")),
])  # fmt: skip
def test_identifiers_of_many_kinds(ids: Any, expected: tuple[str, ...]) -> None:
    assert facts(From.from_arrays(X[:2], [0, 1], clients=ids))[1] == expected
    frame = pd.DataFrame({"x": [1.5, 2.5], "ill": [0, 1], "who": ids})
    assert facts(of_frame(frame, test=frame))[1:] == (expected, 2, [1, 1])


@pytest.mark.parametrize(("ids", "named"), [
    (pd.Series(["h1", np.nan, None]), "clients: 2 rows have no value"),
    (["h1", np.nan, None], "clients: 2 rows have no value"),
    (pd.Series([1, None, None], dtype="Int64"), "clients: 2 rows have no value"),
    (pd.to_datetime(pd.Series(["2024-01-01", None, None])), "clients: 2 rows have no value"),
    ([1.5, 2.0, 2.0], "clients: float64, such as 1.5; expected integers or texts"),
    (np.array([1.5, np.inf, 2.0]), "clients: float64, such as 1.5"),
])  # fmt: skip
def test_identifiers_that_are_none(ids: Any, named: str) -> None:
    with pytest.raises(mf.MpifedError, match=named):
        From.from_arrays(X[:3], [0, 1, 0], clients=ids)
    with pytest.raises(mf.DataError, match="column 'who'"):
        of_frame(pd.DataFrame({"x": X[:3, 0], "ill": [0, 1, 0], "who": ids}))


@pytest.mark.parametrize("dtype", [float, "Int64", "category", object])
def test_a_gap_loses_no_other_row(here: Path, dtype: Any) -> None:
    """An integer column with a gap is one of floats: its other rows are of the same clients."""
    expected = (("age", "crp"), ("1", "2"), 9, [4, 5])
    test = GAP.astype({"who": dtype})
    assert facts(of_frame(test=test.dropna())) == facts(of_frame(test=test, missing="drop")) == expected
    for frame, tests in ((PATIENTS, test), (test, None)):
        with pytest.raises(mf.DataError, match=r"from_dataframe: .* row [13], column 'who' is a missing value"):
            of_frame(frame, test=tests)
    PATIENTS.to_csv("a.csv", index=False)
    PATIENTS.to_parquet("a.parquet", index=False)
    test.to_csv("t.csv", index=False)
    test.to_parquet("t.parquet", index=False)
    for kind in ("csv", "parquet"):
        words = f"data {kind} a.{kind} --test t.{kind} --label ill --by who --out d --force".split()
        code, text = command(*words)
        assert code == 3 and "missing value" in text and "t." in text
        code, text = command(*words, "--missing", "drop")
        assert code == 0 and "no client" not in text and facts(From.open("d")) == expected


# --- own test rows are not in the preparation -----------------------------------------------------------------------


def test_own_test_rows_fill_no_gaps_and_make_no_categories(here: Path) -> None:
    frame = pd.DataFrame(
        {"v": RNG.standard_normal(200), "c": "often", "ill": RNG.integers(0, 2, 200), "who": [1, 2] * 100}
    )
    frame.loc[:9, "v"] = np.nan
    frame.loc[10:, "c"] = [f"c{row}" if row % 20 == 0 else "often" for row in range(190)]
    frame.to_csv("a.csv", index=False)
    words = "--label ill --by who --categorical one-hot --missing mean --client-test-fraction 0.3 --scale none --out d"
    assert command("data", "csv", "a.csv", *words.split())[0] == 0
    known = set(frame["v"].astype("f4").dropna())
    of_frames = of_frame(frame, categorical="one-hot", missing="mean", client_test=0.3, scale="none")
    for data in (of_frames, From.open("d")):
        rows = np.concatenate([values(data, client) for client in (0, 1)])
        tests = np.concatenate([values(data, client, tests=True) for client in (0, 1)])
        fills = {value for value in [*rows[:, 0], *tests[:, 0]] if value not in known}
        mean = np.mean([value for value in rows[:, 0] if value in known], dtype=float)
        assert fills == {np.float32(mean)} and len(tests) == 60
        assert (rows[:, 1:].sum(axis=0) >= 1).all() and (tests[:, 1:].sum(axis=1) == 0).any()
    assert open_federation("d").sha256 == open_federation(of_frames.path).sha256


# --- data that were made anew ---------------------------------------------------------------------------------------


def test_a_model_does_not_take_the_scaling_of_other_data(here: Path) -> None:
    run = trained(From.from_arrays(X, Y, clients=2, scale="standard", out="d"), out="r")
    before = run.predict(X)
    From.from_arrays(X * 100, Y, clients=2, scale="standard", out="d", overwrite=True)
    assert np.array_equal(mf.load("r").predict(X), before)
    code, text = command("audit", "r")
    assert code == 2 and re.search(r"r: was trained on other data than .*d holds now \(SHA-256", text)


def test_a_private_model_does_not_take_the_scaling_of_data_made_after_it(here: Path) -> None:
    data = From.from_arrays(X, Y, clients=2, scale="standard", out="d")
    run = trained(
        data, rounds=1, privacy=mf.Privacy(clip=1.0, noise_multiplier=1.0, delta=1e-5, public_preparation=True), out="r"
    )
    assert run.predict(X).shape == Y.shape and not Path("r/data.json").exists()
    Path("r/data.json").write_text("{}")  # of somebody else, and passed over
    assert np.array_equal(mf.load("r").predict(X), run.predict(X))
    about = json.loads(Path("r/run.json").read_text())
    del about["sha256"]
    Path("r/run.json").write_text(json.dumps(about | {"started": "2000-01-01T00:00:00+00:00"}))
    with pytest.raises(mf.UsageError, match=r"r: began at 2\S+, and .*d was made at 2\S+: they may be other data"):
        mf.load("r").predict(X)


def test_runs_on_other_data_at_one_path_are_no_seeds(here: Path) -> None:
    for seed, scale in ((1, 1), (2, 1), (3, 5)):
        From.from_arrays(X * scale, Y, clients=2, out="d", overwrite=True)
        trained("d", rounds=2, seed=seed, out=f"r{seed}")
    _, first, second, *_ = command("compare", "r1", "r2", "r3")[1].splitlines()
    first_sha, other_sha = (sha256_of(f"r{seed}") for seed in (1, 3))
    assert first_sha != other_sha
    assert first.split()[:3] == ["d", first_sha, "2"] and second.split()[:3] == ["d", other_sha, "1"]
    assert set(mf.compare("r1", "r2", "r3").frame["of"]) == {1, 2}
    assert command("compare", "r1", "r2")[1].splitlines()[1].split()[1] == "2"
    for runs, lines in ((("r1", "r2"), 1), (("r1", "r2", "r3"), 2)):
        assert command("plot", *runs, "--out", "a.svg", "--y", "train_loss")[0] == 0
        figure = mf.plot([*runs], "train_loss")
        assert max(len(axes.lines) for axes in figure.axes) == lines


def sha256_of(run: str) -> str:
    return str(json.loads(Path(run, "run.json").read_text())["data_sha256"])[:12]


# --- layouts --------------------------------------------------------------------------------------------------------


LAST = IMAGES.transpose(0, 2, 3, 1)


@pytest.mark.parametrize(("wrong", "named"), [
    (lambda: From.from_arrays(IMAGES, COLOURS, clients=2, test=(LAST, COLOURS)), "test: .*{last}; .*{first}"),
    (lambda: From.from_clients([(IMAGES, COLOURS)], test=(LAST, COLOURS)), "test: .*{last}; .*{first}"),
    (lambda: From.from_clients([(IMAGES, COLOURS)], client_test=[(LAST, COLOURS)]), "0: test: .*{last}; .*{first}"),
    (lambda: From.from_arrays(LAST, COLOURS, clients=2, shape=(3, 4, 4)), ": samples.*{last}; .*{first}"),
    (lambda: From.from_clients([(LAST, COLOURS)], shape=(3, 4, 4)), ": samples.*{last}; .*{first}"),
    (lambda: From.from_arrays(IMAGES.reshape(60, 48), COLOURS, clients=2, test=(IMAGES, COLOURS)), "{first}; .*(48,)"),
    (lambda: trained(From.from_arrays(IMAGES, COLOURS, clients=2), 1).predict(LAST), "predict: X: .*{last}; .*{first}"),
])  # fmt: skip
def test_another_layout_is_named(wrong: Callable[[], object], named: str) -> None:
    shapes = {"first": r"\(3, 4, 4\)", "last": r"\(4, 4, 3\)"}
    with pytest.raises(mf.DataError, match=named.replace("(48,)", r"\(48,\)").format(**shapes)):
        wrong()


def test_vectors_and_axes_of_one_are_the_same_layout() -> None:
    grey = IMAGES[:, :1]
    data = From.from_arrays(grey, COLOURS, clients=2, test=(grey[:, 0], COLOURS))
    run = trained(data)
    for form in (grey, grey[:, 0], grey.reshape(60, 16)):
        assert np.array_equal(run.predict(form), run.predict(grey))
    assert From.from_arrays(grey[:, 0], COLOURS, clients=2, shape=(1, 4, 4)).shape == (1, 4, 4)
