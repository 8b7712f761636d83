"""Mutated and made-up job files: `show`, `run` and `submit` end with one message, whatever stands in them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomli_w
from fuzzing import Ended, check, ended, examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st
from laws.registry import CASES, Case, private, table

from mpifed.algorithms import ALGORITHMS
from mpifed.maths.objectives import OBJECTIVES
from mpifed.maths.privacy.settings import Privacy
from mpifed.maths.regularizers import REGULARIZERS
from mpifed.maths.terms import TERMS
from mpifed.run.config import Job

_number = itertools.count()
SPLITS = {
    "rows": ("rows", "multiclass"), "columns": ("columns", "multiclass"), "halves": ("rows", "even-odd"),
    "cells": ("grid", "even-odd"),
}  # fmt: skip


class Area(NamedTuple):
    """Where commands are tried."""

    folder: Path
    data: dict[str, Path]  # by split

    def call(self, content: bytes, command: str, *arguments: object) -> Ended:
        """How a command with this job file ends."""
        number = next(_number)
        job = self.folder / f"job-{number}.toml"
        job.write_bytes(content)
        return ended([command, job.name, *arguments], self.folder)


@pytest.fixture(scope="module")
def area(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Area:
    folder, data = tmp_path_factory.mktemp("jobs"), {}
    for name, (split, labels) in SPLITS.items():
        held = ["--grid", "2x2"] if split == "grid" else ["--clients", "4"]
        more = ["--labels", "even-odd", "--scale", "unit-rows"] if labels == "even-odd" else []
        data[name] = make_data(folder / name, "digits", "--split", split, *held, *more, "--test-fraction", "0.2")
    return Area(folder, data)


# --- values that a reader of jobs may stumble over --------------------------------------------------------------

INTEGERS = [
    0, 1, 2, 3, 7, -1, 10**3, 10**5, 10**6, 10**9, 2**31, 2**32 + 1, 10**12, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
    10**400, -(10**400),
]  # fmt: skip
FLOATS = [
    0.0, -0.0, 5e-324, 1e-300, 1e-38, 1e-12, 0.5, 1.0, 3.0, 1e3, 1e8, 1e15, 3.4e38, 3.5e38, 1e100, 1e300, 1.7e308,
    float("inf"), float("-inf"), float("nan"), -1.0,
]  # fmt: skip
TEXTS = [
    "", " ", "a", "A b", "é", "\U0001f600", "x" * 300, ".", "..", "../../x", "/", "/abs/olute", "a/b", "-x", "--wrap=id",
    "a\nb", "a\n#SBATCH --wrap=id", "a\rb", "a\tb", "a\x1b[31mb", "a\x7f", "a\u2028b", "a\u0085b", "a\0b", "#", '"', "'",
    "$(id)", "`id`", "%j", "%s%n", "{x}", "nan", "1", "true", "auto", "loss", "norm", "no_such_module:Class", ":", "os:",
    ":x", "os:system", "json:JSONDecoder", "a:b:c", "..os:x", "os.:x", "os\0:x", "mpifed.algorithms.fedavg:FedAvg",
    "mpifed.maths.terms:Norm", "mpifed.maths.objectives:Softmax", "dataclasses:Field", "fractions:Fraction",
]  # fmt: skip
TIMES = [date(2024, 1, 1), datetime(1, 1, 1, tzinfo=timezone.utc), time(23, 59, 59, 1)]
simple = st.one_of(
    st.sampled_from(INTEGERS), st.sampled_from(FLOATS), st.sampled_from(TEXTS), st.sampled_from(TIMES), st.booleans(),
    st.floats(), st.text(max_size=8),
)  # fmt: skip
keys = st.sampled_from(["name", "a", "x y", "a.b", "", "é", "\n", "limit", "problem", "x" * 200, "__class__", "self"])
values: st.SearchStrategy[Any] = st.recursive(
    simple, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
paths = st.one_of(values, st.integers(2, 60).map(lambda depth: _nested(depth)))


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def schema() -> Iterator[tuple[str, ...]]:
    """All keys that a job knows."""
    for name, field in Job.model_fields.items():
        yield (name,)
        yield from ((name, key) for key in getattr(field.annotation, "model_fields", {}))
    yield from (("privacy", field.name) for field in dataclasses.fields(Privacy))
    yield from (("network", key) for key in ("name", "latency_s", "up_bytes_per_s", "encryption", "ciphertext_values"))
    parts = {"objective": OBJECTIVES, "algorithm": ALGORITHMS, "minimize": TERMS, "regularizer": REGULARIZERS}
    for part, known in parts.items():
        yield (part, "name")
        yield from {(part, field.name) for kind in known.values() for field in dataclasses.fields(kind)}
    yield from (("constraint", key) for key in ("name", "limit", "margin", "classes"))
    yield from (("sweep", key) for key in ("seeds", "seed", "algorithm.batch", "rounds", "name", "objective", "a..b"))


KEYS = sorted(set(schema()))
KNOWN = {
    "name": [*OBJECTIVES, *ALGORITHMS, *TERMS, *REGULARIZERS, "lte"],
    "channel": ["plain", "masked", "encrypted"],
    "numbers": ["exact", "exact-blocks", "float"],
    "scheme": ["bfv", "threshold-bfv", "paillier"],
    "level": ["sample", "client"],
    "model": ["local", "distributed", "central"],
    "sampling": ["fixed", "poisson"],
    "noise_on": ["gradients", "upload"],
    "accountant": ["pld", "rdp"],
    "distribution": ["discrete", "float"],
    "dtype": ["float32", "float64"],
    "encryption": ["as-run", "published", "none"],
    "rule": ["paper", "damped", "theory", "line-search", "accelerated"],
    "variance_reduction": ["recursive"],
    "margins": ["auto"],
}
more = {
    "regularizer": {"name": "l1", "weight": 1e-3}, "network": {"name": "lte"}, "stop": {"kkt_residual": 1e-2},
    "participation": {"clients_per_round": 3}, "sweep": {"seeds": 2}, "constraint": [{"name": "loss", "limit": 1.5}],
    **private(),
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn, data: dict[str, Path]) -> dict[str, Any]:
    """A job with one to three keys that hold something else."""
    case: Case = draw(st.sampled_from(CASES))
    found = table(Path(data[case.split].name), case.algorithm, **(case.tables | {"rounds": 2}))
    for key in draw(st.lists(st.sampled_from(sorted(more)), max_size=1)):
        found[key] = more[key]
    for place in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)):
        value = draw(st.one_of(paths, st.sampled_from(KNOWN.get(place[-1], [1, 0.5]))))
        if len(place) == 1:
            found[place[0]] = value
        elif place[0] == "constraint":
            found["constraint"] = [{"name": "loss", "limit": 1.0} | {place[1]: value}]
        else:
            inner = found.get(place[0])
            found[place[0]] = {**(inner if isinstance(inner, dict) else {}), place[1]: value}
    return found


def test_damaged_job_files(area: Area) -> None:
    @examples(15)
    @given(st.sampled_from(CASES), seeds, st.sampled_from(["show", "submit"]))
    def damaged(case: Case, seed: int, command: str) -> None:
        job = table(Path(area.data[case.split].name), case.algorithm, **(case.tables | {"rounds": 2}))
        options = {"show": ["--json"], "submit": ["--dry-run"]}[command]
        check(area.call(mutated(tomli_w.dumps(job).encode(), seed), command, *options))

    damaged()


def test_made_up_jobs_are_shown(area: Area) -> None:
    @examples(15)
    @given(tables(area.data))
    def shown(job: dict[str, Any]) -> None:
        end = area.call(tomli_w.dumps(job).encode(), "show", "--json")
        check(end)
        if end.code == 0:
            json.loads(end.text)
        assert end.seconds < 20, end

    shown()


def test_made_up_jobs_are_run(area: Area) -> None:
    @examples(15)
    @given(tables(area.data))
    def ran(job: dict[str, Any]) -> None:
        out = f"run-{next(_number)}"
        limits = ["--set", "rounds=2", "--set", "stop.seconds=2"]
        check(area.call(tomli_w.dumps(job).encode(), "run", "--out", out, "--progress", "none", *limits))

    ran()


def test_made_up_jobs_are_submitted(area: Area) -> None:
    @examples(10)
    @given(tables(area.data), st.lists(simple.map(str), max_size=2), st.sampled_from(["--out", "--account", "--sbatch"]))
    def submitted(job: dict[str, Any], words: list[str], option: str) -> None:
        given = [part for word in words for part in (option, word.replace("\0", ""))]
        end = area.call(tomli_w.dumps(job).encode(), "submit", "--dry-run", *given)
        check(end)

    submitted()


def test_changes_on_the_command_line(area: Area) -> None:
    case = CASES[0]
    job = tomli_w.dumps(table(Path(area.data[case.split].name), case.algorithm)).encode()
    piece = st.one_of(st.text(max_size=6), st.sampled_from(["rounds", "algorithm", "batch", ".", "=", '"', "[", "1", "\n"]))

    @examples(15)
    @given(st.lists(st.one_of(st.lists(piece, max_size=6).map("".join), settings()), min_size=1, max_size=3))
    def changed(changes: list[str]) -> None:
        given = [part for change in changes for part in ("--set", change.replace("\0", ""))]
        check(area.call(job, "show", "--json", *given))

    changed()


@st.composite
def settings(draw: st.DrawFn) -> str:
    """A change that names a real key."""
    value = draw(st.one_of(simple.map(str), simple.map(lambda one: tomli_w.dumps({"v": one})[4:])))
    return f"{'.'.join(draw(st.sampled_from(KEYS)))}={value}"
