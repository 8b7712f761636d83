"""20 Newsgroups (Lang): 11,314 + 7,532 texts, the later ones for testing, as sparse weights of words and word pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.shards.sources.dataset import Dataset, whole
from mpifed.shards.sources.download import fetched

PARTS = ("headers", "footers", "quotes")
REMEDY = (
    "put 20news-bydate_py3.pkz, as scikit-learn writes it elsewhere, into any folder for `mpifed data newsgroups "
    "FOLDER`, or turn the texts into numbers yourself for `mpifed data svmlight FILE`"
)


@dataclass(frozen=True)
class Newsgroups:
    """The texts by scikit-learn, from its folder `path` or downloaded; labels are the 20 groups in alphabetical order.

    A feature is a word or a pair of words that occurs in two training texts or more; its value is (1 + ln of how often
    it occurs) times its inverse document frequency, and rows have norm 1.
    """

    path: Path | None = None
    remove: str = "headers"  # what to leave out of the texts: some of `PARTS`, separated by commas, or none

    def __post_init__(self) -> None:
        strange = set(self._parts()) - set(PARTS)
        if strange:
            raise UsageError(f"--remove {self.remove}: expected some of {','.join(PARTS)}, or none")

    def read(self, seed: int) -> Dataset:
        """The data.

        Raises
        ------
        DataError
            When the texts are not there and cannot be downloaded.
        """
        from sklearn import datasets
        from sklearn.feature_extraction.text import TfidfVectorizer

        train, test = (
            fetched(
                datasets.fetch_20newsgroups, "20 Newsgroups", self.path, REMEDY,
                subset=subset, remove=self._parts(), shuffle=False,
            )
            for subset in ("train", "test")
        )  # fmt: skip
        weigh = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, dtype=np.float32)
        X = weigh.fit_transform(train.data)
        labels, test_labels = (part.target.astype(np.int64) for part in (train, test))
        names = tuple(weigh.get_feature_names_out())
        return Dataset(len(names), None, labels, whole(X), (weigh.transform(test.data), test_labels), names=names)

    def _parts(self) -> tuple[str, ...]:
        return () if self.remove == "none" else tuple(self.remove.split(","))
