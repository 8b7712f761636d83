"""A profile's functions by kind, and the table of a made-up one."""

from __future__ import annotations

import cProfile
import json
import marshal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpifed.core.round import SETUP, Round

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


COMPILED = {
    "<built-in method numpy.matmul>": "matrix products",
    "<built-in method scipy.sparse._sparsetools.csr_matvec>": "matrix products",
    "<method 'run_backward' of 'torch._C._EngineBase' objects>": "matrix products",
    "<method 'take' of 'numpy.ndarray' objects>": "gathering rows",
    "<built-in method mpifed.core._loops.gather>": "gathering rows",
    "<built-in method mpifed.core._loops.add_encoded>": "rounding to the grid",
    "<method 'Allreduce' of 'mpi4py.MPI.Comm' objects>": "MPI and waiting",
    "<built-in method mpifed.core._loops.noisy>": "drawing, privacy, masks",
    "<method 'random' of 'numpy.random._generator.Generator' objects>": "drawing, privacy, masks",
    "<method 'reduce' of 'numpy.ufunc' objects>": "elementwise, new arrays",
    "<built-in method builtins.isinstance>": "Python's glue",
    "<method 'append' of 'list' objects>": "Python's glue",
}
PYTHON = {
    ("maths/arrays.py", "product"): "matrix products",
    ("core/block.py", "take"): "gathering rows",
    ("maths/kernels.py", "sigmoid"): "elementwise, new arrays",
    ("maths/fixedpoint.py", "outside"): "rounding to the grid",
    ("comm/allreduce.py", "reduce_all"): "MPI and waiting",
    ("core/round.py", "draw"): "drawing, privacy, masks",
    ("core/record.py", "map_leaves"): "Python's glue",
    ("algorithms/minibatches.py", "minibatches"): "Python's glue",
}


def test_functions_have_the_kind_of_their_own_time() -> None:
    from kinds import kind_of

    assert {name: kind_of(("~", 0, name)) for name in COMPILED} == COMPILED
    assert {key: kind_of((f"/a/mpifed/{key[0]}", 1, key[1])) for key in PYTHON} == PYTHON
    assert kind_of(("C:\\a\\mpifed\\maths\\arrays.py", 1, "product")) == "matrix products"


def test_functions_that_the_rules_name_exist() -> None:
    for file, name in PYTHON:
        assert f"def {name}(" in (ROOT / "mpifed" / file).read_text(encoding="utf-8"), f"{file}: no {name}"


def test_rules_name_files_that_exist() -> None:
    from kinds import _RULES

    files = [path.as_posix() for path in (ROOT / "mpifed").rglob("*.py")]
    for kind, pattern, _ in _RULES:
        if "mpifed/" in pattern.pattern:
            assert any(pattern.search(file) for file in files), f"{kind}: {pattern.pattern} is no file"


def entry(own_s: float) -> tuple[int, int, float, float, dict[Any, Any]]:
    """Of a profile: calls, own and cumulative seconds, callers."""
    return 1, 1, own_s, 9.0, {}


def test_table_of_a_made_up_profile(tmp_path: Path) -> None:
    from profile_case import overhead, read_rank
    from rich.console import Console

    arrays, record = ("/a/mpifed/maths/arrays.py", 18, "product"), ("/a/mpifed/core/record.py", 1, "map_leaves")
    reduce = ("/a/mpifed/comm/allreduce.py", 1, "reduce_all")
    stats = {
        "clients-0": {arrays: entry(0.010), record: entry(0.004), reduce: entry(0.002)},
        "server-0": {arrays: entry(0.001), record: entry(0.003)},
        "clients-1": {arrays: entry(0.008), reduce: entry(0.012)},
        "server-1": {},
    }
    for name, functions in stats.items():
        (tmp_path / f"{name}.pstats").write_bytes(marshal.dumps(functions))
    for rank, profiled_s in enumerate(([0.014, 0.010], [0.010, 0.010])):
        seconds = {"profiled_s": profiled_s, "plain_s": [0.008, 0.008]}
        (tmp_path / f"rounds-{rank}.json").write_text(json.dumps(seconds))
    ranks = [read_rank(tmp_path, rank) for rank in (0, 1)]
    first, second = (rank.milliseconds for rank in ranks)
    # of two rounds; 24 ms on rank 0, of which 20 are in functions: the 4 left are glue
    assert {kind: ms for kind, ms in first.items() if ms} == pytest.approx(
        {"matrix products": 5, "MPI and waiting": 1, "server": 2, "Python's glue": 2 + 2}
    )
    assert {kind: ms for kind, ms in second.items() if ms} == pytest.approx(
        {"matrix products": 4, "MPI and waiting": 6}
    )
    assert overhead(ranks) == (
        "the median round with the profiler 12.00 ms, without 8.00 ms: 1.50 times as long (2 rounds each, in turn)"
    )
    console = Console(width=110, record=True, file=open(tmp_path / "shown", "w"))  # noqa: SIM115
    from profile_case import table

    console.print(table(ranks))
    lines = [line.split() for line in console.export_text().splitlines()]
    console.file.close()
    assert ["matrix", "products", "5.00", "4.00", "arrays.product"] in lines
    assert ["server", "2.00", "0.00", "record.map_leaves,", "arrays.product"] in lines
    assert ["all", "12.00", "10.00"] in lines


def test_every_second_round_is_profiled_and_the_server_apart(tmp_path: Path) -> None:
    from profile_case import read_rank
    from profiled import WARM_UP, RoundProfiler

    now = Round(SETUP, 1, [True])  # type: ignore[arg-type]
    aggregator = SimpleNamespace(transport=SimpleNamespace(rank=0), serves=True)
    profiler = RoundProfiler()

    def of_server(aggregator: Any) -> None: ...

    def played(now: Round, aggregator: Any) -> int:
        profiler.serve(of_server, aggregator)
        return sorted([now.index])[0]

    for index in [SETUP, *range(WARM_UP + 5)]:
        assert profiler.play(played, now._replace(index=index), aggregator) == index
    profiler.write(tmp_path)
    rank = read_rank(tmp_path, 0)
    assert (len(rank.profiled_s), len(rank.plain_s)) == (3, 2)
    names = {name for _, _, name in rank.clients}
    assert "played" in names and "of_server" not in names
    assert "of_server" in {name for _, _, name in rank.server}
    idle = cProfile.Profile()
    idle.enable()  # nothing of ours is left on: two cannot be
    idle.disable()


def test_variants_are_runs_of_mpifed() -> None:
    from profile_case import profiled_variant

    assert [profiled_variant(case, None) for case in ("2", "clients", "hyfdca")] == ["exact", "few", "exact"]
    assert profiled_variant("fedpdm", "private") == "private"
    with pytest.raises(ValueError, match="--variant hand: is no run of mpifed; case 2 has float, exact"):
        profiled_variant("2", "hand")
    with pytest.raises(ValueError, match="--variant exakt: is not known; case 2 has float, exact"):
        profiled_variant("2", "exakt")
