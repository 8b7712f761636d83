"""Jobs on the double of a device: `on_ranks.py FOLDER JOB...` runs each into a folder of its name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from make_believe import make_believe

from mpifed.run.command import How, run_command

if __name__ == "__main__":
    folder, *jobs = map(Path, sys.argv[1:])
    with make_believe():
        sys.exit(max([run_command(job, (), folder / job.stem, None, How(progress="none")) for job in jobs]))
