"""One table of fifty rows by every door: the same bytes of X, y, identifiers and classes, whoever brings it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from federations import command, hdf5, held, leaf, make
from scipy import sparse

import mpifed as mf
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation

RNG = np.random.default_rng(0)
ROWS = 50
TABLE = pd.DataFrame({
    "dose": RNG.normal(2, 3, ROWS).round(6), "age": RNG.integers(20, 80, ROWS).astype(float),
    "sex": RNG.choice(["m", "f", "größer"], ROWS), "smokes": RNG.random(ROWS) < 0.5,
    "ward": RNG.choice([1, 2, 3, 10], ROWS), "ill": RNG.integers(0, 2, ROWS),
})  # fmt: skip
TABLE.loc[[3, 17], "age"] = np.nan
TABLE.loc[[5, 11, 40], "sex"] = None
BY = {"label": "ill", "by": "ward", "categorical": "one-hot", "missing": "median"}
WARDS = (1, 2, 3, 10)
From = mf.FederatedDataset
Door: TypeAlias = Callable[[], mf.FederatedDataset]

pytestmark = pytest.mark.usefixtures("here")


def by_command(source: str, *words: object, **settings: object) -> mf.FederatedDataset:
    """The data that `mpifed data` makes."""
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    return From.open(make(Path("made"), source, *words, *options).path)


def by_frame(change: Callable[[pd.DataFrame], Any]) -> Door:
    return lambda: From.from_dataframe(change(TABLE.copy()), **BY)


def by_csv(name: str = "t.csv", pack: Callable[[bytes], bytes] = bytes, **words: Any) -> Door:
    """A file as pandas writes it, and the options that it needs."""
    options = {key: words.pop(key) for key in ("separator", "decimal") if key in words}

    def door() -> mf.FederatedDataset:
        more = {"sep": options.get("separator", ","), "decimal": options.get("decimal", "."), "index": False, **words}
        Path(name).write_bytes(pack(TABLE.to_csv(**more).encode(words.get("encoding", "utf-8"))))
        return by_command("csv", name, **BY, **options)

    return door


def by_files() -> mf.FederatedDataset:
    """A file of each ward, of which one has its columns in another order, and one no gaps."""
    for ward, rows in TABLE.groupby("ward"):
        columns = [name for name in TABLE if name != "ward"]
        rows[columns[:: 1 if ward == 2 else -1]].to_csv(f"{ward}.csv", index=False)
    return by_command("csv", "10.csv", "2.csv", "1.csv", "3.csv", **{k: v for k, v in BY.items() if k != "by"})


def by_parquet(change: Callable[[pd.DataFrame], pd.DataFrame], **words: Any) -> Door:
    def door() -> mf.FederatedDataset:
        change(TABLE.copy()).to_parquet("t.parquet", **words)
        return by_command("parquet", "t.parquet", **BY)

    return door


def by_polars() -> mf.FederatedDataset:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(pa.Table.from_pandas(TABLE)).with_columns(polars.col("sex").cast(polars.Categorical))
    return From.from_dataframe(frame, **BY)


def by_datasets() -> mf.FederatedDataset:
    return From.from_dataframe(pytest.importorskip("datasets").Dataset.from_pandas(TABLE), **BY)


def wrong_index(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index(RNG.permutation(ROWS) + 100)


DOORS: dict[str, Door] = {
    "pandas": by_frame(lambda table: table),
    "columns in another order": by_frame(lambda table: table[table.columns[::-1]]),
    "rows in another order": by_frame(lambda table: table.sample(frac=1, random_state=1)),
    "an index": by_frame(wrong_index),
    "categories": by_frame(lambda table: table.astype({"sex": "category", "ward": "category", "ill": "category"})),
    "integers with gaps": by_frame(lambda table: table.astype({"age": "Int64", "ward": "Int8", "ill": "Int64"})),
    "own types of pandas": by_frame(lambda table: table.convert_dtypes()),
    "identifiers as floats": by_frame(lambda table: table.astype({"ward": float})),
    "labels as floats": by_frame(lambda table: table.astype({"ill": float})),
    "identifiers in Decimal": by_frame(lambda table: table.assign(ward=[Decimal(ward) for ward in table["ward"]])),
    "identifiers as texts": by_frame(lambda table: table.astype({"ward": str})),
    "letters in two parts": by_frame(lambda table: table.assign(sex=table["sex"].str.normalize("NFD"))),
    "objects": by_frame(lambda table: table.astype(object)),
    "arrow": by_frame(lambda table: pa.Table.from_pandas(table)),
    "arrow of an index": by_frame(lambda table: pa.Table.from_pandas(wrong_index(table))),
    "arrow, in pieces": by_frame(lambda table: pa.concat_tables(
        [pa.Table.from_pandas(part, preserve_index=False) for part in (table[:3], table[3:])])),
    "polars": by_polars,
    "datasets": by_datasets,
    "csv": by_csv(),
    "csv, a byte order mark": by_csv(encoding="utf-8-sig"),
    "csv, semicolons and decimal commas": by_csv(separator=";", decimal=","),
    "csv, tabs": by_csv(separator="\t"),
    "csv, all in quotes": by_csv(quoting=1),
    "csv, NA": by_csv(na_rep="NA"),
    "csv, NaN": by_csv(na_rep="NaN"),
    "csv, N/A": by_csv(na_rep="N/A"),
    "csv, ends of lines": by_csv(lineterminator="\r\n"),
    "csv, the index of pandas": by_csv(index=True),
    "csv.gz": by_csv("t.csv.gz", gzip.compress),
    "csv.bz2": by_csv("t.csv.bz2", bz2.compress),
    "csv.xz": by_csv("t.csv.xz", lzma.compress),
    "a file of each client": by_files,
    "parquet": by_parquet(lambda table: table, index=False),
    "parquet, an index": by_parquet(wrong_index),
    "parquet, row groups": by_parquet(lambda table: table.astype({"sex": "category"}), row_group_size=7),
}  # fmt: skip


def content(data: mf.FederatedDataset) -> dict[str, Any]:
    """What a model is trained on, and what it is called."""
    folder = open_federation(data.path, verify=True)
    clients = range(folder.clients)
    return {
        "names": folder.names(), "classes": data.classes, "ids": folder.client_names(),
        "X": [held(folder, client).tobytes() for client in clients],
        "y": [shard_of(folder, client).y.tolist() for client in clients],
    }  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> tuple[dict[int, list[list[float]]], list[str]]:
    """By a loop over the rows: medians, the most frequent text, one column a text, mean 0 and deviation 1."""
    ages = sorted(age for age in TABLE["age"] if age == age)
    texts = sorted({sex for sex in TABLE["sex"] if isinstance(sex, str)})
    counts = {text: sum(sex == text for sex in TABLE["sex"]) for text in texts}
    most = min(texts, key=lambda text: (-counts[text], text))
    rows = []
    for dose, age, sex, smokes, _, _ in TABLE.itertuples(index=False):
        age = (ages[23] + ages[24]) / 2 if age != age else age
        sex = sex if isinstance(sex, str) else most
        rows.append([dose, age, *(float(sex == text) for text in texts), float(smokes)])
    X = np.array(rows, np.float32).astype(float)
    X = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), TABLE["ill"]])
    return {ward: X[TABLE["ward"] == ward].tolist() for ward in WARDS}, [
        "dose", "age", *(f"sex={text}" for text in texts), "smokes"
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:from_dataframe.*numbers rows")
@pytest.mark.parametrize("door", DOORS)
def test_the_law_of_doors(door: str, expected: tuple[dict[int, list[list[float]]], list[str]]) -> None:
    data = DOORS[door]()
    found, first = content(data), content(DOORS["pandas"]())
    rows, names = expected
    order = [*(names.index(name) for name in found["names"]), -1]
    assert len({*order}) == 7 and found["classes"] == ("0", "1") and found["ids"] == ("1", "2", "3", "10")
    for client, ward in enumerate(WARDS):
        X = np.column_stack([held(open_federation(data.path), client), found["y"][client]])
        np.testing.assert_allclose(sorted(X.tolist()), sorted(np.array(rows[ward])[:, order].tolist()), atol=1e-6)
    if found["names"] == first["names"]:
        assert found == first


# --- the numbers alone, as arrays ------------------------------------------------------------------------------------


X = TABLE[["dose", "age", "smokes"]].fillna(50.0).to_numpy(np.float32)
Y, WHO = TABLE["ill"].to_numpy(), TABLE["ward"].to_numpy()
NUMBERS = pd.DataFrame(X, columns=list("abc")).assign(y=Y, who=WHO)
EACH = {str(ward): (X[rows.index], Y[rows.index]) for ward, rows in NUMBERS.groupby("who")}
TURNED = RNG.permutation(ROWS)


def arrays(x: Any = X, y: Any = Y, who: Any = WHO) -> Door:
    return lambda: From.from_arrays(x, y, clients=who)


def by_npz() -> mf.FederatedDataset:
    np.savez("a.npz", X=X, y=Y, who=WHO.astype(float))
    return by_command("npz", "a.npz", by="who")


def by_hdf5() -> mf.FederatedDataset:
    Path("in").mkdir()
    for name, (x, y) in EACH.items():
        Path("in", f"{name}.h5").write_bytes(hdf5(X=x, y=y, of_X={"_FillValue": np.nan, "units": "mg"}))
    return by_command("hdf5", "in")


def by_leaf() -> mf.FederatedDataset:
    Path("a.json").write_text(json.dumps(leaf(**{name: (x.tolist(), y.tolist()) for name, (x, y) in EACH.items()})))
    return by_command("leaf", "a.json")


ARRAYS: dict[str, Door] = {
    "arrays": arrays(),
    "lists": arrays(X.tolist(), Y.tolist(), WHO.tolist()),
    "objects": arrays(X.astype(object), Y.astype(object), WHO.astype(object)),
    "rows in another order": arrays(X[TURNED], Y[TURNED], WHO[TURNED]),
    "bytes in another order": arrays(X.astype(">f8"), Y.astype(">i2"), WHO.astype(">u2")),
    "labels in a column": arrays(y=Y[:, None]),
    "labels of pandas": arrays(y=pd.Series(Y).astype("category")),
    "identifiers as floats": arrays(who=WHO.astype(float)),
    "identifiers as texts": arrays(who=[f" {ward} " for ward in WHO]),
    "identifiers of pandas": arrays(who=pd.Series(WHO, dtype="Int64")),
    "identifiers as categories": arrays(who=pd.Series(WHO.astype(str), dtype="category")),
    "a masked array without a mask": arrays(np.ma.masked_invalid(X)),
    "sparse": arrays(sparse.csr_array(X)),
    "sparse, entries twice": arrays(sparse.coo_matrix((np.concatenate([X[X != 0] / 2] * 2), np.tile(X.nonzero(), 2)))),
    "of clients": lambda: From.from_clients(EACH),
    "of clients in another order": lambda: From.from_clients(dict(reversed(EACH.items()))),
    "pairs": lambda: From.from_torch([*zip(X, Y, strict=True)], clients=WHO),
    "a frame": lambda: From.from_dataframe(NUMBERS, label="y", by="who", scale="none"),
    "frames": lambda: From.from_clients(
        {str(ward): rows[list("yabc")[:: 1 if ward == 1 else -1]] for ward, rows in NUMBERS.groupby("who")},
        label="y", scale="none"),
    "npz": by_npz,
    "hdf5": by_hdf5,
    "leaf": by_leaf,
}  # fmt: skip


@pytest.mark.parametrize("door", ARRAYS)
def test_the_law_of_arrays(door: str) -> None:
    found = content(ARRAYS[door]())
    for at, (x, y) in enumerate(EACH.values()):
        rows = np.column_stack([np.frombuffer(found["X"][at]).reshape(-1, 3), found["y"][at]])
        assert sorted(rows.tolist()) == sorted(np.column_stack([x.astype(float), y]).tolist())
    assert {**found, "names": None} == content(ARRAYS["arrays"]())


def test_entries_that_are_there_twice_count_as_their_sum() -> None:
    """As SciPy says, where a sum is beyond the type of the array, or of truth values."""
    twice = [0, 0, 1], [0, 0, 1]
    for values, once in (
        (np.full(3, 200, "u1"), np.diag([400, 200])), ([True] * 3, np.eye(2)),
        ([2**62, 2**62, 1], np.diag([2.0**63, 1])),
    ):  # fmt: skip
        of_both = (sparse.coo_matrix((values, twice)), sparse.csr_matrix(once))
        made = {From.from_arrays(x, [0, 1], clients=1, scale="none")._folder.sha256 for x in of_both}
        assert len(made) == 1


@pytest.mark.parametrize("more", [{"test_fraction": 0.25}, {"client_test_fraction": 0.3}], ids=str)
def test_rows_in_any_order_are_the_same_data(more: dict[str, Any]) -> None:
    digests = set()
    for seed in (0, 1):
        TABLE.sample(frac=1, random_state=seed).to_csv("t.csv", index=False)
        digests.add(open_federation(by_command("csv", "t.csv", **BY, **more).path).sha256)
    assert len(digests) == 1


# --- files and columns -----------------------------------------------------------------------------------------------


def table(**columns: Any) -> pd.DataFrame:
    """Thirty rows, with some columns changed."""
    rng = np.random.default_rng(1)
    content = {"x": rng.normal(size=30), "sex": ["m", "f"] * 15, "ward": [1, 2, 3] * 10, "ill": [0, 1] * 15}
    return pd.DataFrame({**content, **columns})


GAPS = np.random.default_rng(2).random(30) < 0.2
DRAWN: dict[str, Callable[[np.random.Generator], Any]] = {  # columns, of which some are refused
    "fractions": lambda rng: np.where(GAPS, np.nan, rng.normal(size=30).round(3)),
    "integers": lambda rng: pd.array(np.where(GAPS, None, rng.integers(0, 9, 30)), "Int64"),
    "truth values": lambda rng: pd.array(np.where(GAPS, None, rng.random(30) < 0.5), "boolean"),
    "texts": lambda rng: np.where(GAPS, None, rng.choice(["u", " v", "e\u0301"], 30)),
    "categories": lambda rng: pd.Categorical(rng.choice(["p", "q"], 30), ["r", "q", "p"]),
    "codes": lambda rng: rng.choice(["01", "1", "10"], 30),
    "percentages": lambda rng: rng.choice(["1%", "2.5%"], 30),
    "large": lambda rng: 2**40 + rng.integers(0, 2**20, 30),
}


@pytest.mark.parametrize("seed", range(12))
def test_drawn_tables_are_the_same_by_every_door_or_refused_by_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = table(**{name: DRAWN[name](rng) for name in rng.choice([*DRAWN], 2, replace=False)})
    words = {"label": "ill", "by": "ward", "categorical": "one-hot", "scale": str(rng.choice(["minmax", "standard"]))}
    words["missing"] = str(rng.choice(["error", "zero", "drop", "mean", "median"]))
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")
    found = set[str]()
    for door in (
        lambda: From.from_dataframe(frame, **words),
        lambda: by_command("csv", "t.csv", **words),
        lambda: by_command("parquet", "t.parquet", **words),
    ):
        try:
            found.add(open_federation(door().path).sha256)
        except mf.DataError:
            found.add("refused")
    assert len(found) == 1


def test_what_is_left_out_may_differ_in_each_file(here: Path) -> None:
    """Such as identifiers that are numbers in one hospital, and texts in another."""
    for name, ids in {"a": "1 2", "b": "u v"}.items():
        first, second = ids.split()
        (here / f"{name}.csv").write_text(f"id,x,y\n{first},1.5,0\n{second},2,1\n")
    for ignored in ("id", "0"):
        assert by_command("csv", "a.csv", "b.csv", label="y", ignore=ignored).names() == ("x",)


def test_clients_are_called_as_their_files(here: Path) -> None:
    """Also as gaps are, and beside a column `file`."""
    for names in (("St. Mary.csv", "north.v2.CSV.GZ"), ("NA.csv", "b.csv")):
        for name in names:
            content = b"file,y\n1.5,0\n2,1\n"
            (here / name).write_bytes(gzip.compress(content) if "GZ" in name else content)
        data = by_command("csv", *names, label="y", missing="drop")
        expected = tuple(name.removesuffix(".CSV.GZ").removesuffix(".csv") for name in names)
        assert data.names() == ("file",) and open_federation(data.path).client_names() == expected


def test_texts_are_texts_in_test_rows_too(here: Path) -> None:
    """Where all of them there could be numbers, or truth values."""
    (here / "a.csv").write_text("zip,old,y\n01,true,0\n02,false,1\n1A,unknown,0\n02,true,1\n")
    (here / "t.csv").write_text("zip,old,y\n02,true,1\n01,false,0\n")
    words = {"label": "y", "split": "rows", "clients": 1, "categorical": "one-hot", "scale": "none"}
    data = by_command("csv", "a.csv", test="t.csv", **words)
    assert data.names() == ("zip=01", "zip=02", "zip=1A", "old=false", "old=true", "old=unknown")
    assert open_federation(data.path).array("test/X").tolist() == [[0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0]]
    frame = pd.read_csv("t.csv")
    for column in ("zip", "old"):
        rows = frame.astype({"old" if column == "zip" else "zip": str}).replace({"zip": {"1": "01", "2": "02"}})
        with pytest.raises(mf.DataError, match=f"predict: X: row ., column '{column}' is .* and none of the texts"):
            train(data).predict(rows)


@pytest.mark.parametrize("door", ["frame", "parquet"])
def test_categories_that_are_numbers_are_in_their_order(door: str) -> None:
    frame = table(sex=pd.Categorical([10.5, 2.5, -1.5] * 10))
    frame.to_parquet("t")
    words = {"label": "ill", "by": "ward", "categorical": "one-hot"}
    data = by_command("parquet", "t", **words) if door == "parquet" else From.from_dataframe(frame, **words)
    (recipe,) = [column for column in open_federation(data.path).about.recipe or () if column.name == "sex"]
    assert recipe.categories == ("-1.5", "2.5", "10.5")


# --- what is given is computed from no row, and what was trained from a frame is applied to a frame ------------------


PUBLIC = """classes = ["0", "1", "2"]
[columns.x]
range = [-2, 2]
fill = 0
[columns.sex]
categories = ["f", "m", "NA"]
[columns.patient]
range = [0, 30]
"""


@pytest.mark.parametrize("scale", ["none", "minmax"])
def test_what_is_given_is_not_computed(here: Path, scale: str) -> None:
    (here / "public.toml").write_text(PUBLIC)
    frame = table(patient=range(30), sex=["m", "NA", "f"] * 10)
    frame.loc[0, "x"] = np.nan
    frame.to_csv("t.csv", index=False)
    for data in (
        by_command("csv", "t.csv", label="ill", by="ward", categorical="one-hot", given="public.toml", scale=scale),
        From.from_dataframe(frame, label="ill", by="ward", categorical="one-hot", given="public.toml", scale=scale),
    ):
        folder = open_federation(data.path)
        assert folder.names() == ("x", "sex=f", "sex=m", "sex=NA", "patient") and data.classes == ("0", "1", "2")
        assert folder.provenance["fitted"] == ([] if scale == "none" else ["scale minmax of sex"])
        assert sorted(folder.provenance["given"]) == [
            "categories of sex", "classes", "fill of x", "range of patient", "range of x"
        ]  # fmt: skip
        X = np.concatenate([held(folder, client) for client in range(3)])
        expected = (frame["x"].fillna(0).astype("f4") + 2) / 4
        np.testing.assert_allclose(sorted(X[:, 0]), sorted(expected), atol=1e-6)
        np.testing.assert_allclose(sorted(X[:, 4]), np.arange(30) / 30, atol=1e-6)
        assert X[:, 1:4].sum(axis=0).tolist() == [10, 10, 10]
    assert train(data).predict(frame).dtype.kind == "i"  # as the labels are, whatever the classes are given as


def train(data: From, model: mf.Model | None = None) -> mf.Run:
    method = mf.FedAvg(batch_size=5, client_optimizer=mf.SGD(0.3))
    return mf.run(method, data, model or mf.Softmax(), rounds=10, progress="none")


def test_what_was_trained_from_a_frame_is_applied_to_a_frame(here: Path) -> None:
    """Fault 31."""
    run = train(DOORS["pandas"]())
    labels = run.predict(TABLE)
    assert run.score(TABLE, TABLE["ill"]) == (labels == TABLE["ill"]).mean()
    probabilities = run.predict_proba(TABLE)
    assert probabilities.shape == (ROWS, 2) and np.array_equal(probabilities.argmax(axis=1), labels)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    other_types = TABLE.astype({"sex": "category", "age": "Int64"})[::-1][TABLE.columns[::-1]].set_index("ward")
    assert np.array_equal(run.predict(other_types)[::-1], labels)
    assert np.array_equal(run.predict(pa.Table.from_pandas(TABLE)), labels)
    one = TABLE[2:3].drop(columns=["ill", "ward"])
    assert np.array_equal(run.predict(one), labels[2:3])
    with pytest.warns(UserWarning, match="X: column 'sex': no training row had 'x'"):
        unknown = run.predict_proba(one.assign(sex="x"))  # is neither: zeros
    assert unknown.shape == (1, 2)
    for wrong, named in (
        (TABLE.drop(columns="sex"), "predict: X: no column 'sex'"),
        (TABLE.assign(age="old"), "row 1, column 'age': 'old' is not a number"),
        (TABLE.assign(age=pd.Timestamp("2024-01-01")), "'age' is of type timestamp"),
        (TABLE.assign(dose=np.inf), "row 1, column 'dose': inf"),
        (pd.concat([TABLE, TABLE[["sex"]]], axis=1), "'sex'"),
        (np.zeros((2, 4)), "samples of 4 numbers; the model was trained with 6"),
    ):
        with pytest.raises(mf.MpifedError, match=named):
            run.predict(wrong)


def test_features_are_standardized_and_the_summary_says_so(here: Path) -> None:
    table().to_csv("t.csv", index=False)
    words = ("data", "csv", "t.csv", "--label", "ill", "--by", "ward", "--categorical", "one-hot", "--out", "made")
    assert "scale    standard, which --scale none leaves out" in command(*words)[1]
    assert "scale    none\n" in command(*words, "--scale", "none", "--force")[1]
