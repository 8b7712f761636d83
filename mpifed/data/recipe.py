"""What the columns of a table become as numbers: a recipe, fitted on training rows, and applied by name ever after.

A table is read as raw numbers: of a column of texts their places among all that occur, and NaN for gaps. Which rows are
for training is decided then; of these alone the recipe takes what the user has not stated: categories, and what fills
gaps. It stays with the data, so that whoever predicts gives rows as they came.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from unicodedata import normalize

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.expected import expected
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.core.text import shown
from mpifed.data.natural import identifiers, in_order, text_of
from mpifed.data.scaling import Scaling

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import pyarrow as pa

FILLS = ("zero", "mean", "median")  # of gaps
GAPS = ("", "na", "n/a", "nan", "null", "?", "<na>")  # texts that are gaps, in small letters
LARGEST = float(np.finfo(np.float32).max)
_STATED = ("categories", "fill", "range")  # what a user may say of a column
MOST_CATEGORIES = 50  # of a column, and one in two rows; where the user states them, any number
_FEW = 20  # rows of which each may have another number
_FEW_CATEGORIES = 10
LEAVE_OUT = "leave the column out, by --ignore NAME"
_ENCODE = f"encode categories, by --categorical one-hot or --categorical ordinal, or {LEAVE_OUT}"


@dataclass(frozen=True)
class Encoding:
    """What becomes of a column; in a file of `--given` the table [columns.NAME] says what the user states of it."""

    name: str = ""
    categories: tuple[str, ...] | None = None  # of texts: 0, 1, ..., or a column of 0 and 1 each; None: numbers
    one_hot: bool = False
    fill: float | str | None = None  # in place of gaps; None: they are refused; 0 of one-hot categories: all zeros
    range: tuple[float, float] | None = None  # what becomes 0 and 1

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "allow_inf_nan": False, "strict": False}

    def names(self) -> list[str]:
        """Of the columns of numbers: `colour=red` for a category."""
        return [f"{self.name}={_plain(text)}" for text in self.categories or ()] if self.one_hot else [self.name]


@dataclass(frozen=True)
class Public:
    """A file of `--given`: what the user states, so that it is computed from no row."""

    columns: dict[str, Encoding] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid"}

    @classmethod
    def read(cls, path: Path | None) -> Public:
        """The file's content; UsageError for one that is not there or says something else."""
        from pydantic import TypeAdapter, ValidationError

        if path is None:
            return cls()
        try:
            public = TypeAdapter(cls).validate_python(tomllib.loads(path.read_text(encoding="utf-8-sig")))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise UsageError(f"--given {path}: {place}: {expected(first)}") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"--given {path}: {error}; expected TOML, with [columns.NAME]") from error
        stated = {f"columns.{name}.categories": column.categories or () for name, column in public.columns.items()}
        for key, texts in {**stated, "classes": public.classes}.items():
            plain = [normalize("NFC", text).strip() for text in texts]  # as those of rows are
            if plain != [*texts] or len({*texts}) < len(texts):
                raise UsageError(
                    f"--given {path}: {key}: expected different texts, without blanks around, in Unicode's form NFC"
                )
        for name, column in public.columns.items():
            low, high = column.range or (0, 1)
            most = max(map(abs, [low, high, column.fill if isinstance(column.fill, float) else 0]))
            if column.name or column.one_hot or not low < high or most > LARGEST or high - low < 1 / LARGEST:
                raise UsageError(
                    f"--given {path}: columns.{name}: expected categories, fill, range = [low, high] with low < high, "
                    "of numbers that float32 holds"
                )
        return public


class RawColumns(NamedTuple):
    """The columns of raw rows [s, p] of float32."""

    columns: tuple[Encoding, ...]  # with all texts that occur as categories
    categorical: str | None  # "one-hot" or "ordinal"
    missing: str  # one of `FILLS`, or "error" where there are no gaps
    public: Public


class Recipe(NamedTuple):
    """The columns of features, and what of it was computed from rows or given by the user."""

    columns: tuple[Encoding, ...] = ()
    fitted: tuple[str, ...] = ()  # such as "categories of sex", "median of age"
    given: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """[q] of the columns of numbers."""
        return tuple(name for column in self.columns for name in column.names())

    def encode(self, raw: Sequence[Encoding], X: Array) -> Array:
        """[s, q] float32 of raw rows X [s, p], whose categories are those of `raw`.

        Raises DataError for a gap or an ordinal that no training row has.
        """
        parts = [_encode(column, before, x) for column, before, x in zip(self.columns, raw, X.T, strict=True)]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def rows(self, table: pa.Table, what: str) -> Array:
        """[s, q] float32 of a table of any rows, whose columns are found by name."""
        raw = [column if column.categories is None else with_texts(column, {what: table}) for column in self.columns]
        return self.encode(raw, raw_rows(raw, table, what))

    def with_ranges(self, scaling: Scaling, kinds: Sequence[str]) -> Scaling:
        """The scaling, of columns of a given range by that; UsageError where rows are scaled by their norm, too."""
        if not any(column.range for column in self.columns):
            return scaling
        if "unit-rows" in kinds:
            raise UsageError("--scale unit-rows: not with the ranges of --given, which scale columns; leave one out")
        ranges = [column.range or (np.nan, np.nan) for column in self.columns for _ in column.names()]
        low, high = np.array(ranges).T
        stated = Scaling(1 / (high - low), -low / (high - low))
        return Scaling(*(np.where(np.isnan(low), *pair) for pair in zip(scaling, stated, strict=True)))


def fit_recipe(raw: RawColumns, X: Array) -> Recipe:
    """The recipe that the raw training rows X [s, p], and what is given, say.

    Raises UsageError or DataError where a column has too many categories, or nothing that fills its gaps.
    """
    columns, fitted, given = [], [], []
    for before, x in zip(raw.columns, X.T, strict=True):
        name, here, are_texts = before.name, x[~np.isnan(x)], before.categories is not None
        stated = raw.public.columns.get(name, Encoding())
        categories, fill = stated.categories, stated.fill
        given += [f"{key} of {name}" for key in _STATED if getattr(stated, key) is not None]
        counts = np.bincount(here.astype(np.int64) if are_texts else [], minlength=len(before.categories or ()))
        if before.categories is not None and categories is None:
            categories = tuple(before.categories[code] for code in np.flatnonzero(counts))
            _check_categories(name, len(categories), len(x))
            fitted.append(f"categories of {name}")
        one_hot = are_texts and raw.categorical == "one-hot"
        fits = isinstance(fill, float) if categories is None else fill in categories or (one_hot and fill == 0)
        if fill is not None and not fits:
            raise UsageError(
                f"--given: columns.{name}.fill = {fill!r}: expected {'a category' if are_texts else 'a number'}"
            )
        if fill is None and raw.missing == "zero":
            if are_texts and not one_hot and len(here) < len(x):
                raise UsageError(
                    "--missing zero --categorical ordinal: 0 is the first category; use --missing median, which takes "
                    "the most frequent one, or --categorical one-hot"
                )
            fill = None if are_texts and not one_hot else 0.0
        if fill is None and raw.missing in ("mean", "median"):
            if not len(here):
                raise DataError(
                    f"--missing {raw.missing}: column {name!r} has no value in the training rows; remove it"
                )
            middle = np.mean if raw.missing == "mean" else np.median
            # of texts the most frequent one, of these the first
            fill = before.categories[np.argmax(counts)] if before.categories else float(middle(here.astype(np.float64)))
            fitted.append(f"{raw.missing} of {name}")
        columns.append(Encoding(name, categories, one_hot, fill, stated.range))
    return Recipe(tuple(columns), tuple(fitted), tuple(given))


def raw_rows(columns: Sequence[Encoding], table: pa.Table, what: str) -> Array:
    """[s, p] float32 of a table's columns: numbers, places of texts among the categories, NaN for gaps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    X = np.empty((len(table), len(columns)), np.float32)
    for at, column in enumerate(columns):
        values, known = _column(table, column.name, what), column.categories
        if known is None:
            X[:, at] = numbers(what, column.name, values)
        else:
            words = texts(what, column.name, values, known)
            X[:, at] = in_numpy(pc.index_in(words, pa.array(known, words.type)))
    return X


def _column(table: pa.Table, name: str, what: str) -> pa.ChunkedArray:
    """A column of a table; DataError where there is none, or several."""
    if (count := table.column_names.count(name)) != 1:
        meant = "" if count else nearest(name, table.column_names)
        raise DataError(
            f"{what}: {count or 'no'} column{'s' * (count > 1)} {name!r}{meant}; of {', '.join(table.column_names)}"
        )
    return table[name]


def with_texts(column: Encoding, tables: Mapping[str, pa.Table]) -> Encoding:
    """The column with all texts of the tables as categories, after those that it has."""
    import pyarrow as pa

    known, name = column.categories or (), column.name
    columns = {what: _column(table, name, what) for what, table in tables.items()}
    for what, values in columns.items():
        if not known and getattr(values.type, "ordered", False):  # ordered categories, as of pandas
            in_turn = texts(what, name, pa.chunked_array([values.unify_dictionaries().combine_chunks().dictionary]))
            known = tuple(in_turn.drop_null().to_pylist())
    words = {what: {*texts(what, name, values, known).unique().to_pylist()} for what, values in columns.items()}
    textual = {what for what, values in columns.items() if is_text(values.type)}
    written = {_value(text): text for text in {*known}.union(*(words[what] for what in textual)) - {None}}
    for what, met in words.items():
        for text in in_order(() if what in textual else met - {*written.values(), None}):
            if (value := _value(text)) in written:
                raise DataError(
                    f"{what}: column {name!r} is of type {columns[what].type}, whose {text} is {written[value]!r} in "
                    "other rows, which have texts; give texts"
                )
    others = in_order(set().union(*words.values()) - {*known, None})
    if all(map(_is_decimal, others)):  # categories of pandas that are no integers
        others.sort(key=float)
    categories = (*known, *others)
    for what, values in columns.items():
        if not column.categories and getattr(values.type, "ordered", False):
            in_turn = texts(what, name, pa.chunked_array([values.unify_dictionaries().combine_chunks().dictionary]))
            places = [categories.index(text) for text in in_turn.to_pylist() if text in categories]
            if places != sorted(places):
                raise DataError(
                    f"{what}: column {name!r} has the ordered categories {', '.join(in_turn.to_pylist())[:80]}, others "
                    f"{', '.join(known)[:80]}; give all of them the same categories"
                )
    return replace(column, categories=categories)


def _value(text: str) -> float | str:
    """What a text and a number, or a boolean, have in common: of 01 and 1, and of true and True."""
    return float(text) if _is_decimal(text) else text.lower()


def texts(what: str, name: str, column: pa.ChunkedArray, known: Sequence[str] = ()) -> pa.Array:
    """[s] texts of a column of texts, categories or numbers; null for gaps, unless these words are `known`."""
    import pyarrow as pa

    if not is_text(column.type) and not _is_number(column.type):
        raise _wrong_type(what, name, column.type, "texts or integers")
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    values = encoded.dictionary.to_pylist()
    words = [None if value is None else normalize("NFC", text_of(value)).strip() for value in values]
    there = [word if word in known or str(word).lower() not in GAPS else None for word in words]
    return pa.array(there, pa.large_string()).take(encoded.indices)


def identities(what: str, name: str, column: pa.ChunkedArray) -> pa.Array:
    """[s] identifiers of a column as texts, null for gaps; DataError for what is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if re.match("halffloat|float|double|decimal", str(column.type)):
        values = numbers(what, name, column)
        for value in values[values % 1 > 0][:1].tolist():
            raise DataError(f"{what}: column {name!r}: {value} is no identifier; expected integers or texts")
    words = texts(what, name, column)
    distinct = words.unique().drop_null()
    names = identifiers(distinct.to_pylist(), f"{what}: column {name!r}").tolist()
    return pa.array(names, words.type).take(pc.index_in(words, distinct))


def numbers(what: str, name: str, column: pa.ChunkedArray) -> Array:
    """[s] float64 of a column of numbers, NaN for gaps; DataError for what is none, or none that float32 holds."""
    import pyarrow as pa

    if is_text(column.type):
        try:
            values = in_numpy(texts(what, name, column))
        except pa.ArrowInvalid:
            raise not_a_number(what, name, column, "training rows have numbers there; correct it") from None
    elif _is_number(column.type):
        try:
            values = in_numpy(column)
        except pa.ArrowInvalid as error:
            raise DataError(f"{what}: column {name!r}: {error}: identifiers are no features; {LEAVE_OUT}") from error
    else:
        raise _wrong_type(what, name, column.type, "numbers or texts")
    for row in np.flatnonzero(np.abs(values) > LARGEST)[:1].tolist():
        raise DataError(f"{what}: row {row + 1}, column {name!r}: {values[row]} is not a finite number in float32")
    return values


def check_feature(what: str, name: object, values: Array, stated: bool) -> None:
    """Raise DataError for numbers [s] that float32 would make one, or that number rows, unless they are `stated`."""
    here = values[~np.isnan(values)]
    distinct = np.unique(here)
    are_whole = bool((distinct % 1 == 0).all()) and np.abs(distinct).max(initial=0) < 2**53
    left = len(np.unique(distinct.astype(np.float32)))
    if left < len(distinct) and (are_whole or left == 1 or left < len(distinct) / 2):
        raise DataError(
            f"{what}: column {name!r}: {len(distinct)} different numbers, such as {distinct[0]:.17g}, are {left} in "
            f"float32; subtract an offset, or {LEAVE_OUT}: dates and identifiers are no features"
        )
    if are_whole and len(distinct) == len(here) > _FEW and not stated:
        raise DataError(
            f"{what}: column {name!r}: another integer in each of {len(here)} rows, which names rows; {LEAVE_OUT}, or "
            f"say that it is a number: [columns.{name}] in a file of --given"
        )


def _check_categories(name: str, count: int, rows: int) -> None:
    if count > min(MOST_CATEGORIES, max(_FEW_CATEGORIES, rows / 2)):
        raise DataError(
            f"column {name!r}: {count} different texts in {rows} training rows are no categories: at most "
            f"{MOST_CATEGORIES}, and one in two rows; {LEAVE_OUT}, or state them all, as `categories = [...]` of "
            f"[columns.{name}] in a file of --given"
        )


def _plain(text: str) -> str:
    """A text as a name that can be printed, and is not long."""
    return (text if text.isprintable() else text.encode("unicode_escape").decode("ascii"))[:200]


def _encode(column: Encoding, before: Encoding, x: Array) -> Array:
    """[s, 1], or [s, categories] one-hot, of the raw numbers x [s] of a column."""
    gaps = np.isnan(x)
    if gaps.any() and column.fill is None:
        raise DataError(
            f"row {np.argmax(gaps) + 1}, column {column.name!r} is a missing value; training rows had none, or were "
            "left out with it: fill it in, or leave the row out"
        )
    if column.categories is None:
        return np.where(gaps, np.nan if column.fill is None else float(column.fill), x)[:, None]
    place = {text: at for at, text in enumerate(column.categories)}
    fill = place.get(column.fill, -1) if isinstance(column.fill, str) else -1
    codes = np.array([place.get(text, -1) for text in before.categories or ()] + [fill])
    codes = codes[np.where(gaps, -1, x).astype(np.int64)]
    if column.one_hot:
        one_hot: Array = codes[:, None] == np.arange(len(place))
        return one_hot
    for row in np.flatnonzero(codes < 0)[:1].tolist():
        raise DataError(
            f"column {column.name!r}: {shown((before.categories or ())[int(x[row])], 80)!r} in a test row, and in no "
            "training row; use --categorical one-hot, which has zeros for it"
        )
    return codes[:, None]


def not_a_number(what: str, name: str, column: pa.ChunkedArray, remedy: str = _ENCODE) -> DataError:
    """The error for the first text of a column that is no number."""
    cells = texts(what, name, column).to_pylist()
    row = next((row for row, cell in enumerate(cells) if cell is not None and not _is_decimal(cell)), 0)
    return DataError(
        f"{what}: row {row + 1}, column {name!r}: {shown(cells[row] or '', 80)!r} is not a number; {remedy}"
    )


def _is_decimal(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def in_numpy(column: pa.ChunkedArray | pa.Array) -> Array:
    """[s] float64 of a column, NaN for null; pyarrow.ArrowInvalid for an integer that it does not hold, or a text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.cast(column, pa.float64()).fill_null(np.nan)
    return np.from_dlpack(
        values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    )  # `to_numpy` would import pandas


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds texts or categories."""
    return re.match("(large_)?string|dictionary", str(kind)) is not None


def _is_number(kind: pa.DataType) -> bool:
    return re.match("u?int|halffloat|float|double|bool|decimal|null", str(kind)) is not None


def _wrong_type(what: str, name: str, kind: pa.DataType, expected: str) -> DataError:
    nested = " (lists and images: FederatedDataset.from_arrays in Python, see docs/how-to/python.md)"
    return DataError(
        f"{what}: column {name!r} is of type {str(kind)[:80]}; expected {expected}; convert it"
        f"{nested if kind.num_fields else ''}, or {LEAVE_OUT}"
    )
