"""Attacks on gradients, each handed what the server heard in the transcript; what they found, beside the truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpifed.audit.attacks.inversion import invert
from mpifed.audit.attacks.matching import EXACT, Match, match, match_all, recovered
from mpifed.audit.attacks.reconstruction import direction, reconstruct
from mpifed.audit.attempt import INVERSION, RECONSTRUCTION, Attempt, Floats, none
from mpifed.audit.reader import EACH, HIDDEN, SEALED, SUM, Reader
from mpifed.audit.stage import Stage
from mpifed.audit.targets import Target, in_parts, targets, unsaid_targets
from mpifed.core.reveals import DualSum

MOST_CLIENTS = 16  # attacked one by one
LARGEST_BATCH = 10  # rows whose gradients are told apart by inversion
LARGEST = 2**26  # numbers in the rows that are compared with what is found
EASY_BATCH, STARTS = 6, 2  # up to so many rows it begins so many times anew; each time takes seconds
MOST_GUESSES = 4  # of what an answer may be, of which the algorithm says nothing; for inversion


def on_gradients(reader: Reader) -> Iterator[Attempt]:
    """Reconstruction and inversion, of single clients' uploads as far as they can be read, and of the sum."""
    found = list(targets(reader, MOST_CLIENTS))
    if in_parts(reader):
        reason = f"data are split by columns: no client sends the gradient of whole rows{reader.by_word}"
        yield none(RECONSTRUCTION, reason, seen=EACH)
        yield none(INVERSION, reason, seen=EACH)
    elif found and reader.stage.transcript.channel == "encrypted" and not any(one.seen != SUM for one in found):
        yield none(RECONSTRUCTION, HIDDEN, seen="sealed uploads")
        yield none(INVERSION, HIDDEN, seen="sealed uploads")
    if not found:
        why = _why_none(reader)
        yield none(RECONSTRUCTION, why)
        yield none(INVERSION, why)
        return
    known = _nonnegative(reader.stage)
    for seen in (EACH, SEALED, SUM):
        here = [one for one in found if one.seen == seen]
        some = [one for one in here if not one.guess and one.numbers <= LARGEST]
        guesses = [one for one in here if one.guess and one.numbers <= LARGEST]
        if here and not (some or guesses):
            why = f"the rows behind it have {here[0].numbers} numbers; up to {LARGEST} are compared with what is found"
            yield none(RECONSTRUCTION, why, seen=seen)
            yield none(INVERSION, why, seen=seen)
        if some:
            yield _reconstruction(reader.stage, some, known)
            yield _inversion(reader.stage, some, known)
        if guesses:
            yield _reconstruction(reader.stage, _best_guesses(reader.stage, guesses, known), known)
            yield _first_success([_inversion(reader.stage, [one], known) for one in guesses[:MOST_GUESSES]])


def on_unsaid_gradients(reader: Reader, explained: set[str]) -> Iterator[Attempt]:
    """Guesses that succeed, where what the algorithm says of an exchange has led to nothing; and beside the rounds."""
    told, known = [one for one in targets(reader, MOST_CLIENTS) if not one.guess], _nonnegative(reader.stage)
    guesses = list(unsaid_targets(reader, MOST_CLIENTS, explained, told))
    for seen, name in dict.fromkeys((one.seen, one.exchange) for one in guesses):
        here = [one for one in guesses if (one.seen, one.exchange) == (seen, name)]
        exact = _reconstruction(reader.stage, _best_guesses(reader.stage, here, known), known)
        few = _first_success([_inversion(reader.stage, [one], known) for one in here[:MOST_GUESSES]])
        for one in (exact, few):
            if one.success:
                yield one._replace(text=f'{one.text}, which the algorithm does not say of "{name}"')


def _why_none(reader: Reader) -> str:
    """Why there is no gradient to attack."""
    if not any(reader.plays(one) for one in reader.rounds):
        return "no exchange of a round was recorded to its end"
    if any(True for one in reader.rounds for _ in reader.told_by_sum(DualSum, one)):
        return f"clients send sums over their dual variables, and no gradients{reader.by_word}"
    return "no gradient is in what can be read, and nothing in it has the shapes of the model"


def _best_guesses(stage: Stage, guesses: Sequence[Target], known: bool) -> list[Target]:
    """Of each client and round the guess that tells a row that was there; the first one where none does."""
    chosen: dict[tuple[int, tuple[int, ...]], Target] = {}
    certain = set[tuple[int, tuple[int, ...]]]()
    for one in guesses:
        key = one.round, one.whom
        first = chosen.setdefault(key, one)
        if one.batch != 1 or key in certain or not recovered([match(direction(one.gradient.first)[0], one.rows)]):
            continue
        sure = reconstruct(stage.algorithm.problem.objective, one.model, one.gradient, nonnegative=known).claimed
        if sure or not recovered([match(direction(first.gradient.first)[0], first.rows)]):
            chosen[key] = one
        certain |= {key} if sure else set()
    return list(chosen.values())


def _first_success(attempts: Sequence[Attempt]) -> Attempt:
    return next((one for one in attempts if one.success), attempts[0])


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
    text += _guess(some)
    truth = [one.rows[matched.at] for one, matched in zip(some, matches, strict=True)]
    pictures = _stacked(rows, truth)
    names = tuple({one.exchange: None for one, way in zip(some, matches, strict=True) if recovered([way])})
    return Attempt(RECONSTRUCTION, "server", seen, True, good > 0, text, good, _count(some), *pictures, names)


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
    good, by_chance = recovered(matches), recovered(chance)
    close, near = (sum(one.verdict == "close" for one in some) for some in (matches, chance))
    text = f"{good} of {_count(tried)} rows recovered{_lengths(matches)}; the attacker is sure of {claims}"
    text += _guess(tried)
    text += f"; and {by_chance} of as many rows that were not there" if by_chance else ""
    text += f"; {close} more look alike, and {near} of as many rows that were not there" if close else ""
    text += "; whose they are is not known" if good and seen == SUM and not some[0].parts else ""
    pictures = _stacked(rows, truth)
    success = beyond_chance(good, by_chance) or close > near + 3 * np.sqrt(near + 1)  # rows of one kind look alike, too
    names = tuple({one.exchange: None for one in tried})
    return Attempt(INVERSION, "server", seen, True, bool(success), text, good, _count(tried), *pictures, names)


def beyond_chance(there: int, strangers: int) -> bool:
    """Whether more rows were met than rows that were not there explain; where none of these was, one is enough."""
    return bool(there > strangers + 3 * np.sqrt(strangers))


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
    if target.parts:
        shard = stage.shards[target.whom[0]]
        inside = shard.rows[stage.rows(target.round, target.exchange, shard.client)]
        return stage.whole(np.setdiff1d(np.arange(stage.algorithm.problem.samples), inside)[: target.batch])
    found = []
    for client in target.whom:
        inside = stage.rows(target.round, target.exchange, client)
        others = np.setdiff1d(np.arange(stage.shards[client].samples), inside)
        found.append(stage.features(client, others[: max(1, len(inside))]))
    rows = np.concatenate(found)
    cosines = _units(rows) @ _units(target.rows).T
    # a row that is there twice, once in the minibatch, is no stranger
    strange: Floats = rows[(np.abs(cosines) < 1 - EXACT**2 / 2).all(axis=1)]
    return strange


def _units(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def _count(some: Sequence[Target]) -> int:
    return sum(one.batch for one in some)


def _guess(some: Sequence[Target]) -> str:
    """As what answers were taken, of which the algorithm says nothing."""
    guesses = dict.fromkeys(one.guess for one in some if one.guess)
    return f"; taken for {', '.join(guesses)}" if guesses else ""
