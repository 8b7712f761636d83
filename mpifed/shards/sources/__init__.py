"""Sources of data: each source is a frozen dataclass of its options, whose `read` gives a `Dataset`."""

from __future__ import annotations

from mpifed.shards.sources.covtype import Covtype
from mpifed.shards.sources.csv_table import CsvTable
from mpifed.shards.sources.dataset import Dataset, Source
from mpifed.shards.sources.digits import Digits
from mpifed.shards.sources.idx import Idx
from mpifed.shards.sources.images import Cifar, Svhn
from mpifed.shards.sources.leaf import Leaf
from mpifed.shards.sources.mnist import Mnist
from mpifed.shards.sources.newsgroups import Newsgroups
from mpifed.shards.sources.npz import Npz
from mpifed.shards.sources.parquet import ArrowFolder, ParquetTable
from mpifed.shards.sources.svmlight import Svmlight
from mpifed.shards.sources.synthetic import Synthetic
from mpifed.shards.sources.tables import Tables

SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": Mnist,
    "newsgroups": Newsgroups,
    "covtype": Covtype,
    "svmlight": Svmlight,
    "csv": CsvTable,
    "parquet": ParquetTable,
    "arrow": ArrowFolder,
    "npz": Npz,
    "leaf": Leaf,
    "idx": Idx,
    "cifar": Cifar,
    "svhn": Svhn,
    "tables": Tables,
    "synthetic": Synthetic,
}

__all__ = [
    "SOURCES",
    "ArrowFolder",
    "Cifar",
    "Covtype",
    "CsvTable",
    "Dataset",
    "Digits",
    "Idx",
    "Leaf",
    "Mnist",
    "Newsgroups",
    "Npz",
    "ParquetTable",
    "Source",
    "Svhn",
    "Svmlight",
    "Synthetic",
    "Tables",
]
