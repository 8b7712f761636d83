"""What is measured: a setting of each rival, or two, beside ours."""

from __future__ import annotations

from typing import NamedTuple

OFTEN = 10  # rounds: below, one is enough to warm up


class Variant(NamedTuple):
    """One row of the table in each case."""

    rival: str  # environment under benchmarks/.cache/rivals; "" is that of mpifed
    adapter: str  # file
    setting: str
    rounds: dict[str, int]  # that are timed, by case; a case that is left out is not run
    ranks: int = 0  # processes to launch by MPI; 0: it starts its own

    @property
    def name(self) -> str:
        return f"{self.rival or 'mpifed'} {self.setting}"

    def repetitions(self, case: str, times: int) -> int:
        """How often it is run: what takes minutes once."""
        return 1 if self.rival and case == "3" else times


def _rounds(first: int, second: int, third: int = 0, cnn: int = 0) -> dict[str, int]:
    return {case: count for case, count in {"1": first, "2": second, "3": third, "cnn": cnn}.items() if count}


VARIANTS = [
    Variant("", "ours_case.py", "hand", _rounds(300, 60, 60), 2),
    Variant("", "ours_case.py", "exact", _rounds(300, 60, 60, cnn=10), 2),
    Variant("", "ours_case.py", "blocks", _rounds(300, 0, 60), 2),
    Variant("", "ours_case.py", "ssca", _rounds(300, 0), 2),
    Variant("pytorch", "pytorch_case.py", "loop", _rounds(0, 60, cnn=10)),
    Variant("pytorch", "pytorch_case.py", "joined", _rounds(200, 0, 20)),
    Variant("pfl", "pfl_case.py", "processes", _rounds(100, 40, 6, cnn=10)),
    Variant("flower", "flower_case.py", "workers", _rounds(20, 15, 2, cnn=5)),
]


def measured(case: str) -> list[Variant]:
    """The variants of a case."""
    return [one for one in VARIANTS if case in one.rounds]
