"""How a run is shown: its end, constraints, certificate and costs; on folders written here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner
from written_files import FIRST, LEDGER, write_json

from mpifed.cli import main
from mpifed.job.job import read_table
from mpifed.results.text import toml_text

Settings = dict[str, Any]


def mpifed(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def shown(run: Path, *options: str) -> str:
    """What `mpifed show` says."""
    return str(mpifed("show", run, *options).output)


def write_run(folder: Path, code: int | None = 0, job: Settings | None = None, **columns: float | None) -> Path:
    """The files of a run whose last measured row has these columns."""
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(tomli_w.dumps(job or {}))
    row = {**dict.fromkeys(FIRST), "round": 9, **columns}
    row = {name: row.pop(name) for name in list(row) if name not in LEDGER} | {name: row.get(name) for name in LEDGER}
    cells = ["" if value is None else repr(value) for value in row.values()]
    (folder / "history.csv").write_text(f"{','.join(row)}\n{','.join(cells)}\n")
    write_json(
        folder / "run.json",
        {"exit": code, "rounds": 9, "elapsed_s": 1.5, "up_bytes": 1024, "down_bytes": 1024, "seconds_per_round": 0.1},
    )
    return folder


def test_what_the_last_model_has_not_is_not_that_of_drawn_rows(tmp_path: Path) -> None:
    """The history's last row is of some rows, by which the limit was not met; run.json is of all, by which it is."""
    job = {"constraint": [{"name": "loss", "limit": 0.5}]}
    drawn = {"constraint_1": 0.9, "margin_1": 0.1, "slack": 0.3, "duality_gap": 0.25, "feasibility": 0.8}
    run = write_run(tmp_path / "run", job=job, objective=1.0, **drawn)
    assert "missed limits too, by 0.3: they contradict each other, slack costs too little" in shown(run)
    told = json.loads((run / "run.json").read_text())
    late = {"constraint_1": 0.5, "margin_1": 0.0, "slack": 0.3, "duality_gap": None, "feasibility": 0.0}
    write_json(run / "run.json", told | late)
    text = shown(run)
    assert "0.5, limit 0.5: met" in text
    assert "contradict" not in text and "duality gap" not in text
    found = json.loads(shown(run, "--json"))
    assert found["duality_gap"] is None and found["constraint_values"] == [0.5]
    write_json(run / "run.json", told | late | {"constraint_1": 0.5 + 1e-12})
    assert "limit 0.5: NOT met, by 1e-12" in shown(run)


@pytest.mark.parametrize(
    "value",
    [1, -2.5, 1e-05, 1e300, float("inf"), True, 'a "quoted" \\ path', [1.0, 0.3], ["a", [1, 2]], {"x.y": [1], "b": {}}],
)
def test_values_can_be_pasted(value: Any, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    assert read_table(tmp_path / "job.toml", [f"algorithm.x={toml_text(value)}"]) == {"algorithm": {"x": value}}


# --- one run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "margin", "said"),
    [
        (0.1287, 0.0011, "0.1287 +- 0.0011, limit 0.13: met"),
        (0.13, None, "0.13, limit 0.13: met"),
        (0.1295, 0.0011,
         "0.1295 +- 0.0011, limit 0.13: met on the training rows; so near the limit that it may not be on new samples"),
        (0.1304, 0.0011, "0.1304 +- 0.0011, limit 0.13: NOT met, by 0.0004"),
        (0.1304, None, "0.1304, limit 0.13: NOT met, by 0.0004"),
    ],
)  # fmt: skip
def test_constraints_of_a_run(tmp_path: Path, value: float, margin: float | None, said: str) -> None:
    job = {
        "constraint": [
            {"name": "loss", "limit": 0.13, "margin": 0.0},
            {"name": "error-rate", "classes": [0, 7], "limit": 0.5, "margin": 0.0},
        ]
    }
    columns = {"constraint_1": value, "constraint_2": 0.25, "margin_1": margin, "margin_2": 0.01}
    lines = shown(write_run(tmp_path / "run", job=job, **columns)).splitlines()
    assert f"{'constraint 1 (loss)':30} {said}" in lines
    assert "constraint 2 (error-rate of classes 0, 7) 0.25 +- 0.01, limit 0.5: met" in lines


def test_the_certificate_of_a_run(tmp_path: Path) -> None:
    columns = {"kkt_residual": 0.00123456, "stationarity": 0.00123456, "feasibility": 0.0, "complementarity": 2e-4}
    text = "\n".join(
        f"{label:30} {number}" for label, number in (
            ("KKT residual", "0.00123456"), ("  stationarity", "0.00123456"), ("  feasibility", "0"),
            ("  complementarity", "0.0002"),
        )
    )  # fmt: skip
    asked = shown(write_run(tmp_path / "asked", code=69, **columns))
    assert "a limit is not met, or what [stop] asks for not reached (exit 69)" in asked
    assert f"{text}\n" in shown(write_run(tmp_path / "run", **columns))
    none = write_run(tmp_path / "none", **dict.fromkeys(columns))
    assert "KKT" not in shown(none)
    # that of a last model whose row was written before
    write_json(none / "run.json", json.loads((none / "run.json").read_text()) | columns)
    assert f"{text}\n" in shown(none)


def test_costs_by_exchange(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", train_loss=0.5)
    about = json.loads((run / "run.json").read_text())

    def costs(**exchanges: tuple[int, int, float]) -> list[str]:
        named = {
            name: {"played": 9, "up_bytes": up, "down_bytes": down, "crypto_s": seconds}
            for name, (up, down, seconds) in exchanges.items()
        }
        write_json(run / "run.json", about | {"exchanges": named})
        assert json.loads(shown(run, "--json"))["exchanges"] == named
        return [line for line in shown(run).splitlines() if line.startswith("  ")]

    _, *rows = costs(keys=(592, 2048, 0.03), gradients=(3 << 20, 1 << 20, 75.0))
    assert [row.split() for row in rows] == [
        ["keys", "592", "B", "2.0", "KiB", "30", "ms"], ["gradients", "3.0", "MiB", "1.0", "MiB", "1.25", "min"],
    ]  # fmt: skip
    assert costs(keys=(0, 0, 3e-6), gradients=(1024, 1024, 0.0)) == []  # the totals say it


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Its run.json is as at the start: the last measured row tells how far it has come."""
    folder = write_run(
        tmp_path / "run", code=None, round=150, train_loss=0.25, elapsed_s=3.0, up_bytes=64, down_bytes=32
    )
    begun = {"exit": None, "rounds": 0, "elapsed_s": 0.0, "up_bytes": 0, "down_bytes": 0, "seconds_per_round": None}
    write_json(folder / "run.json", begun)
    found = json.loads(shown(folder, "--json"))
    assert [found[name] for name in ("rounds", "elapsed_s", "up_bytes", "down_bytes")] == [150, 3.0, 64, 32]
    lines = shown(folder).splitlines()
    assert lines[0].split(maxsplit=1)[1] == (
        "killed or still running after round 150; resume it with --resume if it is not running"
    )
    assert re.search(r"^rounds +150$", "\n".join(lines), re.MULTILINE)
