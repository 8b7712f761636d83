"""The scripts of slurm/: one body, since Slurm takes a script to the node without others."""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "slurm"
MARKER = "# mpifed submit puts the arguments here\n"


def test_alike_below_their_options() -> None:
    texts = [(SCRIPTS / f"{name}.sbatch").read_text(encoding="utf-8") for name in ("train", "sweep", "gpu")]
    bodies = [text.split(MARKER) for text in texts]
    assert all(len(parts) == 2 for parts in bodies)
    assert len({body for _, body in bodies}) == 1
    assert all("#SBATCH" not in body for _, body in bodies)
    assert all("#SBATCH --requeue\n" in head and "#SBATCH --signal=B:USR1@120\n" in head for head, _ in bodies)
