"""`mpifed compare RUN... | SWEEP` as text: a line for each setting, and what is compared beyond means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mpifed.core.tables import Table
from mpifed.files.columns import Column, HistoryTarget, column_of, shown
from mpifed.files.run_folder import RUN, read_run
from mpifed.job.sweep import LABEL
from mpifed.results.compare_table import Shown, drawn, limits_met, mean_text, name_columns, part_of, setting_columns
from mpifed.results.comparison import Comparison, Paired, compared
from mpifed.results.names import names
from mpifed.results.paired import LEAST, LEVEL, Difference
from mpifed.results.points import FAILED, Folders, Mean, Ran, Setting
from mpifed.results.run_warnings import DIVERGED
from mpifed.results.targets import COSTS, Reached
from mpifed.results.text import meaning, value_of

_DIGITS = 12  # of a SHA-256: enough to tell models apart


def compare_text(
    where: Folders, terminal: bool = False, by: Sequence[str] = (), against: str | None = None, to: Sequence[str] = ()
) -> str:
    """A table to read, and below it what `compared` says; at a terminal, tables are as wide as it is."""
    return "\n".join(_lines(compared(where, by, against, to), terminal))


def _lines(comparison: Comparison, terminal: bool) -> Iterator[str]:
    """The table of means, and below it every point that is not in them, or ended with an error."""
    settings = comparison.settings
    columns = list(_columns(comparison))
    yield drawn(columns, terminal)
    if any(" +- " in cell for column in columns for cell in column.cells):
        yield f"+-: standard deviation over {'runs' if any(map(_alike, settings)) else 'seeds'}"
    yield from _repeated(settings)
    yield from _notes(comparison.points)
    yield from warning_lines(comparison.points)
    for target, reached in comparison.targets:
        yield from ("", *_target_lines(comparison, target, reached, terminal))
    for paired in comparison.paired:
        yield from ("", *_paired_lines(comparison, paired, terminal))
    yield from comparison.notes


def _columns(comparison: Comparison) -> Iterator[Shown]:
    """The names of the settings, what sets them apart, and the means of their numbers."""
    settings = comparison.settings
    means = [setting.means() for setting in settings]
    yield from name_columns(settings)
    yield from setting_columns(settings)
    counts = [part_of(len(setting.counted), len(setting.points)) for setting in settings]
    yield Shown("runs" if any(map(_alike, settings)) else "seeds", counts, "count")
    for column in shown("compare"):
        for name in _named(column, means):
            cells = [
                mean_text(name, mean.get(name), len(setting.counted))
                for setting, mean in zip(settings, means, strict=True)
            ]
            yield Shown(name, cells, "number")
    if any(point.limits for setting in settings for point in setting.points):
        yield Shown("limits met", [limits_met(setting) for setting in settings], "count")
    models = [point.model for setting in settings for point in setting.counted if point.model]
    if any(map(_alike, settings)) or len(set(models)) < len(models):
        yield Shown("model", [_models(setting) for setting in settings], "count")


def _alike(setting: Setting) -> list[list[Ran]]:
    """The runs of the same job and seed, in groups of two or more."""
    by_seed: dict[int | None, list[Ran]] = {}
    for point in setting.points:
        if point.seed is not None:
            by_seed.setdefault(point.seed, []).append(point)
    return [runs for runs in by_seed.values() if len(runs) > 1]


def _models(setting: Setting) -> str:
    """The first digits of the SHA-256 of its models."""
    digests = dict.fromkeys(point.model[:_DIGITS] for point in setting.counted if point.model)
    return ", ".join(digests) if len(digests) <= 2 else f"{len(digests)} different"


def _repeated(settings: Sequence[Setting]) -> Iterator[str]:
    """What differs between runs of the same job and seed."""
    for runs in (runs for setting in settings for runs in _alike(setting)):
        environments = [_environment(run) for run in runs]
        differing = [
            key
            for key in environments[0]
            if any(environment[key] != environments[0][key] for environment in environments)
        ]
        yield f"Of the same job and seed; {'they differ in:' if differing else 'run in the same environment:'}"
        for run, environment in zip(runs, environments, strict=True):
            yield f"  {run.name}" + "".join(f", {key} {environment[key]}" for key in differing)


def _environment(run: Ran) -> Table:
    """Ranks, device, host and versions of a run, on which its bits should not depend."""
    about = read_run(run.folder) if (run.folder / RUN).exists() else {}
    versions = about.get("versions") or {}
    environment = {key: about.get(key) for key in ("ranks", "device", "host", "commit")}
    return environment | {"versions": ", ".join(f"{name} {version}" for name, version in versions.items())}


def _named(column: Column, means: Iterable[dict[str, Mean]]) -> list[str]:
    """The names under which a column occurs: its own, or the numbered ones."""
    return [name for name in dict.fromkeys(name for columns in means for name in columns) if column.means(name)]


def _notes(points: Sequence[Ran]) -> Iterator[str]:
    """The points that did not end with exit code 0, by how they ended."""
    kinds: dict[tuple[bool, str], list[Ran]] = {}
    for point in points:
        if point.code != 0:
            kinds.setdefault((point.finished, _end_of(point)), []).append(point)
    for title, counted in (("Included in the means:", True), ("Not in the means:", False)):
        notes = [f"  {text}: {names(members)}" for (inside, text), members in kinds.items() if inside == counted]
        yield from [title, *notes] if notes else []


def _end_of(point: Ran) -> str:
    if point.summary is None:
        return "ended before the first round" if point.begun else "not run"
    return meaning(point.code) + ("" if point.code is None else f" (exit {point.code})")


def warning_lines(points: Sequence[Ran]) -> Iterator[str]:
    """A line for each kind of warning, with the points that have it and the numbers of the first.

    That points have failed numerically stands with the notes on how they ended.
    """
    texts: dict[str, dict[str, str]] = {}  # by kind and point
    for point in points:
        for kind, text in point.warnings:
            if (kind, point.code) != (DIVERGED, FAILED):
                texts.setdefault(kind, {}).setdefault(point.name, text)
    for kind, of_points in texts.items():
        warned = names([point for point in points if point.name in of_points])
        first, text = next(iter(of_points.items()))
        yield f"Warning, {kind}: {warned} ({f'{first}: ' if len(of_points) > 1 else ''}{text})"


# --- targets ------------------------------------------------------------------------------------------------------


def _target_lines(
    comparison: Comparison, target: HistoryTarget, reached: Sequence[Reached], terminal: bool
) -> Iterator[str]:
    """What each setting took to a target."""
    gaps = sorted({gap for of_setting in reached for gap in of_setting.gaps if gap})
    every = f" (measured every {' to '.join(map(str, dict.fromkeys([gaps[0], gaps[-1]])))})" if gaps else ""
    yield f"To {target}: the first measured round{every}, and bytes and seconds until then, of the runs that reached it"
    columns = [
        Shown(_heading(comparison), comparison.names, "names"),
        Shown("reached by", [f"{of_setting.runs} of {of_setting.of}" for of_setting in reached], "count"),
    ]
    for cost in COSTS:
        if any(cost in of_setting.costs for of_setting in reached):
            cells = [mean_text(cost, of_setting.costs.get(cost), of_setting.runs) for of_setting in reached]
            columns.append(Shown(cost, cells, "count"))
    yield drawn(columns, terminal)


# --- pairs --------------------------------------------------------------------------------------------------------


def _paired_lines(comparison: Comparison, paired: Paired, terminal: bool) -> Iterator[str]:
    """Differences from the baseline."""
    baseline = comparison.names[paired.against] + (", the best" if paired.best else "")
    points = ", in percentage points" if column_of(paired.column).unit == "%" else ""
    yield f"{paired.column} less that of {baseline}, over equal seeds{points}:"
    of_rows = {difference.setting: difference for difference in paired.differences}
    rows = [of_rows.get(number) for number in range(len(comparison.settings))]  # None: the baseline
    yield drawn(
        [
            Shown(_heading(comparison), comparison.names, "names"),
            Shown("seeds", ["" if row is None else str(len(row.seeds)) for row in rows], "count"),
            Shown(
                "difference", ["baseline" if row is None else _signed(paired.column, row.mean) for row in rows], "count"
            ),
            Shown(
                f"{LEVEL:.0%} interval", ["" if row is None else _interval(paired.column, row) for row in rows], "count"
            ),
            Shown("p", ["" if row is None or row.p is None else f"{row.p:.2g}" for row in rows], "count"),
        ],
        terminal,
    )
    count = sum(difference.p is not None for difference in paired.differences)
    by_holm = f"; p by Holm for {count} comparisons" if count > 1 else ""
    chosen = "; the best was chosen by the same numbers: to test a claim, name the baseline with --against"
    yield f"Paired t test{by_holm}{chosen if paired.best else ''}"
    for difference in paired.differences:
        if difference.left_out and difference.mean is not None:
            seeds = ", ".join(map(str, difference.left_out))
            yield f"Seeds left out, not finished by both: {comparison.names[difference.setting]}: {seeds}"


def _heading(comparison: Comparison) -> str:
    return LABEL if any(setting.label for setting in comparison.settings) else "points"


def _signed(column: str, value: float | None) -> str:
    return "" if value is None else f"{'+' * (value > 0)}{value_of(column, float(value), digits=3)}"


def _interval(column: str, difference: Difference) -> str:
    """The interval, or that there is none."""
    if difference.mean is None:
        return f"{LEAST} equal seeds are needed"
    if difference.p is None:
        return "the same for all seeds"
    return f"{_signed(column, difference.low)} to {_signed(column, difference.high)}"
