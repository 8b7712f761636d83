"""What of a job does not go with its method's local steps: rows, which `LocalSteps.conflicts` gives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from mpifed.algorithms.refused_compression import refused_compression
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Method
from mpifed.core.refusals import Refusal, messages
from mpifed.maths.optimizers import AVERAGE, ClientOptimizer, ServerOptimizer
from mpifed.maths.problem import Problem
from mpifed.maths.schedules import CosineDecay

MOST = 10**8  # rows that a client draws in a round, whose numbers are in memory


def check_rows(problem: Problem, batch: int) -> list[str]:
    """Errors of data and batch size for algorithms on rows, one message each."""
    key, client = f"[algorithm] batch_size = {batch}", int(np.argmin(problem.counts))
    least = problem.counts[client]
    return messages(
        (
            Refusal(
                problem.split != "rows",
                "[algorithm] name",
                f"needs data split by rows, and the folder is split by {problem.split}",
                "make another with `mpifed data ... --split rows`",
            ),
            Refusal(batch < 1, key, "expected at least 1", "raise it"),
            Refusal(
                problem.privacy is not None and batch > least,
                key,
                f"the smallest shard ({problem.name_of(client)}) has {least} samples, and with [privacy] all clients "
                "draw as many",
                "lower batch_size, or make larger shards, as with fewer clients",
            ),
        )
    )


def too_many(key: str, rows: int) -> Refusal:
    """More rows than a client can draw in a round."""
    what = f"a client would draw {rows} rows in a round, more than {MOST}"
    return Refusal(rows > MOST, f"[algorithm] {key}", what, "take fewer local steps")


def refused_steps(method: Method) -> Iterator[Refusal]:
    """Settings of local steps that contradict each other, the method, or `[privacy]`."""
    refuses, private = method.refuses, method.problem.privacy is not None
    steps, epochs, most, least = method.local_steps, method.local_epochs, method.repeats, method.local_least or 1
    key = "local_epochs" if epochs else "local_steps"
    yield Refusal(
        steps and epochs, "[algorithm] local_steps and local_epochs", "each says how many", "give one of the two"
    )
    yield Refusal(least > most, f"[algorithm] local_least = {least}", f"more than {key} = {most}", "lower it")
    yield Refusal(
        least == most == 1 and method.varying,
        f"[algorithm] {key} = {most}",
        "there is none that a client could leave out, as local_least, [participation] stragglers and "
        "[simulated_network] speeds say",
        "raise it, or leave these out",
    )
    yield Refusal(
        method.varying and "fewer" in refuses,
        "[algorithm] local_least, [simulated_network] speeds or [participation] stragglers",
        refuses.get("fewer", ""),
        "leave it out, or set drop_stragglers = true",
    )
    yield Refusal(
        method.local_least and private,
        "[algorithm] local_least",
        "with [privacy] all clients take the local steps that are accounted for",
    )
    yield Refusal(
        epochs and private,
        "[algorithm] local_epochs",
        "with [privacy] every minibatch is drawn anew, which is what is accounted for",
        "give local_steps",
    )
    for name in ("local_steps", "local_epochs", "local_least"):
        yield Refusal(name in refuses and getattr(method, name), f"[algorithm] {name}", refuses.get(name, ""))
    rows = epochs * method.problem.most if epochs else (steps or 1) * method.batch_size
    yield too_many(key, rows)
    yield from refused_optimizer(method)


def refused_optimizer(method: Method) -> Iterator[Refusal]:
    """Settings of `[client_optimizer]` that do not go with the method's steps."""
    optimizer, refuses = method.client_optimizer, method.refuses
    momentum = optimizer.momentum
    yield without_momentum("client_optimizer", optimizer)
    rate = optimizer.learning_rate
    ends = "schedule" in refuses and ((isinstance(rate, CosineDecay) and not rate.final) or not optimizer.factor(1))
    yield Refusal(
        ends,
        "[client_optimizer] learning_rate",
        "ends at 0, by which this method would divide",
        "give a final above 0",
    )
    own = "" if optimizer.linear else optimizer.memory
    for kind, came in ("momentum", optimizer.memory), ("steps", optimizer.special), ("rate", own):
        yield Refusal(came and kind in refuses, f"[client_optimizer] {came}", refuses.get(kind, ""))
    yield Refusal(
        method.descend is not None and not optimizer.fused,
        f"[client_optimizer] {optimizer.special}",
        "local steps of this method have directions of their own",
    )
    step = method.step_of(1) if method.pull and optimizer.linear and not ends else 0.0
    keep = min(method.keeps(step))
    # where the larger root of the recursion, with the velocity in it, is on the unit circle
    least = -1 / (1 + 2 * momentum) if optimizer.nesterov else -1 - 2 * momentum
    yield Refusal(
        keep <= least and (method.most_steps > 1 or method.lasting),  # the first step begins there
        "[client_optimizer] learning_rate",
        f"a local step of {step:g} multiplies how far a client's model is from the one that it is drawn to by "
        f"{keep:.3g}{f', with momentum {momentum:g}' if momentum else ''}, and so diverges",
        "lower it, or the weight by which models are drawn there",
    )


def without_momentum(table: str, optimizer: ClientOptimizer | ServerOptimizer) -> Refusal:
    """Nesterov's form of nothing."""
    alone = optimizer.nesterov and not optimizer.momentum
    return Refusal(alone, f"[{table}] nesterov = true", "needs momentum > 0")


def refused_method(method: Method) -> Iterator[Refusal]:
    """What of the job does not go with a method whose clients upload after local steps."""
    privacy, server = method.problem.privacy, method.server_optimizer
    mean = method.refuses.get("server_optimizer", "")
    yield without_momentum("server_optimizer", server)
    compression = method.problem.compression
    keeps = method.guard.work.remembers or (compression is not None and compression.memory != "none")
    yield Refusal(
        method.problem.versions
        and (keeps or method.prepare is not None or method.hear is not None or not method.holds("ask", "in_round")),
        "[asynchrony]",
        "what clients of this method keep, do by its `in_round`, or send and hear beside one upload, is of the round "
        "in which they answer",
        "take a method whose clients keep nothing, such as fedbuff, fedasync or fedavg",
    )
    yield Refusal(mean and server != AVERAGE, "[server_optimizer]", mean, "leave the table out")
    yield Refusal(
        method.stop and privacy is not None and not privacy.on_gradients,
        "[algorithm] tolerance",
        "with noise on the upload the number of local steps would depend on the data",
        'take a fixed number (tolerance = 0), or [privacy] level = "sample" with noise = "secure"',
    )
    yield Refusal(
        method.descend is not None and privacy is not None and privacy.level == "sample",
        '[privacy] level = "sample"',
        "local steps that are no multiple of a minibatch's gradient at the model have no proven sensitivity",
        'take level = "client"',
    )
    yield from refused_compression(method)
    if not method.regularized or method.problem.regularizer is None:
        return
    yield Refusal(
        not method.holds("prox_step", "begin", "drift", "push", "descend", "upload", "absorb"),
        "[regularizer]",
        "a class with a `begin`, `drift`, `push`, `descend`, `upload` or `absorb` of its own must say "
        "`prox_step(done)`, how far a constant gradient moves the model where the method rests",
        "give it, or `regularized = False`",
    )
    yield Refusal(
        method.uneven,
        "[algorithm] local_epochs, local_least, [simulated_network] speeds or [participation] stragglers",
        "with a [regularizer] all clients must take as many steps",
        "give local_steps alone",
    )
    for table, who, optimizer in (
        ("server_optimizer", "the server moves", server),
        (
            "client_optimizer",
            "clients move",
            method.client_optimizer,
        ),
    ):
        yield Refusal(
            not optimizer.linear,
            f"[{table}] name",
            f"with a [regularizer] {who} each parameter by a step of its own, for which the prox has no weight",
            'take name = "sgd"',
        )


def wrong_method(method: Method) -> list[str]:
    """Errors of a method, its data and its guard, one message each."""
    rows = check_rows(method.problem, 1 if method.local_epochs else method.batch_size)
    return rows + messages(chain(method.conflicts(), method.guard.conflicts()))


def check_method(method: Method) -> None:
    """Once more without what a class of a user's says, whose own `check`, or `conflicts`, may have left rows out."""
    rows = refused_steps(method), refused_method(method), method.guard.conflicts()
    if wrong := messages(chain(*rows)):
        raise UsageError("\n".join(wrong))


def no_rate(method: Method) -> UsageError:
    """The error where a method reads by which rate a constant gradient moves all parameters, and there is none."""
    return UsageError(
        f"[client_optimizer] {method.client_optimizer.memory}: parameters move at rates of their own, and "
        f'{type(method).__name__} reads `rate`; take name = "sgd"'
    )
