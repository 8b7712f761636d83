"""What the trials of `[tune]` have come to: who goes on, the best settings, and what they have cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pandas import DataFrame

from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.store import open_federation
from mpifed.files.columns import column_of, shown
from mpifed.files.ends import FINISHED
from mpifed.files.history import history_so_far
from mpifed.files.run_folder import ended, job_of
from mpifed.files.write import replace_text
from mpifed.job.job import Job
from mpifed.job.sweep import SweepPoint, Tune
from mpifed.results.choose import changes, edges
from mpifed.results.compare import sign_of
from mpifed.results.points import BEST, TRIALS
from mpifed.results.text import line_of
from mpifed.text import nearest

_FEW = 10  # values, of which fewer are far from the ends of their range, and one of them has to be the largest
_COST = "cost"  # of a row: the excess over a limit, and the metric to be minimized


@dataclass(frozen=True)
class Tuning:
    """The trials of a tuning, and the best of them.

    Attributes
    ----------
    path : its folder, with the best settings as a job in `best.toml`, and each trial's run
    best : the best settings, by "table.key"
    metric : the column by which they were chosen, after limits
    frame : pandas.DataFrame
        A row for each trial and rung, in the order in which they are run: `rung`, `point` (the folder of its run), its
        settings, `round`, of a private one its `epsilon`, the metric, `spent` (rounds of all trials so far) and `best`
        (the best of the metric so far): of the last two the curve of the budget.
    """

    path: Path
    best: Table
    metric: str
    frame: DataFrame

    def __repr__(self) -> str:
        rows = self.frame.drop_duplicates("point", keep="last").drop(columns=["rung", "spent", "best"])
        table = rows.sort_values("round", ascending=False, kind="stable").set_index("point").rename_axis(None)
        over = {"train": "training", "": "all"}.get(data := column_of(self.metric).data, data)
        lines = [
            table.to_string(),
            line_of("best", changes(self.best)),
            line_of("chosen by", f"{self.metric}, over {over} rows: judge it by rows that have not chosen it"),
            line_of("rounds of all trials", f"{self.frame['spent'].iloc[-1]:g}"),
            line_of("job", str(self.path / BEST)),
        ]
        return "\n".join([*lines, *edges(self.best, self.frame[[*self.best]].to_dict("records"), _FEW)])


def tuned(folder: Path, plan: Tune, trials: Sequence[SweepPoint]) -> Tuning:
    """The result of trials that have all ended, which is written too.

    Raises
    ------
    NumericalError
        when no trial has a finite metric.
    """
    rung, _, rows = rung_of(folder, plan, trials)
    last = rows[-len(rung) :]
    best = min(last, key=_cost_of)
    if not math.isfinite(best[_COST][1]):
        raise NumericalError(f"{folder}: no trial has finite numbers; narrow [tune] space, as by smaller rates")
    metric = plan.metric or ("objective" if "objective" in best else "train_loss")
    frame = DataFrame(rows).drop(columns=_COST)
    frame["spent"] = frame["round"].sub(frame.groupby("point")["round"].shift(fill_value=0)).cumsum()
    so_far = itertools.accumulate(rows, lambda *pair: min(pair, key=_cost_of))
    frame["best"] = [row.get(metric) for row in so_far]
    point = rung[last.index(best)]
    replace_text(folder / TRIALS, frame.to_csv(index=False))
    replace_text(folder / BEST, point.job.text())
    return Tuning(folder, point.settings, metric, frame)


def rung_of(
    folder: Path, plan: Tune, trials: Sequence[SweepPoint]
) -> tuple[list[SweepPoint], list[SweepPoint], list[Table]]:
    """(the trials of the first rung that has not ended, or of the last, with its rounds; those left; rows of ends)."""
    going, left, rows = list(trials), list[SweepPoint](), list[Table]()
    if trials[0].job.privacy is not None:
        _check_measured(plan.metric or "train_loss", trials[0].job)
    for number, (rounds, count) in enumerate(plan.rungs(len(trials), trials[0].job.rounds)):
        best = sorted(rows[-len(going) :], key=_cost_of)[:count]
        going = [point for point in going if not number or point.name in {row["point"] for row in best}]
        going = [point._replace(job=replace(point.job, rounds=rounds)) for point in going]
        ends = [end_of(folder, point, plan.metric) for point in going]
        if left := [point for point, end in zip(going, ends, strict=True) if end is None]:
            break
        rows += [{"rung": number, **end} for end in ends if end]
    return going, left, rows


def _check_measured(metric: str, job: Job) -> None:
    """UsageError for a metric that a private job cannot measure, before a trial spends its budget."""
    data, rows = open_federation(job.data.path), column_of(metric).data
    there = {"test": data.test_samples > 0, "own test": bool(data.test_counts.any()), "train": True, "": True}
    known = any(column.means(metric) for column in shown("history")) or ":" in job.algorithm["name"]
    if not (known and there[rows]) or (rows != "test" and job.released_only):
        raise UsageError(
            f"[tune] metric = {metric}: this private job measures no such column, and would spend its budget "
            "first; give one of its history, such as test_loss where data have test rows"
        )


def _cost_of(row: ReadOnlyTable) -> tuple[float, float]:
    cost: tuple[float, float] = row[_COST]
    return cost


def end_of(folder: Path, point: SweepPoint, metric: str | None) -> Table | None:
    """What a trial has measured by the end of a rung, whose job it has here; None where it has not come so far."""
    run, limit = folder / point.name, point.job.rounds
    code, rounds = ended(run), job_of(run).get("rounds", 0)
    if rounds < limit:
        return None
    columns = history_so_far(run)
    row = {"round": 0} | {name: values[columns["round"] <= limit][-1].item() for name, values in columns.items()}
    metric = metric or ("objective" if "objective" in row else "train_loss")
    if columns and metric not in row:
        known = ", ".join(row) + "; --resume with one of them"
        raise UsageError(
            f"[tune] metric = {metric}: no column of the history{nearest(metric, list(row))}; there are {known}"
        )
    found = {"point": point.name, **point.settings, "round": row["round"]}
    if point.job.privacy is not None:
        found["epsilon"] = row.get("epsilon", math.nan)  # of this trial alone
    if row["round"] < limit < max(columns.get("round", [0])):
        raise UsageError(f"{run}: was not measured in round {limit}, where [tune] now compares; choose another --out")
    if rounds == limit or row["round"] < limit:  # else it has gone on since
        if code == NumericalError.exit_code:
            return {**found, _COST: (math.inf, math.inf)}
        if code not in FINISHED:
            return None
    over = [row[f"constraint_{m}"] - each["limit"] for m, each in enumerate(point.job.constraint, 1)]
    cost = sign_of(metric) * row[metric]
    return {**found, metric: row[metric], _COST: (max([0.0, *over]), cost if math.isfinite(cost) else math.inf)}
