"""LEAF's JSON (S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097): users and their rows.

A file has `users`, `num_samples` and `user_data`, a table of {"x": [...], "y": [...]} by user.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from mpifed.data.samples import Samples, Source, Task
from mpifed.data.source_files import Part, files_in, of_clients, open_packed, train_and_test, with_test
from mpifed.files.reading import reading

_DAMAGED = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Leaf(Source):
    """LEAF's JSON: the users are the clients. The rows of a folder `test` are for testing, by all and by their users.

    Users without rows to train on are no clients. With --clients, users are ignored.
    """

    path: Path
    """A file, a folder of files, or a folder with folders `train` and `test`; .gz, .bz2 and .xz are unpacked."""
    test: Path | None = None
    """File or folder of test rows."""
    task: Task = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""

    names_clients = True

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file, or users whose rows are not numbers of the same shape."""
        places = train_and_test(self.path, self.test)
        endings = (".json", ".json.gz", ".json.bz2", ".json.xz")
        files = [files_in(place, *endings) if place.is_dir() else [place] for place in places]
        parts = [list(chain(*map(_users, paths))) for paths in files]
        users = dict.fromkeys(user for user, *_ in chain(*parts))
        sets = (of_clients(place, part, users, self.task) for place, part in zip(places, parts, strict=True))
        return with_test(sets, files=tuple(chain(*files)), task=self.task)


def _users(path: Path) -> Iterator[Part]:
    """What a file has of each user."""
    remedy = "expected `users`, `num_samples` and `user_data`; get the file again"
    with reading(path, remedy, *_DAMAGED), open_packed(path) as file:
        users = json.load(file, object_pairs_hook=_each_once)["user_data"].items()
    for name, content in users:
        place = f"{path}: user {name!r:.80}"
        with reading(place, 'expected {"x": [...], "y": [...]}, x of numbers, of one shape', *_DAMAGED):
            X, y = np.array([*content["x"]]), [*content["y"]]
            if X.dtype.kind not in "biuf":
                raise ValueError(f"an array of {X.dtype}")
            np.shape(y)  # ValueError for ragged lists
        yield name, place, X, y


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A table of JSON; ValueError where a key is there twice, of which the last one would count."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError(f"one of {str([*table])[:80]} is there twice")
    return table
