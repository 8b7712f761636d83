"""LEAF's JSON (S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097): users and their rows.

A file has `users`, `num_samples` and `user_data`, a table of {"x": [...], "y": [...]} by user. It is read user by user.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.natural import canonical_order, natural_clients
from mpifed.data.sources.dataset import Dataset, Source, open_packed, shown, typed_labels
from mpifed.data.sources.spool import Spool
from mpifed.data.sources.texts import numbered

MOST_NESTED = 32
_QUOTE = ord('"')
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
SUFFIXES = (".json", ".json.gz", ".json.bz2", ".json.xz")


@dataclass
class UsersRead:
    """What was read of the files of users."""

    number: dict[str, int]  # of a user, as they come; those of training and test files share it
    shape: tuple[int, ...] = ()  # of a sample
    spool: Spool | None = None
    labels: list[Array] = field(default_factory=list)  # of each piece: float64, or texts
    owners: list[Array] = field(default_factory=list)


@dataclass(frozen=True)
class Leaf(Source):
    """LEAF's JSON: the users are the clients. The rows of a folder `test` are for testing, by all and by their users.

    Users who have rows in `test` alone are no clients. With --clients, users are ignored.
    """

    path: Path
    """A file, a folder of files, or a folder with folders `train` and `test`; .gz, .bz2 and .xz are unpacked."""
    test: Path | None = None
    """File or folder of test rows."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""

    @property
    def names_clients(self) -> bool:
        """Always."""
        return True

    def read(self, seed: int) -> Dataset:
        """The data; DataError for a damaged file, or users whose rows are not numbers of the same shape."""
        train, test = self.path, self.test
        if (train / "train").is_dir():
            train, test = train / "train", test or (train / "test" if (train / "test").is_dir() else None)
        files, test_files = _files(train), [] if test is None else _files(test)
        number = dict[str, int]()
        rows = self._read(UsersRead(number), files)
        tested = self._read(UsersRead(number, rows.shape), test_files) if test_files else None
        labels, test_labels, classes = _labels(self, files, rows, tested)
        owners = np.concatenate(rows.owners)
        test_owners = None if tested is None else np.concatenate(tested.owners)
        natural = natural_clients(list(number), owners, test_owners)
        assert rows.spool is not None
        spool, order, test_rows = rows.spool, canonical_order(natural.owner, labels, rows.spool.chunks()), None
        natural = natural._replace(owner=natural.owner[order])
        if tested is not None and tested.spool is not None and natural.test_owner is not None:
            test_order = canonical_order(natural.test_owner, test_labels, tested.spool.chunks())
            natural = natural._replace(test_owner=natural.test_owner[test_order])
            test_rows = np.concatenate(list(tested.spool.chunks(test_order))), test_labels[test_order]
        return Dataset(
            spool.features, np.float32, labels[order], lambda: spool.chunks(order), test_rows,
            shape=rows.shape if len(rows.shape) > 1 else None, files=(*files, *test_files), natural=natural,
            classes=classes,
        )  # fmt: skip

    def _read(self, rows: UsersRead, files: list[Path]) -> UsersRead:
        """The users' rows of all files, added to `rows`."""
        for path in files:
            counts = self._counts(path)
            counted = dict[str, int]()
            for user, content in self._users(path):
                place = f"{path}: user {shown(user)}"
                if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in user):
                    raise DataError(f"{place}: the name has a control character; rename it")
                X, y = _rows_of(place, content)
                if rows.spool is None:
                    rows.shape = rows.shape or X.shape[1:]
                    rows.spool = Spool(int(np.prod(rows.shape)), np.float32)
                if X.shape[1:] != rows.shape:
                    raise DataError(f"{place}: samples of shape {X.shape[1:]}, others have {rows.shape}; correct them")
                rows.spool.append(X.reshape(len(X), -1))
                rows.labels.append(y)
                code = rows.number.setdefault(user, len(rows.number))
                rows.owners.append(np.full(len(X), code))
                counted[user] = counted.get(user, 0) + len(X)
            if counts is not None and counts != counted:
                wrong = next(user for user in [*counts, *counted] if counts.get(user) != counted.get(user))
                raise DataError(
                    f"{path}: user {shown(wrong)}: num_samples says {counts.get(wrong, 'nothing')}, user_data has "
                    f"{counted.get(wrong, 'nothing')}; get the file again"
                )
        if rows.spool is None or not rows.spool.rows:
            raise DataError(f"{files[0]}: no rows; expected `users`, `num_samples` and `user_data`")
        return rows

    def _users(self, path: Path) -> Iterator[tuple[str, object]]:
        import ijson

        with _parsing(path), open_packed(path) as file:
            yield from ijson.kvitems(_Shallow(file, path), "user_data", use_float=True)

    def _counts(self, path: Path) -> dict[str, int] | None:
        """`num_samples` by user; None where the file has none."""
        import ijson

        lists: list[object] = []
        for key in ("users", "num_samples"):
            with _parsing(path), open_packed(path) as file:
                lists.append(next(ijson.items(_Shallow(file, path), key, use_float=True), None))
        users, counts = lists
        if users is None and counts is None:
            return None
        if not isinstance(users, list) or not isinstance(counts, list) or len(users) != len(counts):
            raise DataError(f"{path}: `users` and `num_samples` are no lists of equal length; get the file again")
        if not all(isinstance(user, str) for user in users) or not all(type(count) is int for count in counts):
            raise DataError(f"{path}: `users` are no texts, or `num_samples` no integers; get the file again")
        return {user: count for user, count in zip(users, counts, strict=True) if count}


class _Shallow:
    """A file of JSON, nested a few times only: a parser of values in values recurses in C, and would crash the process.

    Of what is read everything but brackets and quotes is removed; in numbers these are few.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path, self._depth, self._in_text, self._escape = file, path, 0, False, b""

    def read(self, size: int = -1) -> bytes:
        """The next bytes; DataError where they are nested more than `MOST_NESTED` times."""
        content = self._file.read(size)
        piece, self._escape = self._escape + content, b""
        if b"\\" in piece:
            piece = re.sub(rb"\\.", b"", piece, flags=re.DOTALL)
            if piece.endswith(b"\\"):
                piece, self._escape = piece[:-1], b"\\"
        for letter in piece.translate(None, _OTHERS):
            if letter == _QUOTE:
                self._in_text = not self._in_text
            elif not self._in_text:
                self._depth += 1 if letter in b"[{" else -1
                if self._depth > MOST_NESTED:
                    raise DataError(f"{self._path}: nested more than {MOST_NESTED} times; expected the format of LEAF")
        return content


def _files(path: Path) -> list[Path]:
    """The JSON files of a path, in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not files:
        raise DataError(f"{path}: no file {', '.join('*' + suffix for suffix in SUFFIXES)}")
    return files


def _rows_of(place: str, content: object) -> tuple[Array, Array]:
    """(X [s, ...] float32, labels [s] float64 or texts) of a user."""
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("x"), list)
        or not isinstance(content.get("y"), list)
    ):
        raise DataError(f'{place}: expected {{"x": [...], "y": [...]}}')
    try:
        with np.errstate(over="ignore"):
            X = np.array(content["x"], np.float32) if content["x"] else np.empty((0, 1), np.float32)
        y = np.array(content["y"]) if content["y"] else np.empty(0)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{place}: {shown(str(error))[1:-1]}; expected samples x of numbers, of one shape") from error
    if X.ndim < 2 or not X.size or not np.isfinite(X).all():
        raise DataError(f"{place}: x of shape {X.shape}, or not finite; expected finite samples, one or more")
    if y.shape != (len(X),) or y.dtype.kind not in "biufU":
        raise DataError(f"{place}: {len(X)} samples, and y of {y.dtype} {y.shape}; expected a number or text for each")
    return X, y if y.dtype.kind == "U" else y.astype(np.float64)


def _labels(
    source: Leaf, files: list[Path], rows: UsersRead, tested: UsersRead | None
) -> tuple[Array, Array, tuple[str, ...] | None]:
    """(labels, test labels, names of the classes where they are texts)."""
    parts, test_parts = rows.labels, [] if tested is None else tested.labels
    texts = {part.dtype.kind == "U" for part in [*parts, *test_parts]}
    if len(texts) > 1:
        raise DataError(f"{files[0]}: labels y are numbers of some users and texts of others; expected one kind")
    labels, test_labels = np.concatenate(parts), np.concatenate(test_parts) if test_parts else np.empty(0)
    if texts == {True}:
        names, codes, others = numbered(labels, test_labels.astype(str))
        assert others is not None
        return codes, others, tuple(names)
    labels = typed_labels(files[0], labels, source.task)
    task = "classification" if labels.dtype == np.int64 else "regression"
    return labels, typed_labels(files[-1], test_labels, task) if len(test_labels) else test_labels, None


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Errors of the parser become DataError."""
    import ijson

    try:
        yield
    except (ijson.JSONError, ValueError, RecursionError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({shown(str(error))[1:-1]}); get the file again") from error
