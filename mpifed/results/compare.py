"""Settings compared: means over seeds, differences in pairs over equal seeds, what targets take, and warnings.

Runs of one seed have the same data, initial model and draws of clients, so that differences by seed vary less than the
runs themselves. The test is the paired t test: interval and p value belong together, and it can tell something from 3
seeds on, where Wilcoxon's cannot below 6. Over several comparisons p values are corrected by S. Holm (Scand. J.
Statist. 6, 1979), whatever their dependence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.files.columns import HistoryTarget, column_of, of_kind, shown, target_of
from mpifed.privacy.protection import SWEPT
from mpifed.results.frames import FAILED, RunFrames, listed, read, table_text
from mpifed.results.run_warnings import DIVERGED
from mpifed.results.text import value_of
from mpifed.text import nearest
from mpifed.text import shown as printable

LEAST = 3  # seeds: with 2 an interval is 13 times as wide as the standard deviation of differences
LEVEL = 0.95
_MOST = 20  # settings that are compared in pairs though nobody asks: a grid of more is searched, not compared
_ROUNDING = 1e-12  # relative: differences by seed that are the same but for rounding
_COSTS = ("round", "bytes", "elapsed_s", "simulated_s", "gradients")  # what a target takes
_DIGITS = 12  # of a SHA-256: enough to tell models apart
_ROW = ["label", "column"]
# columns in units of what is minimized, by the column of runs that says what that is
_UNITS = {
    "objective_of": ("objectives", ("objective", "lower_bound", "dual", "duality_gap")),
    "loss": ("losses", ("train_loss", "test_loss")),
}


@dataclass(frozen=True, repr=False)
class Comparison:
    """Sweeps and runs compared; printed, it is what `mpifed compare` prints.

    Attributes
    ----------
    frame : a row for each setting and column: `label`, `column`, `mean`, `std` (standard deviation, nan of one seed)
        over `n` of `of` seeds; where it was compared in pairs also `against`, `difference` (the mean of label less
        baseline), `low` and `high` of its 95 % interval, `p` of the paired t test, by Holm over the settings, and
        `pairs`, the number of equal seeds. `best` is the mean over seeds of the best measured value of the column that
        decides, and `best_round` of its round. What a target takes are the columns "round to ...", "bytes to ...",
        whose `n` is the number of seeds that reached it; others are in no mean.
    runs : a row for each run, with its settings as columns `job.table.key`
    notes : what was not compared, and why
    """

    frame: DataFrame
    runs: DataFrame
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The tables and what is to be said of them, for a terminal of `width` characters if that is given."""
        return "\n".join(_lines(self, width))

    def table(self) -> Table:
        """What `mpifed compare --json` prints: the rows of `runs` and `frame`, and the notes; null where absent."""
        warnings = [list(map(str, warnings)) for warnings in self.runs["warnings"]]
        runs = self.runs.assign(warnings=warnings, exit=self.runs["exit"].astype("Int64"))
        plain = runs.drop(columns=["swept", "job"]).astype({"folder": str})
        return {"runs": records(plain), "compared": records(self.frame), "notes": list(self.notes)}


def records(frame: DataFrame) -> list[Table]:
    """The rows as JSON has them, null where a value is absent, or infinite."""
    rows: list[Table] = frame.astype(object).where(frame.notna() & ~frame.isin([np.inf]), None).to_dict("records")
    return rows


def compare(*folders: Path, by: Sequence[str] = (), against: str | None = None, to: Sequence[str] = ()) -> Comparison:
    """The points of sweeps, and runs, compared. Several runs of one job and seed count as their mean.

    Parameters
    ----------
    folders : of sweeps and runs
    by : columns to compare in pairs over equal seeds; when empty the test accuracy, or else the objective, where at
        least two settings share enough seeds, and there are at most 20
    against : the name of the baseline, or one of its runs; when None the best by the column
    to : targets, as `test_accuracy>=0.95`

    Raises
    ------
    UsageError
        when there is no such column or baseline, or objectives that differ are to be compared.
    """
    frames, targets = read(*folders), list(dict.fromkeys(map(_target, to)))
    check_columns(frames, by, [target.column for target in targets])
    columns, baseline = list(by) or deciding(frames), None if against is None else _baseline(frames, against)
    notes = [f"Not run: {listed(frames.waiting)}"] if frames.waiting else []
    notes += [SWEPT] if frames.runs["private"].any() else []
    parts, asked = [], bool(by) or baseline is not None
    why = "" if asked else incomparable(frames, columns)
    if not asked and len(frames.settings) > _MOST:
        why = f"{len(frames.settings)} rows, more than {_MOST}"
    for column in columns if len(frames.settings) > 1 and not why else ():
        pairs = _pairs(frames, column, baseline or str(costs_of(frames, column).idxmin()))
        if not asked and pairs["difference"].isna().all():
            why = f"no other row shares {LEAST} finished seeds with that of the best {column}"
            break
        parts.append(pairs)
        if baseline is None:
            first = pairs["against"].iloc[0]
            notes.append(f"{first} was chosen as the best by the same numbers of {column}: to test a claim, name the "
                         "baseline with --against")  # fmt: skip
    if why:
        notes.append(f"Not compared in pairs: {why}; choose a column with --by, or run {LEAST} equal seeds or more")
    finished, ended = (frames.runs[frames.runs[name]] for name in ("finished", "ended"))
    means = [DataFrame(columns=[*_ROW, "mean", "std", "n", "of"])]
    means += [_averages(finished, frames.numbers, frames)] if frames.numbers else []
    for target in targets:
        hit = frames.histories[target.is_met(frames.histories[target.column])].drop_duplicates("folder")
        costs = [name for name in _COSTS if name == "round" or (name in hit and hit[name].notna().any())]
        rows = _averages(hit[hit["folder"].isin(ended["folder"])], costs, frames, ended)
        means.append(rows.assign(column=rows["column"] + f" to {target}"))
    frame = pd.concat(means[1:] or means, ignore_index=True)
    bests = [_best_measured(frames, column) for column in columns if column in frames.histories]
    for more in (parts, bests):
        frame = frame.merge(pd.concat(more), on=_ROW, how="left") if more else frame
    absent = [name for name in ("against", "difference", "low", "high", "p", "pairs", "best") if name not in frame]
    return Comparison(frame.assign(**dict.fromkeys(absent, np.nan)), frames.runs, tuple(notes))


def _target(text: str) -> HistoryTarget:
    try:
        return target_of(text)
    except ValueError as error:
        raise UsageError(f"--to {printable(text)}: {error}") from error


def check_columns(frames: RunFrames, names: Sequence[str], of_histories: Sequence[str] = ()) -> None:
    """UsageError for a column that no finished run has, no history, or that is in units that differ between runs."""
    measured = [name for name in frames.histories if name not in ("folder", "run", "setting", "seed")]
    for where, asked, there in (("", names, frames.numbers), ("--to: ", of_histories, measured)):
        if unknown := [name for name in asked if name not in there]:
            known = ", ".join(there) or "none, since no run has finished: run them, or go on with --resume"
            raise UsageError(f"{where}no column {unknown[0]}{nearest(unknown[0], there)}; there are {known}")
    if why := incomparable(frames, [*names, *of_histories]):
        raise UsageError(f"{why}; choose by another column, as --by test_accuracy")


def incomparable(frames: RunFrames, columns: Sequence[str]) -> str:
    """Why one of the columns ranks nothing; empty where all can be ranked by."""
    for name, (what, units) in _UNITS.items():
        each = frames.runs.drop_duplicates(name)
        compared = [column for column in columns if column in units]
        if compared and len(each) > 1:
            said = "; ".join(f"{run} has {text}" for run, text in zip(each["run"][:3], each[name], strict=False))
            return f"{what} differ ({said}), so that {compared[0]} ranks nothing"
    return ""


def deciding(frames: RunFrames) -> list[str]:
    """The test accuracy where all settings have it, else the loss or objective that all have; at most one."""
    having = frames.runs[frames.runs["finished"]].groupby("setting")[frames.numbers].count()
    there = list(having.columns[(having > 0).all()])
    return list(filter(None, [of_kind("accuracy", there) or of_kind("loss", there)]))


def sign_of(column: str) -> int:
    """-1 of a column whose largest value is best."""
    return -1 if column_of(column).better == "more" else 1


def costs_of(frames: RunFrames, column: str) -> Series:
    """The mean of each setting, by name, to be minimized; infinite where a run failed, or has no such number."""
    runs = frames.runs[frames.runs["ended"]]
    values = (sign_of(column) * runs[column]).where(runs["finished"]).fillna(np.inf)
    return values.groupby(runs["setting"]).mean().reindex(sorted(frames.settings), fill_value=np.inf)


def _baseline(frames: RunFrames, against: str) -> str:
    names = frames.runs[["setting", "label", "run"]].assign(folder=frames.runs["folder"].map(str))
    matching = names.loc[(names == against.rstrip("/")).any(axis=1), "setting"].unique()
    if len(matching) != 1:
        there = "; ".join(frames.settings)
        raise UsageError(f"--against {against}: expected the name of one setting, or a run; there are {there}")
    return str(matching[0])


def _averages(rows: DataFrame, columns: Sequence[str], frames: RunFrames, of: DataFrame | None = None) -> DataFrame:
    """Mean, deviation and count over seeds by setting and column; `of` so many, those of runs.

    Of epsilons the largest in the place of the mean: no less holds for all seeds.
    """
    each = rows.groupby(["setting", "seed"])[list(columns)].mean().groupby("setting").agg(["mean", "std", "count"])
    for column in (name for name in columns if name.startswith("epsilon")):
        each[(column, "mean")] = rows.groupby("setting")[column].max()
        each[(column, "std")] = np.nan
    means = each.reindex(frames.settings).stack(0, future_stack=True).rename_axis(_ROW).reset_index()
    seeds = (frames.runs if of is None else of).groupby("setting")["seed"].nunique()
    counts = {"n": means.pop("count").fillna(0).astype(int), "of": means["label"].map(seeds).fillna(0).astype(int)}
    return means.assign(**counts)


def _best_measured(frames: RunFrames, column: str) -> DataFrame:
    """The best value that each run has measured, and its round: means over the finished runs of a setting."""
    histories, finished = frames.histories, frames.runs.loc[frames.runs["finished"], "folder"]
    done = histories[histories["folder"].isin(finished) & histories[column].notna()]
    best = done.loc[done.groupby("folder")[column].agg("idxmax" if sign_of(column) < 0 else "idxmin")]
    means = best.groupby("setting")[[column, "round"]].mean().set_axis(["best", "best_round"], axis=1)
    return means.rename_axis("label").reset_index().assign(column=column)


def _pairs(frames: RunFrames, column: str, against: str) -> DataFrame:
    """Each setting less another over the seeds that both have finished; p by Holm over as many as have one."""
    from scipy.special import stdtr, stdtrit

    values = frames.runs.assign(value=frames.runs[column].where(frames.runs["finished"]))
    values = values.pivot_table("value", "seed", "setting", dropna=False).reindex(columns=frames.settings)
    each = values.drop(columns=against).sub(values[against], axis=0)
    enough = each.count() >= LEAST
    count, mean, error = each.count(), each.mean().where(enough), each.sem()
    vary = enough & (each.max() - each.min() > _ROUNDING * values.abs().max(axis=None))
    half = (stdtrit(count - 1, (1 + LEVEL) / 2) * error).where(vary, 0.0)
    p = holm((2 * stdtr(count - 1, -(mean / error).abs())).where(vary))
    rows = {"column": column, "against": against, "difference": mean, "low": mean - half, "high": mean + half, "p": p}
    return DataFrame(rows | {"pairs": count}).rename_axis("label").reset_index()


def holm(p: Series) -> Series:
    """Holm's correction: the k-th least of m times m - k + 1, at most 1, and none below that of a lesser one."""
    least = p.dropna().sort_values()
    return (least * np.arange(len(least), 0, -1)).cummax().clip(upper=1.0).reindex(p.index)


# --- as text --------------------------------------------------------------------------------------------------------


def _lines(comparison: Comparison, width: int | None) -> Iterator[str]:
    frame, runs = comparison.frame, comparison.runs
    done = runs[runs["finished"]].groupby("setting")["seed"].nunique()
    counts = DataFrame({"of": runs.groupby("setting", sort=False)["seed"].nunique()}).assign(n=done).fillna(0)
    columns = [name for column in shown("compare") for name in frame["column"].unique() if column.means(name)]
    means = _cells(frame[frame["column"].isin(columns)], counts["n"]).reindex(columns=columns)
    cells = DataFrame({"seeds": _of(counts)}).join(means)
    for column, rows in frame[frame["best"].notna()].groupby("column", sort=False):
        if ((rows["best"] - rows["mean"]).abs() > _ROUNDING * rows["mean"].abs()).any():
            cells[f"best {column}"] = _texts(str(column), rows.set_index("label")["best"])
            cells[f"round of best {column}"] = _texts("round", rows.set_index("label")["best_round"])
    yield table_text(cells.join(_of_models(runs)), width)
    if (frame["std"] > 0).any():
        yield "+-: standard deviation over seeds"
    yield from end_lines(runs)
    yield from _warning_lines(runs)
    targets = frame["column"].str.extract("^(.*?) to (.*)$")
    for target, rows in frame.assign(column=targets[0]).groupby(targets[1], sort=False):
        reached = rows.groupby("label", sort=False)[["n", "of"]].first()
        yield f"\nTo {target}: the first measured round, and what was spent by then, over the seeds that reached it"
        each = _cells(rows, reached["n"]).reindex(columns=rows["column"].unique())
        yield table_text(DataFrame({"reached by": _of(reached, always=True)}).join(each), width)
    for column, rows in frame[frame["against"].notna()].groupby("column", sort=False):
        points = ", in percentage points" if column_of(str(column)).unit == "%" else ""
        yield f"\n{column} less that of {rows['against'].iloc[0]}, over equal seeds{points}:"
        low, high, difference = (_texts(str(column), rows[name], 3, "+") for name in ("low", "high", "difference"))
        interval = (low + " to " + high).where(rows["p"].notna(), "the same for all seeds")
        cells = {
            "seeds": rows["pairs"].map("{:g}".format),
            "difference": difference,
            f"{LEVEL:.0%} interval": interval.where(rows["difference"].notna(), f"{LEAST} equal seeds are needed"),
            "p": rows["p"].map("{:.2g}".format, na_action="ignore"),
        }
        yield table_text(DataFrame(cells).set_index(rows["label"]), width)
        count = int(rows["p"].notna().sum())
        yield "Paired t test" + (f"; p by Holm for {count} comparisons" if count > 1 else "")
    yield from comparison.notes


def _texts(column: str, values: Series, digits: int = 6, sign: str = "") -> Series:
    def text(value: float) -> str:
        return (sign if value > 0 else "") + value_of(column, value, digits=digits)

    return values.map(text, na_action="ignore").astype(object)  # numbers, where all are missing


def _of(counts: DataFrame, always: bool = False) -> Series:
    """Of each row `n` of `of`, 3 or 3 of 5."""
    part, whole = (counts[name].map("{:g}".format) for name in ("n", "of"))
    return part.where((part == whole) & (not always), part + " of " + whole)


def _cells(rows: DataFrame, whole: Series) -> DataFrame:
    """0.123 +- 0.004 by label and column; with the count, where not all of the `whole` seeds have the column."""

    measured, texts = rows[rows["n"] > 0], []
    for row in measured.itertuples():
        text = value_of(row.column, row.mean)
        if row.std > _ROUNDING * abs(row.mean):
            text += f" +- {value_of(row.column, row.std, 2)}"
        if row.n < whole[row.label]:
            text += f" ({row.n} of {whole[row.label]:g})"
        texts.append(text)
    return measured.assign(text=texts).pivot(index="label", columns="column", values="text")


def _of_models(runs: DataFrame) -> DataFrame:
    """How many runs meet their limits, and the first digits of models that several runs share."""
    finished = runs[runs["finished"]]
    met = finished[finished["limits_met"].notna()].groupby("setting")["limits_met"].agg(n="sum", of="count")
    models = finished.loc[finished["model_sha256"] != "", ["setting", "model_sha256"]]
    digits = models["model_sha256"].str[:_DIGITS].groupby(models["setting"]).agg(lambda each: listed(each.unique()))
    cells = {"limits met": _of(met, always=True)} if len(met) else {}
    return DataFrame(cells | ({"model": digits} if models["model_sha256"].duplicated().any() else {}))


def end_lines(runs: DataFrame) -> Iterator[str]:
    """The runs that did not end with exit code 0, by how they ended."""
    for (finished, end), group in runs[runs["exit"] != 0].groupby(["finished", "end"], sort=False):
        yield f"{'In' if finished else 'Not in'} the means, {end}: {listed(list(group['run']))}"


def _warning_lines(runs: DataFrame) -> Iterator[str]:
    """A line for each kind of warning, with the runs that have it and the numbers of the first."""
    each = runs[["run", "exit", "warnings"]].explode("warnings").dropna(subset="warnings")
    each = each.assign(kind=[warning.kind for warning in each["warnings"]])
    for kind, group in each[(each["kind"] != DIVERGED) | (each["exit"] != FAILED)].groupby("kind", sort=False):
        first = group.iloc[0]
        yield f"Warning, {kind}: {listed(list(group['run'].unique()))} ({first['run']}: {first['warnings'].text})"
