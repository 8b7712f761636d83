"""Time limits in the formats of Slurm."""

from __future__ import annotations

import math
import re

from mpifed.core.errors import UsageError

_FORMS = (
    r"(?P<minutes>[0-9]{1,9})",
    r"(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,9})",
    r"(?P<hours>[0-9]{1,9}):(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,9})",
    r"(?P<days>[0-9]{1,9})-(?P<hours>[0-9]{1,9})",
    r"(?P<days>[0-9]{1,9})-(?P<hours>[0-9]{1,9}):(?P<minutes>[0-9]{1,9})",
    r"(?P<days>[0-9]{1,9})-(?P<hours>[0-9]{1,9}):(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,9})",
)
_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def seconds_of(text: str) -> float:
    """'90' (minutes), '90:00', '1:30:00', '2-12', '2-12:30:00' -> seconds; 'infinite' -> infinity; else UsageError."""
    if text.strip().lower() in ("infinite", "unlimited"):
        return math.inf
    for form in _FORMS:
        if match := re.fullmatch(form, text.strip()):
            return float(sum(_SECONDS[unit] * int(count) for unit, count in match.groupdict().items()))
    raise UsageError(
        f"--time {text}: expected minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or "
        "days-hours:minutes:seconds"
    )


def is_number(text: str) -> bool:
    """Whether Slurm would read a text as a whole number."""
    return re.fullmatch("[0-9]{1,9}", text) is not None


def limit_of(seconds: float) -> str:
    """5400 -> '1:30:00': whole minutes, rounded up; from one day on 'days-hours:minutes:00'."""
    if math.isinf(seconds):
        return "infinite"
    minutes = max(1, math.ceil(seconds / 60))
    days, hours = divmod(minutes // 60, 24)
    time = f"{hours}:{minutes % 60:02d}:00"
    return f"{days}-{time}" if days else time
