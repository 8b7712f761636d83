"""Parts of the reference, made from the tables of the program: job files, columns of histories, exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpifed.core.errors import ENDS
from mpifed.run.columns import shown
from mpifed.run.explain import reference

PLURALS = {
    "job": "Top level", "table": "Tables", "algorithm": "Algorithms", "model": "Models", "term": "Terms",
    "regularizer": "Regularizers", "schedule": "Schedules of learning rates",
}  # fmt: skip


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with what belongs at its markers."""
    for name, made in PARTS.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    return markdown


def columns() -> str:
    """A row for each column of a history."""
    names = {one: f"`{one.name}1` ..." if one.name.endswith("_") else f"`{one.name}`" for one in shown("history")}
    return "\n".join(["| column | |", "| --- | --- |", *(f"| {name} | {one.meaning} |" for one, name in names.items())])


def exit_codes() -> str:
    """A row for each exit code."""
    return "\n".join(["| code | |", "| --- | --- |", *(f"| {end.code} | {end.meaning} |" for end in ENDS)])


def _sections() -> Iterator[str]:
    last = ""
    for title, text in reference():
        kind, _, name = title.partition(" ")
        if kind != last:
            last = kind
            yield f"## {PLURALS.get(kind, kind)}"
        if kind != "job":
            yield f"### {name}"
        yield text


PARTS = {"job": lambda: "\n\n".join(_sections()), "columns": columns, "exit codes": exit_codes}
