"""Settings compared: means and spread, paired differences over equal seeds, what a target takes, and warnings.

One function, `compared`, whose facts `mpifed compare` prints as text and as JSON, and `mpifed.compare` as a DataFrame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.files.columns import HistoryTarget, of_kind
from mpifed.results.best import cost_of
from mpifed.results.criteria import columns_of, no_column, objectives_of, order_of, to_be_maximized
from mpifed.results.names import names_of
from mpifed.results.objectives import check_objectives, incomparable
from mpifed.results.paired import LEVEL, Difference, by_seed, differences
from mpifed.results.points import Folders, Mean, Ran, Setting, named, read_points, settings_of, swept
from mpifed.results.targets import Reached, reached, targets_of

MOST = 20  # settings that are compared in pairs though nobody asks: a grid of more is searched, not compared


class Paired(NamedTuple):
    """All settings compared with one of them by a column."""

    column: str
    against: int  # number of the baseline
    best: bool  # whether it is the baseline because it is the best by the column
    differences: list[Difference]  # of all other settings


class Comparison(NamedTuple):
    """The facts of a comparison."""

    points: list[Ran]
    settings: list[Setting]
    names: list[str]  # by setting: its label, or its runs
    paired: list[Paired]
    targets: list[tuple[HistoryTarget, list[Reached]]]  # by setting
    notes: list[str]  # why something was not compared; that points are private


def compared(where: Folders, by: Sequence[str] = (), against: str | None = None, to: Sequence[str] = ()) -> Comparison:
    """The points of a sweep, or runs and sweeps together, compared.

    Parameters
    ----------
    where : folder of a sweep, or those of runs and sweeps
    by : columns to compare in pairs over equal seeds; when empty the test accuracy, or else the objective, where at
        least two settings share enough seeds, and there are at most `MOST`
    against : the label of the baseline, or the name of one of its runs; when None the best by the column
    to : targets, as `test_accuracy>=0.95`

    Raises
    ------
    UsageError
        when there is no such column or baseline, or objectives that differ are to be compared.
    """
    points = read_points(where)
    settings = settings_of(points)
    names, notes = names_of(settings), swept(where)
    by, targets = list(dict.fromkeys(by)), targets_of(to)
    check_objectives(named(where), objectives_of(settings), [*by, *(target.column for target in targets)])
    there = columns_of(settings)
    if unknown := [name for name in by if name not in there]:
        raise no_column(named(where), unknown[0], there)
    baseline = None if against is None else _number_of(against, settings, names)
    default = [] if baseline is None and len(settings) > MOST else _default_column(settings)
    paired = [_paired(settings, column, baseline) for column in by or default]
    if not by and against is None:  # nobody has asked for them
        paired = [pairs for pairs in paired if any(difference.mean is not None for difference in pairs.differences)]
        if paired and (why := incomparable(objectives_of(settings), [paired[0].column])):
            paired, notes = [], [*notes, f"Not compared in pairs: {why}; choose a column with --by"]
    return Comparison(
        points,
        settings,
        names,
        paired,
        [(target, reached(settings, target, named(where))) for target in targets],
        notes,
    )


def _default_column(settings: Sequence[Setting]) -> list[str]:
    """The test accuracy where all have it, else the loss or objective that all have; empty with one setting."""
    means = [setting.means() for setting in settings if setting.counted]
    everywhere = [name for name in (means[0] if means else ()) if all(name in columns for columns in means)]
    chosen = of_kind("accuracy", everywhere) or of_kind("loss", everywhere)
    return [chosen] if chosen is not None and len(means) > 1 else []


def _paired(settings: Sequence[Setting], column: str, baseline: int | None) -> Paired:
    """A setting with a run that failed is never the best; of equal ones the first by label and settings is."""
    maximize = to_be_maximized(column)
    ranks = [
        (cost_of(setting, column, maximize), not by_seed(setting, column), order_of(setting)) for setting in settings
    ]
    number = min(range(len(settings)), key=ranks.__getitem__) if baseline is None else baseline
    return Paired(column, number, baseline is None, differences(settings, column, number))


def _number_of(against: str, settings: Sequence[Setting], names: Sequence[str]) -> int:
    """The setting with this label or name, or with a run of this name."""
    wanted = against.rstrip("/")
    for called in (
        [[setting.label] for setting in settings],
        [[name] for name in names],
        [[part for point in setting.points for part in (point.name, str(point.folder))] for setting in settings],
    ):
        matching = [number for number, own in enumerate(called) if wanted in own]
        if len(matching) == 1:
            return matching[0]
    raise UsageError(f"--against {against}: expected the label or name of one setting; there are {', '.join(names)}")


# --- as tables ----------------------------------------------------------------------------------------------------


def as_json(comparison: Comparison) -> Table:
    """What `mpifed compare --json` prints: runs, settings with means, paired differences, targets, and notes."""
    names = comparison.names
    return {
        "runs": [
            {
                "point": point.name,
                "label": point.label or None,
                "settings": point.settings,
                **point.summary,
                "warnings": [str(warning) for warning in point.warnings],
            }
            for point in comparison.points
            if point.summary is not None
        ],
        "settings": [
            {
                "name": name,
                "settings": setting.settings,
                "points": [point.name for point in setting.points],
                "means": {column: _mean(mean) for column, mean in setting.means().items()},
            }
            for name, setting in zip(names, comparison.settings, strict=True)
        ],
        "paired": [
            {
                "column": paired.column,
                "against": names[paired.against],
                "level": LEVEL,
                "differences": [
                    {
                        "name": names[difference.setting],
                        "seeds": difference.seeds,
                        "left_out": difference.left_out,
                        **_numbers(difference),
                    }
                    for difference in paired.differences
                ],
            }
            for paired in comparison.paired
        ],
        "targets": [
            {
                "target": str(target),
                "reached": [
                    {
                        "name": name,
                        "runs": of_setting.runs,
                        "of": of_setting.of,
                        "measured_every": max(of_setting.gaps, default=None),
                        **{cost: _mean(mean) for cost, mean in of_setting.costs.items()},
                    }
                    for name, of_setting in zip(names, every, strict=True)
                ],
            }
            for target, every in comparison.targets
        ],
        "notes": comparison.notes,
    }


def _mean(mean: Mean) -> Table:
    """The standard deviation of a single number is not known."""
    return {"mean": mean.mean, "std": mean.deviation if mean.having > 1 else None, "n": mean.having}


def rows(comparison: Comparison) -> list[Table]:
    """A row for each setting and column, and for each setting, target and cost: what `mpifed.compare` gives."""
    listed, measured = [], list(dict.fromkeys(column for setting in comparison.settings for column in setting.means()))
    for number, (name, setting) in enumerate(zip(comparison.names, comparison.settings, strict=True)):
        pairs = {
            paired.column: difference
            for paired in comparison.paired
            for difference in paired.differences
            if difference.setting == number
        }
        against = {paired.column: comparison.names[paired.against] for paired in comparison.paired}
        of = len(setting.points)
        means = setting.means() or dict.fromkeys(measured, Mean(math.nan, math.nan, 0))  # all of its runs failed
        for column, mean in means.items():
            listed.append({"label": name, "column": column, **_mean(mean), "of": of, **_pair(column, pairs, against)})
        for target, every in comparison.targets:
            for cost, mean in every[number].costs.items() or [("round", Mean(math.nan, math.nan, 0))]:
                column = f"{cost} to {target}"
                listed.append(
                    {"label": name, "column": column, **_mean(mean), "of": every[number].of, **_pair(column, pairs, {})}
                )
    return listed


def _pair(column: str, pairs: Mapping[str, Difference], against: Mapping[str, str]) -> Table:
    """The difference of a setting from the baseline by a column; None where there is none."""
    difference = pairs.get(column)
    if difference is None:
        return dict.fromkeys(("against", "difference", "low", "high", "p", "pairs"))
    return {"against": against[column], **_numbers(difference), "pairs": len(difference.seeds)}


def _numbers(difference: Difference) -> Table:
    return {"difference": difference.mean, "low": difference.low, "high": difference.high, "p": difference.p}
