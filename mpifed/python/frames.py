"""Data of DataFrames, of datasets of PyTorch, of partitions of flwr-datasets; and whose each row is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.data.encoding import CATEGORICAL, FILLS, RawColumns
from mpifed.data.natural import canonical_order, identifiers, in_order, natural_clients, text_of
from mpifed.data.sources.dataset import CHUNK_VALUES, Dataset
from mpifed.data.sources.texts import numbered
from mpifed.python.values import Pair, Values, array, dataset, held_apart, without_numbers

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def owners_of(clients: Values, data: Dataset) -> Array | None:
    """[s] whose each sample is, as texts; None where `clients` is a number."""
    if np.ndim(clients) == 0:
        return None
    if np.shape(clients) != data.labels.shape[:1]:
        raise UsageError(
            f"from_arrays: clients: {getattr(clients, 'dtype', 'a list')} {np.shape(clients)}; expected how many, or "
            f"an integer or text for each of {len(data.labels)} samples"
        )
    return identifiers(array(clients, "clients") if hasattr(clients, "detach") else clients, "from_arrays: clients")


def in_client_order(data: Dataset, ids: Array, test_ids: Array | None = None) -> Dataset:
    """The data with natural clients, their rows in an order of their content."""
    (rows,), natural = data.chunks(), natural_clients(*numbered(ids, test_ids))
    size = max(1, CHUNK_VALUES // data.features)
    parts = (rows[start : start + size] for start in range(0, rows.shape[0], size))
    dense = (part if isinstance(part, np.ndarray) else part.toarray() for part in parts)
    order = canonical_order(natural.owner, data.labels, dense)
    return replace(
        data, labels=data.labels[order], chunks=lambda: iter([rows[order]]),
        natural=natural._replace(owner=natural.owner[order]),
    )  # fmt: skip


def of_frame(
    frame: DataFrame, label: str | Sequence[str], by: str | None, clients: int | None, test: Values,
    categorical: str | None, missing: str, options: Table,
) -> tuple[Dataset, Table]:  # fmt: skip
    """(the data of a frame, options of `prepare`)."""
    if not hasattr(frame, "columns"):
        raise UsageError(f"from_dataframe: a {type(frame).__name__}; expected a DataFrame; from_arrays takes arrays")
    if (by is None) == (clients is None):
        raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
    if categorical not in (None, *CATEGORICAL) or missing not in ("error", "drop", *FILLS):
        raise UsageError(
            f"from_dataframe: categorical = {categorical!r}, missing = {missing!r}: expected None or one of "
            f"{', '.join(CATEGORICAL)}, and one of error, drop, {', '.join(FILLS)}"
        )
    of_all = ("scale", "shape", "seed", "feature_noise", "client_test")
    known = ("partition", "skew", "min_samples", "split", *of_all) if by is None else (*of_all, "min_rows")
    if unknown := [name for name in options if name not in known]:
        raise UsageError(
            f"from_dataframe: {unknown[0]}: no argument here{nearest(unknown[0], known)}; known are {', '.join(known)}"
        )
    targets: list[Values] = list(label) if isinstance(label, (list, tuple)) else [label]  # whatever columns are called
    features = without_numbers([name for name in frame.columns if name not in targets and name != by], "from_dataframe")
    roles = [*targets, *([] if by is None else [by])]
    used = [*features, *roles]
    _check_columns(frame, roles, "frame")
    tested, fraction = None, None
    if hasattr(test, "columns"):
        _check_columns(test, [*targets, *features], "test")
        tested = test[used] if by in test.columns else test[[*features, *targets]]
    else:
        pair, fraction = held_apart(test, "from_dataframe")
        if pair is not None:
            raise UsageError("from_dataframe: test: a pair; expected a DataFrame, or the fraction that is held out")
    frame = frame[used]
    if missing == "drop":
        frame, tested = frame.dropna(), None if tested is None else tested.dropna()
    data = _encodable(frame, tested, features, targets, categorical, missing, options.get("shape"))
    chosen: Table = {name: value for name, value in options.items() if name not in ("shape", "client_test")}
    chosen |= {"test_fraction": fraction, "client_test_fraction": options.get("client_test")}
    chosen["missing"] = missing if missing in FILLS else "error"
    if by is None:
        return data, {"clients": clients, **chosen}
    parts = [part for part in (frame, tested) if part is not None and by in part]
    return in_client_order(data, *(identifiers(part[by], f"from_dataframe: {by}") for part in parts)), chosen


def _encodable(
    frame: DataFrame, test: DataFrame | None, features: list[Values], targets: list[Values], categorical: str | None,
    missing: str, shape: Sequence[int] | None,
) -> Dataset:  # fmt: skip
    """The data, with codes of texts, and NaN for gaps."""
    frames = [frame] if test is None else [frame, test]
    texts = [at for at, name in enumerate(features) if frame[name].dtype.kind not in "biuf"]
    if texts and categorical is None:
        names = ", ".join(str(features[at]) for at in texts)
        raise DataError(
            f"from_dataframe: columns {names} are no numbers; categorical='one-hot' or 'ordinal' encodes, or drop them"
        )
    known = [{text for part in frames for text in _texts(part[features[at]]) if text is not None} for at in texts]
    categories = {at: tuple(in_order(of_column)) for at, of_column in zip(texts, known, strict=True)}
    code = {at: {text: number for number, text in enumerate(ordered)} for at, ordered in categories.items()}

    def rows(part: DataFrame) -> Array:
        X = np.empty((len(part), len(features)), np.float32)
        for at, name in enumerate(features):
            if at in code:
                X[:, at] = [np.nan if text is None else code[at][text] for text in _texts(part[name])]
            else:
                X[:, at] = part[name].to_numpy(np.float32, na_value=np.nan)
        return X

    def labels(part: DataFrame) -> Array:
        y: Array = part[targets].to_numpy()
        return y[:, 0] if len(targets) == 1 else y.astype(float)

    for part in frames:
        if part[targets].isna().any(axis=None):
            raise DataError("from_dataframe: rows without a label; missing='drop' leaves them out")
    y = [labels(part) for part in frames]
    if missing == "error" and (gappy := [name for name in features if any(part[name].isna().any() for part in frames)]):
        raise DataError(
            f"from_dataframe: column {gappy[0]!r} has gaps; fill them in, by missing='median', 'mean' or 'zero', or "
            "leave these rows out, by missing='drop'"
        )
    X = [rows(part) for part in frames]
    gaps = [np.isnan(values) if missing in FILLS else np.zeros(1, bool) for values in X]
    whole = [np.where(absent, 0, values) for absent, values in zip(gaps, X, strict=True)]  # whose rest is checked
    test_pair = None if test is None else (whole[1], y[1])
    data = dataset(whole[0], y[0], test_pair, shape, [str(name) for name in features])
    columns = RawColumns(categories, categorical, missing if missing in FILLS else "error")
    return replace(
        data, chunks=lambda: iter([X[0]]),
        test=None if data.test is None else (X[1], data.test[1]),
        columns=columns if categories or missing in FILLS else None,
    )  # fmt: skip


def _texts(column: Series) -> list[str | None]:
    """The texts of a column, None for gaps."""
    return [None if absent else text_of(text) for text, absent in zip(column, column.isna(), strict=True)]


def _check_columns(frame: DataFrame, names: Sequence[str], what: str) -> None:
    if missing := [name for name in names if name not in frame.columns]:
        there = [str(name) for name in frame.columns]
        meant = nearest(str(missing[0]), there)
        raise DataError(f"from_dataframe: {what}: no column {missing[0]!r}{meant}; there are {', '.join(there)}")


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
