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
from pathlib import Path

import numpy as np
from pandas import DataFrame, Series

from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.core.text import shown
from mpifed.files.columns import CRITERIA, of_kind
from mpifed.privacy.protection import SWEPT
from mpifed.results.compare import (
    check_columns,
    check_objectives,
    costs_of,
    end_lines,
    everywhere,
    finished_of,
    mean_text,
    means_of,
    sign_of,
)
from mpifed.results.frames import FAILED, RunFrames, listed, read
from mpifed.results.text import is_number, line_of, toml_text, value_of

# relative: by how much two executions of the same job may differ, where the clock or the machine decides
NOISE = {"elapsed_s": 0.05, "seconds_per_round": 0.05, "peak_rss_bytes": 0.05, "rss_bytes": 0.05, "simulated_s": 0.01}
_ROUNDING = 1e-9  # relative: 0.495 is within 1 % of 0.5
_GRADES = 0.01  # grades of values with tolerances that differ by no more are ties


def best(*folders: Path, by: str | None = None) -> Table:
    """The setting whose mean of a column is the least, or the largest; of those that tie, by the next column.

    Of settings that tie by all columns, the first by label and settings is the best. One with a run that failed
    numerically, or has no such number, is infinitely bad.

    Parameters
    ----------
    folders : of a sweep, or of runs and sweeps
    by : columns between commas; when None the objective, and with constraints the infeasibility before it

    Returns
    -------
    dict
        `setting`, its name; `settings` by "table.key"; `points`, its finished runs; `mean` over them, by column;
        `by`, what is best and the tolerance, by column; `ties`, others within the tolerance; `edges`, a sentence for
        each axis of a sweep at whose edge the best lies; `warnings`.

    Raises
    ------
    UsageError
        when nothing has finished, everything has failed, there is no such column, or objectives differ.
    """
    return _best(read(*folders), criteria_of(by))


def _best(frames: RunFrames, by: Sequence[str] | Mapping[str, float]) -> Table:
    loss = of_kind("loss", frames.numbers) or "objective"
    columns = list(by) or [*(["feasibility"] if "constraint_1" in frames.numbers else []), loss]
    check_columns(frames, columns)
    check_objectives(frames, columns)
    tied = frames.ordered()
    for column in columns:
        costs = costs_of(frames, column)[tied]
        if costs.min() == math.inf:
            raise UsageError(f"no setting has a finite {column}; of {len(frames.runs)} runs "
                             f"{(frames.runs['exit'] == FAILED).sum()} failed numerically")  # fmt: skip
        tied = list(costs.index[groups(costs, NOISE.get(column, 0.0)) == 0])
    ties = [_described(frames, other) for other in tied[1:]]
    return _described(frames, tied[0]) | {"mean": _mean(frames, tied[0]), "by": _by(columns), "ties": ties,
                                          **_remarks(frames, tied[0])}  # fmt: skip


def front(*folders: Path, by: str | None = None) -> Table:
    """The setting whose grey relational grade is the largest, of those that no other dominates.

    Z. Wang and G. P. Rangaiah, *Application and Analysis of Methods for Selecting an Optimal Solution from the
    Pareto-Optimal Front obtained by Multiobjective Optimization*, Ind. Eng. Chem. Res. 56(2), 2017, with which the
    authors of HyFDCA (arXiv:2210.08106) chose hyper-parameters. Of equal grades the setting in the better groups is
    recommended, the first criterion first. A setting with a run that failed, has no finite value of a criterion, or
    breaks a limit (unless `feasibility` is a criterion) is left out.

    Parameters
    ----------
    folders : of a sweep, or of runs and sweeps
    by : criteria with weights, as `objective:2,up_bytes`; when None objective, test accuracy, simulated or else
        training seconds, and bytes up, as far as all settings have them

    Returns
    -------
    dict
        As `best`, with `grade`; `criteria` in the place of `by`; `equal`, others in the same groups; `ties`, of the
        same grade; `front`, with values, coefficients and grades; `beaten`; `left_out`, the reason, by run.

    Raises
    ------
    UsageError
        when no setting can be compared, there is no such column, or objectives differ.
    """
    return _front(read(*folders), criteria_of(by))


def _front(frames: RunFrames, by: Mapping[str, float]) -> Table:
    kinds = (of_kind(kind, everywhere(frames)) for kind in CRITERIA)
    weights = dict(by) or dict.fromkeys(filter(None, kinds), 1.0) or {"objective": 1.0}
    check_columns(frames, list(weights))
    check_objectives(frames, list(weights))
    reasons = {setting: _why_not(runs, list(weights)) for setting, runs in frames.runs.groupby("setting", sort=False)}
    compared = [setting for setting in frames.ordered() if not reasons[setting]]
    left_out = {run: reasons[setting] for run, setting in zip(frames.runs["run"], frames.runs["setting"], strict=True)}
    left_out = {run: why for run, why in left_out.items() if why}
    if not compared:
        said = "; ".join(dict.fromkeys(reasons.values()))
        raise UsageError(f"none of {len(reasons)} settings can be compared by {', '.join(weights)}: {said}")
    means = means_of(frames).pivot(index="label", columns="column", values="mean").loc[compared, [*weights]]
    costs = means * [sign_of(column) for column in weights]
    numbers = costs.apply(lambda column: groups(column, NOISE.get(str(column.name), 0.0)))
    anchors = DataFrame({column: costs[column].groupby(numbers[column]).transform("min") for column in costs})
    unbeaten = pareto_front(numbers)
    coefficients = relational_coefficients(anchors[unbeaten])
    grades = Series(np.average(coefficients, axis=1, weights=[*weights.values()]), coefficients.index)
    within = _GRADES if any(column in NOISE for column in weights) else 1e-12
    least = grades.max() - within
    places = {setting: (grade < least, -round(grade, 12) * (grade < least), *numbers.loc[setting])
              for setting, grade in grades.items()}  # fmt: skip
    order = sorted(grades.index, key=places.__getitem__)
    chosen, others = order[0], order[1:]
    equal = [setting for setting in others if (numbers.loc[setting] == numbers.loc[chosen]).all()]
    ties = [setting for setting in others if setting not in equal and grades[setting] >= least]
    return _described(frames, chosen) | {
        "mean": _mean(frames, chosen), "grade": float(grades[chosen]),
        "criteria": {column: {**how, "weight": weights[column]} for column, how in _by(list(weights)).items()},
        "equal": [_described(frames, setting) for setting in equal],
        "ties": [_described(frames, setting) for setting in ties],
        "front": [
            {**_described(frames, setting), "values": means.loc[setting].to_dict(),
             "coefficients": coefficients.loc[setting].to_dict(), "grade": float(grades[setting])}
            for setting in order
        ],
        "beaten": [_described(frames, setting) for setting in unbeaten.index[~unbeaten]],
        "left_out": left_out, **_remarks(frames, chosen),
    }  # fmt: skip


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
            raise UsageError(
                f"--by {shown(text or '')}: expected COLUMN or COLUMN:WEIGHT, a positive number, between commas"
            )
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
    lacking = [column for column in columns if finished[column].isna().any()]
    if lacking:
        return f"without a finite {lacking[0]}"
    breaks = "feasibility" not in columns and (finished["limits_met"] == False).any()  # noqa: E712
    return "breaks a limit" if breaks else ""


def _described(frames: RunFrames, setting: str) -> Table:
    """What a setting is, and its finished runs."""
    runs = frames.runs[frames.runs["setting"] == setting]
    varying = [key.removeprefix("job.") for key in frames.varying]
    tables = {key.partition(".")[0] for key in varying if key.endswith(".name")}  # which change as a whole
    settings: Table = dict(runs["swept"].iloc[0]) if frames.runs.attrs["grid"] else {}
    for key in varying if not frames.runs.attrs["grid"] else ():
        table, _, name = key.partition(".")
        value = runs[f"job.{key}"].iloc[0]
        if table in tables:
            settings.setdefault(table, {})
        if isinstance(value, float) and math.isnan(value):
            continue
        if table in tables:
            settings[table][name] = value
        else:
            settings[key] = value
    return {"setting": setting, "settings": settings, "points": list(runs.loc[runs["finished"], "run"])}


def _mean(frames: RunFrames, setting: str) -> dict[str, float]:
    means = means_of(frames).set_index("label").loc[[setting]]
    return {row["column"]: float(row["mean"]) for _, row in means.iterrows() if row["n"]}


def _by(columns: Sequence[str]) -> Table:
    return {
        column: {"best": "largest" if sign_of(column) < 0 else "least", "tolerance": f"{NOISE.get(column, 0.0):.0%}"}
        for column in columns
    }


def _remarks(frames: RunFrames, setting: str) -> Table:
    runs = frames.runs[frames.runs["setting"] == setting]
    private = [SWEPT] if frames.runs["private"].any() else []
    said = [
        f"{run}: {warning}" for run, warnings in zip(runs["run"], runs["warnings"], strict=True) for warning in warnings
    ]
    at_edges = edges(runs["swept"].iloc[0], list(frames.runs["swept"])) if frames.runs.attrs["grid"] else ()
    return {"edges": list(at_edges), "warnings": [*private, *said]}


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


# --- as text --------------------------------------------------------------------------------------------------------


def best_text(*folders: Path, by: str | None = None) -> str:
    """The best setting, as `--set` arguments, its ties and numbers, notes on edges of the grid and on failures."""
    frames = read(*folders)
    choice = _best(frames, criteria_of(by))
    lines = [
        line_of("best", ", then ".join(f"{how['best']} {column}{_within(how)}" for column, how in choice["by"].items()))
    ]
    lines += [*_setting_lines(frames, choice), *_equal_lines("equal within the tolerance", choice["ties"])]
    rows = means_of(frames)
    for _, row in rows[(rows["label"] == choice["setting"]) & (rows["n"] > 0)].iterrows():
        lines.append(line_of(row["column"], mean_text(row["column"], row, len(choice["points"]))))
    failed = frames.runs[frames.runs["exit"] == FAILED]
    lines += [f"Infinitely bad, {end}: {listed(list(runs['run']))}" for end, runs in failed.groupby("end")]
    return "\n".join([*lines, *end_lines(frames.runs[~frames.runs["ended"]]), *choice["edges"], *choice["warnings"]])


def front_text(*folders: Path, by: str | None = None, width: int | None = None) -> str:
    """The recommended setting, as `--set` arguments, the Pareto front, and the settings not on it."""
    frames = read(*folders)
    choice = _front(frames, criteria_of(by))
    lines = [line_of("recommended", f"largest grey relational grade of {len(choice['front'])} that none dominates")]
    lines += [*_setting_lines(frames, choice), *_equal_lines("equal within the tolerance", choice["equal"])]
    if choice["ties"]:
        lines += _equal_lines("of the same grade", choice["ties"])
        lines.append("Chosen among these by the first criterion: add a criterion or weights, or choose yourself")
    for column, how in choice["criteria"].items():
        weight = f", weight {how['weight']:g}" if how["weight"] != 1 else ""
        lines.append(
            line_of(column, f"{value_of(column, choice['mean'][column])} ({how['best']} is best{_within(how)}{weight})")
        )
    cells = DataFrame([{name: value_of(name, value) for name, value in one["values"].items()} |
                       {"grade": f"{one['grade']:.4f}"} for one in choice["front"]],
                      [one["setting"] for one in choice["front"]])  # fmt: skip
    lines.append(cells.to_string(line_width=width))
    lines += _equal_lines("dominated by the front", choice["beaten"])
    for why in dict.fromkeys(choice["left_out"].values()):
        lines.append(f"Not compared, {why}: {listed([run for run, said in choice['left_out'].items() if said == why])}")
    return "\n".join([*lines, *choice["edges"], *choice["warnings"]])


def _within(how: ReadOnlyTable) -> str:
    return "" if how["tolerance"] == "0%" else f", within {how['tolerance']}"


def _setting_lines(frames: RunFrames, choice: ReadOnlyTable) -> Iterator[str]:
    yield line_of("setting", choice["setting"])
    if choice["settings"]:
        yield " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in choice["settings"].items())
    yield line_of("seeds", f"{finished_of(frames.runs)[choice['setting']]} ({listed(choice['points'])})")


def _equal_lines(what: str, settings: Sequence[ReadOnlyTable]) -> list[str]:
    return [line_of(what, "; ".join(setting["setting"] for setting in settings))] if settings else []
