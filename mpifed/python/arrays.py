"""`FederatedDataset`: data that are divided among clients, from arrays in memory or from a folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.data import store
from mpifed.data.natural import distinct_names, identifiers
from mpifed.data.prepare import Options, prepare
from mpifed.data.samples import Samples, Source, Values, array, stored_samples
from mpifed.data.source_files import joined, listed, stored_parts
from mpifed.data.summary import summary
from mpifed.data.table import ColumnUses, as_table
from mpifed.python.ranks import alike, spoken, together
from mpifed.python.values import Pair, check_index, integer, is_frame
from mpifed.run.agreement import begin_call

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName


def _source(data: Samples) -> Source:
    """A source of data in memory, which has no options."""

    @dataclass(frozen=True)
    class InMemory(Source):
        @property
        def names_clients(self) -> bool:
            return data.ids is not None

        def read(self, seed: int) -> Samples:
            return data

    return InMemory()


class FederatedDataset:
    """Data divided among clients, in memory or in a folder, as `mpifed data` writes them.

    Made by the functions below; under MPI every rank calls them. With `out` rank 0 writes a folder; without, each rank
    keeps the data until the process ends. `print(data)` says what they are.

    Attributes
    ----------
    path : the folder; of data in memory the name by which jobs refer to them, such as memory:1
    clients, samples, features : how many
    classes : the labels of the classes, in the order of the model's outputs, or the names of several labels of each
        sample; () for real targets
    shape : of a sample, such as (channels, height, width); None for vectors
    """

    @spoken()
    def __init__(self, path: str | Path) -> None:
        self._folder = store.open_federation(path)
        self.path: Path | str = str(path) if self._folder.path is None else Path(path)
        self.clients, self.samples = self._folder.clients, self._folder.samples
        self.features, self.shape = self._folder.features, self._folder.shape
        self.classes: tuple[str, ...] = tuple(self._folder.provenance.get("classes", ()))

    def __repr__(self) -> str:
        kinds = {"classification": "classes", "multilabel": "labels of each sample"}
        kind = f"{len(self.classes)} {kinds.get(self._folder.task)}" if self.classes else "real targets"
        return f"FederatedDataset({self.samples} samples, {self.features} features, {self.clients} clients, {kind})"

    def __str__(self) -> str:
        return summary(self._folder)

    def names(self) -> tuple[str, ...] | None:
        """The names [features] of the columns, in the order of the model's inputs; None where they have none."""
        return self._folder.names()

    @spoken()
    def plot(self, size: SizeName = "screen") -> Figure:
        """How the data are divided: rows of each client, by class or with the range of targets.

        Where clients have other columns, how many of these. `size`: "screen", "column" (3.4 inches wide,
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
        clients: Values,
        partition: str = "iid",
        skew: str | float | None = None,
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
            [s, ...] samples, of any shape, or a sparse array of SciPy [s, p]; frames are for `from_dataframe`.
        y
            [s] integers or texts of classes, or real targets; [s, t] several labels of each sample, integers or
            booleans that are 0 or 1, or real targets.
        clients
            How many; with `split="columns"` each gets columns. Or [s] integers or texts that say whose each sample is:
            clients in the order of these sorted identifiers, the samples of each in an order of their content.
        partition
            How labels spread over clients: "iid", "dirichlet:A", "classes:K", and others of `mpifed data --help`.
        skew
            Of the clients' sizes: the parameter of a Dirichlet distribution, or "power:A"; None: equal.
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

        def data_and_options() -> tuple[Samples, Table]:
            tested, fraction = _samples_or_fraction(test)
            of_test = None if tested is None else Samples(*_pair(tested, "test"))
            data = Samples(
                *_pair((X, y), "from_arrays"), of_test, names=None if names is None else tuple(map(str, names)),
                shape=None if shape is None else tuple(shape),
            )  # fmt: skip
            options: Table = {
                "split": split, "partition": partition, "skew": skew, "scale": scale, "seed": seed,
                "test_fraction": fraction, "client_test": client_test,
            }  # fmt: skip
            if np.ndim(clients) == 0:
                return data, {**options, "clients": clients}
            check_index("y and clients", y, clients)
            return replace(data, ids=identifiers(array(clients, "clients"), "clients")), options

        return cls(_make_data(out, overwrite, data_and_options))

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[Values] | Mapping[str, Values],
        *,
        label: str | Sequence[str] | None = None,
        test: Values | float | None = None,
        client_test: Iterable[Pair] | Mapping[str, Pair] | float | None = None,
        shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
        **options: object,
    ) -> FederatedDataset:
        """Data of clients as they are: (X [s_i, ...], y [s_i]) of each, or a frame of each.

        Parameters
        ----------
        clients
            A list, or a dict by the clients' names, which results and plots have: in the order of these, and the
            rows of each in an order of their content. Who has no samples is left out.
        label
            Of frames: the column of labels, or several; `options` are then those of `from_dataframe`.
        test
            Common test samples and labels, or the fraction of the rows that is held out.
        client_test
            The samples and labels with which each client tests, or the fraction of its rows for that.
        options
            `scale` and `seed`, as in `from_arrays` and `from_dataframe`.
        """
        each: dict[str, Values] = _by_client(clients)
        if label is not None:
            options |= {"client_test": client_test, "out": out, "overwrite": overwrite, "shape": shape}
            return cls.from_dataframe(_Frames(each), label=label, test=test, **options)  # type: ignore[arg-type]

        def data_and_options() -> tuple[Samples, Table]:
            tested, fraction = _samples_or_fraction(test)
            own, own_fraction = _samples_or_fraction(client_test)
            tests = {} if own is None else _by_client(own, None if isinstance(own, Mapping) else each)
            if own is not None and (differing := sorted({*tests} ^ {*each})):
                raise UsageError(
                    f"from_clients: client_test: {len(tests)} pairs for {len(each)} clients; {listed(differing, 5)} "
                    "differ: give each client's, or a fraction such as 0.2"
                )
            rows = [(name, "", *_pair(value, f"client {name}")) for name, value in each.items()]
            rows += [(name, ": test", *_pair(value, f"client {name}: test")) for name, value in tests.items()]
            rows = [row for row in rows if len(row[3])]
            trained = {name for name, kind, *_ in rows if not kind}
            if not trained.issuperset(name for name, *_ in rows) or not trained:
                raise UsageError(
                    "from_clients: no samples to train on, of all clients, or of one with samples to test with; "
                    "expected a pair (X, y) of each"
                )
            given = [(f"client {name}{kind}", X, y) for name, kind, X, y in rows]
            if tested is not None:
                given.append(("test", *_pair(tested, "test")))
            parts = stored_parts(given, shape)
            common = None if tested is None else parts.pop()
            data = joined(parts, [name for name, *_ in rows], each)
            own_tests = np.repeat([kind != "" for _, kind, *_ in rows], [len(part.y) for part in parts])
            data = replace(
                data, test=common, own_tests=own_tests if tests else None,
                names=None if names is None else tuple(map(str, names)),
            )  # fmt: skip
            return data, {**options, "test_fraction": fraction, "client_test": own_fraction}

        return cls(_make_data(out, overwrite, data_and_options))

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
            order of their content. It is no feature.
        clients
            Without `by`: how many, as in `from_arrays`, which takes `options` too; `client_test`, `scale`,
            `seed` and `shape` also go with `by`. Without `scale` features are standardized.
        task
            What labels are: "classification", "regression", or "auto": classes if they are integers or texts.
        ignore
            Columns that are left out.
        categorical
            What columns of texts become: "one-hot", by the texts of the training rows; None: an error.
        missing
            What becomes of gaps: "error", "zero", "drop", or "mean" or "median" of the training rows.
        given
            A TOML file of what is known without the rows, as of `mpifed data csv --given`.
        test
            A frame with the same columns, or the fraction of the rows that is held out.
        """

        def data_and_options() -> tuple[Samples, Table]:
            several = isinstance(frame, _Frames)
            if several + (by is not None) + (clients is not None) != 1:
                raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
            tested, fraction = _samples_or_fraction(test)
            frames = {f"from_clients: client {name}": part for name, part in frame.items()} if several else {
                "from_dataframe: frame": frame
            }  # fmt: skip
            tests = {} if tested is None else {"from_dataframe: test": tested}
            if not frames:
                raise UsageError("from_clients: no clients; expected a frame of each")
            columns: Table = {"label": _listed(label), "by": _listed(by), "task": task, "missing": missing}
            columns |= {"ignore": ignore if isinstance(ignore, str) else _listed(ignore), "categorical": categorical}
            uses = ColumnUses(**columns, given=None if given is None else Path(given))
            train, test_rows = ({what: as_table(each, what) for what, each in part.items()} for part in (frames, tests))
            data = uses.samples(train, test_rows, list(frame) if several else ())
            for what, each in {**frames, **tests}.items():
                if index := [name for name in getattr(getattr(each, "index", None), "names", ()) if name is not None]:
                    said = f"{what}: the index {listed(index)} is left out; .reset_index() makes columns"
                    warnings.warn(said, stacklevel=2)
            if data.left_out:
                said = f"from_dataframe: column {listed(data.left_out)} numbers rows, and is left out"
                warnings.warn(said, stacklevel=2)
            shape: Values = options.pop("shape", None)
            data = replace(data, shape=None if shape is None else tuple(shape))
            return data, {**options, "clients": clients, "test_fraction": fraction}

        return cls(_make_data(out, overwrite, data_and_options))

    @classmethod
    def from_torch(
        cls,
        dataset: Values,
        *,
        clients: Values,
        test: Values | float | None = None,
        **options: Values,  # those of from_arrays
    ) -> FederatedDataset:
        """Data of a map-style dataset of PyTorch, whose items are pairs (sample, label).

        Parameters
        ----------
        dataset
            With `__len__` and `__getitem__`; samples are tensors, arrays, or PIL's images, channels first. Each item is
            read once: what a random transform draws stays.
        clients
            How many, or whose each sample is, as in `from_arrays`.
        test
            Another one, or the fraction of the rows that is held out.
        options
            As of `from_arrays`: `partition` and others.
        """
        X, y = _items(dataset, "from_torch")
        tested = _items(test, "from_torch: test") if hasattr(test, "__getitem__") else test
        return cls.from_arrays(X, y, clients=clients, test=tested, **options)


class _Frames(dict[str, Values]):
    """Frames of clients, by their names."""


def _by_client(values: Values, names: Collection[str] | None = None) -> dict[str, Values]:
    """By the clients' names, which those of a list have from their places, or from as many others."""
    if isinstance(values, Mapping):
        return dict(zip(distinct_names(values, "from_clients"), values.values(), strict=True))
    each = list(values)
    if names is None or len(names) != len(each):
        names = list(map(str, range(len(each))))
    return dict(zip(names, each, strict=True))


def _samples_or_fraction(value: Values) -> tuple[Values, Values]:
    """(what is given, fraction of the rows) of an argument that is either; `Options` says whether it is a fraction."""
    return (None, value) if isinstance(value, (Real, str)) else (value, None)


def _pair(value: Values, what: str) -> Pair:
    """Samples and labels, by position; UsageError for frames, whose columns have names."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise UsageError(f"{what}: a {type(value).__name__}, no pair; expected (X, y), samples and labels")
    for part in value:
        if is_frame(part):
            raise UsageError(
                f"{what}: a {type(part).__name__}, whose columns have names; FederatedDataset.from_dataframe and "
                "from_clients(..., label=NAME) take frames with their labels; or give arrays, as of .to_numpy()"
            )
    return value[0], value[1]


def _listed(names: Values) -> list[Values] | None:
    """Names of columns, of one or several."""
    return names if names is None else [names] if isinstance(names, (str, Integral)) else list(names)


def _items(pairs: Values, what: str) -> Pair:  # with __len__ and __getitem__, as PyTorch has them
    """(samples, labels) of a map-style dataset."""
    try:
        samples, labels = [], []
        for item in (pairs[number] for number in range(len(pairs))):
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                keys = f" with the keys {', '.join(map(str, item))[:80]}" if isinstance(item, dict) else ""
                raise TypeError(f"an item is a {type(item).__name__}{keys}")
            samples.append(_sample(item[0]))
            labels.append(array(item[1], "label"))
        if len({sample.dtype == np.uint8 for sample in samples}) > 1:
            raise TypeError("some samples are bytes, others are not")
        if len({label.dtype.kind == "U" for label in labels}) > 1:
            raise TypeError("some labels are texts, others are not")
        return np.stack(samples), np.stack(labels)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{what}: {type(pairs).__name__}: {error}; expected __len__, and __getitem__ that gives pairs of a sample "
            "and a label, all samples of one shape; from_arrays takes arrays of both"
        ) from error


def _sample(x: Values) -> Array:  # a tensor, an array, an image of PIL
    is_image = hasattr(x, "getbands")
    if is_image and x.mode in ("P", "PA"):
        raise TypeError("an image whose pixels are numbers of a palette; take image.convert('RGB')")
    values = array(x, "sample")
    return values.transpose(2, 0, 1) if is_image and values.ndim == 3 else values


def _make_data(
    out: str | Path | None, overwrite: bool, data_and_options: Callable[[], tuple[Samples, Table]]
) -> Path | str:
    """The folder with the data, written by rank 0, or their name in memory; on every rank. Collective."""

    def options() -> Options:
        data, chosen = data_and_options()
        known = [field.name for field in fields(Options) if field.default is not MISSING and field.name != "force"]
        chosen["client_test_fraction"] = chosen.pop("client_test", None)
        for name in chosen:
            if name not in known:
                raise UsageError(f"{name}: no argument here{nearest(name, known)}; known are {', '.join(known)}")
        for name in ("clients", "seed"):
            if chosen.get(name) is not None:
                chosen[name] = integer(chosen[name], name)
        chosen.setdefault("split", "rows")
        return Options("arrays", _source(data), None if out is None else Path(out), force=overwrite, **chosen)

    comm, chosen = begin_call(
        "FederatedDataset",
        options,
        lambda chosen: {
            **vars(chosen),
            "out": str(out),
            "source": None,
            "data": stored_samples("arrays", chosen.source.read(0)),
        },
        together,
    )
    made = alike(comm, lambda: [prepare(chosen)] if out is None or comm.rank == 0 else [])
    return store.in_memory(*made) if out is None else Path(out)
