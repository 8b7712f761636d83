"""What does not go together: rows that stand beside what they speak of, and the one way to word them.

`mpifed.job.combinations` runs them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Refusal(NamedTuple):
    """A combination of settings that is refused."""

    applies: object  # whether this job has it, by its truth
    key: str  # what the job says, and where
    what: str  # why it does not go
    remedy: str = "leave it out"


def messages(rows: Iterable[Refusal]) -> list[str]:
    """One of each row that applies."""
    return [f"{row.key}: {row.what}; {row.remedy}" for row in rows if row.applies]
