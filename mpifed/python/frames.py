"""Data of DataFrames, of datasets of PyTorch, of partitions of flwr-datasets; and whose each row is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.data.natural import identifiers
from mpifed.data.recipe import FILLS
from mpifed.data.samples import Samples
from mpifed.data.sources.dataset import listed
from mpifed.data.sources.table import Frames, as_table
from mpifed.python.values import Pair, Values, array, held_apart


def owners_of(clients: Values, data: Samples) -> Array | None:
    """[s] whose each sample is, as texts; None where `clients` is a number."""
    if np.ndim(clients) == 0:
        return None
    if np.shape(clients) != (len(data.y),):
        raise UsageError(
            f"from_arrays: clients: {getattr(clients, 'dtype', 'a list')} {np.shape(clients)}; expected how many, or "
            f"an integer or text for each of {len(data.y)} samples"
        )
    return identifiers(array(clients, "clients") if hasattr(clients, "detach") else clients, "from_arrays: clients")


def of_frame(
    frame: Values, label: str | Sequence[str], by: str | None, clients: int | None, test: Values, task: str,
    ignore: Sequence[str], categorical: str | None, missing: str, given: str | Path | None, options: Table,
) -> tuple[Samples, Table]:  # fmt: skip
    """(the data of a frame, options of `prepare`)."""
    if (by is None) == (clients is None):
        raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
    choices = {"categorical": (None, "one-hot", "ordinal"), "missing": ("error", "drop", *FILLS),
               "task": ("auto", "classification", "regression")}  # fmt: skip
    for name, value in (("categorical", categorical), ("missing", missing), ("task", task)):
        if value not in choices[name]:
            raise UsageError(
                f"from_dataframe: {name} = {value!r}: expected one of {', '.join(map(str, choices[name]))}"
            )
    known = ("partition", "skew", "min_samples", "split", "scale", "shape", "seed", "feature_noise", "client_test",
             "min_rows")  # fmt: skip
    if unknown := [name for name in options if name not in known]:
        raise UsageError(
            f"from_dataframe: {unknown[0]}: no argument here{nearest(unknown[0], known)}; known are {', '.join(known)}"
        )
    fraction, tables = None, {"from_dataframe: frame": as_table(frame, "from_dataframe: frame")}
    if hasattr(test, "columns") or hasattr(test, "column_names"):
        tables["from_dataframe: test"] = as_table(test, "from_dataframe: test")
    else:
        pair, fraction = held_apart(test, "from_dataframe")
        if pair is not None:
            raise UsageError("from_dataframe: test: a pair; expected a DataFrame, or the fraction that is held out")
    words: Table = {"label": label, "by": by, "ignore": ignore, "task": task, "categorical": categorical}
    place = None if given is None else Path(given)
    data = Frames(tables=tables, missing=missing, given=place, **words).read(0)
    if data.left_out:
        warnings.warn(f"from_dataframe: column {listed(data.left_out)} numbers rows, and is left out", stacklevel=2)
    chosen: Table = {name: value for name, value in options.items() if name not in ("shape", "client_test")}
    chosen |= {"test_fraction": fraction, "client_test_fraction": options.get("client_test"), "missing": missing}
    if by is None:
        chosen["clients"] = clients
    shape = options.get("shape")
    return replace(data, shape=None if shape is None else tuple(shape)), chosen


def items(pairs: Values, what: str) -> Pair:  # with __len__ and __getitem__, as PyTorch has them
    """(samples, labels) of a map-style dataset."""
    try:
        count = len(pairs)
        drawn = [pairs[number] for number in range(count)]
        if wrong := [item for item in drawn if not isinstance(item, (tuple, list)) or len(item) != 2]:
            keys = f" with the keys {', '.join(map(str, wrong[0]))[:80]}" if isinstance(wrong[0], dict) else ""
            raise TypeError(f"an item is a {type(wrong[0]).__name__}{keys}")
        samples, labels = [_sample(x) for x, _ in drawn], [float(y) if _is_real(y) else int(y) for _, y in drawn]
        return np.stack(samples), np.array(labels)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{what}: {type(pairs).__name__}: {error}; expected __len__, and __getitem__ that gives pairs of a sample "
            "and a label, all samples of one shape; from_arrays takes arrays of both"
        ) from error


def _is_real(label: Values) -> bool:  # a number, a tensor
    return np.asarray(label).dtype.kind == "f"


def _sample(x: Values) -> Array:  # a tensor, an array, an image of PIL
    values = np.asarray(x)
    return values.transpose(2, 0, 1) if hasattr(x, "getbands") and values.ndim == 3 else values


def of_partition(part: Values, label: str, features: Sequence[str] | None) -> Pair:  # a datasets.Dataset
    """(samples, labels) of a partition."""
    names = [name for name in part.column_names if name != label] if features is None else list(features)
    if missing := [name for name in [label, *names] if name not in part.column_names]:
        raise UsageError(f"from_partitioner: no column {missing[0]!r}; there are {', '.join(part.column_names)}")
    content = part.with_format("numpy")[:]
    columns = []
    for name in names:
        values = np.asarray(content[name])
        is_image = type(part.features[name]).__name__ == "Image"
        if values.dtype.kind not in "biuf":
            raise UsageError(f"from_partitioner: column {name!r} has no numbers; choose others by features=[...]")
        columns.append(values.transpose(0, 3, 1, 2) if is_image and values.ndim == 4 else values)
    if len(columns) > 1 and any(values.ndim > 1 for values in columns):
        raise UsageError(f"from_partitioner: several columns of arrays, {', '.join(names)}; choose one by features")
    if len(columns) == 1 and columns[0].ndim > 1:
        return columns[0], np.asarray(content[label])
    from pandas import DataFrame  # whose names are compared with those of other partitions

    return DataFrame(dict(zip(names, columns, strict=True))), np.asarray(content[label])
