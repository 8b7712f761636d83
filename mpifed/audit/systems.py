"""Attacks by linear equations between what the server has collected of each client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpifed.algorithms.ssca_vertical import SSCAVertical
from mpifed.algorithms.vertical_sgd import VerticalSGD
from mpifed.audit.attacks.linear import Solved, rows_from_scores, rows_from_slopes
from mpifed.audit.attacks.matching import Match, match, recovered
from mpifed.audit.attempt import LINEAR, PRODUCTS, Attempt, Floats, none
from mpifed.audit.duals import on_duals, works_on_duals
from mpifed.audit.plays import Decoder, plays
from mpifed.audit.stage import Stage, dense_rows
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array
from mpifed.run.transcript import Message

FEW = 4  # clients that are attacked
SHOWN = 16  # rows, in pictures
HIDDEN = "the server hears no scores in this channel"


def systems(stage: Stage, messages: tuple[Message, ...]) -> Iterator[Attempt]:
    """Systems of linear equations that the server has collected over the recorded rounds."""
    if works_on_duals(stage):
        yield from on_duals(stage, messages)
        return
    if not isinstance(stage.algorithm, (SSCAVertical, VerticalSGD)):
        yield none(PRODUCTS, "no client sends inner products of its rows with what the server knows")
        yield none(LINEAR, "no client sends dual variables, or derivatives by scores, beside what follows from them")
        return
    plain = stage.transcript.channel == "plain"
    yield _products(stage, messages) if plain else none(PRODUCTS, HIDDEN)
    if stage.algorithm.label_holder is None:
        yield none(LINEAR, "all clients have the labels: the derivatives by the scores are sent by nobody")
    else:
        yield _slopes(stage, messages) if plain else none(LINEAR, "the server hears no derivatives in this channel")


def _products(stage: Stage, messages: tuple[Message, ...]) -> Attempt:
    """A client's columns of rows whose partial scores were sent, at weights that the server knows."""
    found, got = _Found(), 0
    for client in sorted(stage.shards)[:FEW]:
        columns = stage.shards[client].columns
        for exchange in _scores(stage):
            asked, sent, weights = _equations(stage, exchange, messages, client)
            if not len(asked):
                continue
            numbers, solved = rows_from_scores(asked, sent, weights[:, columns])
            got = max(got, int(np.max(solved.rank)))
            found.add(solved, dense_rows(stage.shards[client], numbers))
    return found.attempt(PRODUCTS, f"{got} equations a row, {found.needed} needed")


def _scores(stage: Stage) -> list[Exchange]:
    measured = [one for measure in stage.algorithm.measures for one in measure.exchanges]
    found = [one for one in (*stage.exchanges, *measured) if "model.first" in one.told_by_columns]
    return [one for one in found if not one.name.startswith("certificate")]  # at the same models as the losses


def _equations(
    stage: Stage, exchange: Exchange, messages: tuple[Message, ...], client: int
) -> tuple[Array, Array, Array]:
    """Row numbers [T, b], one client's scores of them [T, b, h], and the weights [T, p, h] of all columns."""
    decoder = Decoder(stage, exchange)
    asked, sent, weights = [], [], []
    for play in plays(messages, exchange.name):
        answer = decoder(play.uploads[client]) if client in play.uploads else None
        if answer is None or "rows" not in play.question:
            continue
        for number, name in enumerate(("model.first", "previous.first")):
            if name in play.question and number < len(answer.partial):
                asked.append(play.question["rows"])
                sent.append(answer.partial[number])
                weights.append(play.question[name])
    return np.array(asked), np.array(sent, dtype=np.float64), np.array(weights, dtype=np.float64)


def _slopes(stage: Stage, messages: tuple[Message, ...]) -> Attempt:
    """A client's columns of a minibatch, from its gradient and the derivatives that the holder of the labels told."""
    holder: Any = stage.algorithm.label_holder  # type: ignore[attr-defined]
    decoders = [Decoder(stage, one) for one in stage.exchanges[1:]]
    turns = zip(*(plays(messages, one.name) for one in stage.exchanges), strict=False)
    found = _Found()
    for asked, told, gathered in turns:
        down = decoders[0](told.uploads.get(holder, []))
        for client in sorted(gathered.uploads)[:FEW]:
            answer = decoders[1](gathered.uploads[client])
            if down is None or answer is None:
                continue
            block = np.asarray(answer.statistics.gradient.first, dtype=np.float64)[0][stage.shards[client].columns]
            solved = rows_from_slopes(block, np.asarray(down.slopes[0], dtype=np.float64))
            found.add(solved, dense_rows(stage.shards[client], asked.question["rows"]))
    return found.attempt(LINEAR, f"{found.needed} independent derivatives are needed")


class _Found:
    """What systems of equations were solved for, beside the truth."""

    def __init__(self) -> None:
        self.entered = self.needed = 0  # rows; equations for one
        self._matches: list[Match] = []
        self._rows: list[Floats] = []
        self._truth: list[Floats] = []

    def add(self, solved: Solved, there: Floats) -> None:
        """The rows that are determined, of those that are there."""
        self.entered, self.needed = self.entered + len(there), solved.needed
        for at in np.flatnonzero(solved.determined.all(axis=1)):
            self._matches.append(match(solved.rows[at], there[at : at + 1]))
            self._rows.append(solved.rows[at])
            self._truth.append(there[at])

    def attempt(self, attack: str, how: str) -> Attempt:
        """How far it came."""
        good, same = recovered(self._matches), len({len(row) for row in self._rows}) == 1
        text = f"{good} of {self.entered} rows of a client's columns recovered; {how}"
        none_to_show = np.zeros((0, 0)), np.zeros((0, 0))
        pictures = (np.stack(self._rows[:SHOWN]), np.stack(self._truth[:SHOWN])) if same else none_to_show
        return Attempt(attack, "server", "each client's uploads", True, good > 0, text, good, self.entered, *pictures)
