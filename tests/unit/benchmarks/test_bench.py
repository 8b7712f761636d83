"""The parts of the benchmark that decide what it runs, how long it says that takes, and what it calls slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
HERE = {"cpu": "EPYC", "cores": 2}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run_of(variant: str, repetition: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "case": "2", "ranks": 1, "rounds": 90, "variant": variant, "repetition": repetition,
        "seconds_per_round": seconds, "data": "mnist-100", **more,
    }  # fmt: skip


def runs(variant: str, *seconds: float, **more: Any) -> list[dict[str, Any]]:
    return [run_of(variant, number, each, **more) for number, each in enumerate(seconds)]


def test_a_family_is_all_its_cases_in_the_order_of_the_table() -> None:
    from cases import CASES, FAMILIES, QUICK, chosen

    assert FAMILIES == ("rows", "local", "columns", "states", "networks", "channels", "cells", "clients")
    assert chosen(["columns", "2"]) == ["2", "alg3-b1000", "alg4-b1000", "alg3-b100", "alg4-b100"]
    assert chosen(["clients", "clients-states"]) == ["clients", "clients-states"]
    assert chosen(FAMILIES) == list(CASES)
    assert set(QUICK) <= set(CASES)
    with pytest.raises(ValueError, match=r"--cases 9 colums: no such case or family; families are rows, local"):
        chosen(["9", "2", "colums"])


def test_variants_that_are_compared_follow_each_other() -> None:
    from plan import Planned, planned

    assert planned(["2"], [1, 2], 0.2)[:4] == [
        Planned("2", 1, 24, "hand", 0), Planned("2", 1, 24, "float", 0), Planned("2", 1, 24, "exact", 0),
        Planned("2", 1, 24, "hand", 1),
    ]  # fmt: skip
    assert {each.ranks for each in planned(["alg3-b100"], [1], 1.0)} == {2}
    assert len(planned(["fedpdm"], [1, 2], 1.0)) == 2 * 4 * 2  # ranks, variants, repetitions


def test_what_is_asked_of_a_case_stands_behind_what_was_measured() -> None:
    from report import accepted, grouped

    lines = accepted(grouped(runs("hand", 0.7) + runs("float", 1.0)))
    assert lines == ["2, 1 rank, float: 0.70 of the speed of the loop by hand; at least 0.9"]


def test_time_left_is_that_of_earlier_rounds_and_launches_at_the_pace_of_today() -> None:
    from plan import Forecast, Planned, shown_left

    left = [Planned("2", 1, 90, "float", 1), Planned("2", 1, 190, "hand", 0)]
    assert Forecast([]).left_s(left) is None
    forecast = Forecast(runs("hand", 0.01, took_s=3.0) + runs("float", 0.02, took_s=4.0))
    assert forecast.left_s(left) == pytest.approx(2 + 100 * 0.02 + 2 + 200 * 0.01)  # 2 s beside the rounds
    forecast.done(run_of("float", 0, 0.02, took_s=8.0))  # twice the 4 s that were expected
    assert forecast.left_s(left[:1]) == pytest.approx(2 * 4)
    assert forecast.left_s([]) == 0
    assert shown_left(None) == "time left: not known yet"
    assert [shown_left(seconds) for seconds in (59, 150)] == ["less than a minute left", "about 2 min left"]


def test_results_without_the_seconds_they_took_tell_nothing_of_launches() -> None:
    from plan import Forecast, Planned

    forecast = Forecast(runs("float", 0.02))
    assert forecast.seconds(Planned("2", 1, 90, "float", 0)) is None
    forecast.done(run_of("hand", 0, 0.01, took_s=3.0))
    assert forecast.seconds(Planned("2", 1, 90, "float", 0)) == pytest.approx(2 + 100 * 0.02)


def test_slower_is_what_lies_beyond_both_spreads() -> None:
    from against import compared, slower_lines
    from report import grouped

    then = grouped(runs("hand", 1.0, 2.0) + runs("float", 1.0, 2.0) + runs("exact", 1.25, 2.5))
    # another machine speed, the same shares of float; exact falls from 0.8 to 0.5
    now = grouped(runs("hand", 4.0, 8.0) + runs("float", 4.0, 8.0) + runs("exact", 8.0, 16.0))
    rows = compared(now, then)
    assert [(row.variant, row.floor, row.then, row.now, row.verdict) for row in rows] == [
        ("float", "hand", [1.0, 1.0], [1.0, 1.0], ""),
        ("exact", "hand", [0.8, 0.8], [0.5, 0.5], "slower"),
    ]
    assert [row.verdict for row in compared(then, now)] == ["", "faster"]
    assert slower_lines(rows)[:2] == [
        "slower: case 2, 1 ranks, exact: 0.50 of the speed of hand, before 0.80",
        "1 of 2 compared are slower, beyond the spread of both runs",
    ]
    assert slower_lines(rows)[3] == "make bench CASES='2'"
    assert slower_lines(rows[:1]) == ["0 of 1 compared are slower, beyond the spread of both runs"]


def test_within_the_spreads_nothing_is_slower_and_one_repetition_says_nothing() -> None:
    from against import Compared

    def verdict(then: list[float], now: list[float]) -> str:
        return Compared("2", 1, "float", "hand", then, now).verdict

    assert verdict([0.9, 1.0], [0.7, 0.8]) == ""  # 0.2 apart, spreads 0.1 each
    assert verdict([0.9, 1.0], [0.65, 0.75]) == "slower"
    assert verdict([0.9], [0.1, 0.1]) == "one repetition"


def test_only_what_both_ran_on_the_same_data_is_compared() -> None:
    from against import compared, floor_of, slower_lines
    from report import grouped

    now = grouped(runs("hand", 1.0, 1.0) + runs("float", 1.0, 1.0) + runs("exact", 1.0))
    assert compared(now, grouped([])) == []
    assert slower_lines([])[0].startswith("nothing to compare: no variant that both runs have")
    synthetic = grouped(runs("hand", 1.0, data="synthetic-100") + runs("float", 1.0, data="synthetic-100"))
    assert compared(now, synthetic) == []
    cut_off = grouped(runs("hand", 1.0, 1.0) + runs("float", 2.0))
    assert [(row.variant, row.then, row.now) for row in compared(now, cut_off)] == [("float", [0.5], [1.0, 1.0])]
    assert [floor_of(variants) for variants in (["float", "products", "hand"], ["few", "many"], ["streams"])] == [
        "hand", "few", None,
    ]  # fmt: skip


def test_results_are_read_whole_and_from_a_run_that_was_cut_off(tmp_path: Path) -> None:
    from against import read_results

    results = runs("hand", 1.0, 2.0)
    whole, lines, bare = (tmp_path / name for name in ("whole.json", "lines.jsonl", "bare.jsonl"))
    whole.write_text(json.dumps({"started": "2026-01-02", "machine": HERE, "results": results}))
    lines.write_text("\n".join(json.dumps(each) for each in [{"machine": HERE}, *results]) + '\n{"case": "2", "ra')
    bare.write_text("".join(json.dumps(each) + "\n" for each in results))
    assert read_results(whole) == (HERE, "2026-01-02", results)
    assert read_results(lines) == (HERE, "", results)
    assert read_results(bare) == (None, "", results)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": [{"case": "2"}]}', '{"results": [7]}', "no JSON"])
def test_other_files_are_no_results(text: str, tmp_path: Path) -> None:
    from against import read_results

    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"results\.json: not results of benchmarks/bench\.py"):
        read_results(path)


def test_results_of_another_kind_of_machine_are_no_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bench

    path = tmp_path / "results.json"
    monkeypatch.setattr(bench, "WHOLE", path)
    earlier, said = bench.earlier_results(None, HERE)
    assert earlier is None and said.startswith(f"compared with nothing: there is no {path}")
    path.write_text(json.dumps({"machine": {"cpu": "Xeon", "cores": 64}, "results": []}))
    earlier, said = bench.earlier_results(None, HERE)
    assert earlier is None and "is of Xeon, 64 cores, this machine is EPYC, 2 cores" in said
    earlier, said = bench.earlier_results(path, HERE)
    assert earlier is not None and said.startswith("warning: ")
    path.write_text(json.dumps({"started": "2026-01-02", "machine": HERE, "results": []}))
    earlier, said = bench.earlier_results(None, HERE)
    assert earlier is not None and said == f"compared with {path}, 2026-01-02"


def test_the_servers_step_is_timed_with_and_without_constraints() -> None:
    import server_step

    seconds = server_step.server_steps(1)
    assert list(seconds) == list(server_step.CONSTRAINTS)
    assert all(taken > 0 for taken in seconds.values())


def test_private_rounds_are_said_without_their_noise() -> None:
    from private_rounds import PrivateRound, shown

    assert shown({("mlp", 1): PrivateRound(0.004, 0.008, 0.002, 1.5)}) == [
        "private round of mlp, 1 local step: 8.00 ms, exact 4.00, its noise alone 2.00: without it 1.50 times as long; "
        "at most 1.5"
    ]
