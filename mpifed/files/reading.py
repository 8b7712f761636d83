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
        why = getattr(error, "strerror", None) or shown(str(error))  # what cannot be read is named once
        raise DataError(f"{what}: cannot be read ({type(error).__name__}: {why}); {remedy}") from error
