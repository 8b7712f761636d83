"""Which cases of a test there are, and which of them are long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest


def long_unless(short: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: of these cases, those that are not `short` are for `make test-long`."""
    given = [case if type(case) is tuple else (case,) for case in cases]
    return [pytest.param(*case, marks=() if short(*case) else pytest.mark.long) for case in given]


def covering(axes: Mapping[str, Iterable[Any]], together: int = 2) -> pytest.MarkDecorator:
    """Of a product of parameters, cases that have every value of each with every value of each other.

    Parameters
    ----------
    axes : the values of each; several names in one key have tuples of values
    together : 1: that have every value at least once
    """
    values = [list(each) for each in axes.values()]
    cases = list(itertools.product(*(range(len(each)) for each in values)))
    parts = {case: set(itertools.combinations(enumerate(case), together)) for case in cases}
    left, parameters = set().union(*parts.values()), []
    while left:
        case = max(cases, key=lambda case: len(parts[case] & left))
        left -= parts[case]
        given = [each[at] for each, at in zip(values, case, strict=True)]
        parameters.append(
            [value for name, one in zip(axes, given, strict=True) for value in (one if "," in name else (one,))]
        )
    return pytest.mark.parametrize(", ".join(axes), parameters)
