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
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Le, Len
from numpy.typing import DTypeLike, NDArray

from mpifed.core.errors import DataError
from mpifed.core.expected import MOST, Checked, Count, Digest, NotNegative, Pattern, Positive, Text
from mpifed.core.holdings import span
from mpifed.core.protocols import Piece
from mpifed.core.record import Array, of_vectors, vectors
from mpifed.core.tables import Table
from mpifed.core.text import command_line, leads_to
from mpifed.data.recipe import Encoding, Recipe
from mpifed.data.scaling import Scaling
from mpifed.files.json_file import read_json, write_json
from mpifed.files.write import replaced, sync

if TYPE_CHECKING:
    from mpifed.data.partition import Partition

ARRAYS, ABOUT = "federation.h5", "federation.json"
REMEDY = "make the data again with `mpifed data ... --force`"
TESTS = "client_tests/"
MEMORY = "memory:"  # begins the path of data in memory
_IN_MEMORY: list[Federation] = []
_MOST_CLASSES = 2**16  # unless there are more rows
PART = 1 << 24  # bytes that are read at once
_ALIGNED = 64  # bytes: what a mapped array begins at a multiple of
STRICT: Mapping[str, object] = {"strict": True, "allow_inf_nan": False}  # how pydantic reads a table
# what each array may consist of, by the last part of its name
_KINDS = {
    "X": "uf", "y": "uif", "data": "f", "indices": "i", "indptr": "i", "ids": "S", "scale": "f", "shift": "f",
    "digests": "u",
}  # fmt: skip


@dataclass(kw_only=True)
class Extent:
    """Where an array lies in `federation.h5`, and its digest where it is no client's."""

    offset: Count
    shape: Annotated[list[Count], Len(1, 2)]
    dtype: Annotated[str, Pattern(r"^(\|u1|<[iu][248]|<f[48]|\|S[1-9][0-9]{0,5})$")]
    sha256: Digest | None

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def view(self, whole: memoryview | mmap.mmap) -> Array:
        """The array in the bytes of the file."""
        values: Array = np.ndarray(tuple(self.shape), self.dtype, whole, self.offset)
        return values


@dataclass
class ScalingJson:
    """A scaling in a file: numbers of all columns, or one for each."""

    scale: Annotated[list[float], Len(1)]
    shift: Annotated[list[float], Len(1)]

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    @classmethod
    def of(cls, scaling: Scaling) -> ScalingJson:
        """A scaling to be written."""
        return cls(*(np.atleast_1d(factor).tolist() for factor in scaling))

    def scaling(self) -> Scaling:
        """The scaling that was written."""
        return Scaling(*(np.array(factor if len(factor) > 1 else factor[0]) for factor in (self.scale, self.shift)))


Step: TypeAlias = ScalingJson | Literal["unit-rows"]  # of what is done to raw rows, one after the other


@dataclass
class Inputs:
    """What became of raw rows before they were stored."""

    are_bytes: bool
    before: list[Step]

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT


@dataclass
class StatisticsJson:
    """What `mpifed.data.statistics` gives."""

    constant_columns: list[Count]
    target_mean: float = 0.0
    target_deviation: float = 0.0

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT


@dataclass
class ProvenanceJson:
    """What is read of `provenance`."""

    classes: list[str] = field(default_factory=list)
    options: Table = field(default_factory=dict)
    statistics: StatisticsJson = field(default_factory=lambda: StatisticsJson([]))
    named: bool = False  # whether classes were texts
    inputs: Inputs | None = None  # None: of an earlier version

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT


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

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT


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
        self.about, self.path, self._arrays, self._forget, self._read = about, path, arrays, forget, 0
        self.split, self.clients = about.split, about.clients
        self.samples, self.features = about.samples, about.features
        several = about.targets > 1
        self.task = "regression" if not about.classes else "multilabel" if several else "classification"
        self.classes, self.targets, self.sparse = 0 if several else about.classes, about.targets, about.sparse
        self.test_samples, self.target_scale, self.seed = about.test_samples, about.target_scale, about.seed
        self.shape = None if about.shape is None else tuple(about.shape)
        self.provenance, self.sha256 = about.provenance, about.data_sha256
        self.where = "the data" if path is None else str(path / ARRAYS)  # what an error is about
        # each client holds all columns, so that X has whole rows, in the order of the groups of rows
        self.whole = about.split == "rows"
        self._groups = cache(lambda axis: np.split(self.members(axis), self.bounds[axis][1:-1]))
        self.statistics: Table = about.provenance.get("statistics", {})
        try:
            self.holds = self._whole("holds")
            self.bounds = {axis: self._bounds(axis, i) for i, axis in enumerate(("rows", "columns"))}
            self.counts, self.widths = (
                self._of_clients(np.diff(self.bounds[axis]), groups)
                for axis, groups in zip(self.bounds, self.holds.T, strict=True)
            )
            rows, tests = self.bounds["rows"], f"{TESTS}bounds"
            starts = self._whole(tests) if tests in arrays else np.broadcast_to(np.int64(0), rows.shape)
            self._starts = {"": rows, TESTS: starts}
            self.test_counts = self._of_clients(np.diff(starts), self.holds[:, 0])
            self.scaling = Scaling(*(self._factor(f"scaling/{name}") for name in Scaling._fields))
            self._check()
        except (LookupError, ValueError) as error:
            raise DataError(f"{self.where}: {error}; {REMEDY}") from error

    def _of_clients(self, sizes: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """[N] the sizes of their groups; a view of one number where they are alike."""
        return sizes[groups] if (sizes != sizes[0]).any() else np.broadcast_to(sizes[0], groups.shape)

    def array(self, name: str) -> Array:
        """A whole array, compared with its digest; DataError where they differ."""
        values, expected = self._arrays[name], self.about.arrays[name].sha256
        if expected is not None and expected != self._digest([values]).hex():
            raise DataError(f"{self.where}: {name} was changed or damaged; {REMEDY}")
        return values

    # --- what the clients hold ---------------------------------------------------------------------------------------

    def members(self, axis: str) -> NDArray[np.int64]:
        """The members of all groups of "rows" or "columns", one group after the other; `bounds` separates them."""
        members = self._whole(f"{axis}/members")
        number = self.samples if axis == "rows" else self.features
        if members.max() >= number:
            raise DataError(f"{self.where}: {axis}/members up to {members.max()} of {number}; {REMEDY}")
        if not np.isin(np.flatnonzero(np.diff(members) <= 0) + 1, self.bounds[axis]).all():
            raise DataError(f"{self.where}: {axis}/members: a group does not ascend; {REMEDY}")
        return members

    def held(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows [s], columns [p]) that a client holds, as indices among all: the same arrays for clients of a group."""
        rows, columns = map(self.group, self.bounds, self.holds[client].tolist())
        return rows, columns

    def group(self, axis: str, group: int) -> NDArray[np.int64]:
        """The members of a group of "rows" or "columns"."""
        members: NDArray[np.int64] = self._groups(axis)[group]
        return members

    def names(self) -> tuple[str, ...] | None:
        """[p] names of the features; None where the source has none."""
        return None if self.about.names is None else tuple(self.about.names)

    def client_names(self) -> tuple[str, ...]:
        """[N] what natural clients are called; () where clients have numbers alone."""
        if "clients/ids" not in self._arrays:
            return ()
        ids, of = self.array("clients/ids"), self._whole("clients/of")
        if not np.array_equal(of, np.arange(self.clients)):
            raise DataError(f"{self.where}: clients/of is not 0 to {self.clients - 1}; {REMEDY}")
        return tuple(text.decode("utf-8", "replace") for text in ids.tolist())

    def nbytes(self, prefix: str = "") -> NDArray[np.int64]:
        """[N] bytes of each client's labels and values, as stored."""
        nbytes = np.zeros(self.clients, np.int64)
        for name, (starts, stops) in self.places(np.arange(self.clients), prefix).items():
            values = self._arrays[prefix + name]
            nbytes += (stops - starts) * (values.nbytes // max(1, len(values)))
        return nbytes

    def places(self, clients: NDArray[np.int64], prefix: str = "") -> dict[str, tuple[Array, Array]]:
        """Where the entries of clients begin and end, [n] each, by array; of `TESTS`, if there are such rows."""
        if f"{prefix}y" not in self._arrays:
            return {}
        starts, groups = self._starts[prefix], self.holds[clients, 0]
        labels = rows = values = starts[groups], starts[groups + 1]
        if not self.whole:
            rows, values = ((before[clients], before[clients + 1]) for before in self._before)
        if not self.sparse:
            return {"y": labels, "X": values}
        indptr = self._arrays[f"{prefix}indptr"]
        values = indptr[rows[0]], indptr[rows[1]]
        return {"y": labels, "data": values, "indices": values, "indptr": (rows[0], rows[1] + 1)}

    @cached_property
    def _before(self) -> list[NDArray[np.int64]]:
        """[N + 1] rows, and values, of the clients before each one, where X has no whole rows."""
        return [np.cumsum(np.insert(sizes, 0, 0)) for sizes in (self.counts, self.counts * self.widths)]

    def labels(self, prefix: str = "", start: int = 0, stop: int | None = None) -> Array:
        """Stored labels as int64 classes or float64 targets [s]; DataError if they are invalid."""
        y, whose = self._arrays[f"{prefix}y"][start:stop], f"{self.where}: {prefix}y"
        classes = self.about.classes
        if classes and y.size and not (y.min() >= 0 and y.max() < classes):
            raise DataError(f"{whose} has labels from {y.min()} to {y.max()}, expected 0 to {classes - 1}; {REMEDY}")
        if not is_finite(y):
            raise DataError(f"{whose} has a target that is not finite; {REMEDY}")
        y = y.astype(np.int64 if self.classes else np.float64)
        return y if self.targets == 1 else vectors(y)

    def values(
        self, prefix: str = "", at: Mapping[str, tuple[int, int]] = MappingProxyType({}), load: bool = True
    ) -> tuple[Array, ...]:
        """Stored values of neighbours, in one piece and checked: (X,), or (data, indices, indptr).

        Parameters
        ----------
        at : where they begin and end in these arrays; by default all
        load : a folder's into memory; else mapped, and read once for the checks
        """
        names = ("data", "indices", "indptr") if self.sparse else ("X",)
        arrays = [self._arrays[prefix + name][slice(*at.get(name, (None,)))] for name in names]
        if load and self.path is not None:
            mapped, arrays = arrays, [np.empty_like(values) for values in arrays]
            for out, values in zip(arrays, mapped, strict=True):
                done = 0
                for part in self._parts(values):
                    out[done : (done := done + len(part))] = part
        if not is_finite(arrays[0]):
            raise DataError(f"{self.where}: {prefix}{names[0]} has values that are not finite; {REMEDY}")
        if self.sparse:
            indptr = arrays[2] - arrays[2][0]
            if (np.diff(indptr) < 0).any() or indptr[-1] != len(arrays[1]):
                raise DataError(
                    f"{self.where}: {prefix}indptr decreases, or ends beyond {len(arrays[1])} values; {REMEDY}"
                )
            arrays[2] = indptr
        return tuple(arrays)

    # --- digests -----------------------------------------------------------------------------------------------------

    def verify(self, clients: Sequence[int]) -> None:
        """Compare the values and labels of clients with their digests; DataError where they differ."""
        for client, digest in zip(clients, self.digests(np.array(clients, int)), strict=True):
            if digest != bytes(self._arrays["digests"][client]):
                raise DataError(f"{self.where}: the data of client {client} were changed or damaged; {REMEDY}")

    def verify_common(self) -> None:
        """Compare all arrays but the clients' values with their digests."""
        for name in self._arrays:
            self.array(name)

    def digests(self, clients: NDArray[np.int64]) -> Iterator[bytes]:
        """SHA-256 of what is stored of each of the clients [n]."""
        held = [
            (self._arrays[prefix + name], *map(np.ndarray.tolist, at))
            for prefix in ("", TESTS)
            for name, at in self.places(clients, prefix).items()
        ]
        for n in range(len(clients)):
            yield self._digest([values[starts[n] : stops[n]] for values, starts, stops in held])

    def _digest(self, arrays: Sequence[Array]) -> bytes:
        digest = hashlib.sha256()
        for values in arrays:
            for part in self._parts(values):
                digest.update(part.data)
        return digest.digest()

    def _parts(self, values: Array) -> Iterator[Array]:
        """An array part by part, of whose file few pages stay in memory."""
        size = max(1, PART // max(1, values[:1].nbytes))
        for start in range(0, len(values), size):
            yield (part := values[start : start + size])
            self._read += part.nbytes
            if self._read >= PART:
                self._forget()
                self._read = 0

    # --- checks: of shapes and ranges, whatever the digests say, which only tell damage ------------------------------

    def _whole(self, name: str) -> NDArray[np.int64]:
        """An array of nonnegative integers; of bounds, ascending from 0."""
        values = self.array(name).astype(np.int64, copy=False)
        if values.size and values.min() < 0:
            raise DataError(f"{self.where}: {name} has {values.min()}, expected 0 or more; {REMEDY}")
        if name.endswith("bounds") and (values[0] or (np.diff(values) < 0).any()):
            raise DataError(f"{self.where}: {name} does not ascend from 0; {REMEDY}")
        return values

    def _bounds(self, axis: str, i: int) -> NDArray[np.int64]:
        """Bounds of the groups of an axis, each with members and held by a client."""
        bounds = self._whole(f"{axis}/bounds")
        if (
            not np.diff(bounds).all()
            or self.holds[:, i].max() > len(bounds) - 2
            or not np.bincount(self.holds[:, i], minlength=len(bounds) - 1).all()
        ):
            raise ValueError(f"{axis}/bounds and holds: a group is empty, or belongs to no client")
        return bounds

    def _factor(self, name: str) -> Array:
        """A finite scalar, or [p] finite numbers."""
        values = self.array(name)
        if values.shape not in ((1,), (self.features,)) or not np.isfinite(values).all():
            raise ValueError(f"{name} has shape {values.shape}, or is not finite")
        return values if len(values) > 1 else values.reshape(())

    def _check(self) -> None:
        """ValueError unless each array has as many entries as the clients hold, and the facts agree with them."""
        about, classes = self.about, self.provenance.get("classes", ())
        outputs = self.classes or self.targets
        alike = {"rows": [1], "columns": [0]}.get(self.split, [])  # what all clients hold: all columns, or all rows
        contradictions = (
            (float(self.counts.astype(float) @ self.widths) > MOST, "its clients hold more than 2^62 values"),
            (about.shape is not None and (not about.shape or math.prod(about.shape) != self.features),
             f"shape = {about.shape}, expected lengths whose product is {self.features}"),
            (self.classes > max(self.samples + self.test_samples, _MOST_CLASSES),
             f"classes = {self.classes} of {self.samples} rows"),
            (len(classes) not in (0, outputs), f"provenance: {len(classes)} classes, expected {outputs} names"),
            (max(self.statistics.get("constant_columns", ()), default=0) >= self.features,
             f"statistics: constant columns beyond the {self.features} features"),
            (self.target_scale not in 2.0 ** np.arange(128) or (self.targets > 1 and about.classes not in (0, 2)),
             f"target_scale = {self.target_scale}, targets = {self.targets}, classes = {about.classes}"),
            (about.names is not None and len(about.names) != self.features,
             f"names: {len(about.names or ())} of {self.features} features"),
            (about.recipe is not None and list(Recipe(tuple(about.recipe)).names()) != about.names,
             "recipe: its columns are not those of names"),
            (any(column.categories is None and (column.one_hot or isinstance(column.fill, str))
                 for column in about.recipe or ()), "recipe: a column of numbers is filled or encoded by texts"),
            (self.holds[:, alike].any(), f"split = {self.split}, and the clients hold different rows or columns"),
            (self.test_counts.any() and not self.whole, f"{TESTS}y, with split = {self.split}"),
            (about.classes and any(self._arrays[name].dtype.kind == "f" for name in self._arrays if name[-1] == "y"),
             f"y has fractions, and there are {about.classes} classes"),
            *((self.bounds[axis][-1] < number, f"{axis}/members are fewer than the {number} {axis}")
              for axis, number in (("rows", self.samples), ("columns", self.features))),
        )  # fmt: skip
        for contradicts, why in contradictions:
            if contradicts:
                raise ValueError(why)
        for name, shape in self._shapes():
            came = self._arrays[name].shape if name in self._arrays else "none"
            if came != tuple(shape):
                raise ValueError(f"{name} has shape {came}, expected {tuple(shape)}")

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The shape that each array must have."""
        yield from (("holds", (self.clients, 2)), ("digests", (self.clients, 32)))
        yield from ((f"{axis}/members", (int(bounds[-1]),)) for axis, bounds in self.bounds.items())
        if "clients/ids" in self._arrays:
            yield from (("clients/ids", (self.clients,)), ("clients/of", (self.clients,)))
        width = int(self.widths[0])
        rows = {"": (int(self.bounds["rows"][-1]), width)}
        if f"{TESTS}bounds" in self._arrays:
            yield f"{TESTS}bounds", self.bounds["rows"].shape
            rows[TESTS] = int(self._starts[TESTS][-1]), width
        if self.test_samples:
            rows["test/"] = self.test_samples, self.features
        for prefix, shape in rows.items():
            yield f"{prefix}y", (shape[0], self.targets) if self.targets > 1 else shape[:1]
            flat = not prefix and not self.whole  # one client's rows and columns after the other's
            if self.sparse:
                values = self._arrays[f"{prefix}indices"].shape[:1]
                yield f"{prefix}indptr", ((int(self.counts.sum()) if flat else shape[0]) + 1,)
                yield from ((f"{prefix}data", values), (f"{prefix}indices", values))
            else:
                yield f"{prefix}X", (int(self.counts @ self.widths),) if flat else shape


def in_memory(federation: Federation) -> str:
    """What a job has as its data.path for data in memory, which stay there until the process ends.

    It says nothing of the data, as a digest would, since jobs of private runs are published. All ranks make the same
    data in the same order.
    """
    _IN_MEMORY.append(federation)
    return f"{MEMORY}{len(_IN_MEMORY)}"


def open_federation(path: Path | str, verify: bool = False) -> Federation:
    """A data folder, of which small parts are read; with `verify` all of it is compared with its digests.

    Raises
    ------
    DataError : when it is missing, damaged, half-written, or of another version.
    """
    if str(path).startswith(MEMORY):
        number = str(path).removeprefix(MEMORY)
        if not number.isdecimal() or not 0 < int(number) <= len(_IN_MEMORY):
            raise DataError(f"{path}: data in the memory of another process; write them to a folder, by `out`")
        return _IN_MEMORY[int(number) - 1]
    path = Path(path)
    about, arrays = path / ABOUT, path / ARRAYS
    if arrays.is_file() and not about.is_file():
        raise DataError(
            f"{path}: {ARRAYS} without {ABOUT}: data of mpifed 0.1, or not written to their end; {REMEDY[:-1]} "
            f"{command_line('--out', path)}`"
        )
    for file in (about, arrays):
        if not file.is_file():
            out = command_line("--out", path)
            raise DataError(f"{file}: no such file{leads_to(file)}; make the data with `mpifed data ... {out}`")
    from mpifed.files.schemas import checked  # with pydantic, which rank 0 alone needs

    content = checked(about, About, read_json(about), REMEDY)
    if _identity(content) != content.data_sha256:
        raise DataError(f"{about}: its data_sha256 is not that of its content; {REMEDY}")
    federation = of_folder(content, path)
    if verify:
        federation.verify_common()
        federation.verify(range(federation.clients))
    return federation


def make_federation(
    partition: Partition,
    y: Array,
    X: Piece,
    scaling: Scaling,
    folder: Path | None = None,
    test: tuple[Piece, Array] | None = None,
    ids: Sequence[str] = (),
    client_tests: NDArray[np.bool_] | None = None,
    **facts: Any,  # those of `About`
) -> Federation:
    """Divide data among clients.

    Parameters
    ----------
    partition : of rows and columns
    y : [s] classes or targets
    X : the raw rows [s, p], CSR or as they are stored; dense ones are read once, a few at a time
    scaling : of the columns, applied when rows are read
    folder : where the data are written, in place of earlier ones; None: they stay in memory
    test : raw rows [s, p], dense or CSR, and labels [s] that are no client's
    ids : identifiers [N] of natural clients
    client_tests : [s] True for rows with which the client that holds them tests: they do not count as samples; the data
        are split by rows, and each client has a row to train on
    """
    from mpifed.data.partition import training_rows  # here and below: who only reads data does without
    from mpifed.data.samples import pieces

    sets = {"": partition.rows}
    if client_tests is not None:
        sets[""] = [group[~client_tests[group]] for group in partition.rows]
        sets[TESTS] = [group[client_tests[group]] for group in partition.rows]
    features = X.shape[1]
    training = partition if client_tests is None else training_rows(partition, ~client_tests, features)
    contents: dict[str, Array] = {"holds": training.holds}
    contents["scaling/scale"], contents["scaling/shift"] = map(np.atleast_1d, scaling)
    for axis, groups in (("rows", training.rows), ("columns", training.columns)):
        contents[f"{axis}/bounds"] = np.cumsum([0, *map(len, groups)])
        contents[f"{axis}/members"] = _narrow(np.concatenate(groups))
    if client_tests is not None:
        contents[f"{TESTS}bounds"] = np.cumsum([0, *map(len, sets[TESTS])])
    if ids:
        contents["clients/ids"] = np.array([text.encode() for text in ids])
        contents["clients/of"] = _narrow(np.arange(len(ids)))
    for prefix, groups in sets.items():
        contents[f"{prefix}y"] = compact_labels(y[np.concatenate(groups)], bool(facts["classes"]))
    is_sparse = not isinstance(X, np.ndarray)
    stored = {prefix: _as_stored(partition._replace(rows=groups)) for prefix, groups in sets.items()}
    if is_sparse:
        for prefix, part in stored.items():
            held = map(part.of, range(part.clients))
            contents |= _csr(prefix, [X[rows][:, span(columns)] for rows, columns in held])
    if test is not None:
        contents["test/y"] = compact_labels(test[1], bool(facts["classes"]))
        contents |= {"test/X": test[0]} if isinstance(test[0], np.ndarray) else _csr("test/", [test[0]])
    extents = {name: _extent(values.shape, values.dtype) for name, values in contents.items()}
    extents["digests"] = _extent((partition.clients, 32), np.uint8)
    if not is_sparse:
        for prefix, part in stored.items():
            shape = [part.counts[0], part.widths[0]] if partition.split == "rows" else [part.counts @ part.widths]
            extents[f"{prefix}X"] = _extent(tuple(map(int, shape)), X.dtype)
    about = About(
        split=partition.split,
        clients=partition.clients,
        samples=len(y) if client_tests is None else int((~client_tests).sum()),
        features=features,
        test_samples=0 if test is None else len(test[1]),
        sparse=is_sparse,
        targets=of_vectors(y).shape[-1],
        arrays=extents,
        data_sha256="0" * 64,
        **facts,
    )
    with _room(folder, about.arrays) as arrays:
        for name, values in contents.items():
            arrays[name][...] = values
        for start, piece in () if is_sparse else pieces(X):
            for prefix, part in stored.items():
                _put(piece, start, part, arrays[f"{prefix}X"].reshape(-1))
        digests = b"".join(Federation(about, arrays).digests(np.arange(partition.clients)))
        arrays["digests"][...] = np.frombuffer(digests, np.uint8).reshape(partition.clients, -1)
        for name, extent in about.arrays.items():
            if name.removeprefix(TESTS) not in _OF_CLIENTS:
                extent.sha256 = hashlib.sha256(arrays[name].data).hexdigest()
        about.data_sha256 = _identity(about)
    if folder is None:
        return Federation(about, arrays)
    write_json(folder / ABOUT, asdict(about))
    sync(folder)
    return of_folder(about, folder)


_OF_CLIENTS = {"X", "y", "data", "indices", "indptr"}  # arrays whose parts have a digest for each client


def _extent(shape: tuple[int, ...], dtype: DTypeLike) -> Extent:
    return Extent(offset=0, shape=list(shape), dtype=np.dtype(dtype).str, sha256=None)


@contextmanager
def _room(folder: Path | None, extents: Mapping[str, Extent]) -> Iterator[dict[str, Array]]:
    """The arrays, to be filled: in memory, or in `federation.h5`, which takes its name when they have been."""
    if folder is None:
        yield {name: np.empty(extent.shape, extent.dtype) for name, extent in extents.items()}
        return
    from mpifed.files.hdf5 import reserve, write_hdf5  # slow to import, and no reader needs it

    with replaced(folder / ARRAYS) as part:
        with write_hdf5(Path(part.name), alignment_threshold=1, alignment_interval=_ALIGNED) as file:
            for name, extent in extents.items():
                extent.offset = reserve(file, name, tuple(extent.shape), extent.dtype)
        # a full disk raises OSError here, and would end the process where a mapped array is written
        os.posix_fallocate(part.fileno(), 0, os.path.getsize(part.name))
        whole = np.memmap(part, np.uint8, "r+")
        yield {name: extent.view(whole.data) for name, extent in extents.items()}
        whole.flush()
        (folder / ABOUT).unlink(missing_ok=True)


def of_folder(about: About, folder: Path) -> Federation:
    """The federation of a folder, read when it is used; DataError unless its arrays lie within the file."""
    file = folder / ARRAYS
    try:
        with open(file, "rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError of an empty file
        raise DataError(f"{file}: cannot be read ({error}); {REMEDY}") from error
    for name, extent in about.arrays.items():
        why = None
        if np.dtype(extent.dtype).kind not in _KINDS.get(name.rpartition("/")[2], "iu"):
            why = f"is of type {extent.dtype}"
        elif (extent.sha256 is None) != (name.removeprefix(TESTS) in _OF_CLIENTS):
            why = f"has sha256 = {extent.sha256}, where only arrays of the clients have none"
        elif extent.offset % _ALIGNED or max(extent.offset + extent.nbytes, *extent.shape) > len(mapped):
            why = f"lies outside of the file, of {len(mapped)} bytes, or not at a multiple of {_ALIGNED}"
        if why is not None:
            raise DataError(f"{file}: {name} {why}; {REMEDY}")
    arrays = {name: extent.view(mapped) for name, extent in about.arrays.items()}
    return Federation(about, arrays, folder, partial(mapped.madvise, mmap.MADV_DONTNEED))


def _as_stored(partition: Partition) -> Partition:
    """Whose values stand in X one after the other: each client's, or, of whole rows, those of one who holds all."""
    if partition.split != "rows":
        return partition
    return partition._replace(rows=[np.concatenate(partition.rows)], holds=np.zeros((1, 2), np.int64))


def _put(piece: Array, start: int, stored: Partition, out: Array) -> None:
    """Write what clients hold of the rows `piece` [b, p], of which the first has the index `start`, into `out`."""
    places = [np.flatnonzero((rows >= start) & (rows < start + len(piece))) for rows in stored.rows]
    done = 0
    for client, group in enumerate(stored.holds[:, 0].tolist()):
        rows, columns = stored.of(client)
        block = out[done : done + len(rows) * len(columns)].reshape(len(rows), len(columns))
        here = rows[places[group]] - start
        block[span(places[group])] = piece[here if stored.split == "rows" else span(here)][:, span(columns)]
        done += block.size


def _csr(prefix: str, parts: list[Piece]) -> dict[str, Array]:
    """The arrays of sparse rows, one part after the other."""
    for part in parts:
        part.sort_indices()
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    return {
        f"{prefix}data": np.concatenate([part.data for part in parts]).astype("<f4"),
        f"{prefix}indices": _narrow(np.concatenate([part.indices for part in parts])),
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


def _narrow(values: Array) -> Array:
    """Indices as 32-bit integers, if they are that small."""
    return values.astype("<i4") if values.max(initial=0) < 2**31 else values


def is_finite(values: Array) -> bool:
    """Whether all numbers are finite, without an array of their size."""
    if values.dtype.kind != "f" or not values.size:
        return True
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))


def _identity(about: About) -> str:
    """SHA-256 of what is said of the data and of the digests of all arrays, wherever they lie and come from."""
    left_out = {"provenance", "data_sha256"} | ({"recipe"} if about.recipe is None else set())
    content = {name: value for name, value in asdict(about).items() if name not in left_out}
    for extent in content["arrays"].values():
        del extent["offset"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
