"""Files of runs as `docs/reference/files.md` describes them, read and written by hand."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

FIRST = ("round", "elapsed_s", "train_loss", "test_accuracy")  # the columns of every history, in front
LEDGER = ("up_bytes", "down_bytes", "epsilon")  # and behind
SUMMARY = (  # of `mpifed show RUN --json`
    "rounds", "exit", "train_loss", "objective", "constraint_values", "kkt_residual", "stationarity", "feasibility",
    "complementarity", "multipliers", "lower_bound", "duality_gap", "test_accuracy", "test_rmse", "test_r2",
    "test_label_accuracy", "test_exact_match", "test_micro_f1",
    "client_test_accuracy_mean", "client_test_accuracy_std", "client_test_accuracy_worst_tenth",
    "client_test_label_accuracy_mean", "client_test_label_accuracy_std", "client_test_label_accuracy_worst_tenth",
    "client_test_rmse_mean", "client_test_rmse_std",
    "client_test_rmse_worst_tenth", "client_test_loss_mean", "client_test_loss_std", "client_test_loss_worst_tenth",
    "elapsed_s", "simulated_s", "seconds_per_round", "up_bytes", "down_bytes", "gradients", "peak_rss_bytes",
    "nonzeros", "epsilon", "epsilon_if_secret", "delta", "private", "model_sha256",
)  # fmt: skip
_CHECKSUM = re.compile(r'(?<=\n  "sha256": ")[0-9a-f]*(?="\n}\n\Z)')


def points_of(sweep: Path) -> list[Path]:
    """The folders of the points of a sweep, in its order."""
    with open(sweep / "sweep.csv", newline="", encoding="utf-8") as file:
        return [sweep / row["point"] for row in csv.DictReader(file)]


def read_json(path: Path) -> dict[str, Any]:
    """The table of a file without its checksum, which must be right where there is one."""
    text = path.read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    if (checksum := table.pop("sha256", None)) is not None:
        assert checksum == hashlib.sha256(_CHECKSUM.sub("", text).encode()).hexdigest(), f"{path}: was changed"
    return table


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """A table with its checksum, as a run writes it."""
    bare = {name: value for name, value in table.items() if name != "sha256"}
    text = json.dumps({**bare, "sha256": ""}, indent=2, allow_nan=False) + "\n"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(_CHECKSUM.sub(checksum, text), encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes | None]:
    """What is in a folder: files, links by where they lead, folders as None."""
    return {
        str(path.relative_to(folder)): str(path.readlink()).encode()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


class History:
    """history.csv, of a run that is made by hand."""

    def __init__(self, folder: Path) -> None:
        self.path, self.columns = folder / "history.csv", list[str]()
        assert not self.path.exists()

    def append(self, row: Mapping[str, float | None]) -> None:
        """A measured round: columns of every history may be missing."""
        lines = []
        if not self.columns:
            self.columns = [*FIRST, *(name for name in row if name not in FIRST + LEDGER), *LEDGER]
            lines.append(self.columns)
        assert set(row) <= set(self.columns)
        lines.append([_cell(row.get(name)) for name in self.columns])
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))
