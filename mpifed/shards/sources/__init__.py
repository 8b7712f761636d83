"""Sources of data: each source is a frozen dataclass of its options, whose `read` gives a `Dataset`."""

from __future__ import annotations

from mpifed.shards.sources.csv_table import CsvTable as CsvTable
from mpifed.shards.sources.dataset import Dataset as Dataset
from mpifed.shards.sources.dataset import Source as Source
from mpifed.shards.sources.digits import Digits as Digits
from mpifed.shards.sources.idx import Idx as Idx
from mpifed.shards.sources.images import Cifar as Cifar
from mpifed.shards.sources.leaf import Leaf as Leaf
from mpifed.shards.sources.mnist import Mnist as Mnist
from mpifed.shards.sources.npz import Npz as Npz
from mpifed.shards.sources.parquet import ArrowFolder as ArrowFolder
from mpifed.shards.sources.parquet import ParquetTable as ParquetTable
from mpifed.shards.sources.svmlight import Svmlight as Svmlight
from mpifed.shards.sources.synthetic import Synthetic as Synthetic
from mpifed.shards.sources.tables import Tables as Tables

SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": Mnist,
    "svmlight": Svmlight,
    "csv": CsvTable,
    "parquet": ParquetTable,
    "arrow": ArrowFolder,
    "npz": Npz,
    "leaf": Leaf,
    "idx": Idx,
    "cifar": Cifar,
    "tables": Tables,
    "synthetic": Synthetic,
}
