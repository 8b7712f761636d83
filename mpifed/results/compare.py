"""Settings compared: means over seeds, differences in pairs over equal seeds, what targets take, and warnings.

Runs of one seed have the same data, initial model and draws of clients, so that differences by seed vary less than the
runs themselves. The test is the paired t test: interval and p value belong together, and it can tell something from 3
seeds on, where Wilcoxon's cannot below 6. Over several comparisons p values are corrected by S. Holm (Scand. J.
Statist. 6, 1979), whatever their dependence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.tables import Table
from mpifed.files.columns import HistoryTarget, column_of, of_kind, shown, target_of
from mpifed.privacy.protection import SWEPT
from mpifed.results.frames import FAILED, RunFrames, listed, read, table_text
from mpifed.results.run_warnings import DIVERGED
from mpifed.results.text import value_of
from mpifed.text import shown as printable

LEAST = 3  # seeds: with 2 an interval is 13 times as wide as the standard deviation of differences
LEVEL = 0.95
_MOST = 20  # settings that are compared in pairs though nobody asks: a grid of more is searched, not compared
_ROUNDING = 1e-12  # relative: differences by seed that are the same but for rounding
_COSTS = ("round", "bytes", "elapsed_s", "simulated_s", "gradients")  # what a target takes
_MEANS = ("label", "column", "mean", "std", "n", "of")
_PAIR = ("against", "difference", "low", "high", "p", "pairs")
_DIGITS = 12  # of a SHA-256: enough to tell models apart
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
    frame : a row for each setting and column: `label`, `column`, `mean`, `std` (standard deviation, nan of one run)
        over `n` of `of` runs; where it was compared in pairs also `against`, `difference` (the mean of label less
        baseline), `low` and `high` of its 95 % interval, `p` of the paired t test, by Holm over the settings, and
        `pairs`, the number of equal seeds. `best` is the mean over runs of the best measured value of the column that
        decides, and `best_round` of its round. What a target takes are the columns "round to ...", "bytes to ...",
        whose `n` is the number of runs that reached it; others are in no mean.
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
    """The rows as JSON has them, null where a value is absent."""
    rows: list[Table] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def compare(*folders: Path, by: Sequence[str] = (), against: str | None = None, to: Sequence[str] = ()) -> Comparison:
    """The points of sweeps, and runs, compared.

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
    baseline = None if against is None else _baseline(frames, against)
    columns = list(by) or _deciding(frames)
    pairs: dict[str, list[Table]] = {}  # by column
    if len(frames.settings) > 1:
        pairs = {column: _pairs(frames, column, baseline or _best(frames, column)) for column in columns}
    notes = [SWEPT] if frames.runs["private"].any() else []
    if pairs and not by and baseline is None:  # nobody has asked for them
        why, remedy = incomparable(frames, columns), "choose a column with --by"
        if len(frames.settings) > _MOST:
            why = f"{len(frames.settings)} rows, more than {_MOST}"
        if not any("difference" in pair for pair in pairs[columns[0]]):
            why = f"no other row shares {LEAST} finished seeds with that of the best {columns[0]}"
            remedy = f"run both with {LEAST} equal seeds or more, as by [sweep] seeds"
        if why:
            pairs, notes = {}, [*notes, f"Not compared in pairs: {why}; {remedy}"]
    for column, rows in pairs.items():
        for row in rows:
            if row["left_out"] and "difference" in row:
                notes.append(f"Seeds left out, not finished by both: {row['label']}: {row['left_out']}")
        if baseline is None:
            notes.append(
                f"{rows[0]['against']} was chosen as the best by the same numbers of {column}: to test a claim, name "
                "the baseline with --against"
            )
    finished = frames.runs[frames.runs["finished"]]
    means = DataFrame(columns=_MEANS)
    if frames.numbers:
        means = _averages(finished, frames.numbers, frames.settings, frames.runs)
    frame = pd.concat([means, *(_reached(frames, target) for target in targets)], ignore_index=True)
    in_pairs = DataFrame([row for rows in pairs.values() for row in rows], columns=["label", "column", *_PAIR])
    bests = [row for column in columns for row in _best_measured(frames, column)]
    for more in (in_pairs, DataFrame(bests, columns=["label", "column", "best", "best_round"])):
        frame = frame.merge(more, on=["label", "column"], how="left")
    return Comparison(frame, frames.runs, tuple(notes))


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


def _deciding(frames: RunFrames) -> list[str]:
    """The test accuracy where all settings have it, else the loss or objective that all have; at most one."""
    there = everywhere(frames)
    return list(filter(None, [of_kind("accuracy", there) or of_kind("loss", there)]))


def everywhere(frames: RunFrames) -> list[str]:
    """The columns that every setting of which a run has finished has."""
    having = frames.runs[frames.runs["finished"]].groupby("setting")[frames.numbers].count()
    return [name for name in frames.numbers if (having[name] > 0).all()]


def sign_of(column: str) -> int:
    """-1 of a column whose largest value is best."""
    return -1 if column_of(column).better == "more" else 1


def costs_of(frames: RunFrames, column: str) -> Series:
    """The mean of each setting, to be minimized; infinite where a run failed, or has no such number."""
    runs = frames.runs[frames.runs["ended"]]
    values = (sign_of(column) * runs[column]).where(runs["finished"]).fillna(np.inf)
    return values.groupby(runs["setting"]).mean().reindex(frames.ordered(), fill_value=np.inf)


def _best(frames: RunFrames, column: str) -> str:
    """The setting with the best mean; one with a run that failed is never it, unless all are."""
    return str(costs_of(frames, column).idxmin())


def _baseline(frames: RunFrames, against: str) -> str:
    runs = frames.runs
    names = runs[["setting", "label", "run"]].assign(folder=runs["folder"].map(str))
    matching = runs.loc[(names == against.rstrip("/")).any(axis=1), "setting"].unique()
    if len(matching) != 1:
        raise UsageError(
            f"--against {against}: expected the name of one setting, or a run; there are {'; '.join(frames.settings)}"
        )
    return str(matching[0])


def _averages(values: DataFrame, columns: Sequence[str], settings: Sequence[str], runs: DataFrame) -> DataFrame:
    """Mean, deviation and count by setting and column, a row for each; `of`: so many `runs` the setting has."""
    each = values.groupby("setting")[list(columns)].agg(["mean", "std", "count"])
    means = each.reindex(settings).stack(0, future_stack=True).rename_axis(["label", "column"]).reset_index()
    of = means["label"].map(runs.groupby("setting").size())
    counts = {"n": means.pop("count").fillna(0).astype(int), "of": of.fillna(0).astype(int)}
    return means.assign(**counts)


def _reached(frames: RunFrames, target: HistoryTarget) -> DataFrame:
    """What the runs of each setting had spent in the first measured round that reached a target."""
    histories, ended = frames.histories, frames.runs[frames.runs["ended"]]
    hit = histories[target.is_met(histories[target.column]) & histories["folder"].isin(ended["folder"])]
    costs = [name for name in _COSTS if name in hit and (name == "round" or hit[name].notna().any())]
    means = _averages(hit.drop_duplicates("folder"), costs, frames.settings, ended)
    return means.assign(column=means["column"] + f" to {target}")


def _best_measured(frames: RunFrames, column: str) -> list[Table]:
    """The best value that each run has measured, and its round: means over the finished runs of a setting."""
    histories, finished = frames.histories, frames.runs.loc[frames.runs["finished"], "folder"]
    if column not in histories:
        return []
    done = histories[histories["folder"].isin(finished) & histories[column].notna()]
    best = done.loc[done.groupby("folder")[column].agg("idxmax" if sign_of(column) < 0 else "idxmin")]
    means = best.groupby("setting")[[column, "round"]].mean().set_axis(["best", "best_round"], axis=1)
    rows: list[Table] = means.rename_axis("label").reset_index().assign(column=column).to_dict("records")
    return rows


def _pairs(frames: RunFrames, column: str, against: str) -> list[Table]:
    """Each setting less another over the seeds that both have finished; p by Holm over as many as have one."""
    from scipy.stats import ttest_rel

    runs = frames.runs.assign(value=frames.runs[column].where(frames.runs["finished"]))
    table = runs.pivot_table("value", "seed", "setting").reindex(columns=frames.settings)
    seeds = runs.groupby("setting")["seed"].agg(lambda each: {*each.dropna()})
    rows: list[Table] = []
    for setting in table.columns.drop(against):
        both = table[[setting, against]].dropna()
        left_out = sorted((seeds[setting] | seeds[against]) - {*both.index})
        row: Table = {"label": setting, "column": column, "against": against, "pairs": len(both)}
        row["left_out"] = ", ".join(f"{seed:g}" for seed in left_out)
        if len(both) >= LEAST:
            each = both[setting] - both[against]
            row |= dict.fromkeys(("difference", "low", "high"), each.mean())
            if np.ptp(each) > _ROUNDING * both.abs().max(axis=None):
                test = ttest_rel(both[setting], both[against])
                low, high = test.confidence_interval(LEVEL)
                row |= {"low": low, "high": high, "p": test.pvalue}
        rows.append(row)
    corrected = holm(Series([row.get("p", np.nan) for row in rows]))
    return [{**row, "p": p} for row, p in zip(rows, corrected, strict=True)]


def holm(p: Series) -> Series:
    """Holm's correction: the k-th least of m times m - k + 1, at most 1, and none below that of a lesser one."""
    least = p.dropna().sort_values()
    return (least * np.arange(len(least), 0, -1)).cummax().clip(upper=1.0).reindex(p.index)


# --- as text --------------------------------------------------------------------------------------------------------


def _lines(comparison: Comparison, width: int | None) -> Iterator[str]:
    frame, runs = comparison.frame, comparison.runs
    counts = runs.groupby("setting", sort=False)["finished"].agg(["sum", "count"])
    repeated = bool((runs.duplicated(["setting", "seed"]) & runs["seed"].notna()).any())
    what = "runs" if repeated else "seeds"
    columns = [name for column in shown("compare") for name in frame["column"].unique() if column.means(name)]
    means = _cells(frame[frame["column"].isin(columns)], counts["sum"])
    cells = DataFrame({what: _of(counts)}).join(means.reindex(columns=columns)).join(_of_models(runs, repeated))
    yield table_text(cells, width)
    if (frame["std"] > 0).any():
        yield f"+-: standard deviation over {what}"
    yield from end_lines(runs)
    yield from warning_lines(runs)
    for column, rows in frame[frame["best"].notna()].groupby("column", sort=False):
        if ((rows["best"] - rows["mean"]).abs() > _ROUNDING * rows["mean"].abs()).any():
            yield f"\n{column} of the last model, which a run keeps, and of the best measured round, means over {what}:"
            last, best = (rows[name].map(partial(value_of, str(column))) for name in ("mean", "best"))
            cells = DataFrame({"last": last, "best": best, "best round": rows["best_round"].map("{:.6g}".format)})
            yield table_text(cells.set_index(rows["label"]), width)
    targets = frame["column"].str.extract("^(.*?) to (.*)$")
    for target in targets[1].dropna().unique():
        rows = frame[targets[1] == target].assign(column=targets[0])
        reached = rows.groupby("label", sort=False)[["n", "of"]].first()
        yield f"\nTo {target}: the first measured round, and what was spent by then, of the runs that reached it"
        each = _cells(rows, reached["n"]).reindex(columns=rows["column"].unique())
        yield table_text(DataFrame({"reached by": _of(reached, always=True)}).join(each), width)
    for column, rows in frame[frame["against"].notna()].groupby("column", sort=False):
        points = ", in percentage points" if column_of(str(column)).unit == "%" else ""
        yield f"\n{column} less that of {rows['against'].iloc[0]}, over equal seeds{points}:"
        low, high, difference = (
            rows[name].map(partial(_signed, str(column))) for name in ("low", "high", "difference")
        )
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


def _of(counts: DataFrame, always: bool = False) -> Series:
    """Of each row of two numbers 3, or 3 of 5."""
    part, whole = counts.iloc[:, 0].map(str), counts.iloc[:, 1].map(str)
    return part.where((part == whole) & (not always), part + " of " + whole)


def _cells(rows: DataFrame, whole: Series) -> DataFrame:
    """0.123 +- 0.004 by label and column; with the count, where not all of the `whole` runs have the column."""

    def text(row: Series) -> str:
        column, mean, deviation, of = row["column"], float(row["mean"]), float(row["std"]), whole[row["label"]]
        spread = f" +- {value_of(column, deviation, 2)}" if deviation > _ROUNDING * abs(mean) else ""
        count = "" if row["n"] == of else f" ({row['n']} of {of})"
        return f"{value_of(column, mean)}{spread}{count}" if row["n"] else ""

    texts = rows.assign(text=[text(row) for _, row in rows.iterrows()])
    return texts.pivot(index="label", columns="column", values="text")


def _of_models(runs: DataFrame, repeated: bool) -> DataFrame:
    """How many runs meet their limits, and the first digits of models that several runs share."""
    finished = runs[runs["finished"]]
    met = finished[finished["limits_met"].notna()].groupby("setting")["limits_met"].agg(["sum", "count"])
    models = finished.loc[finished["model_sha256"] != "", ["setting", "model_sha256"]]
    digits = models["model_sha256"].str[:_DIGITS].groupby(models["setting"]).agg(lambda each: listed(each.unique()))
    cells = {"limits met": _of(met, always=True)} if len(met) else {}
    if repeated or models["model_sha256"].duplicated().any():
        cells["model"] = digits
    return DataFrame(cells)


def end_lines(runs: DataFrame) -> Iterator[str]:
    """The runs that did not end with exit code 0, by how they ended."""
    for (finished, end), group in runs[runs["exit"] != 0].groupby(["finished", "end"], sort=False):
        yield f"{'In' if finished else 'Not in'} the means, {end}: {listed(list(group['run']))}"


def warning_lines(runs: DataFrame) -> Iterator[str]:
    """A line for each kind of warning, with the runs that have it and the numbers of the first."""
    each = runs[["run", "exit", "warnings"]].explode("warnings").dropna(subset="warnings")
    each = each.assign(kind=[warning.kind for warning in each["warnings"]])
    for kind, group in each[(each["kind"] != DIVERGED) | (each["exit"] != FAILED)].groupby("kind", sort=False):
        first = group.iloc[0]
        yield f"Warning, {kind}: {listed(list(group['run'].unique()))} ({first['run']}: {first['warnings'].text})"


def _signed(column: str, value: float) -> str:
    return "" if pd.isna(value) else f"{'+' * (value > 0)}{value_of(column, float(value), 3)}"
