"""`[privacy]`: settings of differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from mpifed.core.nearest import MadeByKeywords
from mpifed.core.refusals import Refusal


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
    noise_on: Literal["gradients", "upload"] | None = None
    """What is clipped and made noisy: each gradient, or the upload after local steps; where absent gradients for local
    noise at level sample, else upload."""
    accounting: Literal["rigorous", "paper"] = "rigorous"
    """Whose formula `epsilon` is by: rigorous, or as the FedPDM-DP paper computes it."""
    noise: Literal["secure", "test"] = "secure"
    """secure: from the system's entropy; test: a function of the job's seed, which protects nobody."""
    distribution: Literal["discrete", "float"] = "discrete"
    """discrete: integers, of which epsilon is computed; float: floating point, whose rounding tells the noise and which
    protects nobody."""

    @property
    def noised(self) -> str:
        """`noise_on`, with its default."""
        return self.noise_on or ("gradients" if self.level == "sample" and self.trust == "local" else "upload")

    @property
    def on_gradients(self) -> bool:
        """Whether noise is added to every clipped gradient instead of the upload."""
        return self.noised == "gradients"

    @property
    def on_grid(self) -> bool:
        """Whether releases are integers; without any noise they are not."""
        return self.distribution == "discrete" and self.noise_multiplier != 0

    @property
    def whole(self) -> bool:
        """Whether the sum is of integers on the grid, which are decoded after summation."""
        return self.trust != "local" and self.on_grid

    @property
    def protects(self) -> bool:
        """Whether the noise is secret and discrete; otherwise epsilon does not hold."""
        return self.noise == "secure" and self.distribution == "discrete"

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
        p.on_gradients and (p.level, p.trust) != ("sample", "local"),
        f'[privacy] noise_on = "gradients" with level = "{p.level}" and {by_trust}',
        "each client makes its own gradients noisy, which protects records",
        'use noise_on = "upload", or level = "sample" with trust = "local"',
    )
    yield Refusal(
        p.by_coins and (p.level, p.trust) != ("client", "central"),
        f'[privacy] sampling = "poisson" with level = "{p.level}" and {by_trust}',
        "coins are of clients, whose number a trusted server alone may know, which adds noise even where none takes "
        "part",
        'use level = "client" with trust = "central", or sampling = "fixed"',
    )
    for name, value, stated in (
        ("level", p.level, "sample"),
        ("trust", p.trust, "local"),
        ("noise_on", p.noised, "upload"),
    ):
        yield Refusal(
            p.accounting == "paper" and value != stated,
            f'[privacy] accounting = "paper" with {name} = "{value}"',
            f'(18) to (20) are stated for {name} = "{stated}"',
            'use that, or accounting = "rigorous"',
        )
