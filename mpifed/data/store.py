"""A federation: what its clients hold, as arrays in their order, in memory or in a folder of two files.

`federation.h5` has the arrays, each in one piece, which any reader of HDF5 shows; mpifed itself reads them at their
offsets, without HDF5, so that a received file is not parsed. With R groups of rows, C groups of columns and N clients:

- `holds` [N, 2]: each client's group of rows and of columns; `rows/members`, `columns/members`: the indices of all
  groups, one group after the other, with their `bounds` [R + 1], [C + 1]
- `y` [bounds[R], ...]: the labels of the groups of rows; `X` [bounds[R], p]: their values, where each client holds all
  columns, else [...] the rows and columns of one client after the other; or sparse, as `data`, `indices`, `indptr`
- `client_tests/...`: the same of the rows with which the clients test; `test/...`: of common test rows
- `scaling/scale`, `scaling/shift` [1] or [p]: the values are raw, and scaled when they are read
- `clients/ids` [N], `clients/of` [N]: identifiers of natural clients, and their numbers
- `digests` [N, 32]: the SHA-256 of each client's values and labels

`federation.json` says what there is once: where each array lies, its SHA-256, where the data are from. It is
written last and removed first, so that two files are one: what was not written to its end is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Le, Len, MultipleOf

from mpifed.core.errors import DataError
from mpifed.core.holdings import narrow, span
from mpifed.core.io_errors import open_regular
from mpifed.core.record import Array, Flags, Integers
from mpifed.core.tables import Table
from mpifed.data.block import Piece, of_vectors, vectors
from mpifed.data.recipe import Encoding, Recipe
from mpifed.data.scaling import Scaling
from mpifed.files.expected import Checked, Count, Digest, Pattern, Positive, Text
from mpifed.files.json_file import read_json, write_json
from mpifed.files.reading import reading
from mpifed.files.write import replaced, sync
from mpifed.text import command_line, leads_to

if TYPE_CHECKING:
    from mpifed.data.partition import Partition

ARRAYS, ABOUT = "federation.h5", "federation.json"
REMEDY = "make the data again with `mpifed data ... --force`"
TESTS = "client_tests/"
MEMORY = "memory:"  # begins the path of data in memory
PART = 1 << 22  # bytes that are read at once
_IN_MEMORY: dict[str, Federation] = {}
_ALIGNED = 64  # bytes: what an array begins at a multiple of
_OF_CLIENTS = {"X", "y", "data", "indices", "indptr"}  # arrays whose parts have a digest for each client


@dataclass(kw_only=True)
class Extent:
    """Where an array lies in `federation.h5`, and its digest where it is no client's."""

    offset: Annotated[Count, MultipleOf(_ALIGNED)] = 0
    shape: Annotated[list[Count], Len(1, 2)]
    dtype: Annotated[str, Pattern(r"^(\|u1|<[iu][248]|<f[48]|\|S[1-9][0-9]{0,5})$")]
    sha256: Digest | None = None

    def view(self, whole: mmap.mmap) -> Array:
        """The array in the bytes of the file; ValueError, or OverflowError, where it lies outside."""
        return np.frombuffer(whole, self.dtype, math.prod(self.shape), self.offset).reshape(self.shape)


@dataclass
class ScalingJson:
    """A scaling in a file: numbers of all columns, or one for each."""

    scale: Annotated[list[float], Len(1)]
    shift: Annotated[list[float], Len(1)]

    @classmethod
    def of(cls, scaling: Scaling) -> ScalingJson:
        """A scaling to be written."""
        return cls(*(np.atleast_1d(factor).tolist() for factor in scaling))

    def scaling(self) -> Scaling:
        """The scaling that was written."""
        return Scaling(np.squeeze(self.scale), np.squeeze(self.shift))


Step: TypeAlias = ScalingJson | Literal["unit-rows"]  # of what is done to raw rows, one after the other


@dataclass
class Inputs:
    """What became of raw rows before they were stored."""

    are_bytes: bool
    before: list[Step]


@dataclass
class ProvenanceJson:
    """What is read of `provenance`."""

    classes: list[str] = field(default_factory=list)
    options: Table = field(default_factory=dict)
    named: bool = False  # whether classes were texts
    labels: list[str] = field(default_factory=list)  # names of the columns of labels, where these have some
    inputs: Inputs = field(default_factory=lambda: Inputs(False, []))
    fitted: list[str] = field(default_factory=list)  # what was computed from rows


def _conforming(table: Table) -> Table:
    from mpifed.files.schemas import conforming  # with pydantic, which rank 0 alone needs

    conforming(ProvenanceJson, table)
    return table


@dataclass(kw_only=True)
class About:
    """The content of `federation.json`."""

    schema_version: Literal[3] = 3
    split: Literal["rows", "columns", "grid"]
    clients: Positive
    samples: Positive  # distinct training rows
    features: Positive
    test_samples: Count
    classes: Annotated[int, Ge(0), Le(2**24)]  # 0 for real targets; 2 of each of several labels of a row
    sparse: bool
    seed: int  # of the data, not of a run
    targets: Annotated[int, Ge(1), Le(2**16)] = 1  # of a row: several real ones, or labels that are 0 or 1
    target_scale: Annotated[float, Ge(1)] = 1.0  # power of two near the size of real targets; 1 for classes
    shape: list[Count] | None = None  # of a sample, such as [channels, height, width]; None: vectors
    names: list[str] | None = None  # [p] of the features
    recipe: list[Encoding] | None = None  # how they are made of the columns of a table, where they are
    provenance: Annotated[Table, Checked(_conforming)]
    arrays: dict[Text, Extent]
    data_sha256: Digest  # of all this but provenance and places: it identifies the data


Interval: TypeAlias = "tuple[Any, Any]"  # where entries begin and end: numbers, or [n] of several clients
Places: TypeAlias = "dict[str, tuple[Array, Any, Any]]"  # an array, and where entries begin and end in it, by name


class Federation:
    """Data that are divided among clients; the same on every rank.

    Attributes
    ----------
    path : the folder; None: in memory
    about : what there is once
    holds : [N, 2] group of rows and group of columns of each client
    bounds : of the groups of "rows" and "columns" within `members`
    counts, widths : [N] rows and columns of each client
    test_counts : [N] rows with which each client tests; zeros where a federation has no such rows
    scaling : of all columns
    """

    def __init__(self, about: About, whole: mmap.mmap, path: Path | None = None) -> None:
        """Of the bytes of its arrays, of the folder `path`; DataError where they cannot be what `about` says."""
        self.about, self.path, self._whole = about, path, whole
        self.split, self.clients, self.samples = about.split, about.clients, about.samples
        self.features, self.targets, self.sparse = about.features, about.targets, about.sparse
        self.classes = about.classes if about.targets == 1 else 0
        self.task = "classification" if self.classes else "multilabel" if about.classes else "regression"
        self.test_samples, self.target_scale = about.test_samples, about.target_scale
        self.shape = None if about.shape is None else tuple(about.shape)
        self.provenance, self.sha256 = about.provenance, about.data_sha256
        self.fitted: list[str] = about.provenance.get("fitted", ["what nobody noted"])
        # each client holds all columns, so that X has whole rows, in the order of the groups of rows
        self.whole = about.split == "rows"
        self._arrays, self._members = dict[str, Array](), dict[str, Integers]()
        for name, extent in about.arrays.items():
            with self.guard(name):
                self._arrays[name] = extent.view(whole)
        with self.guard("arrays"):
            self.holds = self._integers("holds", self.clients, 2)
            self.bounds = {axis: self._integers(f"{axis}/bounds", -1) for axis in ("rows", "columns")}
            rows, tests = self.bounds["rows"], np.broadcast_to(np.int32(0), self.bounds["rows"].shape)
            if f"{TESTS}bounds" in self._arrays:
                tests = self._integers(f"{TESTS}bounds", len(rows))
            self.counts, self.test_counts = self._sizes(rows, 0), self._sizes(tests, 0)
            self.widths = self._sizes(self.bounds["columns"], 1)
            # where labels of each group begin, and rows of indptr, and X, of each client; of whole rows, of each group
            self._starts = {"": [rows] * 3, TESTS: [tests] * 3, "test/": [np.array([0, self.test_samples])] * 3}
            if not self.whole:
                sizes = self.counts, self.counts * self.widths
                self._starts[""][1:] = (np.concatenate([[0], np.cumsum(each)]) for each in sizes)
            self._sets = {
                prefix: self._set(prefix, *starts) for prefix, starts in self._starts.items() if starts[0][-1]
            }
            factors = [self.array(f"scaling/{name}", -1) for name in Scaling._fields]
            self.scaling = Scaling(*map(np.squeeze, factors))
            self._check()
        self._forget()

    def _check(self) -> None:
        """ValueError where what there is once contradicts what is stored."""
        about, features = self.about, self.features
        alike = {"rows": [1], "columns": [0]}.get(self.split, [])  # what all clients hold: all columns, or all rows
        numbers = [len(bounds) - 1 for bounds in self.bounds.values()]
        wrong = {
            "holds": ((self.holds < 0) | (self.holds >= numbers)).any(),
            "bounds": any(
                starts[0][0] or np.diff(starts[0]).min() < (not prefix) for prefix, starts in self._starts.items()
            )
            or np.diff(self.bounds["columns"]).min() < 1,
            "samples": self.bounds["rows"][-1] < self.samples,
            "features": self.bounds["columns"][-1] < features,
            "split": self.holds[:, alike].any() or (self.test_counts.any() and not self.whole),
            "classes": self.targets > 1 and about.classes not in (0, 2),
            "scaling": any(
                len(np.atleast_1d(part)) not in (1, features) or not _is_finite(part) for part in self.scaling
            ),
            "provenance.classes": len(self.provenance.get("classes", ())) not in (0, self.classes or self.targets),
            **contradictions(features, about.shape, about.names, about.recipe),
        }
        for key in (key for key, contradicts in wrong.items() if contradicts):
            raise ValueError(f"{key} in {ABOUT}, or stored, contradicts the rest")

    def guard(self, what: str) -> AbstractContextManager[None]:
        """Turns what NumPy and SciPy say of an array that a stranger may have written into a DataError."""
        where = "the data" if self.path is None else self.path / ARRAYS
        return reading(f"{where}: {what}", REMEDY, LookupError, TypeError, ValueError, OverflowError)

    def _forget(self) -> None:
        """Give back the pages of the file that were read, which count as memory of this process."""
        if self.path is not None:
            self._whole.madvise(mmap.MADV_DONTNEED)

    def array(self, name: str, *shape: int) -> Array:
        """A whole array, of this shape if one is given; DataError for another size, or one that is not its digest's."""
        with self.guard(name):
            values = self._arrays[name].reshape(shape or self._arrays[name].shape)
            if (expected := self.about.arrays[name].sha256) and expected != _digest([values]).hex():
                raise ValueError("was changed or damaged")
        return values

    def _integers(self, name: str, *shape: int) -> Integers:
        """A copy, of half the bytes: each round reads here and there in it, which maps all of a file in the end."""
        return narrow(self.array(name, *shape).astype(np.int64))

    def _sizes(self, bounds: Integers, column: int) -> Integers:
        """[N] the sizes of the clients' groups; a view of one number where they are alike."""
        sizes, groups = np.diff(bounds).astype(np.int64), self.holds[:, column]
        return sizes[groups] if (sizes != sizes[0]).any() else np.broadcast_to(sizes[0], groups.shape)

    def _set(self, prefix: str, labels: Integers, rows: Integers, values: Integers) -> dict[str, Array]:
        """What is stored of rows that end with these: labels y, and values X [s, p], or in a line, or CSR."""
        shapes = {"y": (labels[-1], self.targets)[: 1 + (self.targets > 1)]}
        if self.sparse:
            shapes |= {"data": (-1,), "indices": (-1,), "indptr": (rows[-1] + 1,)}
        else:
            shapes["X"] = (values[-1], self.features)[: 1 + (self.whole or bool(prefix))]
        return {name: self._arrays[prefix + name].reshape(shape) for name, shape in shapes.items()}

    # --- what the clients hold ---------------------------------------------------------------------------------------

    def members(self, axis: str) -> Integers:
        """The members of all groups of "rows" or "columns", one group after the other; `bounds` separates them."""
        if axis not in self._members:
            members = self.array(f"{axis}/members", int(self.bounds[axis][-1])).astype(np.int64)
            number = self.samples if axis == "rows" else self.features
            with self.guard(f"{axis}/members"):
                if members.min() < 0 or members.max() >= number:
                    raise ValueError(f"expected numbers from 0 to {number - 1}")
            self._members[axis] = members
        return self._members[axis]

    def held(self, client: int) -> tuple[Integers, Integers]:
        """(rows [s], columns [p]) that a client holds, as indices among all."""
        rows, columns = self.holds[client].tolist()
        return self.group("rows", rows), self.group("columns", columns)

    def group(self, axis: str, group: int) -> Integers:
        """The members of a group of "rows" or "columns"."""
        return self.members(axis)[slice(*self.bounds[axis][group : group + 2].tolist())]

    def names(self) -> tuple[str, ...] | None:
        """[p] names of the features; None where the source has none."""
        return None if self.about.names is None else tuple(self.about.names)

    def client_names(self) -> tuple[str, ...]:
        """[N] what natural clients are called; () where clients have numbers alone."""
        if "clients/ids" not in self._arrays:
            return ()
        with self.guard("clients/ids"):
            return tuple(np.char.decode(self.array("clients/ids", self.clients), "utf-8", "replace").tolist())

    def places(self, clients: int | Integers, prefix: str = "") -> Places:
        """Where labels and values of clients lie; of `TESTS`, where there are any."""
        if prefix not in self._sets:
            return {}
        groups = self.holds[clients, 0]
        units = groups, *[groups if self.whole else clients] * 2
        starts = zip(self._starts[prefix], units, strict=True)
        return self.between(prefix, *((each[unit], each[unit + 1]) for each, unit in starts))

    def between(self, prefix: str, labels: Interval, rows: Interval, values: Interval) -> Places:
        """Where these labels lie, rows of indptr with their values, and rows of X, or values in a line."""
        stored, at = self._sets[prefix], {"y": labels, "X": values}
        if self.sparse:
            start, stop = rows
            at["indptr"] = start, stop + 1
            at["data"] = at["indices"] = stored["indptr"][start], stored["indptr"][stop]
        return {name: (array, *at[name]) for name, array in stored.items()}

    def nbytes(self, prefix: str = "", clients: range | None = None) -> Integers:
        """[n] bytes of each client's labels and values, as stored; of neighbours, or of all."""
        who = np.arange(self.clients) if clients is None else np.arange(clients.start, clients.stop)
        places = self.places(who, prefix).values()
        return sum(((stops - starts) * array[:1].nbytes for array, starts, stops in places), 0 * who)

    def labels(self, prefix: str = "", start: int = 0, stop: int | None = None) -> Array:
        """Stored labels as int64 classes or float64 targets [s]; DataError if they are invalid."""
        y, classes = self._sets[prefix]["y"][start:stop], self.about.classes
        with self.guard(f"{prefix}y"):
            whole = y.dtype.kind in "iu" and y.min(initial=0) >= 0 and y.max(initial=0) < classes
            if not (_is_finite(y) and (whole or not classes)):
                raise ValueError(f"labels are not finite, or not 0 to {classes - 1}")
        y = y.astype(np.int64 if self.classes else np.float64)
        return y if self.targets == 1 else vectors(y)

    def read(self, prefix: str, places: Places, load: bool = True) -> dict[str, Array]:
        """Labels as `labels` gives them, and stored values, all finite, from one place of each array to another.

        With `load`, values of a folder are in memory; else they are mapped, and read once for the checks.
        """
        self._forget()
        found = {}
        for name, (array, start, stop) in places.items():
            if name == "y":
                found[name] = self.labels(prefix, start, stop)
                continue
            values = array[start:stop]
            if load and self.path is not None:
                values, parts = np.empty_like(values), 1 + values.nbytes // PART
                for out, part in zip(
                    *(np.array_split(each, parts) for each in (values, array[start:stop])), strict=True
                ):
                    out[...] = part
                    self._forget()  # few pages of the file stay in memory
            with self.guard(f"{prefix}{name}"):
                if not _is_finite(values) or (name in ("X", "data") and values.dtype.kind not in "uf"):
                    raise ValueError(f"a number is not finite, or {values.dtype} is no type of samples")
            found[name] = values
        return found

    # --- digests -----------------------------------------------------------------------------------------------------

    def verify(self, clients: Sequence[int]) -> None:
        """Compare the values and labels of clients with their digests; DataError where they differ."""
        who, expected = np.fromiter(clients, int), self.array("digests", self.clients, 32)
        found = np.frombuffer(b"".join(self.digests(who)), np.uint8).reshape(-1, 32)
        self._forget()
        for client in who[(found != expected[who]).any(axis=1)].tolist():
            with self.guard(f"client {client}"):
                raise ValueError("was changed or damaged")

    def verify_common(self) -> None:
        """Compare all arrays but the clients' values with their digests."""
        for name in self._arrays:
            self.array(name)

    def digests(self, clients: Integers) -> Iterator[bytes]:
        """SHA-256 of what is stored of each of the clients [n]."""
        held = [part for prefix in ("", TESTS) for part in self.places(clients, prefix).values()]
        return (_digest(array[starts[n] : stops[n]] for array, starts, stops in held) for n in range(len(clients)))


def contradictions(
    features: int, shape: Sequence[int] | None, names: Sequence[str] | None, recipe: Sequence[Encoding] | None
) -> dict[str, bool]:
    """Which of these do not fit so many features."""
    return {
        "shape": math.prod([features] if shape is None else shape) != features,
        "names": names is not None and len(names) != features,
        "recipe": recipe is not None and not Recipe(tuple(recipe)).fits(names),
    }


def _digest(arrays: Iterable[Array]) -> bytes:
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(values.data)
    return digest.digest()


def _is_finite(values: Array) -> bool:
    """Whether all numbers are finite; without an array of their size."""
    return bool(np.isfinite([values.min(initial=0), values.max(initial=0)]).all())


def in_memory(federation: Federation) -> str:
    """What a job has as its data.path for data in memory, which stay there until the process ends.

    It says nothing of the data, as a digest would, since jobs of private runs are published. All ranks make the same
    data in the same order.
    """
    name = f"{MEMORY}{len(_IN_MEMORY) + 1}"
    _IN_MEMORY[name] = federation
    return name


def open_federation(path: Path | str, verify: bool = False) -> Federation:
    """A data folder, of which small parts are read; with `verify` all of it is compared with its digests.

    Raises
    ------
    DataError : when it is missing, damaged, half-written, or of another version.
    """
    if str(path).startswith(MEMORY):
        if str(path) not in _IN_MEMORY:
            raise DataError(f"{path}: data in the memory of another process; write them to a folder, by `out`")
        return _IN_MEMORY[str(path)]
    about = (path := Path(path)) / ABOUT
    if not about.is_file():
        alone = (path / ARRAYS).exists()
        half = f", and {ARRAYS} alone is of mpifed 0.1, or not written to its end" * alone
        raise DataError(
            f"{about}: no such file{leads_to(about)}{half}; make the data with `mpifed data ... {'--force ' * alone}"
            f"{command_line('--out', path)}`"
        )
    from mpifed.files.schemas import checked  # with pydantic, which rank 0 alone needs

    content = checked(about, About, read_json(about), REMEDY)
    if _identity(content) != content.data_sha256:
        raise DataError(f"{about}: its data_sha256 is not that of its content; {REMEDY}")
    federation = of_folder(content, path)
    if verify:
        federation.verify_common()
        federation.verify(range(federation.clients))
    return federation


def of_folder(about: About, folder: Path) -> Federation:
    """The federation of a folder, read when it is used; DataError unless its arrays lie within the file."""
    with reading(folder / ARRAYS, REMEDY, OSError, ValueError), open_regular(folder / ARRAYS) as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Federation(about, whole, folder)


def make_federation(
    partition: Partition,
    y: Array,
    X: Piece,
    scaling: Scaling,
    folder: Path | None = None,
    test: tuple[Piece, Array] | None = None,
    ids: Sequence[str] = (),
    client_tests: Flags | None = None,
    **facts: Any,  # those of `About`
) -> Federation:
    """Divide data among clients.

    Parameters
    ----------
    partition : of rows and columns
    y : [s] classes or targets
    X : the raw rows [s, p], CSR or as they are stored; dense ones are read a few at a time
    scaling : of the columns, applied when rows are read
    folder : where the data are written, in place of earlier ones; None: they stay in memory
    test : raw rows [s, p], dense or CSR, and labels [s] that are no client's
    ids : identifiers [N] of natural clients
    client_tests : [s] True for rows with which the client that holds them tests: they do not count as samples; the data
        are split by rows, and each client has a row to train on
    """
    from mpifed.data.partition import training_rows  # who only reads data does without

    trained = np.ones(len(y), np.bool_) if client_tests is None else ~client_tests
    sparse, whole = not isinstance(X, np.ndarray), partition.split == "rows"
    training = training_rows(partition, trained)
    contents: dict[str, Array] = {"holds": training.holds, "digests": np.zeros((partition.clients, 32), np.uint8)}
    contents["scaling/scale"], contents["scaling/shift"] = map(np.atleast_1d, scaling)
    if ids:
        contents["clients/ids"] = np.array([text.encode() for text in ids])
        contents["clients/of"] = narrow(np.arange(len(ids)))
    for axis, groups in (("rows", training.rows), ("columns", training.columns)):
        contents[f"{axis}/bounds"] = np.cumsum([0, *map(len, groups)])
        contents[f"{axis}/members"] = narrow(np.concatenate(groups))
    # rows and labels, and the rectangles of them that are stored, one after the other
    sets = dict[str, tuple[Piece, Array, list[tuple[Integers, Integers]]]]()
    for prefix, own in {"": trained, TESTS: client_tests}.items():
        if own is not None:
            part = partition._replace(rows=[group[own[group]] for group in partition.rows])
            if prefix:
                contents[f"{prefix}bounds"] = np.cumsum([0, *map(len, part.rows)])
            in_order = np.concatenate(part.rows)
            held = [(in_order, part.columns[0])] if whole else list(map(part.of, range(part.clients)))
            sets[prefix] = X, y[in_order], held
    if test is not None:
        sets["test/"] = *test, [(np.arange(len(test[1])), np.arange(X.shape[1]))]
    for prefix, (values, labels, held) in sets.items():
        contents[f"{prefix}y"] = compact_labels(labels, bool(facts["classes"]))
        if sparse:
            contents |= _csr(prefix, [values[rows][:, span(columns)] for rows, columns in held])
        else:  # in place of values, which follow by pieces
            size = sum(len(rows) * len(columns) for rows, columns in held)
            shape = (size // X.shape[1], X.shape[1]) if whole or prefix else (size,)
            contents[f"{prefix}X"] = np.broadcast_to(X.dtype.type(0), shape)
    about = About(
        split=partition.split,
        clients=partition.clients,
        samples=int(trained.sum()),
        features=X.shape[1],
        test_samples=0 if test is None else len(test[1]),
        sparse=sparse,
        targets=of_vectors(y).shape[-1],
        arrays={name: Extent(shape=[*values.shape], dtype=values.dtype.str) for name, values in contents.items()},
        data_sha256="0" * 64,
        **facts,
    )
    with _room(folder, contents, about) as memory:
        arrays = {name: extent.view(memory) for name, extent in about.arrays.items()}
        for name, out in arrays.items():
            if name.endswith("X"):
                values, _, held = sets[name.removesuffix("X")]
                _write(values, held, out.reshape(-1))
            else:
                out[...] = contents[name]
        digests = b"".join(Federation(about, memory).digests(np.arange(partition.clients)))
        arrays["digests"][...] = np.frombuffer(digests, np.uint8).reshape(-1, 32)
        for name, extent in about.arrays.items():
            if name.removeprefix(TESTS) not in _OF_CLIENTS:
                extent.sha256 = _digest([arrays[name]]).hex()
        about.data_sha256 = _identity(about)
    if folder is None:
        return Federation(about, memory)
    write_json(folder / ABOUT, asdict(about))
    sync(folder)
    return of_folder(about, folder)


@contextmanager
def _room(folder: Path | None, contents: Mapping[str, Array], about: About) -> Iterator[mmap.mmap]:
    """Room for arrays: in memory, or in `federation.h5`, which takes its name when they have been filled."""
    if folder is None:
        room = 0
        for name, values in contents.items():
            about.arrays[name].offset = room
            room += values.nbytes + -values.nbytes % _ALIGNED
        yield mmap.mmap(-1, room)
        return
    from mpifed.files.hdf5 import reserve  # slow to import, and no reader needs it

    with replaced(folder / ARRAYS) as part:
        for name, offset in reserve(part, contents, _ALIGNED).items():
            about.arrays[name].offset = offset
        memory = mmap.mmap(part.fileno(), 0)
        yield memory
        memory.flush()
        (folder / ABOUT).unlink(missing_ok=True)


def _write(X: Array, held: Sequence[tuple[Integers, Integers]], out: Array) -> None:
    """Write rectangles of rows and columns of X [s, p], one after the other, into `out`; a few rows at a time."""
    done = 0
    for rows, columns in held:
        for few in np.array_split(rows, 1 + len(rows) * X[:1].nbytes // PART):
            part = X[few][:, span(columns)]
            out[done : done + part.size] = part.reshape(-1)
            done += part.size


def _csr(prefix: str, parts: list[Piece]) -> dict[str, Array]:
    """The arrays of sparse rows, one part after the other."""
    for part in parts:
        part.sort_indices()
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    return {
        f"{prefix}data": np.concatenate([part.data for part in parts]).astype("<f4"),
        f"{prefix}indices": narrow(np.concatenate([part.indices for part in parts])),
        f"{prefix}indptr": np.concatenate([[0], np.cumsum(lengths)]).astype("<i8"),
    }


def compact_labels(y: Array, whole: bool) -> Array:
    """Labels y [s], or [s, t] of vectors, in the smallest dtype that represents them exactly; integers if `whole`."""
    y = of_vectors(y)
    y = y[:, 0] if y.shape[-1] == 1 else y
    if whole:
        return y.astype(np.min_scalar_type(int(y.max(initial=0))).newbyteorder("<"))
    single = y.astype("<f4")
    return single if np.array_equal(single, y) else y.astype("<f8")


def _identity(about: About) -> str:
    """SHA-256 of what is said of the data and of the digests of all arrays, wherever they lie and come from."""
    left_out = {"provenance", "data_sha256"} | ({"recipe"} if about.recipe is None else set())
    content = {name: value for name, value in asdict(about).items() if name not in left_out}
    for extent in content["arrays"].values():
        del extent["offset"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
