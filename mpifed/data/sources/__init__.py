"""Sources of data: each source is a frozen dataclass of its options, whose `read` gives `Samples`."""

from __future__ import annotations

from mpifed.data.samples import Samples as Samples
from mpifed.data.samples import Source as Source
from mpifed.data.sources.digits import Digits as Digits
from mpifed.data.sources.hdf5 import Hdf5 as Hdf5
from mpifed.data.sources.idx import Idx as Idx
from mpifed.data.sources.idx import Mnist as Mnist
from mpifed.data.sources.images import Cifar as Cifar
from mpifed.data.sources.images import Images as Images
from mpifed.data.sources.leaf import Leaf as Leaf
from mpifed.data.sources.npz import Npz as Npz
from mpifed.data.sources.svmlight import Svmlight as Svmlight
from mpifed.data.sources.synthetic import Synthetic as Synthetic
from mpifed.data.table import CsvTable as CsvTable
from mpifed.data.table import ParquetTable as ParquetTable

SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": Mnist,
    "svmlight": Svmlight,
    "csv": CsvTable,
    "parquet": ParquetTable,
    "npz": Npz,
    "leaf": Leaf,
    "hdf5": Hdf5,
    "idx": Idx,
    "cifar": Cifar,
    "images": Images,
    "synthetic": Synthetic,
}
