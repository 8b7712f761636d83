"""`mpifed compare RUN... | SWEEP`: a line for each setting, the best one, or those that no other beats."""

from __future__ import annotations

import io
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpifed.run.best import (
    FAILED,
    Choice,
    Folders,
    Mean,
    Ran,
    Setting,
    choose,
    read_points,
    settings_of,
    swept,
    to_be_maximized,
    toml_text,
)
from mpifed.run.columns import Column, shown
from mpifed.run.gra import Recommendation, recommend
from mpifed.run.show import line_of, meaning, value_of

if TYPE_CHECKING:
    from rich.table import Table

_WIDEST = 100_000  # characters: wider than any table


def compare_summary(where: Folders) -> list[dict[str, Any]]:
    """The points of a sweep, or the runs, each with its settings and what `mpifed show RUN --json` has of it."""
    return [
        {"point": point.name, "settings": point.settings, **point.summary}
        for point in read_points(where)
        if point.summary is not None
    ]


def compare_text(where: Folders, terminal: bool = False) -> str:
    """A table for a person, with taller rows at a terminal where it would be too wide."""
    return "\n".join([_sweep_text(read_points(where), terminal), *swept(where)])


def _sweep_text(points: Sequence[Ran], terminal: bool) -> str:
    """A line for each setting, and below the table every point that no mean holds."""
    settings, screen = settings_of(points), shutil.get_terminal_size().columns
    drawn, width = _drawn(_table(settings, terminal, " "))
    if terminal and width > screen:
        drawn, _ = _drawn(_table(settings, terminal, "\n"))
    return "\n".join([drawn, *_notes(points)])


def _drawn(table: Table) -> tuple[str, int]:
    """A table as text, and how wide it is; no line is folded, and no number cut."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDEST, force_terminal=table.box is not None, highlight=False)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    return "\n".join(line.rstrip() for line in lines), console.measure(table).maximum


def _table(settings: Sequence[Setting], terminal: bool, between: str) -> Table:
    """A row for each setting, plain or with a line below its head; `between` stands within its longer cells."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    means = [_shown(one) for one in settings]
    there = [name for column in shown("compare") for name in _named(column, means)]
    first = settings[0].settings
    varying = [key for key, value in first.items() if any(one.settings[key] != value for one in settings)]
    bounded = any(point.limits for one in settings for point in one.points)
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    for name in varying:
        table.add_column(Text(name))
    for name in ("seeds", *there, *["limits met"] * bounded):
        table.add_column(Text(name), justify="right")
    table.add_column("points")
    for one, columns in zip(settings, means, strict=True):
        cells = [_setting_text(one.settings[key]) for key in varying]
        cells += [_of(len(one.counted), len(one.points))]
        cells += [_mean(name, columns.get(name), len(one.counted)) for name in there]
        cells += [_limits_met(one)] * bounded
        cells += [_names(one.points)]
        table.add_row(*(Text(re.sub(r"(?<!to) (?=\+-|to |point-|\()", between, cell)) for cell in cells))
    return table


def _shown(setting: Setting) -> dict[str, Mean]:
    """The means of a setting, `bytes` both ways among them."""
    means = setting.means()
    numbers = [point.numbers() for point in setting.counted]
    sent = [one["up_bytes"] + one["down_bytes"] for one in numbers if "up_bytes" in one and "down_bytes" in one]
    return means | {"bytes": Mean.of(sent)} if sent else means


def _named(column: Column, means: Iterable[dict[str, Mean]]) -> list[str]:
    """The names that are there of a column: its own, or those numbered."""
    return [name for name in dict.fromkeys(name for one in means for name in one) if column.means(name)]


def _of(count: int, whole: int) -> str:
    return str(whole) if count == whole else f"{count} of {whole}"


def _mean(name: str, mean: Mean | None, whole: int) -> str:
    """0.123 +- 0.004; where not all of the `whole` points have it, of how many it is the mean."""
    if mean is None:
        return ""
    text = value_of(name, mean.mean)
    if mean.deviation:
        text += f" +- {value_of(name, mean.deviation, digits=2)}"
    return text if mean.having == whole else f"{text} ({mean.having} of {whole})"


def _limits_met(setting: Setting) -> str:
    met = [point.meets_limits() for point in setting.counted]
    return _of(met.count(True), len(met)) if met else ""


def _notes(points: Sequence[Ran]) -> Iterator[str]:
    """What a person must know of the points beside their means: by how they ended, and by name."""
    kinds: dict[tuple[bool, str], list[Ran]] = {}
    for point in points:
        if point.code != 0:
            kinds.setdefault((point.finished, _end_of(point)), []).append(point)
    for title, counted in (("In the means, although", True), ("Not in the means:", False)):
        notes = [f"  {text}: {_names(some)}" for (inside, text), some in kinds.items() if inside == counted]
        yield from [title, *notes] if notes else []


def _end_of(point: Ran) -> str:
    if point.summary is None:
        return "ended before the first round" if point.begun else "not run"
    return meaning(point.code) + ("" if point.code is None else f" (exit {point.code})")


def _setting_text(value: Any) -> str:
    """As a job has it; nothing for a key that this run's job has not and another's has."""
    return "" if value is None else toml_text(value)


def _names(points: Sequence[Ran]) -> str:
    """point-0000 to point-0002, point-0007; other runs by their folders."""
    runs: list[list[str]] = []
    before = None
    for point in points:
        number = int(point.name.rpartition("-")[2]) if re.fullmatch(r"point-\d+", point.name) else None
        if before is not None and number == before + 1:
            runs[-1] = [runs[-1][0], point.name]
        else:
            runs.append([point.name])
        before = number
    return ", ".join(" to ".join(run) for run in runs)


# --- the best of a sweep -----------------------------------------------------------------------------------------


def best_text(where: Folders, by: str | None = None, maximize: bool | None = None) -> str:
    """The best setting of a sweep, as `--set` arguments, with its numbers and what to make of them."""
    return "\n".join([*_best_lines(choose(where, by, maximize), read_points(where)), *swept(where)])


def _best_lines(choice: Choice, points: Sequence[Ran]) -> Iterator[str]:
    best, means = choice.best, choice.best.means()
    yield line_of("best", f"{'largest' if choice.maximized else 'least'} {choice.by}")
    yield from _set_arguments(best)
    yield line_of("seeds", f"{_of(len(best.counted), len(best.points))} ({_names(best.counted)})")
    yield from (line_of(name, _mean(name, mean, len(best.counted))) for name, mean in means.items())
    if any(point.limits for point in best.counted):
        yield line_of("limits met", _limits_met(best))
    yield from choice.edges
    if choice.failed:
        yield f"Infinitely bad, because they failed numerically (exit {FAILED}): {_names(choice.failed)}"
    left = [point for point in points if not point.finished and point.code != FAILED]
    if left:
        yield f"Not compared, because they have not finished: {_names(left)}"


def _set_arguments(setting: Setting) -> Iterator[str]:
    """A setting as the command line takes it, where it is not the only one."""
    settings = {key: value for key, value in setting.settings.items() if value is not None}
    if settings:
        yield " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in settings.items())


def pareto_text(where: Folders, by: Mapping[str, float] | None = None) -> str:
    """The recommended setting of a sweep, as `--set` arguments, the front that it is of, and who is not on it."""
    return "\n".join([*_gra_lines(recommend(where, by)), *swept(where)])


def _gra_lines(found: Recommendation) -> Iterator[str]:
    best, means, count = found.best, found.best.means(), len(found.front)
    yield line_of("recommended", f"largest grey relational grade of {count} that no other setting beats throughout")
    yield from _set_arguments(best)
    yield line_of("seeds", f"{_of(len(best.counted), len(best.points))} ({_names(best.counted)})")
    for name, weight in found.criteria.items():
        kind = "largest" if to_be_maximized(name) else "least"
        best_by = f"{kind} is best" + (f", weight {weight:g}" if len(set(found.criteria.values())) > 1 else "")
        yield line_of(name, f"{_mean(name, means[name], len(best.counted))} ({best_by})")
    if found.ties:
        yield f"{found.ties} more of the front have its grade: add a criterion, or choose among them"
    drawn, _ = _drawn(_front(found))
    yield drawn
    if found.beaten:
        yield f"Beaten by one of these: {_names([point for setting in found.beaten for point in setting.counted])}"
    for why in dict.fromkeys(why for _, why in found.left_out):
        yield f"Not compared, {why}: {_names([point for point, reason in found.left_out if reason == why])}"
    yield from found.edges


def _front(found: Recommendation) -> Table:
    """A row for each setting on the front, by grade."""
    from rich.table import Table
    from rich.text import Text

    table, settings = Table(box=None, pad_edge=False), [one.setting.settings for one in found.front]
    keys = [key for key, value in settings[0].items() if any(one[key] != value for one in settings)]
    for name in (*keys, *found.criteria, "grade"):
        table.add_column(Text(name), justify="left" if name in keys else "right")
    table.add_column("points")
    for one in found.front:
        cells = [_setting_text(one.setting.settings[key]) for key in keys]
        cells += [value_of(name, value) for name, value in one.values.items()]
        table.add_row(*map(Text, cells), f"{one.grade:.4f}", _names(one.setting.counted))
    return table
