"""Types of the command line's arguments, and what a shell completes them with. Imports next to nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeAlias

import click

from mpifed.text import shown, wrong_line

Given: TypeAlias = Any  # a value on the command line, before click has converted it and after


class _Path(click.Path):
    """A path that fits on one line of a script or message."""

    def convert(self, value: Given, param: click.Parameter | None, ctx: click.Context | None) -> Given:
        text = str(value)
        if why := wrong_line(text):
            self.fail(f"{shown(text)!r} {why}", param, ctx)
        return super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A finite number: neither infinite nor NaN."""

    def convert(self, value: Given, param: click.Parameter | None, ctx: click.Context | None) -> Given:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


FOLDER = _Path(path_type=Path)


# --- what a shell completes ---------------------------------------------------------------------------------------


def algorithms(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The algorithms of mpifed."""
    from mpifed.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]
