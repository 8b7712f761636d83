"""20 Newsgroups and Covertype, from small archives of the same form, against scikit-learn's own functions."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import datasets
from sklearn.datasets import _covtype, _twenty_newsgroups
from sklearn.feature_extraction.text import TfidfVectorizer

from mpifed.cli import data
from mpifed.core.errors import DataError, UsageError
from mpifed.shards.sources import Covtype, Newsgroups, covtype, newsgroups
from mpifed.shards.store import ShardFolder, open_federation

GROUPS = ("sci.space", "alt.atheism", "rec.autos", "comp.graphics")


def make(out: Path, *words: object) -> ShardFolder:
    arguments = [str(word) for word in (*words, "--out", out)]
    CliRunner().invoke(data, arguments, catch_exceptions=False, standalone_mode=False)
    return open_federation(out, verify=True)


def text(rng: np.random.Generator, number: int) -> bytes:
    """With a header, quotes, a byte that is no UTF-8, a footer."""
    words = rng.choice(["orbit", "engine", "pixel", "belief", "caf\xe9", "the"], 12)
    body = f"From: somebody{number}@x.org\nSubject: {words[0]}\n\nJones wrote:\n> {words[1]}\n{' '.join(words)}\n"
    return (body + ("--\nyours\n" if number % 2 else "")).encode("latin1")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an archive of 29 + 12 texts, in no order, with what else a tar may hold; its digest is known."""
    rng, path = np.random.default_rng(0), tmp_path / "news" / "20news-bydate.tar.gz"
    path.parent.mkdir()
    names = [f"{newsgroups.FOLDERS[number % 3 == 2]}/{GROUPS[number % 4]}/{9 + 7 * number}" for number in range(41)]
    with tarfile.open(path, "w:gz") as tar:
        for number, at in enumerate(rng.permutation(41)):
            content = text(rng, number)
            info = tarfile.TarInfo(names[at])
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    monkeypatch.setattr(newsgroups, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path.parent


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table of 60 rows; its digest is known."""
    rng, path = np.random.default_rng(1), tmp_path / "forest" / "covtype.data.gz"
    path.parent.mkdir()
    cells = np.column_stack([rng.integers(-200, 8000, (60, 54)), rng.integers(1, 8, 60)])
    path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in cells.tolist()).encode()))
    monkeypatch.setattr(covtype, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path.parent


@pytest.fixture
def by_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """by_scikit_learn(module, path, fetch, ...): what a function of scikit-learn makes of a file."""

    def read(module: Any, path: Path, fetch: Callable[..., Any], **options: Any) -> Any:
        def fetched(_: Any, dirname: str, **__: Any) -> str:
            return shutil.copy(path, dirname)

        monkeypatch.setattr(module, "_fetch_remote", fetched)
        return fetch(data_home=str(tmp_path / "home"), **options)

    return read


def test_the_files_are_those_of_scikit_learn() -> None:
    theirs = _covtype.ARCHIVE, _twenty_newsgroups.ARCHIVE
    for ours, archive in zip((covtype, newsgroups), theirs, strict=True):
        assert (ours.SHA256, ours.MIRRORS[0]) == (archive.checksum, archive.url)
        assert ours.MIRRORS[-1].endswith("/" + archive.filename)
    assert tuple(_covtype.FEATURE_NAMES) == covtype.NAMES


@pytest.mark.parametrize("remove", ["headers", "none", "quotes,footers", "headers,footers,quotes"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")  # how it unpacks an archive
def test_newsgroups(archive: Path, by_scikit_learn: Callable[..., Any], remove: str) -> None:
    path = archive / "20news-bydate.tar.gz"
    source = Newsgroups(archive, remove).read(0)
    assert source.files == (path,)
    train, test = (
        by_scikit_learn(
            _twenty_newsgroups, path, datasets.fetch_20newsgroups, subset=subset, shuffle=False,
            remove=() if remove == "none" else tuple(remove.split(",")),
        )
        for subset in ("train", "test")
    )  # fmt: skip
    assert (len(train.data), len(test.data)) == (28, 13)
    weigh = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, dtype=np.float32)
    X, test_X = weigh.fit_transform(train.data), weigh.transform(test.data)
    assert source.names == tuple(weigh.get_feature_names_out())
    assert source.test is not None
    for ours, theirs in zip((*source.chunks(), source.test[0]), (X, test_X), strict=True):
        for part in ("data", "indices", "indptr"):
            assert np.array_equal(getattr(ours, part), getattr(theirs, part))
    assert source.labels.tolist() == train.target.tolist()
    assert source.test[1].tolist() == test.target.tolist()


def test_newsgroups_by_the_command(archive: Path, tmp_path: Path) -> None:
    words = ("newsgroups", archive, "--split", "grid", "--grid", "2x2", "--labels", "below:2")
    federation = make(tmp_path / "out", *words)
    assert federation.sparse
    assert (federation.samples, federation.test_samples) == (28, 13)
    assert federation.provenance["classes"] == ["2 and above", "below 2"]
    assert set(federation.provenance["files"]) == {"20news-bydate.tar.gz"}


def test_what_is_left_out_of_the_texts() -> None:
    with pytest.raises(
        UsageError, match="--remove head: expected headers, footers, quotes, separated by commas, or none"
    ):
        Newsgroups(remove="head")


@pytest.mark.parametrize(
    ("limit", "words"),
    [("MOST_TEXTS", "more than 20 texts, or one of more than"), ("MOST_BYTES", "or one of more than 20 bytes")],
)
def test_an_archive_of_too_much(archive: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str) -> None:
    monkeypatch.setattr(newsgroups, limit, 20)
    with pytest.raises(DataError, match=words):
        Newsgroups(archive).read(0)


def test_the_limits_of_an_archive_are_met_exactly(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(archive / "20news-bydate.tar.gz") as tar:
        largest = max(member.size for member in tar)
    for texts, size in ((41, largest), (40, largest), (41, largest - 1)):
        monkeypatch.setattr(newsgroups, "MOST_TEXTS", texts)
        monkeypatch.setattr(newsgroups, "MOST_BYTES", size)
        if (texts, size) == (41, largest):
            assert len(Newsgroups(archive).read(0).labels) == 28
        else:
            with pytest.raises(DataError, match=f"more than {texts} texts, or one of more than {size} bytes"):
                Newsgroups(archive).read(0)


def test_names_in_an_archive_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "20news-bydate.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for folder in (*newsgroups.FOLDERS, "../outside", "/outside", "outside"):
            for name in ("a/1", "b/../2", "b/2", "../../../c"):
                info = tarfile.TarInfo(f"{folder}/{name}")
                info.size = 9
                tar.addfile(info, io.BytesIO(b"\n\nsome te"))
        link = tarfile.TarInfo(f"{newsgroups.FOLDERS[0]}/a/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    monkeypatch.setattr(newsgroups, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    assert Newsgroups(path).read(0).labels.tolist() == [1, 0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", [b"", b"no archive", gzip.compress(b"x" * 9), gzip.compress(b"\0" * 10240)],
    ids=["nothing", "text", "packed text", "no member"],  # packed bytes hold the time
)  # fmt: skip
def test_an_archive_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    path = tmp_path / "20news-bydate.tar.gz"
    path.write_bytes(content)
    monkeypatch.setattr(newsgroups, "SHA256", hashlib.sha256(content).hexdigest())
    with pytest.raises(DataError, match=r"20news-bydate.tar.gz: (cannot be read as an archive|no texts in 20news)"):
        Newsgroups(path).read(0)


def test_covtype(table: Path, by_scikit_learn: Callable[..., Any]) -> None:
    source = Covtype(table / "covtype.data.gz").read(0)  # the file itself
    theirs = by_scikit_learn(_covtype, table / "covtype.data.gz", datasets.fetch_covtype)
    (X,) = source.chunks()
    assert X.tobytes() == theirs.data.astype(np.float32).tobytes()
    assert (source.labels.dtype, source.labels.tolist()) == (np.int64, theirs.target.tolist())
    assert source.names == tuple(theirs.feature_names)


def test_covtype_by_the_command(table: Path, tmp_path: Path) -> None:
    words = ("covtype", table, "--split", "columns", "--clients", 3, "--labels", "class:2")
    federation = make(tmp_path / "out", *words)
    assert (federation.samples, federation.features, federation.names()) == (60, 54, covtype.NAMES)
    assert federation.provenance["files"] == {"covtype.data.gz": covtype.SHA256}


def test_some_rows_of_covtype(table: Path) -> None:
    whole = Covtype(table).read(0)
    some, again, others = (Covtype(table, 8).read(seed) for seed in (0, 0, 1))
    X, Y, Z = (next(rows.chunks()) for rows in (some, again, others))
    assert np.array_equal(X, Y)
    assert not np.array_equal(X, Z)
    (every,) = whole.chunks()
    rows = [int(np.flatnonzero((every == row).all(axis=1))[0]) for row in X]
    assert rows == sorted(set(rows))
    assert np.array_equal(whole.labels[rows], some.labels)
    with pytest.raises(UsageError, match="--samples 61: covtype has 60 rows; give 1 to 60"):
        Covtype(table, 61).read(0)


@pytest.mark.parametrize(
    ("kind", "name"), [(Newsgroups, "20news-bydate.tar.gz"), (Covtype, "covtype.data.gz")], ids=["news", "covtype"]
)
def test_other_files_are_not_read(tmp_path: Path, kind: Any, name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: no such file; put {name} of https://.*/{name} into {tmp_path}"):
        kind(tmp_path).read(0)
    (tmp_path / name).write_bytes(b"another")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match=rf"{name}: SHA-256 is [0-9a-f]{{64}}, of the original [0-9a-f]{{64}}; get"):
            kind(path).read(0)


class Crafted:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", [Newsgroups, Covtype])
def test_a_crafted_cache_of_scikit_learn_is_not_executed(tmp_path: Path, kind: Any) -> None:
    made, content = tmp_path / "made", pickle.dumps(Crafted(tmp_path / "made"))
    (tmp_path / "covertype").mkdir()
    names = "20news-bydate_py3.pkz", "covertype/samples_py3", "covertype/targets_py3"
    for name in (*names, "20news-bydate.tar.gz", "covtype.data.gz"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError):
        kind(tmp_path).read(0)
    assert not made.exists()
    pickle.loads(content)
    assert made.exists()  # so it would have been seen
