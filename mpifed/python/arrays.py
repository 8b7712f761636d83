"""`FederatedDataset`: data that are divided among clients, from arrays in memory or from a folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.data import store
from mpifed.data.natural import distinct_names, identifiers
from mpifed.data.prepare import Options, prepare
from mpifed.data.samples import Samples, Source, Values, array, stored_samples
from mpifed.data.source_files import of_clients
from mpifed.data.summary import summary
from mpifed.data.table import ColumnUses, as_table
from mpifed.files.reading import reading
from mpifed.python.ranks import alike, spoken, together
from mpifed.python.values import Pair, check_index, integer, is_frame
from mpifed.run.agreement import begin_call
from mpifed.text import listed, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName


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
        test: Pair | float | None = None,
        shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
        **options: Values,
    ) -> FederatedDataset:
        """Divide samples among clients.

        Parameters
        ----------
        X
            [s, ...] samples, of any shape, or a sparse array of SciPy [s, p]; frames are for `from_dataframe`.
        y
            [s] integers or texts of classes, [s] or [s, t] floats of real targets, or [s, L] labels of 0 and 1.
        clients
            How many, or whose each sample is [s], integers or texts: natural clients.
        test
            Test samples and labels, or the fraction of the rows that is held out.
        shape, names
            Of a sample, by default that of X; of the features.
        out
            A folder to write to; by default the data stay in memory.
        overwrite
            Replace the data in `out`.
        options
            Those of `mpifed data`: `split`, `partition` and `skew`; `client_test`, the fraction of each client's rows
            with which it tests, in place of training; `scale`, by default of bytes by 255; `seed`.
        """

        def read(options: Table) -> Samples:
            data = _completed(
                Samples(*_pair((X, y), "from_arrays"), shape=tuple(shape) if shape else None), test, names
            )
            if np.ndim(clients) == 0:
                options["clients"] = clients
                return data
            check_index("y and clients", y, clients)
            return replace(data, ids=identifiers(array(clients, "clients"), "clients"))

        return cls(_make_data(out, overwrite, read, {**options, "test": _fraction(test)}))

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
        **options: Values,
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
            The samples and labels with which each client tests, a list or a dict as `clients` are, or the fraction of
            its rows for that.
        options
            `scale` and `seed`, as in `from_arrays`.
        """
        fraction = _fraction(client_test)

        def read(options: Table) -> Samples:
            each = _by_client(clients)
            if label is not None:
                options |= {"label": label, "client_test": client_test}  # which is a fraction
                frames = {f"from_clients: client {name}": frame for name, frame in each.items()}
                return replace(_of_frames(frames, test, options, [*each]), shape=tuple(shape) if shape else None)
            own = {} if client_test is None or fraction is not None else _by_client(client_test)
            if own and (differing := sorted({*own} ^ {*each})):
                raise UsageError(
                    f"client_test: {len(own)} pairs for {len(each)} clients; {listed(differing, 5)} differ"
                )
            parts = [(name, what := f"client {name}", *_pair(pair, what)) for name, pair in each.items()]
            parts += [(name, what := f"client {name}: test", *_pair(pair, what)) for name, pair in own.items()]
            data = of_clients("from_clients", parts, each, shape=tuple(shape) if shape else None)
            own_tests = np.repeat(np.arange(len(parts)) >= len(each), [len(y) for *_, y in parts])
            return _completed(replace(data, own_tests=own_tests if own else None), test, names)

        return cls(_make_data(out, overwrite, read, {**options, "test": _fraction(test), "client_test": fraction}))

    @classmethod
    def from_dataframe(
        cls,
        frame: Values,
        *,
        label: str | Sequence[str],
        by: str | None = None,
        clients: int | None = None,
        test: Values | float | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
        **options: Values,
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
            Without `by`: how many, as in `from_arrays`.
        test
            A frame with the same columns, or the fraction of the rows that is held out.
        options
            Those of `mpifed data csv`: `ignore`, columns that are left out; `categorical="one-hot"`, which texts
            become; `missing`, what becomes of gaps: "error", "zero", "drop", "mean" or "median"; `task`; `given`, a
            file of what is known without the rows. And those of `from_arrays`; without `scale` features are
            standardized.
        """

        def read(options: Table) -> Samples:
            if (by is None) is (clients is None):
                raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
            return _of_frames({"from_dataframe: frame": frame}, test, options)

        chosen = {"label": label, "by": by, "clients": clients, "test": _fraction(test)}
        return cls(_make_data(out, overwrite, read, {**options, **chosen}))

    @classmethod
    def from_torch(
        cls, dataset: Values, *, clients: Values, test: Values | float | None = None, **options: Values
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
        tested = test if test is None or _fraction(test) is not None else _items(test, "from_torch: test")
        return cls.from_arrays(X, y, clients=clients, test=tested, **options)


def _fraction(value: Values) -> Values:
    """What is the fraction of the rows, of an argument that may be samples too; `Options` says whether it is one."""
    return value if isinstance(value, (Real, str)) else None


def _by_client(values: Values) -> dict[str, Values]:
    """By the clients' names, which those of a list have from their places."""
    each = values if isinstance(values, Mapping) else dict(enumerate(values))
    return dict(zip(distinct_names(each, "from_clients"), each.values(), strict=True))


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


def _completed(data: Samples, test: Values, names: Sequence[str] | None) -> Samples:
    """The data with test samples, if these are given, and names."""
    tested = None if test is None or _fraction(test) is not None else Samples(*_pair(test, "test"))
    return replace(data, test=tested, names=None if names is None else tuple(map(str, names)))


def _of_frames(frames: Mapping[str, Values], test: Values, options: Table, clients: Sequence[str] = ()) -> Samples:
    """The data of frames, each of one of the `clients`, if there are some; of `options` it takes what it knows."""
    if not frames:
        raise UsageError("from_clients: no clients; expected a frame of each")
    uses = ColumnUses(**{field.name: options.pop(field.name, field.default) for field in fields(ColumnUses)})
    tests = {} if test is None or _fraction(test) is not None else {"from_dataframe: test": test}
    train, tested = ({what: as_table(each, what) for what, each in part.items()} for part in (frames, tests))
    data = uses.samples(train, tested, clients)
    of_index = [name for each in frames.values() for name in getattr(getattr(each, "index", None), "names", ()) if name]
    if dropped := dict.fromkeys([*data.left_out, *of_index]):
        door = next(iter(frames)).partition(":")[0]
        said = f"{door}: {listed(dropped)} numbers rows, and is left out; .reset_index() makes columns of an index"
        warnings.warn(said, stacklevel=2)
    return data


def _items(pairs: Values, what: str) -> Pair:  # with __len__ and __getitem__, as PyTorch has them
    """(samples, labels) of a map-style dataset."""
    remedy = (
        "expected __len__, and __getitem__ that gives pairs of a sample and a label, all samples of one shape; "
        "from_arrays takes arrays of both"
    )
    with reading(f"{what}: {type(pairs).__name__}", remedy, TypeError, ValueError):
        items = [
            (_sample(x), y.tolist() if hasattr(y, "tolist") else y)
            for x, y in map(pairs.__getitem__, range(len(pairs)))
        ]
        samples, labels = zip(*items, strict=True)
        return np.stack(samples, casting="equiv"), list(labels)


def _sample(x: Values) -> Array:  # a tensor, an array, an image of PIL
    is_image = hasattr(x, "getbands")
    if is_image and x.mode in ("P", "PA"):
        raise TypeError("an image whose pixels are numbers of a palette; take image.convert('RGB')")
    values = array(x, "sample")
    return values.transpose(2, 0, 1) if is_image and values.ndim == 3 else values


def _make_data(out: str | Path | None, overwrite: bool, read: Callable[[Table], Samples], chosen: Table) -> Path | str:
    """The folder with the data, written by rank 0, or their name in memory; on every rank. Collective.

    `read` takes of what is `chosen` the options that it knows.
    """

    def options() -> Options:
        data = read(chosen)

        @dataclass(frozen=True)
        class InMemory(Source):
            names_clients = data.ids is not None

            def read(self, seed: int) -> Samples:
                return data

        known = [
            field.name.removesuffix("_fraction")
            for field in fields(Options)
            if field.default is not MISSING and field.name != "force"
        ]
        for name in chosen:
            if name not in known:
                others = dict.fromkeys([*known, *(field.name for field in fields(ColumnUses))])
                others.pop(name, None)
                near = nearest(name, others)
                raise UsageError(f"{name}: no argument here{near}; known are {', '.join(known)}")
        chosen.update({f"{name}_fraction": chosen.pop(name, None) for name in ("test", "client_test")})
        for name in ("clients", "seed"):
            if chosen.get(name) is not None:
                chosen[name] = integer(chosen[name], name)
        chosen.setdefault("split", "rows")
        return Options("arrays", InMemory(), None if out is None else Path(out), force=overwrite, **chosen)

    comm, made_of = begin_call(
        "FederatedDataset",
        options,
        lambda options: {
            **vars(options),
            "out": str(out),
            "source": None,
            "data": stored_samples("arrays", options.source.read(0)),
        },
        together,
    )
    made = alike(comm, lambda: [prepare(made_of)] if out is None or comm.rank == 0 else [])
    return store.in_memory(*made) if out is None else Path(out)
