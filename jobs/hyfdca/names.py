"""The settings that the paper compares, and the methods: a job for each data set and method, changed by the setting."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

JOBS = Path(__file__).parent
DATA = ("mnist", "newsgroups", "covtype", "a9a")  # a9a is not the paper's
GRIDS = {"2x2": 4, "4x4": 16, "8x8": 64}  # rows x columns: clients
FRACTIONS = (0.1, 0.5, 1.0)
ROUNDS = 300
METHODS = ("hyfdca", "fedavg", "fedavg-blocks", "hyfem")
RULES = ("theory", "damped", "line-search", "accelerated")  # of HyFDCA beside the paper's: where all take part
OWN = ("hyfdca", *(f"hyfdca-{rule}" for rule in RULES), "bundle")
RIVALS = METHODS[1:]
TUNED = ("hyfdca", "fedavg", "hyfem")
TITLES = {
    "hyfdca": "HyFDCA",
    "hyfdca-theory": "HyFDCA, theory",
    "hyfdca-damped": "HyFDCA, damped",
    "hyfdca-line-search": "HyFDCA, line search",
    "hyfdca-accelerated": "HyFDCA, accelerated",
    "bundle": "bundle",
    "fedavg": "FedAvg",
    "fedavg-blocks": "FedAvg / feature blocks",
    "hyfem": "HyFEM",
}
DATA_TITLES = {
    "mnist": "MNIST", "newsgroups": "20 Newsgroups", "covtype": "Covertype", "a9a": "a9a", "digits": "digits",
}  # fmt: skip


class Setting(NamedTuple):
    """One of the paper's: which data, how they are cut, who takes part."""

    data: str
    grid: str
    fraction: float

    @property
    def clients(self) -> int:
        return GRIDS[self.grid]

    @property
    def present(self) -> int:
        return max(1, round(self.fraction * self.clients))

    @property
    def everybody(self) -> bool:
        """Whether all take part in every round."""
        return self.present == self.clients

    @property
    def name(self) -> str:
        return f"{self.data}-{self.grid}-{self.fraction:g}"

    @property
    def methods(self) -> tuple[str, ...]:
        """What is run in it: most of our own rules, and the bundle method, need everybody."""
        return (*OWN, *RIVALS) if self.everybody else (*METHODS, "hyfdca-damped")


QUICK = (Setting("digits", "2x2", 0.5), Setting("digits", "4x4", 1.0))  # no setting of the paper: seconds are enough


def settings() -> Iterator[Setting]:
    return (Setting(*each) for each in product(DATA, GRIDS, FRACTIONS))


def job_of(data: str, method: str) -> str:
    """The name of the job of which a method's runs are changes; the digits have those of MNIST."""
    kind = "ours" if method.startswith("hyfdca-") else method.split("-")[0]
    return f"{'mnist' if data == 'digits' else data}-{kind}"


def change_of(method: str) -> list[str]:
    """What a method is of its job."""
    if method == "fedavg-blocks":
        return ['algorithm.combine="feature-blocks"']
    rule = method.removeprefix("hyfdca-")
    return [f'algorithm.rule="{rule}"'] if rule in RULES else []


def label(setting: Setting, method: str) -> str:
    """The name of a curve."""
    return f"{setting.name}-{method}"
