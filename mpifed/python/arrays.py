"""`FederatedDataset`: data that are divided among clients, from arrays in memory or from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.comm.transport import connect
from mpifed.core.errors import DataError, UsageError
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.python.frames import identifiers, in_client_order, items, of_frame, of_partition
from mpifed.python.ranks import alike, temporary
from mpifed.python.values import Pair, Values, dataset, held_apart, integer, labels_of, rows_of
from mpifed.shards.command import SCALES
from mpifed.shards.partition import by_owners
from mpifed.shards.prepare import Options, prepare
from mpifed.shards.sources.dataset import Dataset, Source
from mpifed.shards.store import ShardFolder, open_federation

if TYPE_CHECKING:
    from pandas import DataFrame


def _source(data: Dataset) -> Source:
    """A source of data in memory, which has no options."""

    @dataclass(frozen=True)
    class InMemory(Source):
        missing: str = data.columns.fill if data.columns else "error"

        @property
        def names_clients(self) -> bool:
            return data.natural is not None

        def read(self, seed: int) -> Dataset:
            return data

    return InMemory()


class FederatedDataset:
    """Data divided among clients: a folder of shards, as `mpifed data` writes them.

    Made by the functions below; under MPI every rank calls them. Rank 0 writes, without `out` to a temporary folder.

    Attributes
    ----------
    path : the folder
    clients, samples, features : how many
    classes : the labels of the classes, in the order of the model's outputs; () for real targets
    shape : of a sample, such as (channels, height, width); None for vectors
    """

    def __init__(self, path: str | Path) -> None:
        transport = connect()
        self._folder: ShardFolder = alike(transport, lambda: open_federation(path))
        self.path = Path(path)
        self.clients, self.samples = self._folder.clients, self._folder.samples
        self.features, self.shape = self._folder.features, self._folder.shape
        self.classes: tuple[str, ...] = tuple(self._folder.provenance.get("classes", ()))

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if self.classes else "real targets"
        return f"FederatedDataset({self.samples} samples, {self.features} features, {self.clients} clients, {kind})"

    @classmethod
    def open(cls, path: str | Path) -> FederatedDataset:
        """The data in a folder of `mpifed data`, or of one of the other functions with `out`."""
        return cls(path)

    @classmethod
    def from_arrays(
        cls,
        X: Values,
        y: Values,
        *,
        clients: int | Sequence[object] | Array,
        partition: str = "iid",
        skew: float | None = None,
        split: str = "rows",
        test: Pair | float | None = None,
        scale: str = "none",
        shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        out: str | Path | None = None,
        overwrite: bool = False,
    ) -> FederatedDataset:
        """Divide samples among clients.

        Parameters
        ----------
        X
            [s, ...] samples, of any shape, or a SciPy CSR matrix [s, p].
        y
            [s] integers of classes, or real targets; [s, t] real targets.
        clients
            How many; with `split="columns"` each gets columns. Or [s] integers or texts that say whose each sample is:
            clients in the order of these sorted identifiers, the samples of each in an order of their content.
        partition
            How labels spread over clients: "iid", "dirichlet:A", "classes:K", and others of `mpifed data --help`.
        skew
            Dirichlet parameter of the clients' sizes; None: equal sizes.
        split
            "rows" or "columns".
        test
            Test samples and labels, or the fraction of the rows that is held out.
        scale
            As `mpifed data --scale`: "none", "unit", "minmax", "standard" or "unit-rows"; fitted on training rows.
        shape, names
            Of a sample, by default that of X; of the features.
        seed
            Of the partition and of held-out rows.
        out
            The folder; by default a temporary one.
        overwrite
            Replace the data in `out`.
        """

        def described() -> tuple[Dataset, Table]:
            pair, fraction = held_apart(test, "from_arrays")
            data = dataset(X, y, pair, shape, names)
            if (ids := identifiers(clients, data)) is not None:
                if (split, partition, skew) != ("rows", "iid", None):
                    raise UsageError("from_arrays: clients says whose each sample is: leave out split, partition, skew")
                return in_client_order(data, ids), {"scale": scale, "seed": seed, "test_fraction": fraction}
            return data, {
                "split": split, "clients": clients, "partition": partition, "skew": skew, "scale": scale, "seed": seed,
                "test_fraction": fraction,
            }  # fmt: skip

        return cls(_written(out, overwrite, described))

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[Pair] | Mapping[str, Pair],
        *,
        test: Pair | None = None,
        scale: str = "none",
        shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
    ) -> FederatedDataset:
        """Data of clients as they are: a list, or the values of a dict, of (X [s_i, ...], y [s_i]) of each."""

        def described() -> tuple[Dataset, Table]:
            pairs = list(clients.values() if isinstance(clients, Mapping) else clients)
            if not pairs:
                raise UsageError("from_clients: an empty list; expected a pair (X, y) for each client")
            wrong = [i for i, pair in enumerate(pairs) if not isinstance(pair, (tuple, list)) or len(pair) != 2]
            if wrong:
                raise UsageError(f"from_clients: client {wrong[0]}: no pair; expected (X, y) for each client")
            tested, fraction = held_apart(test, "from_clients")
            if fraction is not None:
                raise UsageError(f"from_clients: test = {fraction:g}: expected a pair (X, y) of test samples")
            X, y, own_shape, counts = _stacked(pairs)
            data = dataset(X, y, tested, shape if shape is not None else own_shape, names)
            owner = np.repeat(np.arange(len(pairs)), counts)
            return _by_owner(data, owner, len(pairs)), {"scale": scale, "clients": len(pairs)}

        return cls(_written(out, overwrite, described))

    @classmethod
    def from_dataframe(
        cls,
        frame: DataFrame,
        *,
        label: str | Sequence[str],
        by: str | None = None,
        clients: int | None = None,
        test: DataFrame | float | None = None,
        categorical: str | None = None,
        missing: str = "error",
        out: str | Path | None = None,
        overwrite: bool = False,
        **options: object,
    ) -> FederatedDataset:
        """Data of a pandas DataFrame.

        Parameters
        ----------
        label
            The column of labels, integers or texts of classes; several of real targets.
        by
            The column that says whose each row is: clients in the order of its sorted values, the rows of each in an
            order of their content. It is no feature. `group=N` takes N values per client, `min_rows=N` joins small
            clients.
        clients
            Without `by`: how many, as in `from_arrays`, which takes `options` too.
        categorical
            What columns of texts become: "one-hot", or "ordinal", by the texts of the training rows; None: an error.
        missing
            What becomes of gaps: "error", "zero", "drop", or "mean" or "median" of the training rows.
        test
            A frame with the same columns, or the fraction of the rows that is held out.
        """
        return cls(
            _written(out, overwrite, lambda: of_frame(frame, label, by, clients, test, categorical, missing, options))
        )

    @classmethod
    def from_torch(
        cls,
        dataset: Values,
        *,
        test: Values | float | None = None,
        **options: Values,  # those of from_arrays
    ) -> FederatedDataset:
        """Data of a map-style dataset of PyTorch, whose items are pairs (sample, label).

        Parameters
        ----------
        dataset
            With `__len__` and `__getitem__`; samples are tensors, arrays, or PIL's images, channels first.
        test
            Another one, or the fraction of the rows that is held out.
        options
            As of `from_arrays`: `clients` and others.
        """
        X, y = items(dataset, "from_torch")
        pair = items(test, "from_torch: test") if hasattr(test, "__getitem__") else test
        return cls.from_arrays(X, y, test=pair, **options)

    @classmethod
    def from_partitioner(
        cls, partitioner: Values, *, label: str, features: Sequence[str] | None = None, test: Pair | None = None,
        **options: Values,  # those of from_clients
    ) -> FederatedDataset:  # fmt: skip
        """The partitions of a partitioner of flwr-datasets, whose `dataset` is set: client i has load_partition(i).

        Parameters
        ----------
        label
            The column of labels.
        features
            The columns of samples; by default all others, which must be numbers, or a single one of arrays or images.
        test
            Test samples and labels.
        options
            As of `from_clients`.
        """
        count = partitioner.num_partitions
        pairs = [of_partition(partitioner.load_partition(number), label, features) for number in range(count)]
        return cls.from_clients(pairs, test=test, **options)


def _stacked(pairs: Sequence[Pair]) -> tuple[Piece, Array, tuple[int, ...] | None, list[int]]:
    """(rows of all clients, their labels, shape of a sample, counts of rows)."""
    rows = [rows_of(X, f"client {i}: X") for i, (X, _) in enumerate(pairs)]
    labels = [labels_of(y, f"client {i}: y") for i, (_, y) in enumerate(pairs)]
    first, shape = rows[0]
    counts = [X.shape[0] for X, _ in rows]
    wrong = [f"client {i}: {n} samples, {len(y)} labels" for i, (n, y) in enumerate(zip(counts, labels, strict=True))
             if n != len(y)]  # fmt: skip
    wrong += [f"client {i}: samples of shape {own or X.shape[1:]}, those of client 0 have {shape or first.shape[1:]}"
              for i, (X, own) in enumerate(rows) if (own or X.shape[1:]) != (shape or first.shape[1:])]  # fmt: skip
    if wrong:
        raise DataError(f"from_clients: {'; '.join(wrong[:5])}")
    if all(isinstance(X, np.ndarray) for X, _ in rows):
        return np.concatenate([X for X, _ in rows]), np.concatenate(labels), shape, counts
    from scipy.sparse import csr_matrix, vstack

    return vstack([csr_matrix(X) for X, _ in rows]).tocsr(), np.concatenate(labels), shape, counts


def _by_owner(data: Dataset, owner: Array, clients: int) -> Dataset:
    return replace(data, partition=by_owners(np.arange(clients), owner, data.features))


def _written(out: str | Path | None, overwrite: bool, described: Callable[[], tuple[Dataset, Table]]) -> Path:
    """The folder with the data, on every rank; written by rank 0, with the options of `described`. Collective."""
    transport = connect()

    def options() -> Options:
        data, chosen = described()
        numbers = [name for name in ("clients", "seed", "group", "min_rows") if name in chosen]
        whole_numbers: Table = {name: integer(chosen[name], name) for name in numbers}
        scale, split = str(chosen.get("scale", "none")), chosen.get("split", "rows")
        if wrong := [kind for kind in scale.split(",") if kind not in SCALES]:
            raise UsageError(f"scale = {wrong[0]!r}: expected one of {', '.join(SCALES)}, or several with commas")
        if split not in ("rows", "columns"):
            raise UsageError(f"split = {split!r}: expected 'rows' or 'columns'; for cells of both, `mpifed data`")
        force = overwrite or out is None
        place = Path(out) if out is not None else Path()
        chosen = {**chosen, **whole_numbers}
        return Options("arrays", _source(data), place, force=force, **chosen)

    chosen = alike(transport, options)
    folder = Path(out) if out is not None else temporary(transport, "mpifed-data-")
    alike(transport, lambda: transport.rank == 0 and bool(prepare(replace(chosen, out=folder))))
    return folder
