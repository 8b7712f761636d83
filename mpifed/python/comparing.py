"""`compare`: sweeps and runs compared, with the tables of `mpifed compare` and their numbers as frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpifed.core.errors import UsageError
from mpifed.python.ranks import spoken
from mpifed.python.results import Run
from mpifed.python.sweeps import Sweep

if TYPE_CHECKING:
    from mpifed.results.compare import Comparison


@spoken()
def compare(
    *results: Sweep | Run | str | Path,
    by: str | Sequence[str] = (),
    against: str | None = None,
    to: str | Sequence[str] = (),
) -> Comparison:
    """What `mpifed compare` says of sweeps and runs: means over seeds, paired differences, what targets take.

    The folders are read, on every rank that calls it. Runs that differ in their seed alone are one row, named by what
    sets it apart.

    Parameters
    ----------
    results
        Sweeps, runs, or their folders.
    by
        Columns to compare in pairs over equal seeds; by default the test accuracy, or else the objective, where at
        least two rows share three seeds.
    against
        The row to compare the others with, or the folder of one of its runs; by default the best.
    to
        Targets, as "test_accuracy>=0.95" or "train_loss<=0.1".

    Returns
    -------
    Comparison
        Printed, the tables; `frame`, their numbers, a row for each label and column; `runs`, a row for each run.

    Raises
    ------
    UsageError
        when there is no such column, label or target, or objectives that differ are to be compared.
    """
    from mpifed.results.compare import compare as compared

    if not results:
        raise UsageError("compare: nothing to compare; give a Sweep, Runs, or their folders")
    folders = [Path(result.path if isinstance(result, (Sweep, Run)) else result) for result in results]
    columns, targets = ([text] if isinstance(text, str) else list(text) for text in (by, to))
    return compared(*folders, by=columns, against=against, to=targets)
