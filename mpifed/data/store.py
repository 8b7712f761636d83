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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Le, Len

from mpifed.core.errors import DataError
from mpifed.core.holdings import narrow, span
from mpifed.core.record import Array, Flags, Integers
from mpifed.core.tables import Table
from mpifed.data.block import Piece, of_vectors, vectors
from mpifed.data.recipe import Encoding, Recipe
from mpifed.data.scaling import Scaling
from mpifed.files.expected import MOST, Checked, Count, Digest, NotNegative, Pattern, Positive, Text
from mpifed.files.json_file import read_json, write_json
from mpifed.files.write import replaced, sync
from mpifed.text import command_line, leads_to

if TYPE_CHECKING:
    from mpifed.data.partition import Partition

ARRAYS, ABOUT = "federation.h5", "federation.json"
REMEDY = "make the data again with `mpifed data ... --force`"
TESTS = "client_tests/"
MEMORY = "memory:"  # begins the path of data in memory
_IN_MEMORY: dict[str, Federation] = {}
_MOST_CLASSES = 2**16  # unless there are more rows
PART = 1 << 22  # bytes that are read at once
_ALIGNED = 64  # bytes: what a mapped array begins at a multiple of
_OF_CLIENTS = {"X", "y", "data", "indices", "indptr"}  # arrays whose parts have a digest for each client
# what each array may consist of, by the last part of its name; others are integers
_KINDS = {"X": "uf", "y": "uif", "data": "f", "indices": "i", "indptr": "i", "ids": "S", "scale": "f", "shift": "f"}


@dataclass(kw_only=True)
class Extent:
    """Where an array lies in `federation.h5`, and its digest where it is no client's."""

    offset: Count = 0
    shape: Annotated[list[Count], Len(1, 2)]
    dtype: Annotated[str, Pattern(r"^(\|u1|<[iu][248]|<f[48]|\|S[1-9][0-9]{0,5})$")]
    sha256: Digest | None = None

    def view(self, whole: bytes | mmap.mmap | memoryview) -> Array:
        """The array in the bytes of the file, in a line; ValueError, or OverflowError, where it lies outside."""
        values: Array = np.frombuffer(whole, self.dtype, math.prod(self.shape), self.offset)
        return values


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
    classes: Count  # 0 for real targets; 2 of each of several labels of a row
    sparse: bool
    seed: int  # of the data, not of a run
    targets: Annotated[int, Ge(1), Le(2**16)] = 1  # of a row: several real ones, or labels that are 0 or 1
    target_scale: NotNegative = 1.0  # power of two near the size of real targets; 1 for classes
    shape: list[Count] | None = None  # of a sample, such as [channels, height, width]; None: vectors
    names: list[str] | None = None  # [p] of the features
    recipe: list[Encoding] | None = None  # how they are made of the columns of a table, where they are
    provenance: Annotated[Table, Checked(_conforming)]
    arrays: dict[Text, Extent]
    data_sha256: Digest  # of all this but provenance and places: it identifies the data


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

    def __init__(
        self,
        about: About,
        arrays: Mapping[str, Array],
        path: Path | None = None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """Of arrays in memory, or mapped from the folder `path`; DataError where they cannot be what `about` says.

        `forget` gives back the pages of the file that were read, which count as memory of this process.
        """
        self.about, self.path, self._arrays, self._forget = about, path, arrays, forget
        self.split, self.clients, self.samples = about.split, about.clients, about.samples
        self.features, self.targets, self.sparse = about.features, about.targets, about.sparse
        several = "multilabel" if about.targets > 1 else "classification"
        self.task = several if about.classes else "regression"
        self.classes = 0 if self.task == "multilabel" else about.classes
        self.test_samples, self.target_scale = about.test_samples, about.target_scale
        self.shape = None if about.shape is None else tuple(about.shape)
        self.provenance, self.sha256 = about.provenance, about.data_sha256
        self.fitted: list[str] = about.provenance.get("fitted", ["what nobody noted"])
        # each client holds all columns, so that X has whole rows, in the order of the groups of rows
        self.whole = about.split == "rows"
        self._members: dict[str, Integers] = {}
        # copies in memory, of half the bytes: each round reads them here and there, which maps all of a file in the end
        self.holds = narrow(self._integers("holds", self.clients, 2))
        self.bounds = {axis: narrow(self._integers(f"{axis}/bounds", -1)) for axis in ("rows", "columns")}
        forget()
        self._starts = {"": self.bounds["rows"], TESTS: np.broadcast_to(np.int32(0), self.bounds["rows"].shape)}
        if f"{TESTS}bounds" in arrays:
            self._starts[TESTS] = narrow(self._integers(f"{TESTS}bounds", len(self.bounds["rows"])))
        for groups, (axis, bounds) in zip(self.holds.T, self.bounds.items(), strict=True):
            number = len(bounds) - 1
            if groups.max() >= number or not (np.bincount(groups, minlength=number).all() and np.diff(bounds).all()):
                raise self.damaged(f"{axis}/bounds and holds: a group is empty, or belongs to no client")
        self.counts, self.test_counts = (self._sizes(starts, 0) for starts in self._starts.values())
        self.widths = self._sizes(self.bounds["columns"], 1)
        self._check()
        factors = [self.array(f"scaling/{name}", -1) for name in Scaling._fields]
        if not all(len(values) in (1, self.features) and _is_finite(values) for values in factors):
            raise self.damaged(f"scaling: expected 1 or {self.features} numbers, which are finite")
        self.scaling = Scaling(*map(np.squeeze, factors))
        forget()

    def damaged(self, why: str) -> DataError:
        """An error of the stored data."""
        return DataError(f"{'the data' if self.path is None else self.path / ARRAYS}: {why}; {REMEDY}")

    def array(self, name: str, *shape: int) -> Array:
        """A whole array, of this shape if one is given; DataError for another size, or one that is not its digest's."""
        try:
            values = self._arrays[name].reshape(shape or self.about.arrays[name].shape)
        except (KeyError, ValueError) as error:
            raise self.damaged(f"{name}: expected an array of shape {shape} ({error})") from error
        expected = self.about.arrays[name].sha256
        if expected is not None and expected != _digest(self._pieces(values)).hex():
            raise self.damaged(f"{name} was changed or damaged")
        return values

    def _pieces(self, values: Array) -> Iterator[Array]:
        """The bytes of an array, of whose file few pages stay in memory."""
        whole = values.reshape(-1).view(np.uint8)
        for start in range(0, len(whole), PART):
            yield whole[start : start + PART]
            self._forget()

    def _integers(self, name: str, *shape: int) -> Integers:
        """An array of nonnegative integers; of bounds, ascending from 0."""
        values = self.array(name, *shape).astype(np.int64, copy=False)
        if values.min(initial=0) < 0:
            raise self.damaged(f"{name} has {values.min()}, expected 0 or more")
        if name.endswith("bounds") and (values[:1].any() or len(values) < 2 or (np.diff(values) < 0).any()):
            raise self.damaged(f"{name} does not ascend from 0")
        return values

    def _sizes(self, bounds: Integers, axis: int) -> Integers:
        """[N] the sizes of the clients' groups; a view of one number where they are alike."""
        sizes, groups = np.diff(bounds).astype(np.int64), self.holds[:, axis]
        return sizes[groups] if (sizes != sizes[0]).any() else np.broadcast_to(sizes[0], groups.shape)

    def _check(self) -> None:
        """DataError unless the facts agree with each other, and with what the clients hold."""
        about, features = self.about, self.features
        alike = {"rows": [1], "columns": [0]}.get(self.split, [])  # what all clients hold: all columns, or all rows
        wrong = {
            "clients": self.counts.astype(float) @ self.widths > MOST,
            "samples": self.bounds["rows"][-1] < self.samples,
            "features": self.bounds["columns"][-1] < features,
            "split": self.holds[:, alike].any() or (self.test_counts.any() and not self.whole),
            "classes": self.classes > max(self.samples + self.test_samples, _MOST_CLASSES)
            or (self.targets > 1 and about.classes not in (0, 2)),
            "target_scale": self.target_scale not in 2.0 ** np.arange(128),
            "provenance.classes": len(self.provenance.get("classes", ())) not in (0, self.classes or self.targets),
            **contradictions(features, about.shape, about.names, about.recipe),
        }
        for key in (key for key, contradicts in wrong.items() if contradicts):
            raise self.damaged(f"{key} in {ABOUT} contradicts what is stored, or the rest of that file")

    # --- what the clients hold ---------------------------------------------------------------------------------------

    def members(self, axis: str) -> Integers:
        """The members of all groups of "rows" or "columns", one group after the other; `bounds` separates them."""
        if axis not in self._members:
            members = self._integers(f"{axis}/members", int(self.bounds[axis][-1]))
            number = self.samples if axis == "rows" else self.features
            falls = np.flatnonzero(np.diff(members) <= 0) + 1
            if members.max() >= number or not np.isin(falls, self.bounds[axis]).all():
                raise self.damaged(f"{axis}/members: a group does not ascend, or has members beyond {number}")
            self._members[axis] = members
        return self._members[axis]

    def group(self, axis: str, group: int) -> Integers:
        """The members of a group of "rows" or "columns"."""
        return self.members(axis)[slice(*self.bounds[axis][group : group + 2].tolist())]

    def held(self, client: int) -> tuple[Integers, Integers]:
        """(rows [s], columns [p]) that a client holds, as indices among all."""
        rows, columns = self.holds[client].tolist()
        return self.group("rows", rows), self.group("columns", columns)

    def names(self) -> tuple[str, ...] | None:
        """[p] names of the features; None where the source has none."""
        return None if self.about.names is None else tuple(self.about.names)

    def client_names(self) -> tuple[str, ...]:
        """[N] what natural clients are called; () where clients have numbers alone."""
        ids = self.array("clients/ids", self.clients).tolist() if "clients/ids" in self._arrays else ()
        return tuple(text.decode("utf-8", "replace") for text in ids)

    def _stored(self, prefix: str) -> dict[str, Array]:
        """Labels and values of the clients' rows, of `TESTS` or of "test/": y, and X [s, p] or in a line, or CSR."""
        rows = self.test_samples if prefix == "test/" else int(self._starts[prefix][-1])
        stored = {"y": self.array(f"{prefix}y", *(rows, self.targets)[: 1 + (self.targets > 1)])}
        shape = [self.features]
        if not prefix and not self.whole:  # one client's rows and columns after the other's
            rows, shape = int(self.counts.sum() if self.sparse else self.counts @ self.widths), []
        if not self.sparse:
            return {**stored, "X": self.array(f"{prefix}X", rows, *shape)}
        data, indptr = self.array(f"{prefix}data", -1), self.array(f"{prefix}indptr", rows + 1)
        return {**stored, "data": data, "indices": self.array(f"{prefix}indices", len(data)), "indptr": indptr}

    def starts(self, clients: int | Integers, prefix: str = "") -> tuple[Array, Array, Array]:
        """The first label, and row in indptr and in X (value, where X is in a line), of a client, or [n] of several."""
        labels = self._starts[prefix][self.holds[clients, 0]]
        if self.whole:
            return labels, labels, labels
        return labels, self._before[0][clients], self._before[1][clients]

    @cached_property
    def _before(self) -> list[Integers]:
        """[N] rows, and values, of the clients before each one, where X has no whole rows."""
        return [np.cumsum(sizes) - sizes for sizes in (self.counts, self.counts * self.widths)]

    def places(self, clients: Integers, prefix: str = "") -> dict[str, tuple[Array, Array, Array]]:
        """(array, where entries of clients begin in it, and end, [n] each) by name; of `TESTS`, where there are any."""
        if not self._starts[prefix][-1]:
            return {}
        stored, counts = self._stored(prefix), (self.test_counts if prefix else self.counts)[clients]
        labels, rows, values = self.starts(clients, prefix)
        at = {"y": (labels, labels + counts)}
        at["X"] = at["y"] if self.whole else (values, values + counts * self.widths[clients])
        if self.sparse:
            at["indptr"] = rows, rows + counts + 1
            at["data"] = at["indices"] = stored["indptr"][rows], stored["indptr"][rows + counts]
        return {name: (array, *at[name]) for name, array in stored.items()}

    def nbytes(self, prefix: str = "", clients: range | None = None) -> Integers:
        """[n] bytes of each client's labels and values, as stored; of neighbours, or of all."""
        among = range(self.clients) if clients is None else clients
        who = np.arange(among.start, among.stop)
        places = self.places(who, prefix).values()
        return sum(((stops - starts) * array[:1].nbytes for array, starts, stops in places), 0 * who)

    def labels(self, prefix: str = "", start: int = 0, stop: int | None = None) -> Array:
        """Stored labels as int64 classes or float64 targets [s]; DataError if they are invalid."""
        y, classes = self._stored(prefix)["y"][start:stop], self.about.classes
        if classes and (y.dtype.kind == "f" or y.min(initial=0) < 0 or y.max(initial=0) >= classes):
            raise self.damaged(f"{prefix}y has labels that are not 0 to {classes - 1}")
        if not _is_finite(y):
            raise self.damaged(f"{prefix}y has a target that is not finite")
        y = y.astype(np.int64 if self.classes else np.float64)
        return y if self.targets == 1 else vectors(y)

    def values(self, prefix: str, at: Mapping[str, tuple[int, int]], load: bool = True) -> tuple[Array, ...]:
        """Stored values of neighbours, in one piece, all finite: (X,), or (data, indices, indptr).

        Parameters
        ----------
        at : where they begin and end in these arrays
        load : a folder's into memory; else mapped, and read once for the checks
        """
        self._forget()
        stored = self._stored(prefix)
        arrays = [stored[name][slice(*at[name])] for name in stored if name != "y"]
        if load and self.path is not None:
            mapped, arrays = arrays, [np.empty_like(values) for values in arrays]
            for out, values in zip(arrays, mapped, strict=True):  # of whose file few pages stay in memory
                size = max(1, PART // max(1, values[:1].nbytes))
                for start in range(0, len(values), size):
                    out[start : start + size] = values[start : start + size]
                    self._forget()
        if not _is_finite(arrays[0]):
            raise self.damaged(f"{prefix}values: one is not finite")
        if self.sparse:
            arrays[2] = arrays[2] - arrays[2][0]  # of the values that are here
        return tuple(arrays)

    # --- digests -----------------------------------------------------------------------------------------------------

    def verify(self, clients: Sequence[int]) -> None:
        """Compare the values and labels of clients with their digests; DataError where they differ."""
        expected = self.array("digests", self.clients, 32)
        for client, digest in zip(clients, self.digests(np.fromiter(clients, int)), strict=True):
            if digest != expected[client].tobytes():
                raise self.damaged(f"the data of client {client} were changed or damaged")
        self._forget()

    def verify_common(self) -> None:
        """Compare all arrays but the clients' values with their digests."""
        for name in self._arrays:
            self.array(name)

    def digests(self, clients: Integers) -> Iterator[bytes]:
        """SHA-256 of what is stored of each of the clients [n]."""
        held = [part for prefix in self._starts for part in self.places(clients, prefix).values()]
        often = max(1, PART * self.clients // max(1, sum(array.nbytes for array, _, _ in held)))
        for n in range(len(clients)):
            if n % often == 0:
                self._forget()
            yield _digest(array[starts[n] : stops[n]] for array, starts, stops in held)


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
    return values.dtype.kind != "f" or bool(np.isfinite([values.min(initial=0), values.max(initial=0)]).all())


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
    about, arrays = (path := Path(path)) / ABOUT, path / ARRAYS
    for file in (about, arrays):
        if not file.is_file():
            half = f", and {ARRAYS} alone is of mpifed 0.1, or not written to its end" if arrays.exists() else ""
            make = f"make the data with `mpifed data ...{' --force' * bool(half)} {command_line('--out', path)}`"
            raise DataError(f"{file}: no such file{leads_to(file)}{half}; {make}")
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
    file, arrays, name = folder / ARRAYS, {}, ""
    try:
        with open(file, "rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        for name, extent in about.arrays.items():
            kinds = _KINDS.get(name.rpartition("/")[2], "iu")
            has_digest = name.removeprefix(TESTS) not in _OF_CLIENTS
            if np.dtype(extent.dtype).kind not in kinds or has_digest is (extent.sha256 is None):
                raise ValueError(f"{extent}: expected numbers of kind {kinds}, and a digest where no client's are")
            if extent.offset % _ALIGNED:
                raise ValueError(f"{extent}: expected an offset that is a multiple of {_ALIGNED}")
            arrays[name] = extent.view(mapped)
    except (OSError, ValueError, OverflowError) as error:  # of an array outside of the file too
        raise DataError(f"{file}: {name} cannot be read ({error}); {REMEDY}") from error
    return Federation(about, arrays, folder, partial(mapped.madvise, mmap.MADV_DONTNEED))


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
    sparse, features = not isinstance(X, np.ndarray), X.shape[1]
    training = training_rows(partition, trained)
    contents: dict[str, Array] = {"holds": training.holds, "digests": np.zeros((partition.clients, 32), np.uint8)}
    contents["scaling/scale"], contents["scaling/shift"] = map(np.atleast_1d, scaling)
    if ids:
        contents["clients/ids"] = np.array([text.encode() for text in ids])
        contents["clients/of"] = narrow(np.arange(len(ids)))
    for axis, groups in (("rows", training.rows), ("columns", training.columns)):
        contents[f"{axis}/bounds"] = np.cumsum([0, *map(len, groups)])
        contents[f"{axis}/members"] = narrow(np.concatenate(groups))
    stored = {}  # whose values stand in X one after the other: each client's, or of whole rows those of one with all
    for prefix, own in {"": trained, TESTS: client_tests}.items():
        if own is None:
            continue
        groups = [group[own[group]] for group in partition.rows]
        if prefix:
            contents[f"{prefix}bounds"] = np.cumsum([0, *map(len, groups)])
        contents[f"{prefix}y"] = compact_labels(y[np.concatenate(groups)], bool(facts["classes"]))
        stored[prefix] = part = partition._replace(rows=groups)
        if partition.split == "rows":
            stored[prefix] = part = part._replace(rows=[np.concatenate(groups)], holds=np.zeros((1, 2), np.int64))
        if sparse:
            contents |= _csr(prefix, [X[rows][:, span(columns)] for rows, columns in map(part.of, range(part.clients))])
        else:  # in place of values, which follow by pieces
            whole = partition.split == "rows"
            shape = (int(part.counts[0]), features) if whole else (int(part.counts @ part.widths),)
            contents[f"{prefix}X"] = np.broadcast_to(X.dtype.type(0), shape)
    if test is not None:
        contents["test/y"] = compact_labels(test[1], bool(facts["classes"]))
        contents |= _csr("test/", [test[0]]) if sparse else {"test/X": test[0]}
    extents = {name: Extent(shape=[*values.shape], dtype=values.dtype.str) for name, values in contents.items()}
    about = About(
        split=partition.split,
        clients=partition.clients,
        samples=int(trained.sum()),
        features=features,
        test_samples=0 if test is None else len(test[1]),
        sparse=sparse,
        targets=of_vectors(y).shape[-1],
        arrays=extents,
        data_sha256="0" * 64,
        **facts,
    )
    with _room(folder, contents, extents) as arrays:
        for name in contents.keys() - {f"{prefix}X" for prefix in stored}:
            arrays[name][...] = contents[name].reshape(-1)
        for prefix, part in () if sparse else stored.items():
            _write(X, part, arrays[f"{prefix}X"])
        digests = b"".join(Federation(about, arrays).digests(np.arange(partition.clients)))
        arrays["digests"][...] = np.frombuffer(digests, np.uint8)
        for name, extent in extents.items():
            if name.removeprefix(TESTS) not in _OF_CLIENTS:
                extent.sha256 = _digest([arrays[name]]).hex()
        about.data_sha256 = _identity(about)
    if folder is None:
        return Federation(about, arrays)
    write_json(folder / ABOUT, asdict(about))
    sync(folder)
    return of_folder(about, folder)


@contextmanager
def _room(
    folder: Path | None, contents: Mapping[str, Array], extents: Mapping[str, Extent]
) -> Iterator[dict[str, Array]]:
    """Room for arrays, in a line: in memory, or in `federation.h5`, which takes its name when they have been filled."""
    if folder is None:
        yield {name: np.empty(values.size, values.dtype) for name, values in contents.items()}
        return
    from mpifed.files.hdf5 import reserve  # slow to import, and no reader needs it

    with replaced(folder / ARRAYS) as part:
        for name, offset in reserve(part, contents, _ALIGNED).items():
            extents[name].offset = offset
        whole = np.memmap(part, np.uint8, "r+")
        yield {name: extent.view(whole.data) for name, extent in extents.items()}
        whole.flush()
        (folder / ABOUT).unlink(missing_ok=True)


def _write(X: Array, stored: Partition, out: Array) -> None:
    """Write what each client holds of the rows X [s, p], one after the other, into `out`; a few at a time."""
    size, done = max(1, PART // X[:1].nbytes), 0
    for rows, columns in map(stored.of, range(stored.clients)):
        for start in range(0, len(rows), size):
            part = X[rows[start : start + size]][:, span(columns)]
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
