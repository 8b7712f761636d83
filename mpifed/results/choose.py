"""The best setting by columns one after the other, or the recommended one of the Pareto front of several.

A tolerance must not make ties depend on the order of the settings, and "a ties with b" alone is not transitive: of
1.00, 1.01 and 1.02 at 1 %, the first two tie and the last two, the first and the last do not. So values are grouped:
the best opens a group, with all that are within the tolerance of it; the best of the rest opens the next one, and so
on. A group is no wider than the tolerance, groups are ordered, and what is compared from then on is the groups.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pandas import DataFrame, Series

from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.columns import CRITERIA, of_kind
from mpifed.privacy.protection import SWEPT
from mpifed.results.compare import (
    check_columns,
    check_objectives,
    costs_of,
    end_lines,
    everywhere,
    means_of,
    sign_of,
)
from mpifed.results.frames import FAILED, RunFrames, listed
from mpifed.results.text import is_number, line_of, toml_text, value_of
from mpifed.text import shown

# relative: by how much two executions of the same job may differ, where the clock or the machine decides
NOISE = {"elapsed_s": 0.05, "seconds_per_round": 0.05, "peak_rss_bytes": 0.05, "rss_bytes": 0.05, "simulated_s": 0.01}
_ROUNDING = 1e-9  # relative: 0.495 is within 1 % of 0.5
_GRADES = 0.01  # grades of values with tolerances that differ by no more are ties


def best(frames: RunFrames, by: str | None = None) -> Table:
    """The setting whose mean of a column is the least, or the largest; of those that tie, by the next column.

    Of settings that tie by all columns, the first by label and settings is the best. One with a run that failed
    numerically, or has no such number, is infinitely bad.

    Parameters
    ----------
    frames : of a sweep, or of runs and sweeps
    by : columns between commas; when None the objective, and with constraints the infeasibility before it

    Returns
    -------
    dict
        `setting`, its name; `settings` by "table.key"; `points`, its finished runs; `mean` over them, by column;
        `criteria`, what is best, the tolerance and the weight, by column; `equal`, others within the tolerance;
        `edges`, a sentence for each axis of a sweep at whose edge it lies; `left_out`, why a run does not count;
        `warnings`.

    Raises
    ------
    UsageError
        when nothing has finished, everything has failed, there is no such column, or objectives differ.
    """
    loss = of_kind("loss", frames.numbers) or "objective"
    criteria = criteria_of(by) or {"feasibility": 1.0, loss: 1.0}
    if not by and "constraint_1" not in frames.numbers:
        criteria = {loss: 1.0}
    check_columns(frames, list(criteria))
    check_objectives(frames, list(criteria))
    tied = frames.ordered()
    for column in criteria:
        costs = costs_of(frames, column)[tied]
        if costs.min() == math.inf:
            failed = (frames.runs["exit"] == FAILED).sum()
            raise UsageError(
                f"no setting has a finite {column}; of {len(frames.runs)} runs {failed} failed numerically"
            )
        tied = list(costs.index[groups(costs, NOISE.get(column, 0.0)) == 0])
    equal = [_facts_of(frames, setting) for setting in tied[1:]]
    return {**_facts_of(frames, tied[0]), **_remarks(frames, tied[0], criteria), "equal": equal}


def front(frames: RunFrames, by: str | None = None) -> Table:
    """The setting whose grey relational grade is the largest, of those that no other dominates.

    Z. Wang and G. P. Rangaiah, *Application and Analysis of Methods for Selecting an Optimal Solution from the
    Pareto-Optimal Front obtained by Multiobjective Optimization*, Ind. Eng. Chem. Res. 56(2), 2017, with which the
    authors of HyFDCA (arXiv:2210.08106) chose hyper-parameters. Of equal grades the setting in the better groups is
    recommended, the first criterion first. A setting with a run that failed, has no finite value of a criterion, or
    breaks a limit (unless `feasibility` is a criterion) is left out.

    Parameters
    ----------
    frames : of a sweep, or of runs and sweeps
    by : criteria with weights, as `objective:2,up_bytes`; when None objective, test accuracy, simulated or else
        training seconds, and bytes up, as far as all settings have them

    Returns
    -------
    dict
        As `best`, with `grade`; `equal`, others in the same groups; `ties`, of the same grade; `front`, with values,
        coefficients and grades; `beaten`; `left_out`, the reason, by run.

    Raises
    ------
    UsageError
        when no setting can be compared, there is no such column, or objectives differ.
    """
    kinds = (of_kind(kind, everywhere(frames)) for kind in CRITERIA)
    weights = criteria_of(by) or dict.fromkeys(filter(None, kinds), 1.0) or {"objective": 1.0}
    check_columns(frames, list(weights))
    check_objectives(frames, list(weights))
    reasons = Series({setting: _why_not(runs, list(weights)) for setting, runs in frames.runs.groupby("setting")})
    compared = [setting for setting in frames.ordered() if not reasons[setting]]
    if not compared:
        said = "; ".join(dict.fromkeys(reasons))
        raise UsageError(f"none of {len(reasons)} settings can be compared by {', '.join(weights)}: {said}")
    means = means_of(frames).pivot(index="label", columns="column", values="mean").loc[compared, [*weights]]
    costs = means * [sign_of(column) for column in weights]
    numbers = costs.apply(lambda column: groups(column, NOISE.get(str(column.name), 0.0)))
    anchors = DataFrame({column: costs[column].groupby(numbers[column]).transform("min") for column in costs})
    unbeaten = pareto_front(numbers)
    coefficients = relational_coefficients(anchors[unbeaten])
    grades = Series(np.average(coefficients, axis=1, weights=[*weights.values()]), coefficients.index)
    least = grades.max() - (_GRADES if any(column in NOISE for column in weights) else 1e-12)
    leading = grades >= least  # as good as the largest: the groups decide among these
    order = DataFrame({"later": ~leading, "grade": -grades.round(12).where(~leading, 0.0)}).join(numbers)
    order = order.sort_values(list(order), kind="stable").index
    rows = {setting: _facts_of(frames, setting) for setting in compared}
    equal = [setting for setting in order[1:] if (numbers.loc[setting] == numbers.loc[order[0]]).all()]
    left_out = frames.runs.set_index("run")["setting"].map(reasons)
    return {
        **rows[order[0]],
        **_remarks(frames, order[0], weights),
        "grade": float(grades[order[0]]),
        "equal": [rows[setting] for setting in equal],
        "ties": [rows[setting] for setting in order[1:] if leading[setting] and setting not in equal],
        "front": [
            {
                **rows[setting],
                "values": means.loc[setting].to_dict(),
                "coefficients": coefficients.loc[setting].to_dict(),
                "grade": float(grades[setting]),
            }
            for setting in order
        ],
        "beaten": [rows[setting] for setting in unbeaten.index[~unbeaten]],
        "left_out": left_out[left_out != ""].to_dict(),
    }


def criteria_of(text: str | None) -> dict[str, float]:
    """The columns in `objective:3,test_accuracy`, with their weights."""
    criteria = {}
    for part in text.split(",") if text else ():
        name, colon, weight = part.strip().partition(":")
        try:
            criteria[name] = float(weight) if colon else 1.0
        except ValueError:
            criteria[name] = math.nan
        if not name or not 0 < criteria[name] < math.inf:
            expected = "expected COLUMN or COLUMN:WEIGHT, a positive number, between commas"
            raise UsageError(f"--by {shown(text or '')}: {expected}")
    return criteria


def groups(costs: Series, tolerance: float) -> Series:
    """The numbers of the groups of ties, 0 for that of the best; `tolerance` is relative to the best of a group."""
    number, most, numbers = -1, -math.inf, {}
    for setting, cost in costs.sort_values(kind="stable").items():
        if number < 0 or cost > most:
            number += 1
            most = cost + tolerance * abs(cost) * (1 + _ROUNDING) if math.isfinite(cost) else cost
        numbers[setting] = number
    return Series(numbers).reindex(costs.index)


def pareto_front(costs: DataFrame) -> Series:
    """Which rows no other row dominates: is at least as good by every column, and better by one; less is better."""
    values = costs.to_numpy()
    dominated = [(np.all(values <= row, axis=1) & np.any(values < row, axis=1)).any() for row in values]
    return ~Series(dominated, costs.index, dtype=bool)


def relational_coefficients(costs: DataFrame) -> DataFrame:
    """How close each value is to the ideal, the best of its column: (least D + largest D) / (D + largest D).

    D is the distance from the ideal, in parts of its column's range: 0 for the best and 1 for the worst.
    """
    distance = (costs - costs.min()) / (costs.max() - costs.min()).replace(0, np.inf)
    largest = distance.max(axis=None)
    return (distance.min(axis=None) + largest) / (distance + largest) if largest else distance + 1.0


def _why_not(runs: DataFrame, columns: Sequence[str]) -> str:
    """Why a setting cannot be compared; empty where it can."""
    finished = runs[runs["finished"]]
    if (runs["exit"] == FAILED).any():
        return f"failed numerically (exit {FAILED})"
    if finished.empty:
        return "not finished"
    if lacking := [column for column in columns if finished[column].isna().any()]:
        return f"without a finite {lacking[0]}"
    return "breaks a limit" if "feasibility" not in columns and finished["limits_met"].eq(False).any() else ""


def _facts_of(frames: RunFrames, setting: str) -> Table:
    """What a setting is, and its finished runs."""
    runs = frames.runs[frames.runs["setting"] == setting]
    settings: Table = dict(runs["swept"].iloc[0])
    if not frames.runs.attrs["grid"]:
        job, keys = runs["job"].iloc[0], [key.removeprefix("job.") for key in frames.varying]
        tables = {key.partition(".")[0] for key in keys if key.endswith(".name")}  # which change as a whole
        cells = {key: runs[f"job.{key}"].iloc[0] for key in keys if key.partition(".")[0] not in tables}
        settings = {table: job.get(table, {}) for table in sorted(tables)}
        settings |= {key: value for key, value in cells.items() if value == value}  # nan: this job has no such key
    return {"setting": setting, "settings": settings, "points": list(runs.loc[runs["finished"], "run"])}


def _remarks(frames: RunFrames, setting: str, weights: Mapping[str, float]) -> Table:
    """What there is to say of a chosen setting."""
    runs = frames.runs[frames.runs["setting"] == setting]
    means = runs.loc[runs["finished"], frames.numbers].astype(float).mean().dropna()
    private = [SWEPT] if frames.runs["private"].any() else []
    said = [f"{run['run']}: {warning}" for _, run in runs.iterrows() for warning in run["warnings"]]
    grid = list(frames.runs["swept"]) if frames.runs.attrs["grid"] else []
    failed = frames.runs[frames.runs["exit"] == FAILED]
    return {
        "mean": means.to_dict(),
        "criteria": {
            column: {
                "best": "largest" if sign_of(column) < 0 else "least",
                "tolerance": f"{NOISE.get(column, 0.0):.0%}",
                "weight": weight,
            }
            for column, weight in weights.items()
        },
        "edges": list(edges(runs["swept"].iloc[0], grid)) if grid else [],
        "left_out": dict.fromkeys(failed["run"], f"failed numerically (exit {FAILED}), and so infinitely bad"),
        "warnings": [*private, *said],
    }


def edges(chosen: ReadOnlyTable, grid: Sequence[ReadOnlyTable]) -> Iterator[str]:
    """A sentence for each axis of numbers, or of lists or tables of numbers, of whose grid a value is an end."""
    for key, value in chosen.items():
        every, ends = DataFrame([_numbers_in(settings.get(key)) for settings in grid]), []
        for name, number in _numbers_in(value).items() if every.notna().all(axis=None) else ():
            others = set(every[name])
            if len(others) > 1 and number in (min(others), max(others)):
                which = "smallest" if number == min(others) else "largest"
                ends.append(f"{name}{': ' * bool(name)}{number} is the {which}")
        if ends and not key.startswith("record."):  # which changes no result
            yield f"{key} = {toml_text(value)} is at the edge of its grid: widen it ({'; '.join(ends)})"


def _numbers_in(value: object) -> dict[str, float]:
    if isinstance(value, list):
        value = {f"component {number}": part for number, part in enumerate(value, 1)}
    parts = value if isinstance(value, dict) else {"": value}
    return {name: part for name, part in parts.items() if is_number(part)}


def choice_text(choice: ReadOnlyTable, frames: RunFrames, width: int | None = None) -> Iterator[str]:
    """A choice of `best` or `front`: its settings as `--set` arguments, its numbers, ties, and what does not count."""
    yield line_of("recommended" if "front" in choice else "best", choice["setting"])
    if choice["settings"]:
        yield " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in choice["settings"].items())
    yield line_of("over", listed(choice["points"]))
    for column, mean in choice["mean"].items():
        how = choice["criteria"].get(column)
        within = "" if how is None or how["tolerance"] == "0%" else f", within {how['tolerance']}"
        weight = "" if how is None or how["weight"] == 1 else f", weight {how['weight']:g}"
        said = "" if how is None else f" ({how['best']} is best{within}{weight})"
        yield line_of(column, value_of(column, float(mean)) + said)
    if "front" in choice:
        rows = [{**one["values"], "grade": one["grade"]} for one in choice["front"]]
        cells = [{name: value_of(name, value, 4) for name, value in row.items()} for row in rows]
        yield DataFrame(cells, [one["setting"] for one in choice["front"]]).to_string(line_width=width)
    for key, what in (("equal", "equal within the tolerance"), ("ties", "of the same grade"), ("beaten", "dominated")):
        if choice.get(key):
            yield line_of(what, "; ".join(one["setting"] for one in choice[key]))
    for why in dict.fromkeys(choice["left_out"].values()):
        yield f"Not compared, {why}: {listed([run for run, said in choice['left_out'].items() if said == why])}"
    yield from end_lines(frames.runs[~frames.runs["ended"]])
    yield from choice["edges"]
    yield from choice["warnings"]
