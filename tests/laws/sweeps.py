"""Several sweeps in one launch: `sweeps.py FOLDER JOB...` runs each into a folder of its name.

Every other rank does without compiled loops, which must not change a bit. Where the name of a job has `sparse`, masks
are along a sparser graph than all pairs.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from quick import quick_disk_and_pools
from sparse_masks import sparsest

from mpifed.cli import main
from mpifed.comm.channels.masked import Masked
from mpifed.comm.mpi import connect
from mpifed.core import loops
from mpifed.files.ends import FINISHED


def ended(job: Path, out: Path) -> int:
    """The exit code of one of them, by `mpifed run`."""
    dense = Masked.neighbours
    if "sparse" in job.stem:
        Masked.neighbours = sparsest  # type: ignore[method-assign]
    try:
        main.main(["run", str(job), "--out", str(out), "--progress", "none"], standalone_mode=False)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code
    finally:
        Masked.neighbours = dense  # type: ignore[method-assign]
    return 0


if __name__ == "__main__":
    with quick_disk_and_pools(), ExitStack() as before:
        before.callback(setattr, loops, "compiled", loops.compiled)
        if connect().rank % 2:
            loops.compiled = None
        folder, *jobs = map(Path, sys.argv[1:])
        failed = {code for job in jobs if (code := ended(job, folder / job.stem)) not in FINISHED}
    sys.exit(max(failed, default=0))
