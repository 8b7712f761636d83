"""LEAF's JSON (S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097): users and their rows.

A file has `users`, `num_samples` and `user_data`, a table of {"x": [...], "y": [...]} by user.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.natural import in_order
from mpifed.data.samples import Samples, Source
from mpifed.data.sources.dataset import open_packed, shown, with_tests

User: TypeAlias = tuple[str, Array, Array]  # name, X [s, ...] float32, y [s] float64 or texts
SUFFIXES = (".json", ".json.gz", ".json.bz2", ".json.xz")


@dataclass(frozen=True)
class Leaf(Source):
    """LEAF's JSON: the users are the clients. The rows of a folder `test` are for testing, by all and by their users.

    Users without rows to train on are no clients. With --clients, users are ignored.
    """

    path: Path
    """A file, a folder of files, or a folder with folders `train` and `test`; .gz, .bz2 and .xz are unpacked."""
    test: Path | None = None
    """File or folder of test rows."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""

    @property
    def names_clients(self) -> bool:
        """True: each sample is a user's."""
        return True

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file, or users whose rows are not numbers of the same shape."""
        train, test = self.path, self.test
        if (train / "train").is_dir():
            train, test = train / "train", test or (train / "test" if (train / "test").is_dir() else None)
        files, test_files = _files(train), [] if test is None else _files(test)
        parts = [_users(paths) for paths in (files, test_files) if paths]
        owners = in_order({name for users in parts for name, _, _ in users})
        number = {name: at for at, name in enumerate(owners)}
        rows = [_rows(path, users, number) for path, users in zip([train, test], parts, strict=False)]
        return replace(with_tests(self.task, [*files, *test_files], *rows), owners=tuple(owners))


def _files(path: Path) -> list[Path]:
    """The JSON files of a path, in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not files:
        raise DataError(f"{path}: no file {', '.join('*' + suffix for suffix in SUFFIXES)}")
    return files


def _users(paths: list[Path]) -> list[User]:
    """What the files have of each user."""
    users = list[User]()
    for path in paths:
        try:
            with open_packed(path) as file:
                table = json.load(file)
        except (ValueError, RecursionError) as error:
            why = shown(str(error))[1:-1]
            raise DataError(f"{path}: cannot be read as JSON ({why}); get the file again") from error
        content = table.get("user_data") if isinstance(table, dict) else None
        if not isinstance(content, dict):
            raise DataError(f"{path}: no rows; expected `users`, `num_samples` and `user_data`")
        for name, of_user in content.items():
            if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
                raise DataError(f"{path}: user {shown(name)}: the name has a control character; rename it")
            users.append((name, *_numbers(f"{path}: user {shown(name)}", of_user)))
    return users


def _numbers(place: str, content: object) -> tuple[Array, Array]:
    """(X [s, ...] float32, labels [s] float64 or texts) of a user."""
    x, y = (content.get("x"), content.get("y")) if isinstance(content, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list):
        raise DataError(f'{place}: expected {{"x": [...], "y": [...]}}')
    try:
        with np.errstate(over="ignore"):
            X, labels = np.array(x, np.float32), np.array(y)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{place}: {shown(str(error))[1:-1]}; expected samples x of numbers, of one shape") from error
    if labels.shape != (len(x),) or labels.dtype.kind not in "biufU":
        raise DataError(
            f"{place}: {len(x)} samples, and y of {labels.dtype} {labels.shape}; expected a number or text for each"
        )
    return X, labels if labels.dtype.kind == "U" else labels.astype(np.float64)


def _rows(path: Path | None, users: list[User], number: dict[str, int]) -> Samples:
    """The rows of the users who have any; DataError where they differ in kind, or nobody has any."""
    users = [user for user in users if len(user[1])]
    if not users:
        raise DataError(f"{path}: no rows; expected `users`, `num_samples` and `user_data`")
    for name, X, y in users:
        for came, first in zip(_kind_of(X, y), _kind_of(*users[0][1:]), strict=True):
            if came != first:
                raise DataError(f"{path}: user {shown(name)}: {came}; others have {first}; correct them")
    names, rows, labels = zip(*users, strict=True)
    ids = np.repeat([number[name] for name in names], list(map(len, labels)))
    return Samples(np.concatenate(rows), np.concatenate(labels), ids=ids)


def _kind_of(X: Array, y: Array) -> tuple[str, str]:
    """What the rows of all users have in common."""
    return f"samples of shape {X.shape[1:]}", f"labels that are {'texts' if y.dtype.kind == 'U' else 'numbers'}"
