"""Figures of a scaling study: strong scaling, weak scaling, and the parts of a round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.core.tables import Table
from mpifed.files.atomic import aside
from mpifed.plots.style import COLOURS, STYLE
from mpifed.scaling.results import PARTS, Series
from mpifed.scaling.study import STRONG, WEAK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf")
_DASHED: Any = {"color": "#777777", "linestyle": "--", "label": "predicted", "zorder": 1}  # of matplotlib


def draw(series: Sequence[Series], predicted: dict[str, Table], out: Path, core_count: int) -> list[str]:
    """Write the figures; their names without suffix. `predicted`: results of `mpifed scale --predict`, by kind."""
    import matplotlib

    written = []
    with matplotlib.rc_context(STYLE):
        for kind, figure in ((STRONG, _strong), (WEAK, _weak)):
            chosen = [line for line in series if line.kind == kind]
            if chosen:
                _save(figure(chosen, predicted.get(kind), core_count), out / kind)
                written.append(kind)
        _save(_breakdown(series), out / "breakdown")
    return [*written, "breakdown"]


def _save(figure: Figure, path: Path) -> None:
    figure.draw_without_rendering()  # computes the layout once for all formats
    figure.set_layout_engine("none")
    for suffix in FORMATS:
        with aside(path.with_suffix(f".{suffix}")) as temporary:
            figure.savefig(temporary, format=suffix)


def _figure(panels: int, width: float = 4.2) -> tuple[Figure, Any]:  # an array of matplotlib's axes
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.6 + width * panels, 3.6), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _strong(series: Sequence[Series], predicted: Table | None, core_count: int) -> Figure:
    """Time of a round and speed-up against the number of ranks."""
    figure, (times, speeds) = _figure(2)
    for colour, line in zip(COLOURS * 9, series, strict=False):
        ranks = [measured.point.ranks for measured in line.points]
        _with_range(times, line, colour)
        first = line.first.point.ranks
        ideal = [1e3 * line.first.median_s * first / p for p in ranks]
        times.plot(ranks, ideal, color=colour, linestyle=":", linewidth=1)
        speeds.plot(ranks, [line.speed_up(measured) for measured in line.points], "o-", color=colour, label=line.label)
    if predicted is not None:
        predicted_rows = predicted["scaling"]
        x = [row["ranks"] for row in predicted_rows]
        times.plot(x, [1e3 * row["round_s"] for row in predicted_rows], **_DASHED)
        speeds.plot(x, [row["speed_up"] for row in predicted_rows], **_DASHED)
    most = max(measured.point.ranks for line in series for measured in line.points)
    least = min(line.first.point.ranks for line in series)
    speeds.plot([least, most], [1, most / least], color="black", linestyle=":", linewidth=1, label="ideal")
    times.plot([], [], color="black", linestyle=":", linewidth=1, label="ideal")
    times.set_ylabel("time per round, ms (median, range of the runs)")
    speeds.set_ylabel("speed-up")
    for axes in (times, speeds):
        axes.set_yscale("log")
        _ranks(axes, series, predicted)
        _beyond(axes, core_count)
        axes.legend(fontsize="small")
    _plain(times.yaxis)
    _plain(speeds.yaxis)
    return figure


def _weak(series: Sequence[Series], predicted: Table | None, core_count: int) -> Figure:
    """Efficiency and time of a round, with clients in proportion to ranks."""
    from matplotlib.ticker import PercentFormatter

    figure, (rates, times) = _figure(2)
    for colour, line in zip(COLOURS * 9, series, strict=False):
        ranks = [measured.point.ranks for measured in line.points]
        rates.plot(ranks, [line.efficiency(measured) for measured in line.points], "o-", color=colour, label=line.label)
        _with_range(times, line, colour)
    if predicted is not None:
        predicted_rows = predicted["scaling"]
        x = [row["ranks"] for row in predicted_rows]
        rates.plot(x, [row["efficiency"] for row in predicted_rows], **_DASHED)
    rates.axhline(1, color="black", linestyle=":", linewidth=1, label="ideal")
    rates.set_ylabel("weak efficiency")
    rates.set_ylim(0, max(1.1, rates.get_ylim()[1]))
    rates.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    times.set_ylabel("time per round, ms (median, range of the runs)")
    times.set_ylim(0, None)
    for axes in (rates, times):
        _ranks(axes, series, predicted if axes is rates else None)
        _beyond(axes, core_count)
    rates.legend(fontsize="small")
    return figure


def _breakdown(series: Sequence[Series]) -> Figure:
    """The parts of the mean round, one panel for each series."""
    figure, panels = _figure(len(series), 3.0)
    for axes, line in zip(panels, series, strict=True):
        at = range(len(line.points))
        floor = [0.0] * len(line.points)
        for colour, (name, label) in zip(COLOURS, PARTS.items(), strict=False):
            heights = [1e3 * measured.parts[name] for measured in line.points]
            axes.bar(at, heights, bottom=floor, color=colour, label=label, width=0.7)
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
        axes.set_xticks(list(at), [str(measured.point.ranks) for measured in line.points])
        axes.set_xlabel("ranks")
        axes.set_title(f"{line.kind}: {line.label}", fontsize="medium")
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("mean time per round, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if len(series) == 1 else 3, fontsize="small")
    return figure


def _with_range(axes: Axes, line: Series, colour: str) -> None:
    middle = [1e3 * measured.median_s for measured in line.points]
    down = [1e3 * (measured.median_s - min(measured.seconds)) for measured in line.points]
    up = [1e3 * (max(measured.seconds) - measured.median_s) for measured in line.points]
    axes.errorbar(
        [measured.point.ranks for measured in line.points], middle, yerr=[down, up],
        color=colour, marker="o", capsize=3, label=line.label,
    )  # fmt: skip


def _ranks(axes: Axes, series: Sequence[Series], predicted: Table | None) -> None:
    counts = {measured.point.ranks for line in series for measured in line.points}
    counts |= {row["ranks"] for row in predicted["scaling"]} if predicted else set()
    axes.set_xscale("log", base=2)
    axes.set_xlabel("ranks")
    ticks = sorted(counts)
    while len(ticks) > 7:
        ticks = [*ticks[:-1][::2], ticks[-1]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


def _plain(axis: Any) -> None:  # of matplotlib
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=2))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _beyond(axes: Axes, core_count: int) -> None:
    """Shade the points with more ranks than cores."""
    low, high = axes.get_xlim()
    if high > 1.5 * core_count:
        label = "more ranks than cores here"
        axes.axvspan(core_count * 2**0.5, high, facecolor="#F0F0F0", edgecolor="#BBBBBB", zorder=0, label=label)
        axes.set_xlim(low, high)
