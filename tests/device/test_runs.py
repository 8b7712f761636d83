"""Every algorithm on a device, by a double of CuPy, against the processor: alike up to exp, tanh, log and products."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import assert_alike, job_of, outcome
from lengths import long_unless
from make_believe import USED, Copies, make_believe
from registry import CASES, FEW, NAMES, Case
from whole_runs import run

from mpifed.comm.rounds import Ranks
from mpifed.core.errors import NumericalError
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

pytestmark = pytest.mark.long

API = json.loads(Path(__file__).with_name("api.json").read_text())
# single precision, two rounds: products with other shapes round otherwise, and SSCA's step divides by what is small
TOLERANCE = 2e-5


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[Any]:
    """`import cupy` gives the double, for all tests of this file."""
    with make_believe() as cupy:
        yield cupy


@pytest.fixture
def folder(case: Case, skewed: Path, sides: Path, halves: Path, patches: Path) -> Path:
    return {"rows": skewed, "columns": sides, "halves": halves, "cells": patches}[case.split]


every_algorithm = pytest.mark.parametrize("case", CASES, ids=NAMES)


FIRST = [number for number, case in enumerate(CASES) if case.name not in [one.name for one in CASES[:number]]]


@pytest.mark.parametrize(
    "case",
    long_unless(lambda case: CASES.index(case) in FIRST or NAMES[CASES.index(case)] in FEW, CASES),
    ids=NAMES,
)
def test_every_algorithm_gives_the_processor_s_results(case: Case, folder: Path) -> None:
    certify = CASES.index(case) in FIRST
    on_device = outcome(job_of(folder, case, "gpu"), certify=certify)
    assert on_device.ranks.device.name == "Make-believe"
    assert_alike(on_device, outcome(job_of(folder, case, "cpu"), certify=certify), TOLERANCE)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *((name, "exact-blocks") for name in ("ssca-horizontal-0", "ssca-horizontal-1", "fedavg-0")),
    ],
)
def test_other_sums(name: str, numbers: str, skewed: Path, sides: Path, halves: Path, patches: Path) -> None:
    case = CASES[NAMES.index(name)]
    data = {"rows": skewed, "columns": sides, "halves": halves, "cells": patches}[case.split]
    there, here = (outcome(job_of(data, case, device, numbers), 1) for device in ("gpu", "cpu"))
    assert_alike(there, here, TOLERANCE)


# --- what crosses ------------------------------------------------------------------------------------------------


ONE_COPY = [
    "ssca-horizontal-0", "ssca-vertical-0", "ssca-vertical-1", "fedavg-1", "fedprox-0", "scaffold-0", "fedpdm-0",
    "fedpdm-4", "vertical-sgd-0", "hybrid-fedavg-0", "bundle-0", "hyfdca-3", "hyfdca-4",
]  # fmt: skip


@pytest.mark.parametrize("name", ONE_COPY)
def test_only_the_message_crosses(
    name: str, skewed: Path, sides: Path, patches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, found, played = CASES[NAMES.index(name)], [], Ranks.sum

    def counted(ranks: Ranks, plan: Any, *given: Any) -> Any:
        before = Copies.to_host, Copies.looks
        result = played(ranks, plan, *given)
        found.append((plan.exchange.name, Copies.to_host - before[0], Copies.looks - before[1]))
        return result

    monkeypatch.setattr(Ranks, "sum", counted)
    folder = {"rows": skewed, "columns": sides, "cells": patches}[case.split]
    outcome(job_of(folder, case, "gpu"), rounds=4, certify=False)
    assert {copies for _, copies, _ in found} == {1}, found
    # single numbers are looked at where NumPy's memory holds them, and no device: but for grids, in the first rounds
    last = {name: looks for name, _, looks in found if [one for one, *_ in found].count(name) > 1}
    assert last and not any(last.values()), found


def test_rows_are_sent_once(skewed: Path) -> None:
    case = CASES[NAMES.index("fedavg-1")]
    job = job_of(skewed, case, "gpu")
    first, second = (_to_device(job, rounds) for rounds in (2, 5))
    # questions and row numbers in every round, and no rows: 11 clients in 4 blocks
    assert second - first <= 3 * 4 * 10


def _to_device(job: Any, rounds: int) -> int:
    Copies.reset()
    outcome(job, rounds, certify=False)
    return Copies.to_device


@pytest.mark.parametrize("name", ["fedavg-1", "hyfdca-3", "hybrid-fedavg-0", "ssca-vertical-0"])
def test_rows_that_do_not_fit_give_the_same_bits(name: str, skewed: Path, sides: Path, patches: Path) -> None:
    case = CASES[NAMES.index(name)]
    folder = {"rows": skewed, "columns": sides, "cells": patches}[case.split]
    resident = outcome(job_of(folder, case, "gpu"))
    little = outcome(job_of(folder, case, "gpu", compute={"device": "gpu", "memory_gib": 1e-9}))
    some = outcome(job_of(folder, case, "gpu", compute={"device": "gpu", "memory_gib": 2e-4}))
    assert resident.bits == little.bits == some.bits


def test_states_go_back_to_memory_where_there_is_little_room(
    skewed: Path, double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[NAMES.index("scaffold-0")]
    there = outcome(job_of(skewed, case, "gpu"))
    assert type(there.ranks.device.record(np.ones(1))).__module__ == "cupy"
    monkeypatch.setattr(double.cuda.runtime, "memGetInfo", lambda: (2**20, 2**40))
    little = outcome(job_of(skewed, case, "gpu"))
    assert little.bits == there.bits
    assert all(np.array_equal(*pair) for pair in zip(little.states, there.states, strict=True))


@pytest.mark.parametrize("name", ["fedpdm-1", "hyfdca-4", "hyfem-0"])
def test_a_run_goes_on_from_its_checkpoint(name: str, skewed: Path, patches: Path, tmp_path: Path) -> None:
    case = CASES[NAMES.index(name)]
    folder, record = {"rows": skewed, "cells": patches}[case.split], {"evaluate_every": 0, "checkpoint_every": 2}
    job = job_of(folder, case, "gpu", record=record)
    run(job.model_copy(update={"rounds": 2}), Solo(), tmp_path / "parts")
    run(job, Solo(), tmp_path / "parts", resume=True)
    run(job, Solo(), tmp_path / "whole")
    found = [summary(tmp_path / one) for one in ("parts", "whole")]
    assert found[0]["rounds"] == found[1]["rounds"] == 4
    assert found[0]["model_sha256"] == found[1]["model_sha256"]


# --- channels, errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg-0", "hyfdca-3"])
def test_a_masked_channel_has_the_bits_of_the_plain_one(name: str, skewed: Path, patches: Path) -> None:
    case = CASES[NAMES.index(name)]
    folder = {"rows": skewed, "cells": patches}[case.split]
    masked = job_of(folder, case, "gpu", aggregation={"security": "masked"})
    assert outcome(masked).bits == outcome(job_of(folder, case, "gpu")).bits


def test_a_value_out_of_bounds_names_field_and_client(skewed: Path) -> None:
    case = CASES[NAMES.index("fedavg-0")]
    texts = []
    for device in ("gpu", "cpu"):
        job = job_of(skewed, case, device, aggregation={"bounds": {"changes.value.first": 1e-7}})
        with pytest.raises(NumericalError) as error:
            outcome(job)
        texts.append(str(error.value))
    # the same client; its value in the units of the sum, to six digits
    assert texts[0].split(" has a value")[0] == texts[1].split(" has a value")[0]
    assert "changes.value.first: client" in texts[0]


def test_what_is_not_finite_names_field_and_client(skewed: Path) -> None:
    job = job_of(skewed, Case("fedavg", {"batch_size": 7, "client_optimizer": {"learning_rate": 1e30}}, {}), "gpu")
    with pytest.raises(NumericalError, match=r"changes.value.*client \d+ has"), np.errstate(all="ignore"):
        outcome(job, 4)


# --- the double itself ----------------------------------------------------------------------------------------------


def test_the_double_is_no_numpy_array(double: Any) -> None:
    there, here = double.asarray(np.arange(3.0)), np.arange(3.0)
    wrong = [
        lambda: np.asarray(there), lambda: there + here, lambda: here + there, lambda: here * there,
        lambda: np.add(there, there), lambda: np.sum(there), lambda: double.add(there, here),
        lambda: np.concatenate([there, there]), lambda: double.where(there > 1, there, here), lambda: here @ there,
    ]  # fmt: skip
    for one in wrong:
        with pytest.raises(TypeError):
            one()
    for at in (np.array([0, 1]), [0, 1]):
        with pytest.raises(IndexError):
            there[at]
    with pytest.raises(TypeError):
        there[:] = here
    with pytest.raises(TypeError):
        double.zeros(2, "f4") * np.float64(2)
    assert (there * np.float64(2) + 1).get().tolist() == [1, 3, 5]


def test_all_that_is_used_of_cupy_is_there(request: pytest.FixtureRequest) -> None:
    """Names and keywords against those of the real library, as `api.py` has found them."""
    if not request.session.items or len([i for i in request.session.items if i.fspath == request.fspath]) < len(CASES):
        pytest.skip("only a part of this file was run")
    assert len(USED) > 40
    wrong = []
    for name, count, keywords in sorted(USED):
        known = API["functions"].get(name)
        if known is None:
            wrong.append(f"cupy has no {name}")
        elif known != "any":
            if not set(keywords) <= set(known):
                wrong.append(f"{name}: {keywords} are not all among {known}")
            if count > len(known):
                wrong.append(f"{name}: {count} arguments, and it takes {known}")
    assert not wrong
