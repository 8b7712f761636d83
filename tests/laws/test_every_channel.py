"""Plain, masked and encrypted sums have the same bits, on any number of ranks, whoever leaves: the whole registry."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from channel_algorithms import progress_of
from ended import run
from jobs_in_python import checked, in_text
from lengths import long_unless
from methods import METHODS, PEOPLE_BY_CHANCE
from registry import CASES, FEW, NAMES, table

from mpifed.core.errors import UsageError
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

ROUNDS = 2
PROGRAM = Path(__file__).with_name("sweeps.py")
BY_NAME = dict(zip(NAMES, CASES, strict=True))
# columns that may differ between channels: what is sent, and how long it takes
OF_A_CHANNEL = ("elapsed_s", "rss_bytes", "up_bytes", "down_bytes")

# What single clients send, and so no channel can hide from who hears the sum.
SINGLE = {
    f"{name}-{number}": fields
    for name, method in METHODS.items()
    for number, fields in enumerate(method.single)
    if fields
}

# Seed 2: with so many clients, and so many who may leave, rounds 0 and 1 are void the first time.
SOME_LEAVE = {"seed": 2, "participation": {"clients_per_round": 9, "dropout_rate": 0.2, "max_dropouts": 2}}
VOID = 2
# whose clients hear what became of their uploads, as those who leave would not; or whose run ends where too many leave
# after a first sum of the round has been opened, as they do here
STAYING = ("proxskip", "tamuna", "fedlin", "mime")
WAYS: dict[str, dict[str, Any]] = {
    "rows": {"data": "digits", "block": 1, "participation": {"clients_per_round": 7}},
    "rows, sparse": {"data": "digits", "block": 3},
    "rows, leaving": {"data": "skewed", "block": 1, "compute": {"dtype": "float64"}, **SOME_LEAVE},
    "rows, sparse, leaving": {"data": "skewed", "block": 3, **SOME_LEAVE},
    "rows, sparse, staying": {"data": "skewed", "block": 3},
    "columns": {"data": "scattered", "block": 2},
    "columns, sparse": {"data": "sides", "block": 1},
    "columns, shares": {"data": "scattered", "block": 1, "participation": {"max_dropouts": 1}},  # and nobody leaves
    "halves": {"data": "halves", "block": 1, "participation": {"clients_per_round": 4}},
    "cells": {"data": "patches", "block": 1},
    "cells, some": {"data": "patchwork", "block": 2, "participation": {"clients_per_round": 5}},
}


class One(NamedTuple):
    """A run: a case of the registry, in one way, in a channel."""

    name: str
    way: str
    channel: str

    @property
    def stem(self) -> str:
        """Of its job's file, and of its folder."""
        return re.sub(r"\W+", "-", f"{self.name} {self.way} {self.channel}")


def fits(name: str, way: str) -> bool:
    """Whether the case has data of this kind."""
    case = BY_NAME[name]
    stays = case.everybody or case.name in STAYING
    if not way.startswith(case.split) or way.endswith("leaving" if stays else "staying"):
        return False
    return not (case.everybody and "clients_per_round" in WAYS[way].get("participation", {}))


def some(names: list[str], ways: list[str], channels: list[str]) -> list[One]:
    return [One(name, way, c) for name in names for way in ways for c in channels if fits(name, way)]


# With clients who leave where they may: every second algorithm masked on 3 ranks (`test_same_bits.py` has the others
# there); the long tests have all in both channels, in other ways, and all other cases in one channel.
ONCE = ["rows, sparse, leaving", "rows, sparse, staying", "columns, sparse", "halves", "cells"]
OTHERS = ["rows", "rows, sparse", "rows, leaving", "columns", "columns, shares", "cells, some"]
LESS = ["ssca-horizontal-4", "scaffold-1", "vertical-sgd-1"]  # several exchanges, states, sums that clients hear
PARTS = ["hyfem-0"]  # of cells
PROTECTED = ["masked", "encrypted"]
REST = [name for name in NAMES if name not in FEW]


def turns(names: list[str], ways: list[str], channels: list[str]) -> list[One]:
    """Each name once; of the ways and channels that it fits, one after the other."""
    several = (some([name], ways, channels) for name in names)
    return [each[number % len(each)] for number, each in enumerate(several) if each]


PLAN: dict[int, list[One]] = {
    1: some(FEW[1::2], ONCE, ["encrypted"]) + turns(REST, ONCE, PROTECTED),
    2: some(FEW[::2], ONCE, ["encrypted"]) + some(LESS[1:] + PARTS, OTHERS, ["masked"]),
    3: some(FEW[1::2], ONCE, ["masked"]) + some(LESS[1:2], ONCE, ["encrypted"]),
    4: turns(FEW[::2], [*OTHERS, *ONCE], ["masked"]),
    7: some(LESS, ONCE, PROTECTED),
}
SHORT = (3,)  # the others are long


def plain(runs: list[One]) -> list[One]:
    """The same in the plain channel, each once."""
    return list(dict.fromkeys(one._replace(channel="plain") for one in runs))


def job_of(one: One, folders: dict[str, Path]) -> dict[str, Any]:
    """The job's table."""
    case, way = BY_NAME[one.name], dict(WAYS[one.way])
    data = {"path": str(folders[way.pop("data")]), "block": way.pop("block")}
    record: dict[str, Any] = {"evaluate_every": ROUNDS, "checkpoint_every": 0}
    if case.split in ("rows", "columns") and not case.tables.get("constraint"):  # which a draw cannot say to be met
        record["evaluate_rows"] = 60
    # of cells, a round may have few who hold a column
    by_chance = case.tables is PEOPLE_BY_CHANCE
    if by_chance:  # whoever left, or a sum too small, would tell how many came
        way["participation"] = {"clients_per_round": 7}
    least = 1 if by_chance else 2
    sums = {"security": one.channel, "allow": SINGLE.get(one.name, []), "min_clients": least}
    return (
        table(Path(), case.algorithm, rounds=ROUNDS, record=record, aggregation=sums)
        | case.tables
        | way
        | {"data": data}
    )


@pytest.fixture(scope="module")
def folders(
    digits: Path, skewed: Path, sides: Path, scattered: Path, halves: Path, patches: Path, patchwork: Path
) -> dict[str, Path]:
    return {
        "digits": digits, "skewed": skewed, "sides": sides, "scattered": scattered, "halves": halves,
        "patches": patches, "patchwork": patchwork,
    }  # fmt: skip


@pytest.fixture(scope="module")
def played(folders: dict[str, Path], launch: Callable[..., Any], write_job: Any, tmp_path_factory: Any) -> Any:
    """played(ranks, runs): the folder where these are, of which those that were not there are made in one launch."""
    base = tmp_path_factory.mktemp("channels")

    def played(ranks: int, runs: list[One]) -> Path:
        out: Path = base / f"on-{ranks}"
        runs = [one for one in runs if not (out / one.stem).exists()]
        if runs:
            jobs = [write_job(base / f"{one.stem}.toml", job_of(one, folders)) for one in runs]
            ended = launch(ranks, out, *jobs, program=(str(PROGRAM),))
            assert ended.code == 0, ended.text
        return out

    return played


def history(out: Path) -> dict[str, str]:
    """Its columns, as text, because a NaN is not equal to itself."""
    return {name: repr(v.tolist()) for name, v in read_history(out).items() if name not in OF_A_CHANNEL}


def test_the_plan_holds_every_algorithm_and_every_case() -> None:
    assert {case.name for case in CASES} == {BY_NAME[name].name for name in FEW} == set(METHODS)
    whole = [one for runs in PLAN.values() for one in runs]
    for channel in PROTECTED:
        assert {one.name for one in whole if one.channel == channel} >= set(FEW)
    assert {one.name for one in whole} == set(NAMES)
    assert {one.way for one in whole} == set(WAYS)
    assert {name for name, case in BY_NAME.items() if case.split == "columns"} == set(SINGLE)
    assert set(PLAN) == {1, 2, 3, 4, 7}


@pytest.mark.launch
@pytest.mark.parametrize("ranks", long_unless(SHORT.__contains__, PLAN))
def test_the_same_bits_in_every_channel(played: Any, ranks: int) -> None:
    alone, here = played(0, plain(PLAN[ranks])), played(ranks, PLAN[ranks])
    for one in PLAN[ranks]:
        expected, found = alone / one._replace(channel="plain").stem, here / one.stem
        known, told = summary(expected), summary(found)
        assert told["exit"] in (0, 69) and told["rounds"] == ROUNDS, one  # a limit need not be met yet
        assert len(known["model_sha256"]) == 64
        assert told["model_sha256"] == known["model_sha256"], one
        assert history(found) == history(expected), one
        progress = progress_of(found)
        first = max(cost["played"] for name, cost in progress.exchanges.items() if name != "keys")
        if "leaving" in one.way and BY_NAME[one.name].tables is not PEOPLE_BY_CHANCE:
            assert first == ROUNDS + VOID, one
        if one.channel != "plain":
            assert progress.exchanges["keys"]["up_bytes"] > 0
            assert progress.exchanges["keys"]["crypto_s"] > 0


# --- what single clients send ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "channel"), [*((name, "masked") for name in SINGLE), ("ssca-vertical-3", "encrypted")]
)
def test_what_single_clients_send_must_be_allowed(
    name: str, channel: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    one = One(name, "columns, sparse", channel)
    given = job_of(one, folders)

    def refused(allow: list[str]) -> str:
        """What is said to a job that allows these."""
        with pytest.raises(UsageError) as caught:
            run(checked(given | {"aggregation": {"security": channel, "allow": allow}}), Solo(), tmp_path / "refused")
        return str(caught.value)

    text = refused([])
    fields = re.findall(r"([\w.-]+) \(1\)", text)
    assert fields
    assert all(any(f"{field}.".startswith(f"{known}.") for known in SINGLE[name]) for field in fields)
    for known in SINGLE[name]:  # no name is there for nothing
        left = refused([other for other in SINGLE[name] if other != known])
        assert all(f"{field}.".startswith(f"{known}.") for field in re.findall(r"([\w.-]+) \(1\)", left))
    (pasted,) = re.findall(r"\[aggregation\] (allow = \[.*\])", text)
    sums = {"security": channel, **in_text(pasted)}
    run(checked(given | {"aggregation": sums}), Solo(), tmp_path / "pasted")
    run(checked(given), Solo(), tmp_path / "declared")
    assert summary(tmp_path / "pasted")["model_sha256"] == summary(tmp_path / "declared")["model_sha256"]
