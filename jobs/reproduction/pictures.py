"""What the figures of all papers share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.reproduction.results import Floats, Rounds
from mpifed.files.write import replaced
from mpifed.plots.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save(out: Path, pictures: Mapping[str, Callable[[], Figure]]) -> Iterator[Path]:
    """Draws each and writes it as PNG and PDF; the files."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        for name, draw in pictures.items():
            picture = draw()
            for suffix in ("png", "pdf"):
                path = out / f"{name}.{suffix}"
                with replaced(path) as file:
                    picture.savefig(file, format=suffix)
                yield path


def line(axes: Axes, rounds: Rounds, values: Floats, **style: Any) -> None:
    """The mean over seeds of [seeds, T], and a band from the least to the largest."""
    axes.plot(rounds, values.mean(axis=0), **style)
    axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)


def legend(axes: Axes) -> None:
    if axes.lines:
        axes.legend(fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")
