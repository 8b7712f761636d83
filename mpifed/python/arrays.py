"""`FederatedDataset`: data that are divided among clients, from arrays in memory or from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.comm.transport import connect
from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.python.ranks import alike, temporary
from mpifed.python.values import (
    Pair,
    Values,
    dataset,
    fraction_of,
    held_apart,
    integer,
    labels_of,
    stacked,
    tests_of,
)
from mpifed.shards.command import SCALES
from mpifed.shards.partition import Partition, held_out
from mpifed.shards.prepare import Options, prepare
from mpifed.shards.sources.dataset import Dataset, Source
from mpifed.shards.store import ShardFolder, open_federation

if TYPE_CHECKING:
    from pandas import DataFrame


def _source(data: Dataset) -> Source:
    """A source of data in memory, which has no options."""

    @dataclass(frozen=True)
    class InMemory(Source):
        def read(self, seed: int) -> Dataset:
            return data

    return InMemory()


class FederatedDataset:
    """Data divided among clients: a folder of shards, as `mpifed data` writes them.

    Made by `from_arrays`, `from_clients`, `from_dataframe` or `open`; under MPI every rank calls these, and rank 0
    writes. Without `out` the shards are in a temporary folder, which vanishes with the process.

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
        """The data in a folder that `mpifed data` wrote, or one of the other functions with `out`."""
        return cls(path)

    @classmethod
    def from_arrays(
        cls,
        X: Values,
        y: Values,
        *,
        clients: int,
        partition: str = "iid",
        skew: float | None = None,
        split: str = "rows",
        test: Pair | float | None = None,
        client_test: float | None = None,
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
            How many; with `split="columns"` each gets columns.
        partition
            How labels spread over clients: "iid", "dirichlet:A", "classes:K", and others of `mpifed data --help`.
        skew
            Dirichlet parameter of the clients' sizes; None: equal sizes.
        split
            "rows" or "columns".
        test
            Test samples and labels, or the fraction of the rows that is held out.
        client_test
            The fraction of each client's rows with which it tests, in place of training.
        scale
            As `mpifed data --scale`: "none", "unit", "minmax", "standard" or "unit-rows"; fitted on training rows.
        shape
            Of a sample; by default that of X.
        names
            Of the features.
        seed
            Of the partition and of held-out rows.
        out
            The folder; by default a temporary one.
        overwrite
            Replace the data in `out`.
        """

        def described() -> tuple[Dataset, Table]:
            pair, fraction = held_apart(test, "from_arrays")
            return dataset(X, y, pair, shape, names), {
                "split": split, "clients": clients, "partition": partition, "skew": skew, "scale": scale, "seed": seed,
                "test_fraction": fraction, "client_test_fraction": client_test,
            }  # fmt: skip

        return cls(_written(out, overwrite, described))

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[Pair] | Mapping[str, Pair],
        *,
        test: Pair | None = None,
        client_test: Iterable[Pair] | Mapping[str, Pair] | float | None = None,
        scale: str = "none",
        shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
    ) -> FederatedDataset:
        """Data of clients as they are: a list, or the values of a dict, of (X [s_i, ...], y [s_i]) of each.

        `client_test` is the same of the rows with which each client tests, or the fraction of its rows for that.
        """

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
            own_tests, own_fraction = tests_of(clients, len(pairs), client_test)
            X, y, own_shape, counts = stacked(pairs, own_tests)
            data = dataset(X, y, tested, shape if shape is not None else own_shape, names)
            number, count = np.repeat(np.arange(len(counts)), counts), len(pairs)
            data = _by_owner(replace(data, client_tests=number >= count if own_tests else None), number % count, count)
            return data, {"scale": scale, "clients": count, "client_test_fraction": own_fraction}

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
        out: str | Path | None = None,
        overwrite: bool = False,
        **options: object,
    ) -> FederatedDataset:
        """Data of a pandas DataFrame of numbers.

        Parameters
        ----------
        label
            The column of labels, or several of real targets.
        by
            The column that says whose each row is: clients in the order of its sorted values. It is no feature.
        clients
            Without `by`: how many, as in `from_arrays`, which takes `options` too; `client_test` and `scale` also go
            with `by`.
        test
            A frame with the same columns, or the fraction of the rows that is held out.
        """
        return cls(_written(out, overwrite, lambda: _of_frame(frame, label, by, clients, test, options)))


def _of_frame(
    frame: DataFrame, label: str | Sequence[str], by: str | None, clients: int | None, test: object,
    options: Table,
) -> tuple[Dataset, Table]:  # fmt: skip
    """(the data of a frame, options of `prepare`)."""
    if not hasattr(frame, "columns"):
        raise UsageError(f"from_dataframe: a {type(frame).__name__}; expected a DataFrame; from_arrays takes arrays")
    if (by is None) == (clients is None):
        raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
    known = (*(("partition", "skew", "split") if by is None else ()), "scale", "shape", "seed", "client_test")
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"from_dataframe: {unknown[0]}: no argument here; known are {', '.join(known)}")
    targets: list[Values] = list(label) if isinstance(label, (list, tuple)) else [label]  # whatever columns are called
    features = [name for name in frame.columns if name not in targets and name != by]
    _check_columns(frame, [*targets, *([] if by is None else [by])], "frame")
    text = [str(name) for name in features if frame[name].dtype.kind not in "biuf"]
    if text:
        raise DataError(f"from_dataframe: columns {', '.join(text)} are no numbers; encode them, or drop them")

    def pair(rows: DataFrame) -> Pair:
        y = rows[targets].to_numpy()
        return rows[features].to_numpy(np.float32, na_value=np.nan), y[:, 0] if len(targets) == 1 else y.astype(float)

    names, shape, options = [str(name) for name in features], options.get("shape"), dict(options)
    options["client_test_fraction"] = options.pop("client_test", None)
    options.pop("shape", None)
    X, y = pair(frame)
    tested: Pair | None
    if hasattr(test, "columns"):
        _check_columns(test, [*targets, *features], "test")
        tested, fraction = pair(test), None
    else:
        tested, fraction = held_apart(test, "from_dataframe")
        if tested is not None:
            raise UsageError("from_dataframe: test: a pair; expected a DataFrame, or the fraction that is held out")
    if by is None:
        return dataset(X, y, tested, shape, names), {"clients": clients, "test_fraction": fraction, **options}
    if frame[by].isna().any():
        raise DataError(
            f"from_dataframe: {by}: {int(frame[by].isna().sum())} rows have no value; drop them, or name one"
        )
    ids, owner = np.unique(frame[by].to_numpy().astype(str), return_inverse=True)
    if fraction is not None:
        out_of = held_out(labels_of(y, "y"), fraction, integer(options.get("seed", 0), "seed"))
        X, y, owner, tested = X[~out_of], y[~out_of], owner[~out_of], (X[out_of], y[out_of])
        if len(alone := np.setdiff1d(np.arange(len(ids)), owner)):
            raise DataError(f"from_dataframe: test={fraction:g} leaves no row to {by} = {ids[alone[0]]}; lower it")
    return _by_owner(dataset(X, y, tested, shape, names), owner, len(ids)), {"clients": len(ids), **options}


def _check_columns(frame: DataFrame, names: Sequence[str], what: str) -> None:
    if missing := [name for name in names if name not in frame.columns]:
        raise DataError(
            f"from_dataframe: {what}: no column {missing[0]!r}; there are {', '.join(map(str, frame.columns))}"
        )


def _by_owner(data: Dataset, owner: Array, clients: int) -> Dataset:
    rows = [np.flatnonzero(owner == client) for client in range(clients)]
    holds = np.stack([np.arange(clients), np.zeros(clients, np.int64)], axis=1)
    partition = Partition("rows", rows, [np.arange(data.features)], holds)
    return replace(data, partition=partition)


def _written(out: str | Path | None, overwrite: bool, described: Callable[[], tuple[Dataset, Table]]) -> Path:
    """The folder with the data, on every rank; written by rank 0, with the options of `described`. Collective."""
    transport = connect()

    def options() -> Options:
        data, chosen = described()
        whole_numbers: Table = {name: integer(chosen[name], name) for name in ("clients", "seed") if name in chosen}
        scale, split = str(chosen.get("scale", "none")), chosen.get("split", "rows")
        if wrong := [kind for kind in scale.split(",") if kind not in SCALES]:
            raise UsageError(f"scale = {wrong[0]!r}: expected one of {', '.join(SCALES)}, or several with commas")
        if split not in ("rows", "columns"):
            raise UsageError(f"split = {split!r}: expected 'rows' or 'columns'; for cells of both, `mpifed data`")
        force = overwrite or out is None
        place = Path(out) if out is not None else Path()
        own = fraction_of(chosen.get("client_test_fraction"))
        chosen = {**chosen, **whole_numbers, "client_test_fraction": own}
        return Options("arrays", _source(data), place, force=force, **chosen)

    chosen = alike(transport, options)
    folder = Path(out) if out is not None else temporary(transport, "mpifed-data-")
    alike(transport, lambda: transport.rank == 0 and bool(prepare(replace(chosen, out=folder))))
    return folder
