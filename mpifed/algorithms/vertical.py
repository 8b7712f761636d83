"""Shared by algorithms for vertically split data: their base class, and what they check and draw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpifed.algorithms.vertical_measures import measures_of_columns
from mpifed.algorithms.vertical_pass import Pass
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Measure, Problem
from mpifed.core.record import Array
from mpifed.core.reveals import Received, Revealed
from mpifed.core.round import Round


class Columns(Algorithm):
    """The base of algorithms for data split by columns; its subclasses have the field `label_holder`.

    All clients must participate: if any is absent, scores are incomplete.
    """

    label_holder: int | None  # the client who alone has the labels; None: all have

    needs_everybody = True

    @property
    def sender(self) -> int:
        """The client who sends what belongs to no columns, as intercepts: the label holder, or 0."""
        return self.label_holder or 0

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss, objective and constraints; the certificate."""
        return measures_of_columns(self, self.label_holder, self.sender)

    def reveals(self, received: Received) -> Iterator[Revealed]:
        """Partial scores, derivatives and gradients of the rows drawn; see `Pass.reveals`."""
        return Pass.reveals(received)


def draw_rows(problem: Problem, now: Round, batch: int) -> Array:
    """[batch] indices of the rows of a round, drawn by the server."""
    rows: Array = now.draw("minibatch", np.array([0]), np.array([problem.samples]), batch)[0]
    return rows


def check_columns(problem: Problem, batch: int, holder: int | None) -> list[str]:
    """Errors of data and settings for vertical algorithms, one message each."""
    wrong: list[str] = []
    if problem.split != "columns":
        wrong.append(
            f"[algorithm] name: needs data split by columns, and the folder is split by {problem.split}; "
            "make another with `mpifed data ... --split columns`"
        )
    if batch > problem.samples:
        wrong.append(f"[algorithm] batch_size = {batch}: there are {problem.samples} samples; lower batch_size")
    if holder is not None and not 0 <= holder < problem.clients:
        wrong.append(f"[algorithm] label_holder = {holder}: clients are numbered 0 to {problem.clients - 1}")
    return wrong
