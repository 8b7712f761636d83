"""Progress bars, on standard error if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(title: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A progress bar; gives a function that advances it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda more: bar.advance(task, more)
