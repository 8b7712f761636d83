"""`FederatedDataset`: data that are divided among clients, from arrays in memory or from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.data.partition import by_owners
from mpifed.data.prepare import Options, prepare
from mpifed.data.samples import Samples, Source
from mpifed.data.store import Federation, in_memory, open_federation
from mpifed.python.frames import items, of_frame, of_partition, owners_of
from mpifed.python.ranks import alike, spoken, together
from mpifed.python.values import (
    Pair,
    Values,
    dataset,
    fraction_of,
    held_apart,
    integer,
    no_pairs,
    stacked,
    tests_of,
)
from mpifed.run.agreement import begin_call

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName


def _source(data: Samples) -> Source:
    """A source of data in memory, which has no options."""

    @dataclass(frozen=True)
    class InMemory(Source):
        missing: str = data.columns.missing if data.columns else "error"

        @property
        def names_clients(self) -> bool:
            return data.ids is not None

        def read(self, seed: int) -> Samples:
            return data

    return InMemory()


class FederatedDataset:
    """Data divided among clients, in memory or in a folder, as `mpifed data` writes them.

    Made by the functions below; under MPI every rank calls them. With `out` rank 0 writes a folder; without, each rank
    keeps the data until the process ends.

    Attributes
    ----------
    path : the folder; of data in memory the name by which jobs refer to them, such as memory:1
    clients, samples, features : how many
    classes : the labels of the classes, in the order of the model's outputs; () for real targets
    shape : of a sample, such as (channels, height, width); None for vectors
    """

    @spoken()
    def __init__(self, path: str | Path) -> None:
        self._folder = open_federation(path)
        self.path: Path | str = str(path) if self._folder.path is None else Path(path)
        self.clients, self.samples = self._folder.clients, self._folder.samples
        self.features, self.shape = self._folder.features, self._folder.shape
        self.classes: tuple[str, ...] = tuple(self._folder.provenance.get("classes", ()))

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if self.classes else "real targets"
        return f"FederatedDataset({self.samples} samples, {self.features} features, {self.clients} clients, {kind})"

    @spoken()
    def plot(self, size: SizeName = "screen") -> Figure:
        """How the data are divided: rows of each client, by class or with the range of targets.

        Where clients have other columns, who has which rows and columns. `size`: "screen", "column" (3.4 inches wide,
        text of 8 points) or "page" (7 inches).

        Returns
        -------
        matplotlib.figure.Figure
        """
        from mpifed.plots.partition import partition

        return partition(self._folder, size)

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
        skew: str | float | None = None,
        min_samples: int = 1,
        feature_noise: float | None = None,
        split: str = "rows",
        test: Pair | float | None = None,
        client_test: float | None = None,
        scale: str | None = None,
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
            [s] integers or texts of classes, or real targets; [s, t] real targets.
        clients
            How many; with `split="columns"` each gets columns. Or [s] integers or texts that say whose each sample is:
            clients in the order of these sorted identifiers, the samples of each in an order of their content.
        partition
            How labels spread over clients: "iid", "dirichlet:A", "classes:K", and others of `mpifed data --help`.
        skew
            Of the clients' sizes: the parameter of a Dirichlet distribution, "lognormal:S" or "power:A"; None: equal.
        min_samples
            Draw the partition again until every client has so many training rows.
        feature_noise
            V: add Gaussian noise of variance V n / N to the scaled rows of client n = 1, ..., N.
        split
            "rows" or "columns".
        test
            Test samples and labels, or the fraction of the rows that is held out.
        client_test
            The fraction of each client's rows with which it tests, in place of training.
        scale
            As `mpifed data --scale`: "none", "unit", "minmax", "standard" or "unit-rows"; fitted on training rows. By
            default bytes are divided by 255.
        shape, names
            Of a sample, by default that of X; of the features.
        seed
            Of the partition and of held-out rows.
        out
            A folder to write to; by default the data stay in memory.
        overwrite
            Replace the data in `out`.
        """

        def described() -> tuple[Samples, Table]:
            pair, fraction = held_apart(test, "from_arrays")
            data = dataset(X, y, pair, shape, names)
            of_all: Table = {
                "split": split, "partition": partition, "skew": skew, "min_samples": min_samples, "scale": scale,
                "seed": seed, "feature_noise": feature_noise, "test_fraction": fraction,
                "client_test_fraction": client_test,
            }  # fmt: skip
            if (ids := owners_of(clients, data)) is not None:
                return replace(data, ids=ids), of_all
            return data, {**of_all, "clients": clients}

        return cls(_written(out, overwrite, described))

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[Pair] | Mapping[str, Pair],
        *,
        test: Pair | None = None,
        client_test: Iterable[Pair] | Mapping[str, Pair] | float | None = None,
        scale: str | None = None,
        shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
    ) -> FederatedDataset:
        """Data of clients as they are: a list, or the values of a dict, of (X [s_i, ...], y [s_i]) of each.

        `client_test` is the same of the rows with which each client tests, or the fraction of its rows for that.
        """

        def described() -> tuple[Samples, Table]:
            pairs = list(clients.values() if isinstance(clients, Mapping) else clients)
            if not pairs:
                raise UsageError("from_clients: an empty list; expected a pair (X, y) for each client")
            if wrong := no_pairs(pairs):
                raise UsageError(f"from_clients: client {wrong[0]}: no pair; expected (X, y) for each client")
            tested, fraction = held_apart(test, "from_clients")
            if fraction is not None:
                raise UsageError(f"from_clients: test = {fraction:g}: expected a pair (X, y) of test samples")
            own_tests, own_fraction = tests_of(clients, len(pairs), client_test)
            X, y, columns, counts = stacked(pairs, own_tests, names)
            data = dataset(X, y, tested, shape, columns)
            number, count = np.repeat(np.arange(len(counts)), counts), len(pairs)
            data = _by_owner(replace(data, own_tests=number >= count if own_tests else None), number % count)
            return data, {"scale": scale, "clients": count, "client_test_fraction": own_fraction}

        return cls(_written(out, overwrite, described))

    @classmethod
    def from_dataframe(
        cls,
        frame: Values,
        *,
        label: str | Sequence[str],
        by: str | None = None,
        clients: int | None = None,
        test: Values | float | None = None,
        task: str = "auto",
        ignore: Sequence[str] = (),
        categorical: str | None = None,
        missing: str = "error",
        given: str | Path | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
        **options: object,
    ) -> FederatedDataset:
        """Data of a frame of pandas or polars, a table of Arrow, or a `datasets.Dataset`; it needs pyarrow.

        Parameters
        ----------
        label
            The column of labels, integers or texts of classes; several of real targets.
        by
            The column that says whose each row is: clients in the order of its sorted values, the rows of each in an
            order of their content. It is no feature. `min_rows=N` leaves small clients out.
        clients
            Without `by`: how many, as in `from_arrays`, which takes `options` too; `client_test`, `feature_noise`,
            `scale`, `seed` and `shape` also go with `by`. Without `scale` features are standardized.
        task
            What labels are: "classification", "regression", or "auto": classes if they are integers or texts.
        ignore
            Columns that are left out.
        categorical
            What columns of texts become: "one-hot", or "ordinal", by the texts of the training rows; None: an error.
        missing
            What becomes of gaps: "error", "zero", "drop", or "mean" or "median" of the training rows.
        given
            A TOML file of what is known without the rows, as of `mpifed data csv --given`.
        test
            A frame with the same columns, or the fraction of the rows that is held out.
        """
        return cls(
            _written(
                out,
                overwrite,
                lambda: of_frame(frame, label, by, clients, test, task, ignore, categorical, missing, given, options),
            )
        )

    @classmethod
    def from_torch(
        cls,
        dataset: Values,
        *,
        clients: int | Sequence[object] | Array,
        test: Values | float | None = None,
        **options: Values,  # those of from_arrays
    ) -> FederatedDataset:
        """Data of a map-style dataset of PyTorch, whose items are pairs (sample, label).

        Parameters
        ----------
        dataset
            With `__len__` and `__getitem__`; samples are tensors, arrays, or PIL's images, channels first.
        clients
            How many, or whose each sample is, as in `from_arrays`.
        test
            Another one, or the fraction of the rows that is held out.
        options
            As of `from_arrays`: `partition` and others.
        """
        X, y = items(dataset, "from_torch")
        pair = items(test, "from_torch: test") if hasattr(test, "__getitem__") else test
        return cls.from_arrays(X, y, clients=clients, test=pair, **options)

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


def _by_owner(data: Samples, owner: Array) -> Samples:
    return replace(data, partition=by_owners(owner, int(np.prod(data.X.shape[1:]))))


def _written(out: str | Path | None, overwrite: bool, described: Callable[[], tuple[Samples, Table]]) -> Path | str:
    """The folder with the data, written by rank 0, or their name in memory; on every rank. Collective."""

    def options() -> Options:
        data, chosen = described()
        numbers = [name for name in ("clients", "seed", "min_samples", "min_rows") if name in chosen]
        whole_numbers: Table = {name: integer(chosen[name], name) for name in numbers}
        split = chosen.get("split", "rows")
        if split not in ("rows", "columns"):
            raise UsageError(f"split = {split!r}: expected 'rows' or 'columns'; for cells of both, `mpifed data`")
        place = None if out is None else Path(out)
        own = fraction_of(chosen.get("client_test_fraction"))
        chosen = {**chosen, **whole_numbers, "split": split, "client_test_fraction": own}
        return Options("arrays", _source(data), place, force=overwrite, **chosen)

    def made() -> Federation:
        return prepare(options())

    if out is None:
        _, data = begin_call(
            "FederatedDataset",
            made,
            lambda data: {"out": None, "clients": data.clients, "samples": data.samples, "data": data.sha256},
            together,
        )
        return in_memory(data)
    comm, chosen = begin_call(
        "FederatedDataset",
        options,
        lambda chosen: {**vars(chosen), "out": str(out), "source": None, "data": chosen.source.read(0)},
        together,
    )
    alike(comm, lambda: comm.rank == 0 and bool(prepare(chosen)))
    return Path(out)
