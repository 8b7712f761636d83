"""The shipped jobs with constraints, on all of their data: a few rounds, and each number computed again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from launching import ROOT
from whole_runs import run

from jobs.constraints.certify import certified, compared, last_row
from jobs.constraints.optimum import FOUND, SHARPNESS, solve, starts
from jobs.constraints.rows import read_rows
from jobs.constraints.whole import DATA, names
from mpifed.core.errors import NotCertified
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.testing import Alone

TOLERANCE = 1e-4  # of sums of 32-bit numbers over 60,000 rows


@pytest.fixture
def shards(shared_path: Path, make_data: Callable[..., Path], real_data: Path) -> Callable[[str], Path]:
    """shards(name): the folder of a job's shards, made once."""

    def shards(name: str) -> Path:
        folder = shared_path / name
        if not folder.exists():
            make_data(folder, *(part.replace("$", str(real_data)) for part in DATA[name]))
        return folder

    return shards


def test_all_jobs_with_constraints_are_there() -> None:
    found = [path for path in (ROOT / "jobs").glob("*/*.toml") if "[[constraint]]" in path.read_text(encoding="utf-8")]
    assert sorted(names()) == sorted(f"{path.parent.name}/{path.stem}" for path in found)


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_a_job(name: str, shards: Callable[[str], Path], tmp_path: Path) -> None:
    """Of a sweep over limits the first and the last."""
    swept = points(read_table(ROOT / "jobs" / f"{name}.toml"), name)
    for point in swept[:1] + swept[1:][-1:]:
        data = shards(Path(point.job.data.path).name)
        record = point.job.record.model_copy(update={"evaluate_every": 2, "certify_every": 0, "checkpoint_every": 0})
        moved = point.job.data.model_copy(update={"path": str(data)})
        job = point.job.model_copy(update={"rounds": 2, "data": moved, "record": record})
        out = tmp_path / point.name
        with suppress(NotCertified):
            run(job, Alone(), out)
        rows = compared(certified(out), last_row(out), TOLERANCE)
        assert [row for row in rows if not row[-1]] == []
    assert len(swept) == (5 if name.endswith("-limit") else 1)


@pytest.mark.long
def test_the_optimum_of_neyman_and_pearson(shards: Callable[[str], Path]) -> None:
    """The same from all starts: value and multiplier as they are written down."""
    table = read_table(ROOT / "jobs" / "constraints" / "neyman-pearson.toml")
    rows = read_rows(shards("a9a-rows-10"))
    begun, best = starts(table, rows), FOUND["neyman-pearson"]
    assert len(begun) == 4
    for start in begun:
        found = solve(table, rows, start, SHARPNESS["neyman-pearson"])
        assert found.value.tolist() == pytest.approx([best.objective, 0.1], rel=1e-6)
        assert found.multipliers == pytest.approx(best.multipliers, rel=1e-5)
        assert found.numbers["kkt_residual"] < 1e-6
