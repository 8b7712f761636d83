"""`mpifed data`: converts a source to the files of a federation."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import mpifed
from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import sha256
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.data.cells import only_held
from mpifed.data.client_tests import client_tests, with_owners_tests
from mpifed.data.encoding import encoded_names, fit_columns, transform
from mpifed.data.feature_noise import with_noise
from mpifed.data.holding_out import hold_out, rows_where, without_small
from mpifed.data.labels import encode
from mpifed.data.maps import read_map
from mpifed.data.options import Options as Options
from mpifed.data.partition import Partition, by_columns, by_grid, by_owners, by_rows
from mpifed.data.scaling import IDENTITY, Scaling, fit, unit_rows
from mpifed.data.sources import Dataset, Synthetic
from mpifed.data.sources.dataset import CHUNK_VALUES, checked, listed
from mpifed.data.statistics import statistics, target_scale
from mpifed.data.store import Federation, make_federation


def prepare(options: Options) -> Federation:
    """Make a data folder.

    Dense rows are in memory chunk by chunk, as the source gives them; labels and test rows are in memory as a whole.

    Parameters
    ----------
    options : of `mpifed data`

    Returns
    -------
    The federation, written or in memory.

    Raises
    ------
    UsageError : when the options do not fit the data, or the folder is not empty.
    DataError : when the source is missing or damaged.
    """
    _check_out(options)
    data = checked(options.name, options.source.read(options.seed))
    if options.test_fraction is not None:
        data = hold_out(data, options.test_fraction, options.seed)
    small = ""
    if options.min_rows is not None:
        data, small = without_small(data, options.min_rows)
    if options.split in ("columns", "grid"):
        data = _encoded(data, np.ones(len(data.labels), bool))
    y, test_y, meaning = encode(data, options.labels)
    if options.natural and options.test_fraction is None and options.client_test_fraction is None:
        data, y = with_owners_tests(data, y, test_y)
    natural, ids = data.natural if options.natural else None, None
    if natural is not None:
        ids = natural.ids, np.arange(len(natural.ids))
        partition = by_owners(natural.owner, data.features)
    else:
        partition = data.partition or _partition(options, y, data.features)
    tests = client_tests(partition, y, data.client_tests, options.client_test_fraction, options.seed)
    trained = np.ones(len(y), dtype=np.bool_) if tests is None else ~tests
    if data.columns is not None:  # split by rows
        data = _encoded(data, trained)
        partition = partition._replace(columns=[np.arange(data.features)])
    if partition.missing and options.map:
        data = _only_held(data, partition)
    data, scaling = _scaled(data, options.scalings, partition.missing, trained)
    if options.feature_noise is not None:
        data, scaling = with_noise(data, scaling, partition, options.feature_noise, options.seed), IDENTITY
    summary = statistics(rows_where(trained, data), y[trained], scaling, regression=not meaning)
    facts: Table = dict(
        classes=len(meaning),
        seed=options.seed,
        provenance={
            **_provenance(options, data, meaning, small),
            "missing_cells": partition.missing,
            "statistics": summary,
        },
        target_scale=target_scale(summary),
        names=data.names and list(data.names),
        shape=data.shape and list(data.shape),
    )
    test = (data.test[0], test_y) if data.test and test_y is not None else None
    try:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        return make_federation(partition, y, data.chunks(), data.dtype, scaling, options.out, test, ids, tests, **facts)
    except OSError as error:
        raise DataError(f"{options.out}: cannot be written ({error}); make room, or give another folder") from error


def _check_out(options: Options) -> None:
    """Raise UsageError for a folder that is in use, DataError if data of known size exceed the free space."""
    if options.out is None:
        return
    try:
        if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())) and not options.force:
            raise UsageError(f"--out {options.out}: not an empty folder; give another, or --force to replace the data")
        if not isinstance(options.source, Synthetic):
            return
        size, parent = options.source.nbytes, next(path for path in options.out.absolute().parents if path.exists())
        free = shutil.disk_usage(parent).free
    except OSError as error:
        raise DataError(f"--out {options.out}: cannot be written ({error.strerror}); give another folder") from error
    if size > free:
        raise DataError(
            f"--out {options.out}: needs {size / 2**30:.4g} GiB, and there are {free / 2**30:.4g} GiB; give another "
            "folder, or lower --samples or --features"
        )


def _partition(options: Options, y: Array, features: int) -> Partition:
    if options.map:
        partition = read_map(options.map, len(y), features, options.missing)
        if options.split == "rows" and partition.split != "rows":
            raise UsageError(f"--split rows: {options.map} divides columns too; give --split grid")
        if options.clients not in (None, partition.clients):
            raise UsageError(
                f"--clients {options.clients}: {options.map} is for {partition.clients} clients; leave --clients out"
            )
        return partition
    drawn = options.partition, options.skew, options.seed, options.min_samples
    if options.groups:
        return by_grid(y, features, options.groups, *drawn)
    clients = options.clients or 0
    if options.split == "columns":
        return by_columns(len(y), features, clients)
    return by_rows(y, features, clients, *drawn)


def _encoded(data: Dataset, trained: NDArray[np.bool_]) -> Dataset:
    """The data with categories as numbers, and gaps filled, as the rows `trained` [s] say."""
    if data.columns is None:
        return data
    columns, names = data.columns, data.names or tuple(map(str, range(data.features)))
    fitted = fit_columns(columns, partial(rows_where, trained, data), names)
    encoded = encoded_names(columns, fitted, names)
    return replace(
        data,
        features=len(encoded),
        chunks=lambda: (transform(columns, fitted, X, names) for X in data.chunks()),
        test=(transform(columns, fitted, data.test[0], names), data.test[1]) if data.test else None,
        names=encoded if data.names or columns.categories else None,
        columns=None,
    )


def _only_held(data: Dataset, partition: Partition) -> Dataset:
    """The data with zeros in training cells that no client holds."""

    def chunks() -> Iterator[Piece]:
        first = 0
        for X in data.chunks():
            yield only_held(partition, first, X)
            first += X.shape[0]

    return replace(data, chunks=chunks)


def _scaled(data: Dataset, kinds: list[str], missing: int, trained: NDArray[np.bool_]) -> tuple[Dataset, Scaling]:
    """(the data to store, the scaling of their columns that readers apply), fitted to the rows `trained` [s].

    `missing`: number of cells that no client holds. Raises UsageError when a shift would fill a sparse matrix, or them.
    """
    scaling = IDENTITY
    for kind in kinds:
        if kind == "unit-rows":
            data, scaling = _with_unit_rows(data, scaling), IDENTITY
        elif kind != "none":
            training = replace(data, chunks=partial(rows_where, trained, data))
            fitted = fit(kind, training.chunks() if scaling is IDENTITY else _pieces(training, scaling), data.top)
            if missing and fitted.shift.any():
                raise UsageError(
                    f"--scale {','.join(kinds)}: {kind} would shift columns, and so change the zeros of the "
                    f"{missing} cells that no client holds; use unit or unit-rows"
                )
            data, scaling = replace(data, top=None), fitted if scaling is IDENTITY else scaling.then(fitted)
    return data, scaling


def _with_unit_rows(data: Dataset, scaling: Scaling) -> Dataset:
    """The scaled data with rows of Euclidean norm 1."""
    return replace(
        data,
        dtype=None if data.dtype is None else np.float32,
        chunks=lambda: map(unit_rows, _pieces(data, scaling)),
        test=(unit_rows(scaling.apply(data.test[0], np.float64)), data.test[1]) if data.test else None,
        top=None,
    )


def _pieces(data: Dataset, scaling: Scaling) -> Iterator[Piece]:
    """The scaled rows in float64; dense rows a few at a time."""
    for X in data.chunks():
        size = X.shape[0] if data.dtype is None else max(1, CHUNK_VALUES // data.features)
        yield from (scaling.apply(X[start : start + size], np.float64) for start in range(0, X.shape[0], size))


def _provenance(options: Options, data: Dataset, meaning: tuple[str, ...], small: str) -> Table:
    """Source, options, checksums and versions from which the data were made; remarks for the summary."""
    natural, tests = data.natural if options.natural else None, ""
    if natural is not None and natural.untrained:
        rows = 0 if natural.test_owner is None else (natural.test_owner < 0).sum()
        tests = f"{listed(natural.untrained, 3)}: no rows to train on, so no client; rows to test with: {rows}"
    index = data.left_out and f"{listed(data.left_out)}: numbers rows, left out"
    remarks = {"small": small, "tests": tests, "index": index, "origin": options.origin}
    return {
        "source": options.name,
        "options": json.loads(json.dumps(asdict(options), default=str)),
        "files": {_file_name(path, data.files): sha256(path) for path in data.files},
        "classes": list(meaning),
        "named": data.classes is not None,
        **{name: text for name, text in remarks.items() if text},
        "versions": {
            "mpifed": mpifed.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "h5py")},
        },
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _file_name(path: Path, paths: Sequence[Path]) -> str:
    """The name of a file; with its folder's, where another file has that name too."""
    alike = [other.name for other in paths].count(path.name) > 1
    return f"{path.parent.name}/{path.name}" if alike else path.name
