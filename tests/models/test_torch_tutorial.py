"""What the tutorial of PyTorch says of what its readers get."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import Play, play

from mpifed.files.run_folder import summary

__all__ = ["play"]  # a fixture


@pytest.fixture(autouse=True)
def its_own_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reader's module is called as one of these tests'."""
    others = sys.modules.pop("nets", None)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("nets", None)
    if others is not None:
        sys.modules["nets"] = others


def test_train_a_pytorch_network(play: Play, launch: Callable[..., Any]) -> None:
    folder = play("train-a-pytorch-network", {"digits.toml": "rounds=40"})
    runs = {path.name: summary(path) for path in (folder / "runs").iterdir()}
    assert len({runs[name]["model_sha256"] for name in ("digits", "killed", "masked")}) == 1
    assert runs["digits"]["test_accuracy"] >= 0.96  # after 60 rounds 0.98
    assert runs["scaffold"]["train_loss"] < runs["digits"]["train_loss"]
    assert runs["private"]["test_accuracy"] < runs["digits"]["test_accuracy"]  # about .55, by noise that is secret
    assert (folder / "digits.png").exists()
    said = launch(0, program=("load.py",), cwd=folder)
    assert said.code == 0 and float(said.out.split()[1]) >= 0.96, said.text
