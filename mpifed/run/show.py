"""`mpifed show RUN`: how a run, or the points of a sweep, ended."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from mpifed.core.errors import DataError
from mpifed.run.history import summary

_MEANING = {None: "still running, or killed", 0: "done", 75: "interrupted; go on with --resume"}


def run_summary(folder: Path) -> Any:
    """One object for a run; the list of its points for a sweep.

    Raises
    ------
    DataError
        when the folder is neither.
    """
    if (folder / "sweep.csv").exists():
        with open(folder / "sweep.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [
            {"point": row["point"], **summary(folder / row["point"])}
            for row in rows
            if (folder / row["point"] / "run.json").exists()
        ]
    if not (folder / "run.json").exists():
        raise DataError(f"{folder}: no run.json; give the folder of a run or of a sweep, or a job file")
    return summary(folder)


def run_text(folder: Path) -> str:
    """The same for a person."""
    found = run_summary(folder)
    if isinstance(found, list):
        return "\n".join(f"{one['point']}  {_line(one)}" for one in found)
    labels = {
        "rounds": "rounds",
        "objective": "objective",
        "train_loss": "training loss",
        "test_accuracy": "test accuracy",
        "elapsed_s": "seconds (measuring left out)",
        "up_bytes": "bytes to the server",
        "down_bytes": "bytes to the clients",
        "peak_rss_bytes": "memory of the largest rank",
        "epsilon": "epsilon",
        "model_sha256": "model SHA-256",
    }
    lines = [f"{'status':30} {_MEANING.get(found['exit'], 'failed')} (exit {found['exit']})"]
    lines += [f"{label:30} {_value(key, found[key])}" for key, label in labels.items() if found[key] is not None]
    lines.append(f"{'results':30} {folder}{'/' * (not str(folder).endswith('/'))}")
    return "\n".join(lines)


def _line(one: dict[str, Any]) -> str:
    keys = ("exit", "rounds", "train_loss", "test_accuracy", "elapsed_s")
    return "  ".join(f"{key} {_value(key, one[key])}" for key in keys if one[key] is not None)


def _value(key: str, value: Any) -> str:
    if key.endswith("_bytes"):
        return human_bytes(value)
    if key == "test_accuracy":
        return f"{value:.2%}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
