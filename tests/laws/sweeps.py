"""Several sweeps in one launch: `sweeps.py FOLDER JOB...` runs each into a folder of its name.

Every other rank does without compiled loops, which must not change a bit.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mpifed.comm.transport import connect
from mpifed.core import loops
from mpifed.run.command import How, run_command

if __name__ == "__main__":
    if connect().rank % 2:
        loops.compiled = None
    folder, *jobs = map(Path, sys.argv[1:])
    sys.exit(max([run_command(job, (), folder / job.stem, None, How(progress="none")) for job in jobs]))
