"""What is said of classes of the user's own that do not keep to the base class of their kind."""

from __future__ import annotations

from dataclasses import make_dataclass
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


def own(base: type, fields: Any = (), **names: Any) -> type:
    """A user's dataclass with these keys and these other names."""
    constants = [(name, ClassVar[Any], value) for name, value in names.items() if not callable(value)]
    methods = {name: value for name, value in names.items() if callable(value)}
    bases = (base,) if base is not object else ()
    return make_dataclass("Own", [*fields, *constants], bases=bases, namespace=methods, frozen=base is not object)


def method(*given: Any) -> None: ...


SHADOWS = 'has a key "{}", a name that {} has for something else; rename the field (the job can keep its key by '
LIKE = 'has "{}": did you mean "{}"? If not, rename it, or begin it with an underscore'
# all names are the base's, a field, its own, or begin with an underscore
RIGHT = own(FedAvg, [("report_s", float, 1.0)], needs_everybody=True, upload=method, _remark=method, other=method)
SHADOWING = own(FedAvg, [
    ("trust", float, 0.5), ("name", str, "mine"), ("needs_everybody", bool, True), ("local_steps", int, 2),
], certifies_gap=False)  # fmt: skip
CASES: list[tuple[type, type, list[str]]] = [
    (RIGHT, Algorithm, []),
    (
        own(FedAvg, need_everybody=True, remark=method), Algorithm,
        [LIKE.format("need_everybody", "needs_everybody"), LIKE.format("remark", "remarks")],
    ),
    (own(FedAvg, drifts=method), Algorithm, [LIKE.format("drifts", "drift")]),
    # a key of FedAvg may have another default
    (SHADOWING, Algorithm, [SHADOWS.format(name, "Algorithm") for name in ("needs_everybody", "trust", "name")]),
    (own(Loss, [("counted", float, 0.5)]), Term, [SHADOWS.format("counted", "Term")]),
    (
        own(LinearScores, [("slack", float, 0.1)]), Objective,
        [f"has no {name}, which every Objective must have" for name in ("layers", "sample_loss", "start")],
    ),
    (own(L1, checks=method), Regularizer, ['has "checks": did you mean "check"?']),
    (
        own(object, [("weight", float, 1.0)]), Regularizer,
        ["is no Regularizer; derive it from mpifed.maths.regularizers.Regularizer"],
    ),
    (Sampled, Objective, ["is no Objective; derive it from mpifed.maths.objectives.form.Objective"]),
]  # fmt: skip


@pytest.mark.parametrize(("part", "base", "said"), CASES)
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
    ask = answr = method


def test_exchanges_that_are_none() -> None:
    assert list(wrong_exchanges(Referring())) == ['exchanges: Referring has no answer; did you mean "answr"?']
    Referring.exchanges = Exchange("sums", (), *3 * [lambda *_: ()])  # type: ignore[assignment, arg-type]
    assert list(wrong_exchanges(Referring())) == [
        "exchanges: expected a property that is a tuple of Exchange; came Exchange"
    ]
