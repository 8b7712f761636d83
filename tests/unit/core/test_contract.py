"""What is said of classes of the user's own that do not keep to the base class of their kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from mpifed import FedAvg
from mpifed.algorithms.algorithm import Algorithm
from mpifed.contract import breaches
from mpifed.core.exchange import Exchange
from mpifed.job.job import wrong_exchanges
from mpifed.maths.objectives import OBJECTIVES, LinearScores, Objective
from mpifed.maths.regularizers import L1, REGULARIZERS, Regularizer
from mpifed.maths.terms import TERMS, Loss, Sampled, Term
from mpifed.testing import ALGORITHMS


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

    def upload(self, *given: Any) -> Any:
        return super().upload(*given)

    def _remark(self) -> list[str]:
        return []

    def nothing_alike(self) -> None:
        pass


@dataclass(frozen=True)
class Unfinished(LinearScores):
    slack: float = 0.1


class Bare(L1):
    def checks(self) -> list[str]:
        return ["never heard"]


@dataclass(frozen=True)
class Solo:
    weight: float = 1.0


SHADOWS = 'has a key "{}", a name that {} has for something else; rename the field (the job can keep its key by '


@dataclass(frozen=True)
class Shadowing(FedAvg):
    trust: float = 0.5
    name: str = "mine"
    needs_everybody: bool = True  # type: ignore[assignment]
    local_steps: int | None = 2  # a key of FedAvg with another default

    certifies_gap: ClassVar[bool] = False  # type: ignore[misc]


@dataclass(frozen=True)
class MisspeltHook(FedAvg):
    def drifts(self) -> None: ...


@dataclass(frozen=True)
class ShadowingTerm(Loss):
    counted: float = 0.5  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("part", "base", "said"),
    [
        (Right, Algorithm, []),
        (Misspelt, Algorithm, [
            'has "need_everybody": did you mean "needs_everybody"? If not, rename it, or begin it with an underscore',
            'has "remark": did you mean "remarks"? If not, rename it, or begin it with an underscore',
        ]),
        (MisspeltHook, Algorithm, [
            'has "drifts": did you mean "drift"? If not, rename it, or begin it with an underscore',
        ]),
        (Shadowing, Algorithm, [
            SHADOWS.format("needs_everybody", "Algorithm"),
            SHADOWS.format("trust", "Algorithm"),
            SHADOWS.format("name", "Algorithm"),
        ]),
        (ShadowingTerm, Term, [SHADOWS.format("counted", "Term")]),
        (Unfinished, Objective, [
            f"has no {name}, which every Objective must have" for name in ("layers", "sample_loss", "start")
        ]),
        (Bare, Regularizer, ['has "checks": did you mean "check"?']),
        (Solo, Regularizer, ["is no Regularizer; derive it from mpifed.maths.regularizers.Regularizer"]),
        (Sampled, Objective, ["is no Objective; derive it from mpifed.maths.objectives.form.Objective"]),
    ],
)  # fmt: skip
def test_what_is_said(part: type, base: type, said: list[str]) -> None:
    found = list(breaches(part, base))
    assert len(found) == len(said) and all(map(str.startswith, sorted(found), sorted(said))), found


@pytest.mark.parametrize(
    ("known", "base"),
    [(ALGORITHMS, Algorithm), (OBJECTIVES, Objective), (TERMS, Term), (REGULARIZERS, Regularizer)],
)
def test_the_packages_own_keep_to_it(known: Any, base: type) -> None:
    for part in known.values():
        for split in ("rows", "columns", "grid") if base is Algorithm else ("",):
            assert list(breaches(part.for_split(split) if split else part, base)) == []


class Referring:
    """What `wrong_exchanges` reads of an algorithm, one of whose methods has another name."""

    setup = ()
    exchanges = property(lambda self: (Exchange("gradients", (), self.ask, self.answer, self.absorb),))

    def ask(self, server: Any, now: Any) -> Any: ...

    def answr(self, clients: Any, question: Any, block: Any, now: Any) -> Any: ...


def test_exchanges_that_are_none() -> None:
    assert list(wrong_exchanges(Referring())) == ['exchanges: Referring has no answer; did you mean "answr"?']
    Referring.exchanges = Exchange("sums", (), *3 * [lambda *_: ()])
    assert list(wrong_exchanges(Referring())) == [
        "exchanges: expected a property that is a tuple of Exchange; came Exchange"
    ]
