"""The reference of a job file, made from the classes that read one, as `mpifed explain` tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpifed.run.explain import reference

MARKER = "<!-- generated: job -->"
PLURALS = {
    "job": "Top level", "table": "Tables", "algorithm": "Algorithms", "model": "Models", "term": "Terms",
    "regularizer": "Regularizers", "schedule": "Schedules of learning rates",
}  # fmt: skip


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The sections at the marker of a page."""
    return markdown.replace(MARKER, "\n\n".join(_sections())) if MARKER in markdown else markdown


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
