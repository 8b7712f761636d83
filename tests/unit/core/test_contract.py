"""What is said of classes of the user's own that do not keep to the base class of their kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.fedavg import FedAvg
from mpifed.core.algorithm import Algorithm
from mpifed.core.contract import breaches
from mpifed.maths.objectives import OBJECTIVES, LeastSquares, Linear, Objective
from mpifed.maths.regularizers import L1, REGULARIZERS, Regularizer
from mpifed.maths.terms import TERMS, Loss, Sampled, Term


@dataclass(frozen=True)
class Misspelt(FedAvg):
    need_everybody: ClassVar[bool] = True

    def remark(self, server: Any, measured: Any) -> list[str]:
        return ["never heard"]


@dataclass(frozen=True)
class Right(FedAvg):
    """All names are the base's, a field, its own, or begin with an underscore."""

    needs_everybody: ClassVar[bool] = True
    report_s: float = 1.0

    def answer(self, *given: Any) -> Any:
        return super().answer(*given)

    def _remark(self) -> list[str]:
        return []

    def nothing_alike(self) -> None:
        pass


@dataclass(frozen=True)
class Unfinished(Linear):
    slack: float = 0.1

    def loss(self, head: Any, scores: Any, y: Any) -> Any:
        return scores[..., 0]


@dataclass(frozen=True)
class Bent(LeastSquares):
    non_negative: ClassVar[bool] = False


@dataclass(frozen=True)
class Uncounted(Loss):
    sample: ClassVar[bool] = False


class Bare(L1):
    def checks(self) -> list[str]:
        return ["never heard"]


class Undecorated(Algorithm):
    exchanges = measures = ()

    def start_server(self, now: Any) -> Any:
        return None


@dataclass(frozen=True)
class Alone:
    weight: float = 1.0


@pytest.mark.parametrize(
    ("part", "base", "said"),
    [
        (Right, Algorithm, []),
        (Misspelt, Algorithm, [
            'has "need_everybody": did you mean "needs_everybody"? If not, rename it, or begin it with an underscore',
            'has "remark": did you mean "remarks"? If not, rename it, or begin it with an underscore',
        ]),
        (Unfinished, Objective, ["has no predict, slope, start, which every Objective must have; see "]),
        (Bent, Objective, ['has "non_negative": did you mean "nonnegative"?']),
        (Uncounted, Term, ['has "sample": did you mean "sampled"?']),
        (Bare, Regularizer, ['has "checks": did you mean "check"?']),
        (Alone, Regularizer, ["is no Regularizer; derive it from mpifed.maths.regularizers.Regularizer"]),
        (Sampled, Objective, ["is no Objective; derive it from mpifed.maths.objectives.form.Objective"]),
    ],
)  # fmt: skip
def test_what_is_said(part: type, base: type, said: list[str]) -> None:
    found = list(breaches(part, base))
    assert len(found) == len(said) and all(map(str.startswith, found, said)), found


@pytest.mark.parametrize(
    ("known", "base"),
    [(ALGORITHMS, Algorithm), (OBJECTIVES, Objective), (TERMS, Term), (REGULARIZERS, Regularizer)],
)
def test_the_packages_own_keep_to_it(known: Any, base: type) -> None:
    for part in known.values():
        for split in ("rows", "columns", "grid") if base is Algorithm else ("",):
            assert list(breaches(part.for_split(split) if split else part, base)) == []
