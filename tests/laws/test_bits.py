"""The same model, bit for bit, on any number of ranks, in every channel, whoever leaves: every method."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from channel_algorithms import progress_of
from ended import run
from jobs_in_python import checked, in_text
from lengths import long_unless
from methods import METHODS, PEOPLE_BY_CHANCE, SIZES
from registry import CASES, FEW, NAMES, Case, table

from mpifed.core.errors import UsageError
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

ROUNDS = 2
PROGRAM = Path(__file__).with_name("sweeps.py")
TIMES = {"elapsed_s", "rss_bytes", "seconds_per_round", "peak_rss_bytes"}
BYTES = {"up_bytes", "down_bytes"}  # which a channel's own messages add to
BLOCKS = {"aggregation": {"arithmetic": "exact-blocks"}}
BIASED = {"model": {"name": "mlp", "bias": True, "hidden": 6}}
STEP = {"batch_size": 7, "client_optimizer": {"learning_rate": {"initial": 0.5, "exponent": 0.1}}}
OTHERS = {  # sums of blocks, which are rounded whole, and networks with biases
    "ssca in blocks": Case("ssca-horizontal", {**SIZES, "start": "paper"}, BLOCKS),
    "fedavg in blocks": Case("fedavg", STEP, BLOCKS),
    "scaffold, biased": Case("scaffold", STEP | {"local_steps": 3}, BIASED),
    "columns, biased": Case("ssca-vertical", SIZES, BIASED),
}
CERTIFIED = dict.fromkeys(("hyfdca", "bundle", "cocoa"), "duality_gap")  # else stationarity is measured
CERTIFIED |= dict.fromkeys(("hybrid-fedavg", "hyfem"), "objective")
BY_NAME = dict(zip(NAMES, CASES, strict=True)) | OTHERS

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
    channel: str = "plain"
    dedicated: bool | None = None  # whether the server's rank hosts no client; None: as the channel has it

    @property
    def stem(self) -> str:
        """Of its job's file, and of its folder."""
        return re.sub(r"\W+", "-", " ".join(map(str, self)))

    @property
    def alone(self) -> One:
        """What it must be the same as."""
        return One(self.name, self.way)


def fits(name: str, way: str) -> bool:
    """Whether the case has data of this kind."""
    case = BY_NAME[name]
    stays = case.everybody or case.name in STAYING
    if not way.startswith(case.split) or way.endswith("leaving" if stays else "staying"):
        return False
    return not (case.everybody and "clients_per_round" in WAYS[way].get("participation", {}))


def some(names: list[str], ways: list[str], channels: list[str]) -> list[One]:
    return [One(name, way, c) for name in names for way in ways for c in channels if fits(name, way)]


def turns(names: list[str], ways: list[str], channels: list[str]) -> list[One]:
    """Each name once; of the ways and channels that it fits, one after the other."""
    several = (some([name], ways, channels) for name in names)
    return [each[number % len(each)] for number, each in enumerate(several) if each]


def plain(names: list[str]) -> list[One]:
    """Each name in the plain channel, if there are no other tables with a dedicated server."""
    ways = ["rows, leaving", "rows, sparse, staying", "columns", "halves", "cells, some", "cells"]
    return [one._replace(dedicated=not BY_NAME[one.name].tables) for one in turns(names, ways, ["plain"])]


def hosting(runs: list[One]) -> list[One]:
    """With clients on the server's rank in every channel."""
    return [one._replace(dedicated=False) for one in runs]


# Every second method masked on 3 ranks, the others plain; the long tests have all in all channels, and in other ways.
ONCE = ["rows, sparse, leaving", "rows, sparse, staying", "columns, sparse", "halves", "cells"]
MORE = ["rows", "rows, sparse", "rows, leaving", "columns", "columns, shares", "cells, some"]
LESS = ["ssca-horizontal-4", "scaffold-1", "vertical-sgd-1"]  # several exchanges, states, sums that clients hear
PARTS = ["hyfem-0"]  # of cells
PROTECTED = ["masked", "encrypted"]
REST = [name for name in NAMES if name not in FEW]
PLAN: dict[int, list[One]] = {
    1: some(FEW[1::2], ONCE, ["encrypted"]) + turns(REST, ONCE, PROTECTED),
    2: hosting(some(FEW[::2], ONCE, ["encrypted"]) + plain([*BY_NAME])) + some(LESS[1:] + PARTS, MORE, ["masked"]),
    3: some(FEW[1::2], ONCE, ["masked"]) + hosting(some(LESS[1:2], ONCE, ["encrypted"])) + plain([*FEW[::2], *OTHERS]),
    4: hosting(turns(FEW[::2], [*MORE, *ONCE], ["masked"])),
    7: some(LESS, ONCE, PROTECTED),
}
SHORT = (3,)  # the others are long


def job_of(one: One, folders: dict[str, Path]) -> dict[str, Any]:
    """The job's table."""
    case, way = BY_NAME[one.name], dict(WAYS[one.way])
    data = {"path": str(folders[way.pop("data")]), "block": way.pop("block")}
    record: dict[str, Any] = {"evaluate_every": ROUNDS, "checkpoint_every": 0}
    if case.split in ("rows", "columns") and not case.tables.get("constraint"):  # which a draw cannot say to be met
        record["evaluate_rows"] = 60
    by_chance = case.tables is PEOPLE_BY_CHANCE
    if by_chance:  # whoever left, or a sum too small, would tell how many came
        way["participation"] = {"clients_per_round": 7}
    # of cells, a round may have few who hold a column
    sums = {"security": one.channel, "allow": SINGLE.get(one.name, []), "min_clients": 1 if by_chance else 2}
    sums |= case.tables.get("aggregation", {})
    job = table(Path(), case.algorithm, rounds=ROUNDS, record=record) | case.tables | way
    server = {} if one.dedicated is None else {"dedicated": one.dedicated}
    return job | {"aggregation": sums, "data": data, "server": server}


@pytest.fixture(scope="module")
def folders(request: pytest.FixtureRequest) -> dict[str, Path]:
    return {way["data"]: request.getfixturevalue(way["data"]) for way in WAYS.values()}


@pytest.fixture(scope="module")
def played(folders: dict[str, Path], launch: Callable[..., Any], write_job: Any, tmp_path_factory: Any) -> Any:
    """played(ranks, runs): the folder where these are, of which those that were not there are made in one launch."""
    base = tmp_path_factory.mktemp("channels")

    def played(ranks: int, runs: list[One]) -> Path:
        out: Path = base / f"on-{ranks}"
        runs = [one for one in dict.fromkeys(runs) if not (out / one.stem).exists()]
        if runs:
            jobs = [write_job(base / f"{one.stem}.toml", job_of(one, folders)) for one in runs]
            ended = launch(ranks, out, *jobs, program=(str(PROGRAM),))
            assert ended.code == 0, ended.text
        return out

    return played


def test_the_plan_holds_every_method_and_every_case() -> None:
    assert {case.name for case in CASES} == {BY_NAME[name].name for name in FEW} == set(METHODS)
    whole = [one for runs in PLAN.values() for one in runs]
    for channel in PROTECTED:
        assert {one.name for one in whole if one.channel == channel} >= set(FEW)
    assert {one.name for one in whole if one.channel != "plain"} == set(NAMES)
    assert {one.name for one in PLAN[2] if one.channel == "plain"} == set(BY_NAME)
    assert {one.way for one in whole} == set(WAYS)
    alone = {one: one.dedicated or (one.dedicated is None and one.channel != "plain") for one in whole}
    assert {one.name for ranks in PLAN for one in PLAN[ranks] if ranks - alone[one] > 1} == set(BY_NAME)  # which add up
    assert {name for name in NAMES if BY_NAME[name].split == "columns"} == set(SINGLE)


@pytest.mark.launch
@pytest.mark.parametrize("ranks", long_unless(SHORT.__contains__, PLAN))
def test_the_same_bits_in_every_channel_on_any_number_of_ranks(played: Any, ranks: int) -> None:
    alone, here = played(0, [one.alone for one in PLAN[ranks]]), played(ranks, PLAN[ranks])
    for one in PLAN[ranks]:
        expected, found = alone / one.alone.stem, here / one.stem
        known, told = summary(expected), summary(found)
        assert told["exit"] in (0, 69) and told["rounds"] == ROUNDS, one  # a limit need not be met yet
        certified = CERTIFIED.get(BY_NAME[one.name].name, "kkt_residual")
        assert len(known["model_sha256"]) == 64 and known[certified] > 0, one
        assert told["model_sha256"] == known["model_sha256"], one
        # as text, because a NaN is not equal to itself
        but = TIMES if one.channel == "plain" else TIMES | BYTES
        ours, theirs = ({n: repr(v.tolist()) for n, v in read_history(out).items()} for out in (found, expected))
        assert {n: v for n, v in ours.items() if n not in but} == {n: v for n, v in theirs.items() if n not in but}, one
        progress = progress_of(found)
        first = max(cost["played"] for name, cost in progress.exchanges.items() if name != "keys")
        if "leaving" in one.way and BY_NAME[one.name].tables is not PEOPLE_BY_CHANCE:
            assert first == ROUNDS + VOID, one
        if one.channel != "plain":
            assert progress.exchanges["keys"]["up_bytes"] > 0 and progress.exchanges["keys"]["crypto_s"] > 0


@pytest.mark.launch
@pytest.mark.parametrize("ranks", long_unless(SHORT.__contains__, [3, 2]))
def test_settings_that_matter_change_the_bits(played: Any, folders: dict[str, Path], ranks: int) -> None:
    """But who has the labels may change a last bit, or none: what is told of them is rounded.

    Nor do blocks of clients matter, and room for those who leave where nobody does.
    """
    runs = [one.alone for one in PLAN[ranks]]
    alone, found = played(0, runs), dict[str, set[str]]()
    for one in dict.fromkeys(runs):
        job = job_of(one, folders)
        job["algorithm"] = {key: value for key, value in job["algorithm"].items() if key != "label_holder"}
        job["participation"] = {k: v for k, v in job.get("participation", {}).items() if k != "max_dropouts"}
        job["data"] = job["data"]["path"]
        key = json.dumps(
            {name: part for name, part in job.items() if name not in ("aggregation", "record")}, sort_keys=True
        )
        found.setdefault(key, set()).add(summary(alone / one.stem)["model_sha256"])
    assert len(set.union(*found.values())) == sum(map(len, found.values()))


@pytest.mark.long
@pytest.mark.launch
def test_32_ranks_on_the_cores_of_one_machine(launch: Any, write_job: Any, make_data: Any, tmp_path: Path) -> None:
    """The same bits; a segment of clients' states a rank, and little memory that is a rank's own."""
    data = make_data(tmp_path / "data", "synthetic", "--split", "rows", "--clients", "40")
    scaffold = {"name": "scaffold", "batch_size": 2, "client_optimizer": {"learning_rate": 0.1}}
    job = write_job(tmp_path / "job.toml", table(data, scaffold, model={"name": "least-squares"}, rounds=2))
    for ranks in (0, 32):
        out = tmp_path / str(ranks)
        ended = launch(ranks, "run", job, "--out", out, "--set", "record.checkpoint_every=2")
        assert ended.code == 0, ended.text
    assert summary(tmp_path / "32")["model_sha256"] == summary(tmp_path / "0")["model_sha256"]
    segments = {path.name for path in (tmp_path / "32").rglob("clients-*.states")}
    assert segments == {f"clients-00000002-{rank:05d}.states" for rank in range(32)}
    assert summary(tmp_path / "32")["peak_rss_bytes"] < 160 * 2**20


# --- sums of blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps"), [("fedavg in blocks", 1), ("ssca in blocks", None), ("fedavg in blocks", 2)]
)
def test_sums_of_blocks_are_close_to_exact_ones(name: str, steps: int, skewed: Path, tmp_path: Path) -> None:
    """And the same, to the bit, where several local steps leave none to fuse."""
    more = {"local_steps": steps} if steps else {}
    for numbers in ("exact", "exact-blocks"):
        data, aggregation = {"path": str(skewed), "block": 3}, {"arithmetic": numbers}
        job = table(skewed, BY_NAME[name].algorithm | more, data=data, aggregation=aggregation)
        run(checked(job), Solo(), tmp_path / numbers)
    exact, blocks = (read_model(tmp_path / one / "model.safetensors") for one in ("exact", "exact-blocks"))
    for layer, leaf in exact.items():
        np.testing.assert_allclose(blocks[layer], leaf, rtol=1e-4, atol=1e-5)
    assert any((blocks[layer] != leaf).any() for layer, leaf in exact.items()) == (steps != 2)
    sent = [read_history(tmp_path / one)["up_bytes"].tolist() for one in ("exact", "exact-blocks")]
    assert sent[0] == sent[1]


# --- what single clients send ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "channel"), [*((name, "masked") for name in SINGLE), ("ssca-vertical-3", "encrypted")]
)
def test_what_single_clients_send_must_be_allowed(
    name: str, channel: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    given = job_of(One(name, "columns, sparse", channel), folders)

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
    run(checked(given | {"aggregation": {"security": channel, **in_text(pasted)}}), Solo(), tmp_path / "pasted")
    run(checked(given), Solo(), tmp_path / "declared")
    assert summary(tmp_path / "pasted")["model_sha256"] == summary(tmp_path / "declared")["model_sha256"]
