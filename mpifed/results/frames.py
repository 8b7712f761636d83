"""Runs and sweeps as frames of pandas: a row a run, and a row a measured round.

Runs whose jobs differ in their seed, or in what changes no result, are one setting. What sets settings apart is their
name, in tables and figures alike.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.ends import FINISHED
from mpifed.files.history import read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.run_folder import JOB, RUN, job_of, read_run, summary
from mpifed.job.reading import dotted, put_key
from mpifed.job.schema import free_in, is_free
from mpifed.job.sweep import LABEL
from mpifed.privacy.ledger_file import spent
from mpifed.results.objectives import objective_of
from mpifed.results.points import is_sweep, point_settings
from mpifed.results.run_warnings import run_warnings
from mpifed.results.text import is_number, meaning, toml_text
from mpifed.text import leads_to

FAILED = NumericalError.exit_code
_NAMING = (LABEL, "name", "algorithm.name", "model.name", "data")  # values that say enough without their keys
_HAS = "has "  # before the name of a table that only some jobs have
_LONGEST = 60  # characters of a name
_NO_JOB = "no folder of a run, a sweep or data"


class RunFrames(NamedTuple):
    """What is in folders of runs and sweeps.

    `runs` has a row for each: `run` (its name), `folder`, `setting` (what sets its job apart), `seed`, `label`, `exit`
    (nan: none), `end` (in words), `finished`, `ended` (finished, or failed numerically), `limits_met`, `loss` and
    `objective_of` (what it minimizes), `private`, `swept` and `job` (tables), `warnings` (a list), `model_sha256`, the
    numbers of its summary as columns, and its settings as columns `job.table.key`. `histories` has a row for each
    measured round: `folder`, `run`, `setting`, `seed` and the columns of history.csv, with `bytes`, of both directions,
    and `excess`, the largest over a limit.
    """

    runs: DataFrame
    histories: DataFrame

    @property
    def numbers(self) -> list[str]:
        """The columns of numbers that a finished run has."""
        finished = self.runs.loc[self.runs["finished"], self.runs.attrs["numbers"]]
        return list(finished.columns[finished.notna().any()])

    @property
    def settings(self) -> list[str]:
        return list(self.runs["setting"].unique())

    @property
    def varying(self) -> list[str]:
        """The settings `job.table.key` in which runs differ, but for their seed and what changes no result."""
        return list(self.runs.attrs["varying"])

    def ordered(self) -> list[str]:
        """The settings by label and by what they set, numbers by size: an order in which nothing depends on another."""
        rows = self.runs.drop_duplicates("setting").set_index("setting")

        def place(setting: str) -> list[tuple[int, float, str]]:
            values = rows.loc[setting, [LABEL, *self.varying]]
            return [(0, value, "") if is_number(value) else (1, 0.0, toml_text(value)) for value in values]

        return sorted(self.settings, key=place)


def read(*folders: Path) -> RunFrames:
    """All runs of these folders, each once; those of a sweep that have not begun too.

    Raises
    ------
    UsageError
        when a folder is of neither a run nor a sweep.
    DataError
        when files in it are damaged.
    """
    members = list(_members(folders))
    grid = len(folders) == 1 and is_sweep(folders[0])  # whether the settings are those of a single sweep
    rows = [_row(member, grid) for member in members]
    numbers = list(dict.fromkeys(name for row in rows for name in row.pop("numbers")))
    jobs = [dict(_flat(member.job)) for member in members]
    texts = DataFrame([{key: toml_text(value) for key, value in dotted(job)} for job in jobs]).fillna("")
    runs = DataFrame(rows).reindex(columns=list(dict.fromkeys([*rows[0], *numbers])))
    free = set.intersection(*(free_in(member.job) for member in members))
    texts = texts[[key for key in texts if key not in ("seed", "data.path") and not is_free(key, free)]]
    texts = texts.assign(data=_data(runs))
    number = Series(pd.factorize(Series(list(map(tuple, texts.to_numpy()))))[0])
    labels = runs[LABEL].groupby(number).transform("max")  # empty where none has one
    naming = texts.assign(**{LABEL: labels, "name": runs["name"]}, **_absence(texts))[~number.duplicated()]
    names = _names(naming)
    names = _shortened(names.where(names != "", naming[LABEL].where(naming[LABEL] != "", naming["name"])))
    names = names.where(~names.duplicated(), names + ": " + runs["run"])
    runs["setting"] = number.map(dict(zip(number[names.index], names, strict=True)))
    differing = [key for key in texts if texts[key].nunique() > 1 and key != "data"]
    settings = DataFrame(jobs, dtype=object)  # in which a schedule is one value
    varying = {f"job.{name}": None for key in differing for name in settings if f"{key}.".startswith(f"{name}.")}
    runs = pd.concat([runs, settings.add_prefix("job.")], axis=1)
    runs.attrs = {"numbers": numbers, "varying": list(varying), "grid": grid}
    histories = [_history(member.folder, member.job) for member in members]
    joined = pd.concat([DataFrame({"folder": []}, dtype=object), *histories], ignore_index=True)
    return RunFrames(runs, joined.merge(runs[["folder", "run", "setting", "seed"]], on="folder", how="left"))


class _Member(NamedTuple):
    folder: Path
    label: str
    swept: Table  # by "table.key", of a point
    job: Table


def _members(folders: Iterable[Path]) -> Iterator[_Member]:
    """Every run once; a point that has not begun with the job of those that differ in their seed alone."""
    members: dict[Path, _Member] = {}
    for folder in folders:
        if is_sweep(folder):
            found = _points(folder)
        elif (folder / JOB).exists():
            found = [_Member(folder, "", {}, job_of(folder))]
        else:
            there = _NO_JOB if folder.is_dir() else f"no such folder{leads_to(folder)}"
            raise UsageError(f"{folder}: {there} (it has no {JOB}, and no sweep.csv)")
        for member in found:
            before = members.setdefault(member.folder.resolve(), member)
            if not before.label:
                members[member.folder.resolve()] = before._replace(label=member.label, swept=member.swept)
    yield from members.values()


def _points(folder: Path) -> list[_Member]:
    points = point_settings(folder)
    jobs = {name: job_of(folder / name) for name, _ in points}
    by_settings = {_without_seed(settings): jobs[name] for name, settings in points if jobs[name]}
    members = []
    for name, settings in points:
        label = str(settings.pop(LABEL, ""))
        job = jobs[name]
        if not job:
            alike = by_settings.get(_without_seed(settings))
            job = copy.deepcopy(alike or next(iter(by_settings.values()), {}))
            for key in ("seed",) if alike else settings:
                put_key(job, key, settings.get(key))
        swept = {key: _value(job, key, value) for key, value in settings.items() if key != "seed"}
        members.append(_Member(folder / name, label, swept, job))
    return members


def _without_seed(settings: ReadOnlyTable) -> str:
    return json.dumps({key: value for key, value in settings.items() if key not in ("seed", LABEL)})


def _value(job: ReadOnlyTable, key: str, cell: object) -> object:
    """The value of a swept key, in the type that the job has; what its cell of sweep.csv says where it has none."""
    table, _, name = key.partition(".")
    return job.get(table, {}).get(name, cell) if name and isinstance(job.get(table), dict) else job.get(key, cell)


def _flat(job: ReadOnlyTable) -> Iterator[tuple[str, object]]:
    """The keys of a job as "table.key"; a schedule counts as a single value, like a list."""
    for table, value in job.items():
        if isinstance(value, dict):
            yield from ((f"{table}.{key}", inner) for key, inner in value.items())
        elif value and isinstance(value, list) and isinstance(value[0], dict):  # [[constraint]]
            yield from _flat({f"{table}.{m}": part for m, part in enumerate(value, 1)})
        else:
            yield table, value


def _row(member: _Member, in_grid: bool) -> Table:
    """What is known of a run; `numbers` has the names of the columns that can be averaged."""
    folder, job = member.folder, member.job
    released = spent(folder)
    about = summary(folder, released) if (folder / RUN).exists() else {}
    limits = [constraint["limit"] for constraint in job.get("constraint", [])]
    values: list[float | None] = about.get("constraint_values") or []
    numbers = {name: value for name, value in about.items() if is_number(value) and name != "exit"}
    numbers |= {f"constraint_{m}": value for m, value in enumerate(values, 1) if value is not None}
    if "up_bytes" in numbers and "down_bytes" in numbers:
        numbers["bytes"] = numbers["up_bytes"] + numbers["down_bytes"]
    met = [value is not None and value <= limit for value, limit in zip(values, limits, strict=False)]
    known = bool(limits) and len(limits) == len(values) and None not in values
    code = about.get("exit")
    objective = objective_of(job)
    return {
        "run": folder.name if in_grid else str(folder),
        "folder": folder,
        "name": str(job.get("name") or (folder.parent if member.swept else folder).name),
        LABEL: member.label,
        "seed": job.get("seed"),
        "exit": math.nan if code is None else code,
        "end": _end(code) if about else "ended before the first round" if folder.exists() else "not run",
        "finished": code in FINISHED,
        "ended": code in FINISHED or code == FAILED,
        "limits_met": all(met) if known else None,
        "loss": objective[0],
        "objective_of": ", ".join(filter(None, objective)),
        "private": "privacy" in job,
        "model_sha256": about.get("model_sha256") or "",
        "swept": member.swept,
        "job": job,
        "data": (job.get("data") or {}).get("path", ""),
        "data_sha256": data_digest(folder),
        "warnings": run_warnings(folder, job) if about else [],
        **numbers,
        "numbers": [*numbers],
    }


def _end(code: int | None) -> str:
    return meaning(code) + ("" if code is None else f" (exit {code})")


def data_digest(folder: Path) -> str | None:
    """The SHA-256 of a run's data; None where that is not known, as of private ones."""
    return read_run(folder).get("data_sha256") if (folder / RUN).exists() else None


def _data(runs: DataFrame) -> Series:
    """What data each run had: the same wherever they lay, and others where they were made anew at one path."""
    digest = runs["data_sha256"]
    path = runs.groupby("data_sha256")["data"].transform("first").where(digest.notna(), runs["data"])
    several = digest.groupby(path).transform("nunique") > 1
    last = path.map(lambda text: Path(text).name)
    short = last if last.nunique() == path.nunique() else path
    return short.where(~several, short + " " + digest.fillna("").str[:12])


def _absence(texts: DataFrame) -> dict[str, Series]:
    """A column for each table that only some have, such as privacy."""
    tables = dict.fromkeys(key.partition(".")[0] for key in texts if "." in key)
    having = {table: (texts.filter(regex=rf"^{table}\.") != "").any(axis=1) for table in tables}
    return {
        f"{_HAS}{table}": own.map({True: table, False: f"no {table}"})
        for table, own in having.items()
        if own.nunique() > 1
    }


def _names(rows: DataFrame) -> Series:
    """What sets each row apart: names where these differ, then, among the rows of one name, other keys that do."""
    varying = [key for key in rows if rows[key].nunique() > 1]
    naming = [key for key in _NAMING if key in varying]
    naming += [key for key in varying if key.endswith(".name") or key.startswith(_HAS)]
    if naming:
        groups = [
            Series([", ".join(filter(None, (value.strip('"'), rest))) for rest in _names(group)], group.index)
            for value, group in rows.groupby(naming[0], sort=False)
        ]
        return pd.concat(groups).reindex(rows.index)
    short = Series({key: key.rpartition(".")[2] for key in varying})
    short = short.where(~short.duplicated(keep=False), varying)
    named = (", ".join(f"{short[key]} = {row[key]}" for key in varying if row[key]) for _, row in rows.iterrows())
    return Series(list(named), rows.index)


def _shortened(names: Series) -> Series:
    """Names with their middle left out where they are long and stay apart."""
    short = names.where(names.str.len() <= _LONGEST, names.str[: _LONGEST - 20] + "…" + names.str[-19:])
    return short.where(~short.duplicated(keep=False), names)


def _history(folder: Path, job: ReadOnlyTable) -> DataFrame:
    columns = read_history(folder) if (folder / HISTORY).exists() else {}
    history = DataFrame({name: values.astype(np.float64) for name, values in columns.items()})
    if history.empty:
        return history
    history["bytes"] = history["up_bytes"] + history["down_bytes"]
    limits = {f"constraint_{m}": constraint["limit"] for m, constraint in enumerate(job.get("constraint", []), 1)}
    if limits and set(limits) <= set(history):
        history["excess"] = (history[[*limits]] - Series(limits)).max(axis=1, skipna=False)
    return history.assign(folder=folder)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
