"""The guard of a method with local steps, and what it must know of these."""

from __future__ import annotations

import numpy as np

from mpifed.core.exchange import Method
from mpifed.core.record import bare_leaves
from mpifed.maths.problem import model_template
from mpifed.privacy.open import LocalWork, Open


def guard_of(method: Method) -> Open:
    """What stands between the clients of a method with local steps, and all others."""
    # a class that changes an upload, what it follows from, or what is kept, says anew what follows of it
    hooks = "step_for", "begin", "push", "descend", "upload", "renew", "stop"
    keeping = ("retain",) if method.retain is None else ("retain", "hear", *hooks)
    problem, like, optimizer = method.problem, method.template, method.client_optimizer
    scaled = optimizer.linear and optimizer.clip_norm is None  # changes are multiples of gradients
    work = LocalWork(
        method.most_steps,
        method.batch_size,
        optimizer,
        pull=method.pull,
        gain=method.gain if method.holds("gain", *hooks) and scaled else None,
        uniform=method.weights == "uniform",
        remembers=bool(bare_leaves(method.start_client(method.zeros))),
        hidden=method.private_state if method.holds("private_state", *keeping) else "what its `retain` gives",
        several=isinstance(like, tuple) or np.shape(like) != (problem.layout.size,),
    )
    kind = Open
    if problem.privacy is not None:
        from mpifed.privacy.guards import kind_of  # which no other job needs

        kind = kind_of(problem.privacy)
    return kind(problem, problem.layout, model_template(problem), work)
