"""Criteria of a choice among settings: columns with weights, and tolerances up to which differences are ties.

A tolerance must not make ties depend on the order of the settings, and "a ties with b" alone is not transitive: of
1.00, 1.01 and 1.02 at 1 %, the first two tie and the last two, the first and the last do not. So values are grouped:
the best opens a group, with all that are within the tolerance of it; the best of the rest opens the next one, and so
on. A group is no wider than the tolerance, groups are ordered, and what is compared from then on is the groups.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.text import shown
from mpifed.files.columns import column_of
from mpifed.results.points import Setting
from mpifed.results.text import is_number

Floats = NDArray[np.float64]

# relative: by how much two executions of the same job may differ, where the clock or the machine decides
NOISE = {"elapsed_s": 0.05, "seconds_per_round": 0.05, "peak_rss_bytes": 0.05, "rss_bytes": 0.05, "simulated_s": 0.01}
_ROUNDING = 1e-9  # relative: 0.495 is within 1 % of 0.5
_FORM = re.compile(r"(?P<name>[^:~]+)(?P<colon>:(?P<weight>[^~]*))?(?P<tilde>~(?P<tolerance>[^%]*)(?P<percent>%?))?")


class Criterion(NamedTuple):
    """How a column counts in a choice."""

    weight: float = 1.0
    tolerance: float = 0.0
    relative: bool = True  # to the best value of a group; else in the units of the column

    def __str__(self) -> str:
        """The tolerance, as `--by COLUMN~` takes it."""
        return f"{100 * self.tolerance:g}%" if self.relative else f"{self.tolerance:g}"


def criterion_of(column: str) -> Criterion:
    """A criterion of weight 1 and the default tolerance of its column: that of its noise, 0 for what is exact."""
    return Criterion(tolerance=NOISE.get(column, 0.0))


def criteria_of(text: str) -> dict[str, Criterion]:
    """The criteria in `objective:3,test_accuracy~1%,up_bytes~4096`, by column, with weights and tolerances.

    Raises UsageError when a weight or tolerance is none, or a column is named twice.
    """
    criteria: dict[str, Criterion] = {}
    for part in text.split(","):
        match = _FORM.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--by {shown(text)}: expected COLUMN, COLUMN:WEIGHT or COLUMN~TOLERANCE between commas")
        name = match["name"].strip()
        weight = _number(match["weight"]) if match["colon"] else 1.0
        if not 0 < weight < math.inf:
            raise UsageError(
                f"--by {shown(text)}: {match['weight']} is no weight; give a positive number, as objective:2,up_bytes"
            )
        criterion = criterion_of(name)._replace(weight=weight)
        if match["tilde"]:
            tolerance, relative = _number(match["tolerance"]), bool(match["percent"])
            tolerance /= 100 if relative else 1
            if not 0 <= tolerance < (1 if relative else math.inf):
                raise UsageError(
                    f"--by {shown(text)}: {match['tolerance']}{match['percent']} is no tolerance; give a part of the "
                    f"value, as {name}~1%, from 0 to less than 100%, or a difference, as {name}~0.005"
                )
            criterion = criterion._replace(tolerance=tolerance, relative=relative)
        if name in criteria:
            raise UsageError(f"--by {shown(text)}: {name} is given twice; name each criterion once")
        criteria[name] = criterion
    return criteria


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def grouped(costs: Floats, criterion: Criterion) -> tuple[NDArray[np.int64], Floats]:
    """The groups of values that are ties by a criterion.

    Parameters
    ----------
    costs : [n] less is better; infinite ones are a group of their own, the last
    criterion : its tolerance, absolute or relative to the best value of a group

    Returns
    -------
    groups [n], 0 for that of the best; and [n] the best value of each one's group
    """
    groups, best = np.zeros(len(costs), dtype=np.int64), np.array(costs, dtype=np.float64)
    group, anchor, most = -1, -math.inf, -math.inf
    for i in np.argsort(costs, kind="stable"):
        if group < 0 or costs[i] > most:
            group, anchor = group + 1, float(costs[i])
            within = criterion.tolerance * (abs(anchor) if criterion.relative else 1.0)
            most = anchor + within * (1 + _ROUNDING) if math.isfinite(anchor) else anchor
        groups[i], best[i] = group, anchor
    return groups, best


def order_of(setting: Setting) -> tuple[object, ...]:
    """What ties are ordered by in the end: the label, then the settings, numbers by size and all else as text."""
    values = (
        (key, (0, float(value), "") if is_number(value) else (1, 0.0, json.dumps(value, sort_keys=True)))
        for key, value in sorted(setting.settings.items())
    )
    return setting.label, *values


def columns_of(settings: Iterable[Setting]) -> list[str]:
    """The columns that can be compared: those that at least one finished point has."""
    return list(dict.fromkeys(name for setting in settings for name in setting.means()))


def no_column(named: str, lacking: str, there: Sequence[str]) -> UsageError:
    """The error for a column that is none of those that are `there`; `named`: the folders, as messages name them."""
    return UsageError(f"{named}: no column {lacking}{nearest(lacking, there)}; there are {', '.join(there)}")


def to_be_maximized(column: str) -> bool:
    """Whether larger values of a column are better."""
    return column_of(column).better == "more"


def objectives_of(settings: Sequence[Setting]) -> dict[str, dict[str, str]]:
    """What each run minimizes, by its name."""
    return {point.name: point.objective for setting in settings for point in setting.points}
