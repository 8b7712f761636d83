"""HDF5 files that clients have: one for each client, with its rows and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpifed.data.samples import Samples, Source, Task
from mpifed.data.source_files import Part, files_in, of_clients, with_test


@dataclass(frozen=True)
class Hdf5(Source):
    """A folder of HDF5 files, NAME.h5 of the client NAME: datasets X [s, ...] and y [s] or [s, t].

    X_test and y_test, where a file has them, are rows with which that client tests.
    """

    path: Path
    """The folder."""
    task: Task = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""

    names_clients = True

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file, or clients whose rows differ in kind."""
        from mpifed.files.hdf5 import content_of, reading_hdf5  # slow to import

        paths, parts = files_in(self.path, ".h5", ".hdf5"), (list[Part](), list[Part]())
        for path in paths:
            with reading_hdf5(path, "expected X [samples, ...] and y") as file:
                for part, suffix in zip(parts, ("", "_test"), strict=True):
                    if not suffix or {"x_test", "y_test"} & {*map(str.lower, file)}:
                        X, y = (content_of(file, f"{name}{suffix}") for name in ("X", "y"))
                        part.append((path.stem, str(path), X, y))
        sets = (of_clients(self.path, part, [path.stem for path in paths], self.task) for part in parts if part)
        return with_test(sets, files=tuple(paths), task=self.task)
