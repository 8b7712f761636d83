"""What cannot be read, as an error of data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpifed.core.errors import DataError
from mpifed.text import shown


@contextmanager
def reading(what: object, remedy: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds, raised in here, into a DataError that names what was read, and the remedy."""
    try:
        yield
    except kinds as error:
        raise DataError(f"{what}: cannot be read ({type(error).__name__}: {shown(str(error))}); {remedy}") from error
