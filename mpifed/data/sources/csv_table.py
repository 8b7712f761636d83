"""CSV files with numbers and texts, read by Apache Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import DataError
from mpifed.data.natural import WHOLE
from mpifed.data.sources.columns import ColumnSource, TableLayout, TextsMet
from mpifed.data.sources.dataset import open_packed, shown
from mpifed.data.sources.table import GAPS, explain, first_line, number_in, read_lines, wrong_cell
from mpifed.data.sources.texts import null_for_nan

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 2**22  # parsed at a time; a line must fit
TEXT_GAPS = ("", "na", "n/a", "nan", "null", "?")  # cells of texts that are missing values; `none` may be a category


@dataclass(frozen=True)
class CsvTable(ColumnSource):
    """A CSV file, with names in its first line or without: numbers, and texts as classes, categories or identifiers.

    Packed files, .gz, .bz2 and .xz, are unpacked. Empty cells and NA, N/A, NaN, null and ? are missing values.
    """

    def names(self, path: Path) -> tuple[list[str] | None, int]:
        return first_line(path)

    def texts(self, path: Path, layout: TableLayout) -> set[int] | None:
        return None

    def all_texts(self, path: Path, layout: TableLayout) -> set[int]:
        numbers, texts = set[int](), set[int]()
        for columns in self._strings(path, layout):
            for at in [*layout.features, *layout.labels]:
                cells = columns[at].unique().to_pylist()
                words = [cell.strip() for cell in cells if cell.strip().lower() not in GAPS]
                known = [number_in(word) is not None for word in words]
                numbers |= {at} if any(known) else set()
                texts |= {at} if not all(known) else set()
        mixed = numbers & texts & set(layout.labels) if self.task == "auto" else set()
        return texts - mixed  # a label among numbers that is no number is an error, if nobody says that it is a class

    def batches(self, path: Path, layout: TableLayout, texts: set[int] | None) -> Iterator[list[pa.Array]]:
        import pyarrow.compute as pc

        done = 0
        for columns in self._strings(path, layout):
            for at in [*layout.features, *layout.labels]:
                if texts and at in texts:
                    columns[at] = _gapped(columns[at], TEXT_GAPS)
                    continue
                values, wrong = _numbers(columns[at])
                if wrong is not None:
                    if texts is None and self._may_be_text(layout, at):
                        raise TextsMet
                    raise self.refuse(path, layout, done + wrong, at, "is not a number")
                columns[at] = values
            if layout.by is not None:
                ids = _gapped(columns[layout.by], ("", "nan", "<na>", "nat"))
                columns[layout.by] = pc.replace_substring_regex(ids, WHOLE, r"\1")
            yield columns
            done += len(columns[0])

    def _may_be_text(self, layout: TableLayout, at: int) -> bool:
        return self.categorical is not None if at in layout.features else self.task != "regression"

    def _strings(self, path: Path, layout: TableLayout) -> Iterator[list[pa.Array]]:
        """Batches of the columns, all of them strings."""
        import pyarrow as pa
        from pyarrow import csv

        names = [str(at) for at in range(layout.width)]
        with open_packed(path) as file:
            try:
                reader = csv.open_csv(
                    pa.PythonFile(file, "r"),
                    csv.ReadOptions(
                        use_threads=False, block_size=BLOCK_BYTES, column_names=names,
                        skip_rows_after_names=1 if layout.names else 0,
                    ),
                    csv.ParseOptions(newlines_in_values=True),
                    csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
                )  # fmt: skip
                for batch in reader:
                    if len(batch):
                        yield list(batch.columns)
            except pa.ArrowInvalid as error:
                explain(path, layout.names, layout.width)
                if "Empty CSV" in str(error):
                    return
                raise DataError(f"{path}: {shown(str(error))[1:-1]}; correct the file") from error

    def refuse(self, path: Path, layout: TableLayout, row: int, at: int, why: str) -> DataError:
        with read_lines(path) as lines:
            if layout.names:
                next(lines)
            for number, cells in enumerate(filter(None, lines)):
                if number == row and at < len(cells):
                    return DataError(wrong_cell(f"{path}: line {lines.line_num}", layout.names, at, cells[at]))
        name = f" ({layout.names[at]})" if layout.names else ""
        return DataError(f"{path}: row {row + 1}, column {at + 1}{name} {why}; correct it")


def _gapped(column: pa.Array, gaps: tuple[str, ...]) -> pa.Array:
    """Texts without whitespace around them; null for a gap."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(column)
    absent = pc.is_in(pc.utf8_lower(trimmed), pa.array(gaps, pa.string()))
    return pc.if_else(absent, pa.nulls(1, pa.string())[0], trimmed) if pc.any(absent).as_py() else trimmed


def _numbers(column: pa.Array) -> tuple[pa.Array, int | None]:
    """(float64 with null for gaps, the first row that is no number)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        values = pc.cast(column, pa.float64())
    except pa.ArrowInvalid:  # gaps, spaces, signs
        texts = _gapped(column, GAPS)
        try:
            values = pc.cast(texts, pa.float64())
        except pa.ArrowInvalid:
            numbers = [None if text is None else number_in(text) for text in texts.to_pylist()]
            wrong = [
                text is not None and number is None for text, number in zip(texts.to_pylist(), numbers, strict=True)
            ]
            if any(wrong):
                return None, int(np.argmax(wrong))
            values = pa.array(numbers, pa.float64())
    return null_for_nan(values), None
