"""Which cases of a test are long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest


def long_unless(short: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: of these cases, those that are not `short` are for `make test-long`."""
    given = [case if type(case) is tuple else (case,) for case in cases]
    return [pytest.param(*case, marks=() if short(*case) else pytest.mark.long) for case in given]


def covering(axes: Mapping[str, Iterable[Any]], together: int = 2, long: int | None = None) -> pytest.MarkDecorator:
    """A product of parameters; what is not long has every value of each with every value of each other.

    Parameters
    ----------
    axes : the values of each; several names in one key have tuples of values
    together : 1: what is not long has every value at least once
    long : 2: what is long has every value of each with every value of each other, and is not all of the product
    """
    values = [list(each) for each in axes.values()]
    cases = list(itertools.product(*(range(len(each)) for each in values)))
    short = _covered(cases, together, [])
    chosen = cases if long is None else [*short, *_covered(cases, long, short)]
    parameters = []
    for case in chosen:
        given = [each[at] for each, at in zip(values, case, strict=True)]
        flat = [value for name, one in zip(axes, given, strict=True) for value in (one if "," in name else (one,))]
        parameters.append(pytest.param(*flat, marks=() if case in short else pytest.mark.long))
    return pytest.mark.parametrize(", ".join(axes), parameters)


def _covered(cases: list[tuple[int, ...]], together: int, before: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Cases that have all combinations of so many values, less those that earlier ones have."""
    parts = {case: set(itertools.combinations(enumerate(case), together)) for case in cases}
    left = set().union(*parts.values()).difference(*(parts[case] for case in before))
    chosen = []
    while left:
        chosen.append(case := max(cases, key=lambda case: len(parts[case] & left)))
        left -= parts[case]
    return chosen
