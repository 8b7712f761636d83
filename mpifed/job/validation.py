"""Errors in the combination of a job's tables, and of a job with its data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.certificate import is_convex, strong_convexity
from mpifed.algorithms.functions import constrains, squares_alone, wrong_functions
from mpifed.algorithms.horizontal import model_template
from mpifed.core.algorithm import Algorithm
from mpifed.core.privacy import Privacy
from mpifed.core.text import shown
from mpifed.data.statistics import intercept_warnings
from mpifed.data.store import Federation
from mpifed.job.components import with_intercepts
from mpifed.job.methods import unconstrained
from mpifed.job.participation import is_secret
from mpifed.job.settings import Settings
from mpifed.job.time_model import wrong_network
from mpifed.maths.privacy.accounting import wrong_combination
from mpifed.maths.privacy.release import Release


def wrong_together(job: Settings) -> list[str]:
    """Errors in the combination of a job's tables, independent of the data, one message each."""
    wrong = list(_wrong_privacy(job.privacy)) if job.privacy is not None else []
    if job.privacy is not None and job.privacy.by_coins and job.participation.clients_per_round is None:
        wrong.append(
            '[privacy] sampling = "poisson" at level "client": each client takes part by a coin of its own; give '
            "[participation] clients_per_round, how many do on average"
        )
    if job.algorithm.get("returns") == "best feasible" and not job.record.evaluate_every:
        wrong.append(
            '[algorithm] returns = "best feasible": is of the models that are evaluated, and [record] evaluate_every = '
            "0 evaluates none; raise it, or leave returns out"
        )
    if job.privacy is not None and job.model.get("start") is not None:
        wrong.append(
            f'[model] start = "{shown(job.model["start"])}": what that model has learned of the data is counted by no '
            "epsilon; leave it out with [privacy]"
        )
    wrong += _wrong_channel(job)
    wrong += wrong_network(job.simulated_network)
    if job.stop.epsilon is not None and job.privacy is None:
        wrong.append(f"[stop] epsilon = {job.stop.epsilon:g}: a budget needs the table [privacy]; add it, or drop this")
    for name in job.stop.certificates if job.privacy is not None else ():
        wrong.append(
            f"[stop] {name}: is computed from training data without noise, so epsilon does not cover what the "
            "end of the run would tell of them; leave it out, or stop by rounds, [stop] seconds or [stop] epsilon"
        )
    if job.record.released_only and job.constraint:
        wrong.append(
            "[record] released_only: nothing is computed from training data to be reported, so nobody could say "
            "whether a [[constraint]] is met; leave one of them out"
        )
    if job.record.released_only and job.record.client_tests:
        wrong.append(
            "[record] client_tests and released_only: a client's score is computed from its own data without noise; "
            "leave one of them out"
        )
    for name in job.stop.certificates if job.record.released_only and job.privacy is None else ():
        wrong.append(
            f"[record] released_only: nothing is computed from training data to be reported, so [stop] {name} "
            "cannot be reached; leave one of them out"
        )
    return wrong


def _wrong_channel(job: Settings) -> Iterator[str]:
    """Settings that are not compatible with the channel, or with dropouts."""
    channel, part = job.channel, job.participation
    if channel != "plain" and job.aggregation.arithmetic == "exact-blocks":
        yield (
            f'[aggregation] arithmetic = "exact-blocks": security = "{channel}" takes each client\'s answer by itself; '
            'set arithmetic = "exact", or security = "plain"'
        )
    if part.dropout_rate and not part.max_dropouts:
        yield (
            f"[participation] dropout_rate = {part.dropout_rate:g}: whoever leaves makes the round void; give "
            "max_dropouts, how many may"
        )


def _wrong_privacy(privacy: Privacy) -> Iterator[str]:
    if privacy.clip is None:
        yield (
            "[privacy] clip: missing; without a bound on what one record or client adds no noise protects it; give "
            "the norm to which it is clipped, for instance clip = 1.0"
        )
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        yield (
            "[privacy]: neither epsilon nor noise_multiplier; give epsilon, from which the noise is computed, or the "
            "noise itself"
        )
    if privacy.epsilon is not None and privacy.noise_multiplier is not None:
        yield (
            f"[privacy] epsilon = {privacy.epsilon:g} and noise_multiplier = {privacy.noise_multiplier:g}: each "
            "follows from the other; give one of the two"
        )
    if privacy.clip is not None and math.isinf(privacy.clip):
        yield f"[privacy] clip = {privacy.clip}: must be a finite number"
    if privacy.clip is not None and math.isfinite(privacy.clip) and not 1e-30 <= privacy.clip <= 1e30:
        yield (
            f"[privacy] clip = {privacy.clip:g}: must lie between 1e-30 and 1e30, where squares of norms are computed "
            "without underflow and overflow; scale the data"
        )
    yield from wrong_combination(privacy)


def wrong_fit(job: Settings, algorithm: Algorithm) -> list[str]:
    """Errors in the combination of a job with its algorithm and data, one message each."""
    problem, name = algorithm.problem, job.algorithm["name"]
    privacy = problem.privacy
    private = privacy is not None
    if private and not algorithm.accounts():
        others = ", ".join(known for known, kind in ALGORITHMS.items() if kind.accounts())
        return [
            f'[algorithm] name = "{name}": does not say what it releases, so nobody could account for it; a class of '
            f"your own has `released` beside its `answer` and `absorb`; [privacy] goes with {others}"
        ]
    settled = algorithm
    if privacy is not None and privacy.noise_multiplier is None:
        settled = with_noise(algorithm, 1.0)  # the checks do not depend on its value
    wrong = [*wrong_functions(problem), *settled.check()]
    if privacy is not None and not wrong:
        wrong += _wrong_amplification(privacy, settled.released(0), name)
        wrong += _wrong_secret(job, settled) if is_secret(job, settled) else []
    if privacy is not None:
        wrong += _wrong_delta(privacy, problem.samples, problem.clients)
    if constrains(problem) and not algorithm.constrained:
        wrong.append(unconstrained(name))
    if not (algorithm.regularized and algorithm.holds("regularized")):
        wrong += squares_alone(problem)
    per_round = job.participation.clients_per_round
    if per_round is not None and per_round > problem.clients:
        wrong.append(f"[participation] clients_per_round = {per_round}: {job.data.path} has {problem.clients} clients")
    elif per_round not in (None, problem.clients) and algorithm.needs_everybody:
        wrong.append(
            f'[participation] clients_per_round = {per_round}: "{name}" needs all {problem.clients} clients in '
            f"every round, since {algorithm.why_everybody}; leave it out"
        )
    if job.participation.dropout_rate and algorithm.needs_everybody:
        wrong.append(
            f'[participation] dropout_rate = {job.participation.dropout_rate:g}: "{name}" needs all clients in every '
            f"round, since {algorithm.why_everybody}; leave it out"
        )
    if job.participation.dropout_rate and any(exchange.keeps for exchange in settled.exchanges):
        wrong.append(
            f'[participation] dropout_rate = {job.participation.dropout_rate:g}: "{name}" goes on counting the last '
            "answers of absent clients, and knows none who leave within a round; leave it out"
        )
    wrong += _too_few(job, per_round or problem.clients)
    return [*wrong, *([] if wrong else _wrong_certificates(job, algorithm))]


def _wrong_certificates(job: Settings, algorithm: Algorithm) -> Iterator[str]:
    """Certificates of [stop] that this job can never reach."""
    problem, name = algorithm.problem, job.algorithm["name"]
    measured = {column for measure in algorithm.measures for column in measure.certificate}
    for certificate in job.stop.certificates:
        if certificate != "duality_gap" and certificate not in measured:
            yield f'[stop] {certificate}: "{name}" measures no certificate; leave it out, or add one to its measures'
    if job.stop.duality_gap is None or algorithm.certifies_gap:
        return
    if "duality_gap" not in measured:
        yield f'[stop] duality_gap: "{name}" has none that could end a run: {algorithm.why_no_gap}; leave it out'
        return
    if not (is_convex(problem) and strong_convexity(problem, model_template(problem)).any()):
        free = "; here l2 leaves the intercepts out: set bias = false" if getattr(problem.objective, "bias", 0) else ""
        yield (
            "[stop] duality_gap: a lower bound needs an objective and constraints that are convex, one of them "
            "strongly, as with [model] l2 > 0 of all parameters or the norm, no regularizer, and all rows "
            f"measured{free}; leave it out"
        )


def _too_few(job: Settings, present: int) -> Iterator[str]:
    """Errors where a round has too few clients for a sum to be opened."""
    dropouts, least = job.participation.max_dropouts, job.aggregation.min_clients
    if dropouts >= present:
        yield f"[participation] max_dropouts = {dropouts}: there are {present} clients in a round; lower it"
    elif job.channel != "plain" and present - dropouts < least:
        after = f" of whom {dropouts} may leave" if dropouts else ""
        yield (
            f"[aggregation] min_clients = {least}: there are {present} clients in a round{after}, and the sum of fewer "
            "is not opened; let more take part"
        )
    elif job.channel == "masked" and dropouts and present < 2 * dropouts + 2:
        yield (
            f"[participation] max_dropouts = {dropouts}: there are {present} clients in a round, and masked sums need "
            f"{2 * dropouts + 2}, so that of those who hold shares of a client's secrets a majority stays; lower it, "
            "or let more take part"
        )


def with_noise(algorithm: Algorithm, multiplier: float) -> Algorithm:
    """The algorithm with this noise multiplier."""
    problem = algorithm.problem
    assert isinstance(problem.privacy, Privacy)  # as the job has it
    privacy = dataclasses.replace(problem.privacy, noise_multiplier=multiplier)
    return dataclasses.replace(algorithm, problem=dataclasses.replace(problem, privacy=privacy))


def _wrong_amplification(privacy: Privacy, release: Release, name: str) -> list[str]:
    """An error where an algorithm counts on secret participation that the job does not have."""
    if privacy.level == "sample" or privacy.by_coins or not (release.by_chance or (release.rate < 1).any()):
        return []
    return [
        f'[algorithm] name = "{name}": `released` has a rate below 1, or by_chance, at level "client": a client who is '
        "left out of a fixed number of participants is replaced by another, which no proof covers; set [privacy] "
        'sampling = "poisson", or let rates be 1'
    ]


def _wrong_secret(job: Settings, algorithm: Algorithm) -> Iterator[str]:
    """Settings that reveal the participating clients, or their number, where epsilon assumes that these are secret."""
    part = job.participation
    if any(exchange.keeps or exchange.who for exchange in algorithm.exchanges):
        yield (
            f'[algorithm] name = "{job.algorithm["name"]}": absent clients go on counting, which tells who takes part; '
            "`released` must not say by_chance, and so has no amplification"
        )
    if part.dropout_rate or part.max_dropouts:
        yield (
            f"[participation] dropout_rate = {part.dropout_rate:g}, max_dropouts = {part.max_dropouts}: with [privacy] "
            'sampling = "poisson" of clients a round would be void depending on how many take part, which is secret; '
            'leave both out, or set sampling = "fixed"'
        )
    hidden = {exchange.name for exchange in algorithm.exchanges if not exchange.clear} - set(job.aggregation.allow)
    if job.channel != "plain" and job.aggregation.min_clients > 1 and hidden:
        yield (
            f'[aggregation] min_clients = {job.aggregation.min_clients}: with [privacy] sampling = "poisson" of '
            "clients the run would end in a round of fewer, and tell their number, which is secret; set "
            'min_clients = 1, or security = "plain": the server is trusted'
        )


def _wrong_delta(privacy: Privacy, samples: int, clients: int) -> Iterator[str]:
    """A delta so large that a whole record or client could be published."""
    count, what = (clients, "clients") if privacy.level == "client" else (samples, "samples")
    if privacy.delta >= 1 / count:
        yield (
            f"[privacy] delta = {privacy.delta:g}: must lie below 1/{count} = {1 / count:.2g}, since at level "
            f'"{privacy.level}" there are {count} {what}, and a delta of 1/{count} would allow to publish one of them '
            f"whole; {0.1 / count:.0e} is usual"
        )


def data_warnings(job: Settings, data: Federation) -> list[str]:
    """Warnings on the data for this model; none with [privacy], since they are computed from all rows."""
    bias = with_intercepts(job.model, job.algorithm).get("bias")
    if job.privacy is not None or bias is None:
        return []
    return intercept_warnings(data.statistics, bool(bias), data.names())
