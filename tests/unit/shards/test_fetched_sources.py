"""What scikit-learn downloads, with stubs in place of its downloads."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.utils import Bunch

from mpifed.core.errors import DataError, UsageError
from mpifed.shards.command import data
from mpifed.shards.sources import Covtype, Newsgroups
from mpifed.shards.store import Federation, open_federation

TEXTS = {
    "train": [
        "the cat and the dog", "the dog sat", "a cat sat; the dog sat", "nothing else", "the cat and the cat", "dogs",
    ],
    "test": ["the cat sat", "unheard of"],
}  # fmt: skip


def make(out: Path, *words: object) -> Federation:
    arguments = [str(word) for word in (*words, "--out", out)]
    CliRunner().invoke(data, arguments, catch_exceptions=False, standalone_mode=False)
    return open_federation(out, verify=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked of the stubs."""
    asked: list[dict[str, Any]] = []

    def newsgroups(subset: str, **options: Any) -> Bunch:
        asked.append(options)
        texts = TEXTS[subset]
        return Bunch(data=texts, target=np.arange(len(texts)) * 3)

    def covtype(**options: Any) -> Bunch:
        asked.append(options)
        cells = np.arange(60.0).reshape(20, 3)
        return Bunch(data=cells, target=np.arange(20, dtype=np.int32) % 7 + 1, feature_names=["a", "b", "c"])

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", newsgroups)
    monkeypatch.setattr("sklearn.datasets.fetch_covtype", covtype)
    return asked


def terms(text: str) -> list[str]:
    words = [word for word in text.replace(";", "").split() if len(word) > 1]
    return words + [f"{a} {b}" for a, b in pairwise(words)]


def weights(text: str, names: list[str]) -> np.ndarray:
    """Weights of a text by their definition."""
    counts, train = Counter(terms(text)), [set(terms(text)) for text in TEXTS["train"]]
    idf = {name: np.log((1 + len(train)) / (1 + sum(name in has for has in train))) + 1 for name in names}
    row = np.array([(1 + np.log(counts[name])) * idf[name] if counts[name] else 0 for name in names])
    return row / (np.linalg.norm(row) or 1)


def test_newsgroups(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    federation = make(tmp_path / "out", "newsgroups", "--split", "grid", "--grid", "2x2", "--labels", "below:9")
    held = Counter(name for text in TEXTS["train"] for name in set(terms(text)))
    names = sorted(name for name, count in held.items() if count >= 2)
    assert federation.names() == tuple(names)
    assert federation.sparse
    assert asked == [{"data_home": None, "remove": ("headers",), "shuffle": False}] * 2
    assert federation.provenance["classes"] == ["9 and above", "below 9"]
    for client in range(4):
        shard = federation.shard(client, True)
        expected = np.array([weights(TEXTS["train"][row], names)[shard.columns] for row in shard.rows])
        X = np.empty(expected.shape)
        shard.take(np.arange(shard.samples), X)
        np.testing.assert_allclose(X, expected, rtol=1e-5)
        assert shard.y.tolist() == [int(row < 3) for row in shard.rows]
    test = federation.test(np.float64)
    assert test is not None
    np.testing.assert_allclose(test[0].toarray(), [weights(text, names) for text in TEXTS["test"]], rtol=1e-5)
    assert test[1].tolist() == [1, 1]


def test_what_is_left_out_of_the_texts(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    Newsgroups(tmp_path, "none").read(0)
    Newsgroups(tmp_path, "quotes,footers").read(0)
    assert [options["remove"] for options in asked[::2]] == [(), ("quotes", "footers")]
    assert asked[0]["data_home"] == str(tmp_path)
    with pytest.raises(UsageError, match="--remove head: expected some of headers,footers,quotes, or none"):
        Newsgroups(remove="head")


@pytest.mark.usefixtures("asked")
def test_covtype(tmp_path: Path) -> None:
    words = ("covtype", tmp_path, "--split", "columns", "--clients", 3, "--labels", "class:2")
    federation = make(tmp_path / "out", *words)
    assert (federation.samples, federation.features, federation.names()) == (20, 3, ("a", "b", "c"))
    shard = federation.shard(1, True)
    X = np.empty((20, 1))
    shard.take(np.arange(20), X)
    assert X.ravel().tolist() == list(range(1, 60, 3))
    assert shard.y.tolist() == [int(row % 7 == 1) for row in range(20)]


@pytest.mark.usefixtures("asked")
def test_some_rows_of_covtype() -> None:
    whole = Covtype().read(0)
    some, again, others = (Covtype(samples=8).read(seed) for seed in (0, 0, 1))
    X, Y, Z = (next(table.chunks()) for table in (some, again, others))
    assert np.array_equal(X, Y)
    assert not np.array_equal(X, Z)
    rows = (X[:, 0] / 3).astype(int)
    assert len(set(rows)) == 8
    assert np.array_equal(next(whole.chunks())[rows], X)
    assert np.array_equal(whole.labels[rows], some.labels)
    with pytest.raises(UsageError, match="--samples 21: covtype has 20 rows; give 1 to 20"):
        Covtype(samples=21).read(0)


@pytest.mark.parametrize(
    ("source", "function", "words"),
    [
        (Newsgroups, "20newsgroups", "20 Newsgroups: .* nor downloaded .*no route to host.*; put 20news"),
        (Covtype, "covtype", "Covertype: .* nor downloaded .*no route to host.*; put covertype/samples_py3"),
    ],
)
def test_failed_download(monkeypatch: pytest.MonkeyPatch, source: Any, function: str, words: str) -> None:
    def fail(**_: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(f"sklearn.datasets.fetch_{function}", fail)
    with pytest.raises(DataError, match=words):
        source().read(0)


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "covertype").mkdir()
    for name in ("samples_py3", "targets_py3"):
        (tmp_path / "covertype" / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"Covertype: cannot be read from {tmp_path}, nor downloaded"):
        Covtype(tmp_path).read(0)
