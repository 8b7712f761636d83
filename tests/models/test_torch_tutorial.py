"""What the tutorial of PyTorch says of what its readers get."""

from __future__ import annotations

from documents import Play, play

from mpifed.files.run_folder import summary

__all__ = ["play"]  # a fixture


def test_train_a_pytorch_network(play: Play) -> None:
    folder = play("train-a-pytorch-network")
    runs = {path.name: summary(path) for path in (folder / "runs").iterdir()}
    assert len({runs[name]["model_sha256"] for name in ("digits", "stopped", "masked")}) == 1
    assert runs["digits"]["test_accuracy"] >= 0.96
    assert runs["scaffold"]["train_loss"] < runs["digits"]["train_loss"]
