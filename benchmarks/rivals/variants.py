"""What is measured: every rival at its best setting and as shipped, beside ours."""

from __future__ import annotations

from typing import NamedTuple

EACH = -1
OFTEN = 10  # rounds: below, one is enough to warm up


class Variant(NamedTuple):
    """One row of the table in each case."""

    rival: str  # environment under benchmarks/.cache/rivals; "" is that of mpifed
    adapter: str  # file
    setting: str
    rounds: dict[str, int]  # that are timed, by case; a case that is left out is not run
    ranks: int = 0  # processes to launch by MPI; 0: it starts its own; EACH: one a present client, and a server
    best: str = ""  # cases (c: cnn) in which no other setting of the rival was faster, by --tune

    @property
    def name(self) -> str:
        return f"{self.rival or 'mpifed'} {self.setting}"

    def repetitions(self, case: str, times: int) -> int:
        """How often it is run: what takes minutes once or twice."""
        if not self.rival:
            return times
        return 1 if case == "3" else min(times, 2) if self.setting.endswith("shipped") else times


def _rounds(first: int, second: int, third: int = 0, cnn: int = 0) -> dict[str, int]:
    return {case: count for case, count in {"1": first, "2": second, "3": third, "cnn": cnn}.items() if count}


VARIANTS = [
    Variant("", "ours_case.py", "hand", _rounds(300, 60, 60), 2, "123"),
    Variant("", "ours_case.py", "float", _rounds(300, 60, 60, cnn=10), 2, "123c"),
    Variant("", "ours_case.py", "exact", _rounds(300, 60, 60, cnn=10), 2, "123c"),
    Variant("", "ours_case.py", "blocks", _rounds(300, 0, 60), 2, "13"),
    Variant("", "ours_case.py", "ssca", _rounds(300, 0), 2, "1"),
    Variant("pytorch", "pytorch_case.py", "shipped", _rounds(60, 30, 3, cnn=8)),
    Variant("pytorch", "pytorch_case.py", "loop", _rounds(200, 60, 10, cnn=10)),
    Variant("pytorch", "pytorch_case.py", "loop-threads", _rounds(200, 60, 10)),
    Variant("pytorch", "pytorch_case.py", "loop-processes", _rounds(200, 60, 10, cnn=10), 0, "2c"),
    Variant("pytorch", "pytorch_case.py", "joined", _rounds(200, 0, 20)),
    Variant("pytorch", "pytorch_case.py", "joined-threads", _rounds(200, 0, 20), 0, "1"),
    Variant("pytorch", "pytorch_case.py", "joined-processes", _rounds(200, 0, 20), 0, "13"),
    Variant("pfl", "pfl_case.py", "shipped", _rounds(60, 30, 3)),
    Variant("pfl", "pfl_case.py", "bare", _rounds(100, 40, 6, cnn=10)),
    Variant("pfl", "pfl_case.py", "bare-threads", _rounds(100, 40, 6)),
    Variant("pfl", "pfl_case.py", "bare-processes", _rounds(100, 40, 6, cnn=10), 0, "123c"),
    Variant("fedlab", "fedlab_case.py", "shipped", _rounds(60, 30, 3, cnn=8)),
    Variant("fedlab", "fedlab_case.py", "memory", _rounds(100, 40, 6, cnn=10), 0, "3c"),
    Variant("fedlab", "fedlab_case.py", "memory-threads", _rounds(100, 40, 6, cnn=10), 0, "12"),
    Variant("appfl", "appfl_case.py", "shipped", _rounds(4, 4)),
    Variant("appfl", "appfl_case.py", "serial", _rounds(60, 30, 3, cnn=10), 0, "23c"),
    Variant("appfl", "appfl_case.py", "serial-threads", _rounds(60, 30, 3, cnn=10), 0, "1"),
    Variant("appfl", "appfl_case.py", "mpi-shipped", _rounds(3, 3), EACH),
    Variant("appfl", "appfl_case.py", "mpi", _rounds(10, 10, cnn=5), 3, "12c"),
    Variant("flower", "flower_case.py", "shipped", _rounds(10, 10)),
    Variant("flower", "flower_case.py", "worker", _rounds(20, 15, cnn=5)),
    Variant("flower", "flower_case.py", "workers-2", _rounds(20, 15, 2, cnn=5), 0, "123c"),
]
VERIFIED = {  # settings whose model is compared with reference.py; the others share their code
    "pytorch": ("shipped", "loop", "joined", "loop-processes", "joined-processes"),
    "pfl": ("shipped", "bare", "bare-processes"),
    "fedlab": ("shipped", "memory"),
    "appfl": ("shipped", "serial", "mpi"),
    "flower": ("shipped", "worker"),
}


def measured(case: str, everything: bool = False) -> list[Variant]:
    """The variants of a case: the best setting of each way of running a rival, and as shipped; or every setting."""
    run = [one for one in VARIANTS if case in one.rounds]
    return run if everything else [one for one in run if case[0] in one.best or one.setting.endswith("shipped")]
