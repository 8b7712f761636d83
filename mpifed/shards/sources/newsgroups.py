"""20 Newsgroups (Lang): 11,314 + 7,532 texts, the later ones for testing, as sparse weights of words and word pairs."""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.shards.sources.dataset import Dataset, Source, whole
from mpifed.shards.sources.download import original

PARTS = ("headers", "footers", "quotes")
MIRRORS = (
    "https://ndownloader.figshare.com/files/5975967",
    "https://people.csail.mit.edu/jrennie/20Newsgroups/20news-bydate.tar.gz",
)
SHA256 = "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610"
FOLDERS = ("20news-bydate-train", "20news-bydate-test")
MOST_TEXTS, MOST_BYTES = 100_000, 2**24  # limits for the archive, far above the original


@dataclass(frozen=True)
class Newsgroups(Source):
    """20 Newsgroups: 11,314 texts, and 7,532 to test with, as TF-IDF of words and pairs of words.

    Labels are the 20 groups in alphabetical order. A feature is a word or a pair of words that occurs in at least two
    training texts; its value is (1 + ln of its count) times its inverse document frequency, and rows have
    norm 1.
    """

    path: Path | None = None
    """The archive 20news-bydate.tar.gz, or its folder; downloaded and kept where absent."""
    remove: str = "headers"
    """Parts of the texts to leave out: headers, footers or quotes, separated by commas, or none."""

    def __post_init__(self) -> None:
        strange = set(self._parts()) - set(PARTS)
        if strange:
            raise UsageError(f"--remove {self.remove}: expected {', '.join(PARTS)}, separated by commas, or none")

    def read(self, seed: int) -> Dataset:
        """The data; DataError when the archive is another, or is not there and cannot be downloaded."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        path = original("newsgroups", self.path, MIRRORS, SHA256)
        content = _read(path)
        (texts, labels), (test_texts, test_labels) = (_in_order(path, content, folder) for folder in FOLDERS)
        weigh = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, dtype=np.float32)
        X = weigh.fit_transform(map(self._stripped, texts))
        test_X = weigh.transform(map(self._stripped, test_texts))
        names = tuple(weigh.get_feature_names_out())
        return Dataset(len(names), None, labels, whole(X), (test_X, test_labels), names=names, files=(path,))

    def _parts(self) -> tuple[str, ...]:
        return () if self.remove == "none" else tuple(self.remove.split(","))

    def _stripped(self, text: str) -> str:
        """The text without the parts in `remove`."""
        from sklearn.datasets import _twenty_newsgroups as strip

        parts = self._parts()
        if "headers" in parts:
            text = strip.strip_newsgroup_header(text)
        if "footers" in parts:
            text = strip.strip_newsgroup_footer(text)
        return strip.strip_newsgroup_quoting(text) if "quotes" in parts else text


def _read(path: Path) -> dict[str, dict[str, dict[str, bytes]]]:
    """Contents of the files in the archive, by folder, group and name, without writing to disk."""
    content: dict[str, dict[str, dict[str, bytes]]] = {folder: {} for folder in FOLDERS}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for number, member in enumerate(archive):
                folder, *rest = member.name.split("/")
                if number >= MOST_TEXTS or member.size > MOST_BYTES:
                    raise DataError(f"{path}: more than {MOST_TEXTS} texts, or one of more than {MOST_BYTES} bytes")
                if folder not in FOLDERS or len(rest) != 2 or not member.isreg():
                    continue  # a folder
                file = archive.extractfile(member)
                if file is not None:
                    content[folder].setdefault(rest[0], {})[rest[1]] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as an archive ({error}); get {MIRRORS[-1]} again") from error
    return content


def _in_order(
    path: Path, content: dict[str, dict[str, dict[str, bytes]]], folder: str
) -> tuple[list[str], NDArray[np.int64]]:
    """(texts, labels [s]) of a folder in the order of scikit-learn's `load_files`: by group and name, then shuffled."""
    from sklearn.utils import check_random_state

    groups = content[folder]
    files = [
        (label, groups[group][name]) for label, group in enumerate(sorted(groups)) for name in sorted(groups[group])
    ]
    if not files:
        raise DataError(f"{path}: no texts in {folder}; get {MIRRORS[-1]} again")
    order = np.arange(len(files))
    check_random_state(0).shuffle(order)
    labels = np.array([files[at][0] for at in order], dtype=np.int64)
    return [files[at][1].decode("latin1") for at in order], labels
