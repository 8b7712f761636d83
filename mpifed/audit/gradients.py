"""Attacks on gradients, each handed what the server heard in the transcript; what they found, beside the truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpifed.audit.attacks.inversion import invert
from mpifed.audit.attacks.matching import Match, match, match_all, recovered
from mpifed.audit.attacks.reconstruction import reconstruct
from mpifed.audit.attempt import INVERSION, RECONSTRUCTION, Attempt, Floats, none
from mpifed.audit.stage import Stage
from mpifed.audit.targets import EACH, SEALED, SUM, Target, by_columns, no_targets, targets
from mpifed.run.transcript import Message

MOST_CLIENTS = 16  # attacked one by one
LARGEST_BATCH = 10  # rows whose gradients are told apart by inversion
EASY_BATCH, STARTS = 6, 2  # up to so many rows it begins so many times anew; each time takes seconds


def on_gradients(stage: Stage, messages: tuple[Message, ...]) -> Iterator[Attempt]:
    """Reconstruction and inversion, of single clients' uploads as far as they can be read, and of the sum."""
    why = no_targets(stage)
    found = [] if why else list(targets(stage, messages, MOST_CLIENTS))
    if by_columns(stage):
        reason = "data are split by columns: no client sends the gradient of whole rows"
        yield none(RECONSTRUCTION, reason, seen=EACH)
        yield none(INVERSION, reason, seen=EACH)
    elif stage.transcript.channel != "plain" and not why and not any(one.seen == SEALED for one in found):
        reason = "ciphertexts, which are no numbers without the key"
        yield none(RECONSTRUCTION, reason, seen="sealed uploads")
        yield none(INVERSION, reason, seen="sealed uploads")
    if not found:
        why = why or "no exchange of a round was recorded to its end"
        yield none(RECONSTRUCTION, why)
        yield none(INVERSION, why)
        return
    known = _nonnegative(stage)
    for seen in (EACH, SEALED, SUM):
        some = [one for one in found if one.seen == seen]
        if some:
            yield _reconstruction(stage, some, known)
            yield _inversion(stage, some, known)


def _nonnegative(stage: Stage) -> bool:
    """Whether features are never negative, as those of images are; whoever runs the job knows that of the data."""
    return all(
        (stage.features(client, np.arange(min(shard.samples, 50))) >= 0).all() for client, shard in stage.shards.items()
    )


def _reconstruction(stage: Stage, some: Sequence[Target], known: bool) -> Attempt:
    """The exact row behind a gradient of a minibatch of one."""
    objective, seen = stage.algorithm.problem.objective, some[0].seen
    if seen != SUM and not any(one.batch == 1 for one in some):
        return none(RECONSTRUCTION, f"a minibatch has {some[0].batch} rows, and it needs one", seen=seen)
    if seen == SUM:
        some = [one for one in some if one.batch <= LARGEST_BATCH or one.round == some[0].round][:1]
    rows, matches, claims = [], list[Match](), 0
    for one in some:
        tried = reconstruct(objective, one.model, one.gradient, nonnegative=known)
        claims += tried.claimed
        rows.append(tried.row)
        matches.append(match(tried.row, one.rows))
    good = recovered(matches)
    text = f"{good} of {_count(some)} rows recovered{_lengths(matches)}; the attacker is sure of {claims}"
    truth = [one.rows[matched.at] for one, matched in zip(some, matches, strict=True)]
    pictures = _stacked(rows, truth)
    return Attempt(RECONSTRUCTION, "server", seen, True, good > 0, text, good, _count(some), *pictures)


def _inversion(stage: Stage, some: Sequence[Target], known: bool) -> Attempt:
    """The rows behind a gradient of a few, or of as many as there are classes while a linear model is at zero."""
    seen = some[0].seen
    within = [one for one in some if 1 < one.batch <= LARGEST_BATCH or (one.batch > 1 and not np.any(one.model.first))]
    if not within:
        batch = some[0].batch
        why = f"gradients of {batch} rows; it is tried up to {LARGEST_BATCH}"
        return none(INVERSION, "of one row: reconstruction is enough" if batch == 1 else why, seen=seen)
    objective, matches, chance = stage.algorithm.problem.objective, list[Match](), list[Match]()
    rows, truth, claims = list[Floats](), list[Floats](), 0
    tried = [within[0], within[-1]] if seen == EACH and len(within) > 1 else within[:1]
    for one in tried:
        starts = STARTS if one.batch <= EASY_BATCH else 0
        end = invert(objective, one.model, one.gradient, one.batch, nonnegative=known, starts=starts)
        claims += len(end.rows) if end.claimed else 0
        if not len(end.rows):
            continue
        matched = match_all(end.rows, one.rows)
        matches += matched
        chance += match_all(end.rows, _strangers(stage, one))
        rows += list(end.rows)[: len(matched)]
        truth += [one.rows[each.at] for each in matched]
    good = recovered(matches)
    close, near = (sum(one.verdict == "close" for one in some) for some in (matches, chance))
    text = f"{good} of {_count(tried)} rows recovered{_lengths(matches)}; the attacker is sure of {claims}"
    text += f"; {close} more look alike, and {near} of as many rows that were not there" if close else ""
    text += "; whose they are is not told" if good and seen == SUM and not by_columns(stage) else ""
    pictures = _stacked(rows, truth)
    success = good > 0 or close > near + 3 * np.sqrt(near + 1)  # rows of one kind look alike by chance, too
    return Attempt(INVERSION, "server", seen, True, bool(success), text, good, _count(tried), *pictures)


def _stacked(rows: Sequence[Floats], truth: Sequence[Floats]) -> tuple[Floats, Floats]:
    """For pictures, where rows are of one width."""
    if len({len(row) for row in rows}) != 1:
        return np.zeros((0, 0)), np.zeros((0, 0))
    return np.stack(rows), np.stack(truth)


def _lengths(matches: Sequence[Match]) -> str:
    count = sum(one.verdict == "direction" for one in matches)
    return f", {count} of them up to their length" if count else ""


def _strangers(stage: Stage, target: Target) -> Floats:
    """As many rows of the same clients that did not enter."""
    exchange = stage.exchanges[0].name
    if by_columns(stage):
        inside = stage.rows(target.round, exchange, 0)
        return stage.whole(np.setdiff1d(np.arange(stage.algorithm.problem.samples), inside)[: target.batch])
    whom = list(target.whom) or (sorted(stage.shards) if target.client < 0 else [target.client])
    found = []
    for client in whom:
        inside = stage.rows(target.round, exchange, client)
        others = np.setdiff1d(np.arange(stage.shards[client].samples), inside)
        found.append(stage.features(client, others[: max(1, len(inside))]))
    return np.concatenate(found)


def _count(some: Sequence[Target]) -> int:
    return sum(one.batch for one in some)
