"""Where data comes from: each source is a frozen dataclass of its options whose `read` gives a `Dataset`."""

from __future__ import annotations

from mpifed.shards.sources.dataset import Dataset, Source
from mpifed.shards.sources.digits import Digits
from mpifed.shards.sources.mnist import Mnist
from mpifed.shards.sources.svmlight import Svmlight
from mpifed.shards.sources.synthetic import Synthetic
from mpifed.shards.sources.table import Table

SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": Mnist,
    "svmlight": Svmlight,
    "csv": Table,
    "synthetic": Synthetic,
}

__all__ = ["SOURCES", "Dataset", "Digits", "Mnist", "Source", "Svmlight", "Synthetic", "Table"]
