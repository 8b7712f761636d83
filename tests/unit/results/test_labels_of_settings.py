"""Labels of sweeps: tables in lists have them, rows are called by them, and nothing else is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_show import mpifed
from written_runs import JOB, at_end, write_made_run, write_made_sweep

import mpifed as mf
from mpifed.core.errors import UsageError
from mpifed.files.run_folder import job_of
from mpifed.job.sweep import points
from mpifed.results.compare import compare_text
from mpifed.results.comparison import compared

FEDAVG = {"name": "fedavg", "batch_size": 4, "local_steps": 2}
SCAFFOLD = {"name": "scaffold", "batch_size": 4, "local_steps": 3}
ALGORITHMS = [{"label": "FedAvg", **FEDAVG}, {"label": "SCAFFOLD", **SCAFFOLD}]


def sweep_points(**sweep: Any) -> list[tuple[Any, Any]]:
    made = points(JOB | {"sweep": sweep}, "made")
    return [(point.settings, point.job) for point in made]


def test_tables_in_a_list_have_labels() -> None:
    """They come first in the settings, and are no keys of the job."""
    given = json.loads(json.dumps(ALGORITHMS))
    found = sweep_points(algorithm=ALGORITHMS, seeds=2)
    assert [settings for settings, _ in found] == [
        {"label": label, "algorithm": table, "seed": seed}
        for label, table in (("FedAvg", FEDAVG), ("SCAFFOLD", SCAFFOLD))
        for seed in (1, 2)
    ]
    assert all(next(iter(settings)) == "label" for settings, _ in found)
    assert [job.algorithm for _, job in found] == [FEDAVG, FEDAVG, SCAFFOLD, SCAFFOLD]
    assert given == ALGORITHMS  # as they were


@pytest.mark.parametrize("labels", [("A", "A"), ("A", None), ("A", 3), ("A", " "), ("A", "b\nc"), ("A", "")])
def test_labels_that_are_none(labels: tuple[Any, Any]) -> None:
    tables = [
        table | ({} if label is None else {"label": label})
        for label, table in zip(labels, (FEDAVG, SCAFFOLD), strict=True)
    ]
    with pytest.raises(UsageError, match="give every table a label of its own, a line of text, or none of them"):
        sweep_points(algorithm=tables)
    methods = [{"algorithm": {key: value for key, value in table.items() if key != "label"}} for table in tables]
    methods = [
        method | ({} if label is None else {"label": label}) for label, method in zip(labels, methods, strict=True)
    ]
    with pytest.raises(UsageError, match=r"\[sweep\] methods: has the labels .*; give every table"):
        sweep_points(methods=methods)
    with pytest.raises(UsageError, match="give every table a label of its own"):
        sweep_points(**{"algorithm.batch_size": [{"label": "A"}, 3]})


def made_sweep(folder: Path, algorithms: list[Any] = ALGORITHMS, **axes: Any) -> Path:
    count = len(sweep_points(algorithm=algorithms, **axes))
    values = np.random.default_rng(1).random(count).tolist()
    return write_made_sweep(
        folder,
        {"algorithm": algorithms, **axes},
        [at_end(test_accuracy=v, train_loss=1 - v, objective=1 - v) for v in values],
    )


def test_rows_are_called_by_their_labels(tmp_path: Path) -> None:
    """What the label says has no column; where two rows share one, their runs tell them apart."""
    folder = made_sweep(tmp_path / "s", seeds=3)
    header, first, second, *below = mpifed("compare", folder).output.splitlines()
    assert header.split()[0] == "label" and "algorithm" not in header and "seeds" in header
    assert (first.split()[0], second.split()[0]) == ("FedAvg", "SCAFFOLD")
    assert "  FedAvg: point-0000 to point-0002" in below or "point-0000 to point-0002" in first
    grid = made_sweep(tmp_path / "grid", **{"model.l2": [0.0, 0.5]})
    header, *rows = mpifed("compare", grid).output.splitlines()[:5]
    assert "model.l2" in header and "algorithm" not in header
    assert [row.partition("   ")[0].strip()[:20] for row in rows] == [
        f"{label}: point-{k:04d}"[:20] for k, label in enumerate(["FedAvg", "FedAvg", "SCAFFOLD", "SCAFFOLD"])
    ]
    assert compared(grid, against="FedAvg: point-0001").names[1] == "FedAvg: point-0001"
    with pytest.raises(UsageError, match="expected the label or name of one setting"):
        compared(grid, against="FedAvg")


def test_runs_and_sweeps_together(tmp_path: Path) -> None:
    """A run with the job of a label is one more seed of it; a point that is named beside its sweep counts once."""
    folder = made_sweep(tmp_path / "s", seeds=2)
    third = write_made_run(
        tmp_path / "third", at_end(test_accuracy=0.5), job=job_of(folder / "point-0000") | {"seed": 3}
    )
    other = write_made_run(tmp_path / "other", at_end(test_accuracy=0.25), job=JOB)
    comparison = compared([folder, third, folder / "point-0001", other, folder])
    assert [len(setting.points) for setting in comparison.settings] == [3, 2, 1]
    assert comparison.names == [
        f"{folder}/point-0000 to point-0001, {third}", "SCAFFOLD", str(other)
    ]  # fmt: skip  # the run has no label, so that the setting has two
    assert [setting.points[0].label for setting in comparison.settings] == ["FedAvg", "SCAFFOLD", ""]


def test_tables_fit_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that do not fit stand in a further table, and each table has the labels."""
    monkeypatch.setenv("COLUMNS", "80")
    folder = made_sweep(tmp_path / "s", seeds=3, **{"model.l2": [0.0, 1e-5]})
    shown = re.sub("\x1b\\[[0-9;]*m", "", compare_text(folder, True, ["test_accuracy"], None, ["test_accuracy>=0.1"]))
    lines = shown.splitlines()
    rules = [k for k, line in enumerate(lines) if "\u2500" in line]
    assert len(rules) == 3
    for k in rules:
        end = lines.index("", k)
        assert lines[k - 1].split()[0] == "label" and end > k + 4
        assert max(map(len, lines[k - 1 : end])) <= 80
    for name in ("train_loss", "objective", "test_accuracy", "elapsed_s", "bytes", "difference", "95% interval"):
        assert name in shown


# --- from Python --------------------------------------------------------------------------------------------------


def test_a_frame_of_the_same_numbers(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    folder = made_sweep(tmp_path / "s", seeds=4)
    frame = mf.compare(folder, to="test_accuracy>=0.5", against="FedAvg")
    facts = json.loads(mpifed("compare", folder, "--to", "test_accuracy>=0.5", "--against", "FedAvg", "--json").output)
    assert isinstance(frame, pd.DataFrame) and list(frame) == [
        "label", "column", "mean", "std", "n", "of", "against", "difference", "low", "high", "p", "pairs"
    ]  # fmt: skip
    table = frame.set_index(["label", "column"])
    for setting in facts["settings"]:
        for column, mean in setting["means"].items():
            assert table.loc[(setting["name"], column), ["mean", "std", "n"]].tolist() == list(mean.values())
    ((difference,),) = [paired["differences"] for paired in facts["paired"]]
    row = table.loc[("SCAFFOLD", "test_accuracy")]
    assert [row[key] for key in ("difference", "low", "high", "p")] == [
        difference[key] for key in ("difference", "low", "high", "p")
    ]
    assert (row["against"], row["pairs"]) == ("FedAvg", 4)
    assert frame["p"].notna().sum() == 1 and np.isnan(table.loc[("FedAvg", "test_accuracy"), "p"])
    ((reached,),) = [[target["reached"]] for target in facts["targets"]]
    for of_label in reached:
        row = table.loc[(of_label["name"], "round to test_accuracy >= 50%")]
        assert (row["n"], row["of"]) == (of_label["runs"], of_label["of"])
        assert row["mean"] == of_label["round"]["mean"] if of_label["runs"] else np.isnan(row["mean"])
