"""`[privacy]`: settings of differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from mpifed.core.refusals import Refusal
from mpifed.hyperparameters import MadeByKeywords


@dataclass(frozen=True)
class Privacy(MadeByKeywords):
    """Differential privacy: what is protected, from whom, and with how much noise."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "strict": True}

    delta: Annotated[float, Gt(0), Lt(1)]
    """Of (epsilon, delta)-differential privacy."""
    clip: Annotated[float, Ge(1e-30), Le(1e30)] | None = None
    """Norm to which each gradient is clipped, or each upload; squares of norms must not underflow or overflow."""
    epsilon: Annotated[float, Gt(0), Le(1e30)] | None = None
    """The budget of all rounds, from which the noise is computed; give this or `noise_multiplier`."""
    noise_multiplier: Annotated[float, Ge(0), Le(1e30)] | None = None
    """Standard deviation of the noise divided by the sensitivity."""
    level: Literal["sample", "client"] = "sample"
    """In what two neighbouring data sets differ: one sample of a client, exchanged for another, or one client, left
    out."""
    trust: Literal["local", "distributed", "central"] = "local"
    """local: each client adds its own noise, and trusts nobody; distributed: the clients share the noise of their sum,
    which protects from who sees the sum alone; central: a trusted server adds it."""
    sampling: Literal["fixed", "poisson"] = "fixed"
    """How clients are drawn for a round: fixed: a fixed number without replacement; poisson (level client, trust
    central): each by a coin of its own, in secret."""
    noise: Literal["secure", "test", "paper"] = "secure"
    """secure: integers from the system's entropy; test: from the job's seed, which protects nobody; paper: floats from
    that seed on each upload, as the FedPDM-DP paper counts it, by whose formula `epsilon` then is: no bound."""
    public_preparation: bool = False
    """Whether what was computed from rows when the data were prepared, such as a scale, may be known to all, and the
    weights that a network brings."""

    @property
    def by_paper(self) -> bool:
        """Whether noise and epsilon are those of the FedPDM-DP paper."""
        return self.noise == "paper"

    @property
    def on_gradients(self) -> bool:
        """Whether noise is added to every clipped gradient instead of the upload."""
        return self.level == "sample" and not self.by_paper

    @property
    def on_grid(self) -> bool:
        """Whether releases are integers; without any noise they are not."""
        return not self.by_paper and self.noise_multiplier != 0

    @property
    def whole(self) -> bool:
        """Whether the sum is of integers on the grid, which are decoded after summation."""
        return self.trust != "local" and self.on_grid

    @property
    def by_coins(self) -> bool:
        """Whether clients participate independently at random, so that their number is secret."""
        return self.sampling == "poisson"

    @property
    def bound(self) -> float:
        """G, the clipping norm."""
        assert self.clip is not None  # the job is checked for it
        return self.clip

    @property
    def multiplier(self) -> float:
        """The noise multiplier, after it was computed from epsilon where that is given."""
        assert self.noise_multiplier is not None  # a run computes it before the first round
        return self.noise_multiplier

    @property
    def reach(self) -> float:
        """How much a sum of contributions clipped to norm G can change: 2 G if a sample is replaced, G if a client is
        left out."""
        return self.bound * (2.0 if self.level == "sample" else 1.0)


def conflicts(privacy: Privacy) -> Iterator[Refusal]:
    """What of `[privacy]` does not go together."""
    p, by_trust = privacy, f'trust = "{privacy.trust}"'
    yield Refusal(
        p.clip is None,
        "[privacy] clip",
        "missing; without a bound on what one record or client adds no noise protects it",
        "give the norm to which it is clipped, for instance clip = 1.0",
    )
    yield Refusal(
        (p.epsilon is None) == (p.noise_multiplier is None),
        "[privacy] epsilon, noise_multiplier",
        "each follows from the other, and so one of the two is expected",
        "give epsilon, from which the noise is computed, or the noise itself",
    )
    yield Refusal(
        p.level == "sample" and p.trust != "local",
        f'[privacy] level = "sample" with {by_trust}',
        "records are protected by the noise that each client adds to its own gradients",
        'use trust = "local", or level = "client"',
    )
    yield Refusal(
        p.by_coins and (p.level, p.trust) != ("client", "central"),
        f'[privacy] sampling = "poisson" with level = "{p.level}" and {by_trust}',
        "coins are of clients, whose number a trusted server alone may know, which adds noise even where none takes "
        "part",
        'use level = "client" with trust = "central", or sampling = "fixed"',
    )
    yield Refusal(
        p.by_paper and p.level == "client",
        '[privacy] noise = "paper" with level = "client"',
        '(18) to (20) are stated for level = "sample"',
        'use that, or noise = "secure"',
    )
