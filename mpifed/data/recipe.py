"""What the columns of a table become as numbers: a recipe, fitted on training rows, and applied by name ever after.

A table is read as raw numbers: of a column of texts their places among all that occur, and NaN for gaps. Which rows are
for training is decided then; of these alone the recipe takes what the user has not stated: categories, and what fills
gaps. It stays with the data, so that whoever predicts gives rows as they came.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.natural import plain, text_of
from mpifed.data.places import Places
from mpifed.data.scaling import Scaling
from mpifed.files.expected import Checked
from mpifed.files.reading import reading
from mpifed.text import listed, nearest, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import pyarrow as pa

GAPS = ("", "na", "n/a", "nan", "null", "?", "<na>")  # texts that are gaps, in small letters
NONE = "None"  # is one as well, as pandas reads it, and no other form of it
_LARGEST = float(np.finfo(np.float32).max)
_MOST_CATEGORIES = 50  # of a column, and one in two rows; where the user states them, any number
FEW = 20  # rows of which each may have another number
_FEW_CATEGORIES = 10
LEAVE_OUT = "leave the column out, by --ignore NAME"


def _different(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts as those of rows are; ValueError where they are not, or one is there twice."""
    if [*map(plain, texts)] != [*texts] or len({*texts}) < len(texts):
        raise ValueError("expected different texts, without blanks around, in Unicode's form NFC")
    return texts


Texts = Annotated[tuple[str, ...], Checked(_different)]


@dataclass(frozen=True)
class Stated:
    """What a user states of a column, in the table [columns.NAME] of a file of `--given`."""

    categories: Texts | None = None
    fill: float | str | None = None  # in place of gaps
    range: tuple[float, float] | None = None  # what becomes 0 and 1

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    def __post_init__(self) -> None:
        low, high = self.range or (0, 1)
        fill = self.fill if isinstance(self.fill, float) else 0
        if not high - low >= 1 / _LARGEST or max(abs(low), abs(high), abs(fill)) > _LARGEST:
            raise ValueError("expected range = [low, high] with low < high, and fill, of numbers that float32 holds")


@dataclass(frozen=True)
class Public:
    """A file of `--given`: what the user states, so that it is computed from no row."""

    columns: dict[str, Stated] = field(default_factory=dict)
    classes: Texts = ()

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid"}

    @classmethod
    def read(cls, path: Path | None) -> Public:
        """The file's content; UsageError for one that is not there or says something else."""
        from mpifed.files.schemas import conforming  # with pydantic, slow to import

        try:
            return cls() if path is None else conforming(cls, tomllib.loads(Path(path).read_text("utf-8-sig")))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"--given {path}: {error}; expected TOML, with [columns.NAME]") from error


@dataclass(frozen=True, kw_only=True)
class Encoding(Stated):
    """What becomes of a column: one of 0 and 1 for each of its categories, or without these the numbers.

    Without a `fill` gaps are refused; 0 of categories makes all zeros of them.
    """

    name: str

    def names(self) -> list[str]:
        """Of the columns of numbers: `colour=red` for a category."""
        if self.categories is None:
            return [self.name]
        printed = [text if text.isprintable() else ascii(text)[1:-1] for text in self.categories]
        return [f"{self.name}={text[:200]}" for text in printed]

    def encode(self, texts: Sequence[str] | None, x: Array) -> Array:
        """[s, 1], or [s, categories], of raw numbers x [s], which are places among `texts` if there are some.

        A text that is no category is all zeros.
        """
        gaps = np.isnan(x)
        if self.categories is None or texts is None:
            return np.where(gaps, np.nan if self.fill is None else float(self.fill), x)[:, None]
        one_hot = np.array([*texts, self.fill], object)[:, None] == np.array(self.categories, object)
        rows: Array = one_hot[np.where(gaps, -1, x).astype(np.int64)]
        return rows


class RawColumns(NamedTuple):
    """The columns of raw rows [s, p] of float32."""

    texts: dict[str, tuple[str, ...] | None]  # by name all that occur; None: numbers
    missing: str  # "zero", "mean", "median", "drop", or "error" where there are no gaps
    public: Public


class Recipe(NamedTuple):
    """The columns of features, and what of it was computed from rows or given by the user."""

    columns: tuple[Encoding, ...] = ()
    fitted: tuple[str, ...] = ()  # such as "categories of sex", "median of age"
    given: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """[q] of the columns of numbers."""
        return tuple(name for column in self.columns for name in column.names())

    def fits(self, names: Sequence[str] | None) -> bool:
        """Whether what may be a stranger's makes columns of these names, and texts of columns of texts alone."""
        texts = any(isinstance(column.fill, str) for column in self.columns if column.categories is None)
        return bool(self.columns) and [*self.names()] == [*(names or ())] and not texts

    def encode(self, texts: Iterable[Sequence[str] | None], X: Iterable[Array]) -> Array:
        """[s, q] float32 of raw columns X, p of [s], which have these texts."""
        parts = [column.encode(known, x) for column, known, x in zip(self.columns, texts, X, strict=True)]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def rows(self, table: pa.Table, what: str) -> Array:
        """[s, q] float32 of a table of any rows, whose columns are found by name."""
        texts, X = list[tuple[str, ...] | None](), list[Array]()
        for encoding in self.columns:
            name, categories = encoding.name, encoding.categories
            if (count := table.column_names.count(name)) != 1:
                there = "" if count else nearest(name, table.column_names)
                columns = ", ".join(table.column_names)
                raise DataError(f"{what}: {count or 'no'} column{'s' * (count > 1)} {name!r}{there}; of {columns}")
            column = column_of({what: table}, name, categories or ())
            if categories is None and is_text(column.values.type):
                raise column.not_a_number("training rows have numbers there; give numbers, not texts")
            known, x = column.raw(categories)
            for row in np.flatnonzero(np.isnan(x))[:1].tolist() if encoding.fill is None else ():
                raise DataError(
                    f"{column.places.at(row)} is a missing value; training rows had none, or were left out with it: "
                    "fill it in, or leave the row out"
                )
            for text in (known or ())[len(categories or ()) :][:1]:
                said = f"{what}: column {name!r}: no training row had {text!r:.80}, which counts as no category"
                warnings.warn(said, stacklevel=4)
            texts.append(known)
            X.append(x.astype(np.float32))
        return self.encode(texts, X)

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

    Raises UsageError or DataError where a column has too many categories, or others than are given, or nothing that
    fills its gaps.
    """
    columns, missing = list[Encoding](), raw.missing
    fitted = ["rows without gaps"] * (missing == "drop")  # so that the places of all others depend on it
    given = [f"{key} of {name}" for name, stated in raw.public.columns.items() for key, value in vars(stated).items()
             if value is not None]  # fmt: skip
    for (name, texts), x in zip(raw.texts.items(), X.T, strict=True):
        here, column = x[~np.isnan(x)], Encoding(name=name, **vars(raw.public.columns.get(name, Stated())))
        fill: float | str | None = column.fill
        fits = isinstance(fill, float) if texts is None else fill == 0
        counts = np.bincount(here.astype(np.int64), minlength=1) if texts else np.zeros(1)
        if texts is not None:
            met = tuple(texts[at] for at in np.flatnonzero(counts))
            if column.categories is None:
                column = replace(column, categories=met)
                fitted.append(f"categories of {name}")
                if len(met) > min(_MOST_CATEGORIES, max(_FEW_CATEGORIES, len(x) / 2)):
                    raise DataError(
                        f"column {name!r}: {len(met)} different texts in {len(x)} training rows are no categories: at "
                        f"most {_MOST_CATEGORIES}, and one in two rows; {LEAVE_OUT}, or state them all, as "
                        f"`categories = [...]` of [columns.{name}] in a file of --given"
                    )
            categories = column.categories or ()
            if strange := {*met}.difference(categories):
                raise DataError(f"column {name!r}: {min(strange)!r:.80} is none of the given {categories!s:.80}")
            fits = fits or fill in categories
        if fill is not None and not fits:
            raise UsageError(f"--given: columns.{name}.fill = {fill!r}: expected a number or, of texts, a category")
        if fill is None and missing == "zero":
            fill = 0.0
        elif fill is None and missing in ("mean", "median"):
            if not len(here):
                raise DataError(f"--missing {missing}: column {name!r} has no value in the training rows; remove it")
            values = here.astype(np.float64)
            # of texts the most frequent one, of these the first
            fill = (
                texts[counts.argmax()] if texts else float(np.mean(values) if missing == "mean" else np.median(values))
            )
            fitted.append(f"{missing} of {name}")
        columns.append(replace(column, fill=fill))
    return Recipe(tuple(columns), tuple(fitted), tuple(given))


def _texts(values: pa.ChunkedArray, known: Sequence[str]) -> pa.Array:
    """[s] texts of texts, categories or numbers; null for gaps."""
    import pyarrow as pa

    encoded = values.dictionary_encode().unify_dictionaries().combine_chunks()
    texts = [None if value is None else plain(text_of(value)) for value in encoded.dictionary.to_pylist()]
    gaps = {text for text in texts if text == NONE or str(text).lower() in GAPS}.difference(known)
    there = [None if text in gaps else text for text in texts]
    return pa.array(there, pa.large_string()).take(encoded.indices)


class Cells(NamedTuple):
    """A column of tables that stand one below the other."""

    places: Places
    values: pa.ChunkedArray  # as `column_of` gives them

    def raw(self, known: tuple[str, ...] | None) -> tuple[tuple[str, ...] | None, Array]:
        """(texts, places among them [s]), those `known` first; or (None, numbers [s]); float64, NaN for gaps.

        Raises DataError for what is no number, or none that float32 holds, and for numbers that are no known texts.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        column, texts = self.values, known
        if known is not None:
            words = _texts(column, known)
            others = sorted({*words.unique().to_pylist()} - {None, *known})
            if others and not is_text(column.type):
                place = self.places.at(pc.index(words, others[0]).as_py())
                raise DataError(
                    f"{place} is {others[0]}, of type {column.type}, and none of the texts {listed(known)}; give texts"
                )
            texts = (*known, *(sorted(others, key=float) if all(map(is_decimal, others)) else others))
            column = pc.index_in(words, pa.array(texts, words.type))
        elif is_text(column.type):
            raise self.not_a_number(
                f"encode categories, by --categorical one-hot; {LEAVE_OUT}; or, where fractions have a comma, give "
                "--decimal ','"
            )
        try:
            column = pc.cast(column, pa.float64()).fill_null(np.nan)
        except pa.ArrowInvalid as error:
            wide = (abs(value or 0) > 2**53 for value in column.to_pylist())
            row = next((row for row, is_wide in enumerate(wide) if is_wide), 0)
            raise DataError(f"{self.places.at(row)}: {error}: identifiers are no features; {LEAVE_OUT}") from error
        # `to_numpy` would import pandas
        values = np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        for row in np.flatnonzero(np.abs(values) > _LARGEST)[:1].tolist():
            raise DataError(f"{self.places.at(row)}: {values[row]} is not a finite number in float32")
        return texts, values

    def not_a_number(self, remedy: str) -> DataError:
        """The error for the first text that is no number."""
        words = [word or "" for word in self.values.to_pylist()]
        row = next((row for row, word in enumerate(words) if word and not is_decimal(word)), 0)
        kind = "a text or category, not a number" if is_decimal(words[row]) else "not a number"
        return DataError(f"{self.places.at(row)}: {shown(words[row], 80)!r} is {kind}; {remedy}")


def column_of(tables: Mapping[str, pa.Table], name: str, known: Sequence[str] = (), of_labels: bool = False) -> Cells:
    """A column of all tables, one below the other, or nulls where one lacks it; gaps are nulls, unless `known` words.

    Raises DataError for texts in one table and numbers in another one, and for other types.
    """
    import pyarrow as pa

    parts, kinds = list[pa.Table](), dict[bool, str]()
    for what, table in tables.items():
        values = table[name] if name in table.column_names else pa.chunked_array([pa.nulls(len(table))])
        kind = values.type.value_type if "dictionary" in str(values.type) else values.type
        if not re.match("u?int|halffloat|float|double|bool|decimal|null|(large_)?string", str(kind)):
            raise DataError(
                f"{what}: column {name!r} is of type {str(values.type)[:80]}; expected numbers or texts; convert it "
                f"(lists and images: FederatedDataset.from_arrays in Python, see docs/how-to/python.md), or {LEAVE_OUT}"
            )
        if of_labels and kind != values.type:  # categories of numbers are these
            values = values.cast(kind)
        if is_text(values.type):
            values = pa.chunked_array([_texts(values, known)])
        if values.null_count < len(values):
            kinds[is_text(values.type)] = what
        parts.append(pa.table({name: values}))
    if len(kinds) > 1:
        place = [*tables].index(kinds[True])
        text = Cells(Places({kinds[True]: 0}, name), parts[place][name])
        raise text.not_a_number(f"{kinds[False]} has numbers there; correct it, or state categories, by --given")
    with reading(f"{' and '.join([*tables][:3])}: column {name!r}", "give columns of one type", pa.ArrowException):
        below = pa.concat_tables(parts, promote_options="permissive")
    return Cells(Places({what: len(table) for what, table in tables.items()}, name), below[name])


def check_feature(what: str, values: Array, stated: bool) -> None:
    """Raise DataError for numbers [s] that float32 would make one, or that number rows, unless they are `stated`."""
    here = values[~np.isnan(values)]
    distinct = np.unique(here)
    are_whole = bool((distinct % 1 == 0).all()) and np.abs(distinct).max(initial=0) < 2**53
    left = len(np.unique(distinct.astype(np.float32)))
    if left < len(distinct) and (are_whole or left == 1 or left < len(distinct) / 2):
        raise DataError(
            f"{what}: {len(distinct)} different numbers, such as {distinct[0]:.17g}, are {left} in "
            f"float32; subtract an offset, or {LEAVE_OUT}: dates and identifiers are no features"
        )
    if are_whole and len(distinct) == len(here) > FEW and not stated:
        raise DataError(
            f"{what}: another integer in each of {len(here)} rows, which names rows; {LEAVE_OUT}, or "
            f"say that it is a number, by [columns.NAME] in a file of --given"
        )


def is_decimal(cell: str) -> bool:
    """Whether Python takes a text for a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds texts or categories."""
    return re.match("(large_)?string|dictionary", str(kind)) is not None
