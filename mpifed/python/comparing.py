"""`compare`: sweeps and runs compared, as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.python.ranks import spoken
from mpifed.python.results import Run, frame
from mpifed.python.sweeps import Sweep
from mpifed.results.comparison import compared, rows

if TYPE_CHECKING:
    from pandas import DataFrame

_TEXTS = ("label", "column", "against")


@spoken()
def compare(
    *results: Sweep | Run | str | Path,
    by: str | Sequence[str] = (),
    against: str | None = None,
    to: str | Sequence[str] = (),
) -> DataFrame:
    """What `mpifed compare` says of sweeps and runs: means over seeds, paired differences, what targets take.

    The folders are read, on every rank that calls it; needs pandas.

    Parameters
    ----------
    results
        Sweeps, runs, or their folders.
    by
        Columns to compare in pairs over equal seeds; by default the test accuracy, or else the objective, where at
        least two labels share three seeds.
    against
        The label to compare the others with, or the folder of one of its runs; by default the best.
    to
        Targets, as "test_accuracy>=0.95" or "train_loss<=0.1".

    Returns
    -------
    pandas.DataFrame
        A row for each label and column: `mean`, `std` (standard deviation, nan of one run) over `n` of `of` runs; where
        it was compared in pairs also `against`, `difference` (the mean of label less baseline), `low` and `high` of its
        95 % interval, `p` of the paired t test, by Holm over the labels, and `pairs`, the number of equal seeds. What a
        target takes are the columns "round to ...", "bytes to ...", "elapsed_s to ..." and "simulated_s to ...", whose
        `n` is the number of runs that reached it; others are in no mean.

    Raises
    ------
    UsageError
        when there is no such column, label or target, or objectives that differ are to be compared.
    """
    if not results:
        raise UsageError("compare: nothing to compare; give a Sweep, Runs, or their folders")
    folders = [Path(result.path if isinstance(result, (Sweep, Run)) else result) for result in results]
    columns, targets = ([text] if isinstance(text, str) else list(text) for text in (by, to))
    facts = rows(compared(folders[0] if len(folders) == 1 else folders, columns, against, targets))
    names = list(dict.fromkeys(name for row in facts for name in row))
    return frame(
        {name: [row[name] if name in _TEXTS or row[name] is not None else np.nan for row in facts] for name in names}
    )
