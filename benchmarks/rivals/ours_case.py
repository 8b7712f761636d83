"""mpifed and the loop written by hand, as the adapters of the rivals; each process is a rank.

exact: `mpifed run` of case1-fedsgd.toml, case2.toml, case3.toml, torch.toml; blocks: with `arithmetic =
"exact-blocks"`, of case 3 by blocks of 100 clients; ssca: of case1.toml. hand: handwritten.py. The job's step falls
with the rounds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import LAUNCHED, Work, given

SETTINGS = {
    "hand": "",
    "exact": "exact",
    "blocks": "exact-blocks",
    "ssca": "exact",
}  # [aggregation] arithmetic
BENCHMARKS = Path(__file__).resolve().parents[1]


def report(work: Work, found: dict[str, Any], startup_s: float | None) -> None:
    """Print the result of what counted for itself."""
    uncounted = {"rows": None, "steps": None, "norm": None, "rounds_counted": work.rounds}
    names = "numpy", "mpi4py"
    versions = {name: version(name) for name in names}
    print(json.dumps({"rounds": work.rounds, "startup_s": startup_s, "versions": versions} | uncounted | found))


def by_hand(work: Work) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import handwritten
    from mpi4py import MPI

    started: list[float] = []
    timed = handwritten.timed

    def marked(*given: Any) -> dict[str, Any]:
        started.append(time.time())
        return timed(*given)

    handwritten.timed = marked
    case = handwritten.CASES[{"1": "1-fedsgd"}.get(work.name, work.name)]
    found = handwritten.measure(case, work.rounds, work.data, MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        report(work, found, started[0] - float(os.environ.get(LAUNCHED, "nan")))


def by_mpifed(work: Work) -> None:
    from mpi4py import MPI

    import mpifed.cli
    from mpifed.files.json_file import read_json
    from mpifed.files.run_folder import summary
    from mpifed.run import loop

    started: list[float] = []
    play = loop.play

    def marked(exchanges: Any, *more: Any) -> Any:
        if exchanges:  # there are none before the first round
            started.append(time.time())
            loop.play = play
        return play(exchanges, *more)

    loop.play = marked
    job = {"cnn": "torch.toml", "1": "case1.toml" if work.setting == "ssca" else "case1-fedsgd.toml"}.get(
        work.name, f"case{work.name}.toml"
    )
    changes = [
        f"rounds={work.rounds}",
        f"data.path={work.data.parent}",
        f"aggregation.arithmetic={SETTINGS[work.setting]}",
    ]
    if work.name == "cnn":
        changes += ["model.build=torch_parts:Network", "client_optimizer.weight_decay=2e-5"]
    if (work.setting, work.name) == ("blocks", "3"):
        changes.append("data.block=100")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(os.environ.get("RIVALS_OUT", folder)) / "run"
        sys.argv = ["mpifed", "run", str(BENCHMARKS / job), *(f"--set={one}" for one in changes), "--out", str(out)]
        try:
            mpifed.cli.main()
        except SystemExit as end:
            if end.code:
                raise
        if MPI.COMM_WORLD.rank == 0:
            seconds, cpu_s = summary(out)["seconds_per_round"], read_json(out / "run.json")["cpu_s"] / work.rounds
            found = {"seconds_per_round": seconds, "cpu_s_per_round": cpu_s}
            report(work, found, started[0] - float(os.environ.get(LAUNCHED, "nan")))


def main() -> None:
    work = given(__doc__, tuple(SETTINGS))
    (by_hand if work.setting == "hand" else by_mpifed)(work)


if __name__ == "__main__":
    main()
