"""LEAF's JSON (S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097): users and their rows.

A file has `users`, `num_samples` and `user_data`, a table of {"x": [...], "y": [...]} by user.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.core.text import shown
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import Part, of_clients, open_packed, train_and_test

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
    task: Literal["auto", "classification", "regression", "multilabel"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""

    @property
    def names_clients(self) -> bool:
        """True: each sample is a user's."""
        return True

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file, or users whose rows are not numbers of the same shape."""
        train, test = train_and_test(self.path, self.test)
        files, test_files = _files(train), [] if test is None else _files(test)
        rows, tests = ([user for path in paths for user in _users(path)] for paths in (files, test_files))
        users = list(dict.fromkeys(user.client for user in [*rows, *tests]))
        of_test = of_clients(test, tests, users) if test_files else None
        data = of_clients(train, rows, users)
        return replace(data, test=of_test, files=(*files, *test_files), task=self.task)


def _files(path: Path) -> list[Path]:
    """The JSON files of a path, in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not files:
        raise DataError(f"{path}: no file {', '.join('*' + suffix for suffix in SUFFIXES)}")
    return files


def _users(path: Path) -> Iterator[Part]:
    """What a file has of each user."""
    try:
        with open_packed(path) as file:
            table = json.load(file, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({shown(str(error))}); get the file again") from error
    users = table.get("user_data") if isinstance(table, dict) else None
    if not isinstance(users, dict):
        raise DataError(f"{path}: no rows; expected `users`, `num_samples` and `user_data`")
    for name, content in users.items():
        place = f"{path}: user {name!r:.80}"
        yield Part(name, place, *_numbers(place, content))


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A table of JSON; ValueError where a key is there twice, of which the last one would count."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError(f"{Counter(key for key, _ in pairs).most_common(1)[0][0]!r:.80} is there twice")
    return table


def _numbers(place: str, content: object) -> tuple[Array, Array]:
    """(X [s, ...], labels [s] or [s, t]) of a user."""
    x, y = (content.get("x"), content.get("y")) if isinstance(content, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list):
        raise DataError(f'{place}: expected {{"x": [...], "y": [...]}}')
    try:
        X, labels = np.array(x), np.array(y)
        if X.dtype.kind not in "biuf":
            raise ValueError(f"an array of {X.dtype}")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{place}: {shown(str(error))}; expected samples x of numbers, of one shape") from error
    return X, labels
