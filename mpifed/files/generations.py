"""The checkpoints of a run, by their names alone: every rank imports this."""

from __future__ import annotations

import re
from pathlib import Path


def generations(run_dir: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    folders = [path for path in (run_dir / "checkpoint").glob("round-*") if re.fullmatch("round-[0-9]{8,9}", path.name)]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)
