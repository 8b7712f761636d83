"""Data of another source, of which a file says which client holds which rows and columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click
import numpy as np

from mpifed.data.command import data
from mpifed.data.holding_out import hold_out
from mpifed.data.options import Options
from mpifed.data.partition import by_rectangles
from mpifed.data.samples import Samples, Source
from mpifed.data.sources import SOURCES


@dataclass(frozen=True)
class Mapped(Source):
    """Rectangles of rows and columns, by lines `0,0-99 120,all` for each client, numbers from 0 and whole ranges."""

    path: Path
    """The file."""
    of: str
    """The words of the other source."""
    held_out: float | None = None
    """The fraction of its rows that is for testing; the file does not count them."""

    names_clients = True

    def read(self, seed: int) -> Samples:
        name, *words = shlex.split(self.of)
        command = data.get_command(click.Context(data), name)
        assert command is not None
        given = command.make_context(name, [*words, "--out", "none"]).params
        kind = SOURCES[name]
        own = {field.name: given[field.name] for field in fields(kind) if given.get(field.name) is not None}  # type: ignore[arg-type]
        samples = kind(**own).read(seed)
        if self.held_out is not None:
            samples = hold_out(replace(samples, y=np.asarray(samples.y)), self.held_out, seed)
        sizes = np.shape(samples.X)
        lines = [line.split(",")[1:] for line in self.path.read_text().splitlines()[1:] if line]
        held = ([np.array([*_numbers(part, size)]) for part, size in zip(line, sizes, strict=True)] for line in lines)
        return replace(samples, partition=by_rectangles((np.sort(rows), np.sort(cols)) for rows, cols in held))


def _numbers(text: str, size: int) -> Iterator[int]:
    for word in [f"0-{size - 1}"] if text == "all" else text.split():
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def with_map(words: Sequence[object]) -> list[str]:
    """The words of `mpifed data` for those that say --map FILE behind a source."""
    name, *rest = map(str, words)
    if "--map" not in rest:
        return [name, *rest]
    common, other, path = list[str](), [name], ""
    options = {f"--{field.name.replace('_', '-')}" for field in fields(Options)}
    while rest:
        word, *more = rest
        if word == "--map":
            path, *rest = more
        elif word == "--split":
            _, *rest = more
        elif word in options:
            value, *rest = more
            common += ["--held-out" if word == "--test-fraction" else word, value]
        else:
            other.append(word)
            rest = more
    return ["mapped:Mapped", path, "--of", shlex.join(other), *common]
