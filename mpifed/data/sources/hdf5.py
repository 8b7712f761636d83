"""HDF5 files that clients have: one for each client, with its rows and their labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mpifed.core.errors import DataError
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import Part, of_clients


@dataclass(frozen=True)
class Hdf5(Source):
    """A folder of HDF5 files, NAME.h5 of the client NAME: datasets X [s, ...] and y [s] or [s, t].

    X_test and y_test, where a file has them, are rows with which that client tests.
    """

    path: Path
    """The folder."""
    task: Literal["auto", "classification", "regression", "multilabel"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""

    @property
    def names_clients(self) -> bool:
        """True: each row is a client's."""
        return True

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file, or clients whose rows differ in kind."""
        from mpifed.files.hdf5 import content_of, reading_hdf5  # slow to import

        paths = sorted(path for suffix in ("*.h5", "*.hdf5") for path in self.path.glob(suffix))
        if not paths:
            raise DataError(f"{self.path}: no rows of any client; expected a folder with NAME.h5 of each client NAME")
        rows, tests = list[Part](), list[Part]()
        for path in paths:
            with reading_hdf5(path, "cannot be read", "expected X [samples, ...] and y") as file:
                rows.append(Part(path.stem, str(path), content_of(file, "X"), content_of(file, "y")))
                if "X_test" in file:
                    tests.append(Part(path.stem, str(path), content_of(file, "X_test"), content_of(file, "y_test")))
        clients = [path.stem for path in paths]
        test = of_clients(self.path, tests, clients) if tests else None
        data = of_clients(self.path, rows, clients)
        return replace(data, test=test, files=tuple(paths), task=self.task)
