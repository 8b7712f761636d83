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
    clip: Annotated[float, Gt(0)] | None = None
    """Norm to which each gradient is clipped, or each upload."""
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
    p, clip, by_trust = privacy, privacy.clip, f'trust = "{privacy.trust}"'
    on_gradients, on_sums, sample = p.noise_on == "gradients", p.trust != "local", p.level == "sample"
    yield Refusal(
        clip is None,
        "[privacy] clip",
        "missing; without a bound on what one record or client adds no noise protects it",
        "give the norm to which it is clipped, for instance clip = 1.0",
    )
    yield Refusal(
        clip is not None and not 1e-30 <= clip <= 1e30,
        f"[privacy] clip = {clip or 0:g}",
        "must be a finite number between 1e-30 and 1e30, where squares of norms are computed without underflow and "
        "overflow",
        "scale the data",
    )
    yield Refusal(
        p.epsilon is p.noise_multiplier is None,
        "[privacy]",
        "neither epsilon nor noise_multiplier",
        "give epsilon, from which the noise is computed, or the noise itself",
    )
    yield Refusal(
        None not in (p.epsilon, p.noise_multiplier),
        f"[privacy] epsilon = {p.epsilon or 0:g} and noise_multiplier = {p.noise_multiplier or 0:g}",
        "each follows from the other",
        "give one of the two",
    )
    yield Refusal(
        on_gradients and not sample,
        '[privacy] noise_on = "gradients"',
        'protects records, and level = "client" clients',
        'use noise_on = "upload"',
    )
    yield Refusal(
        on_gradients and sample and on_sums,
        f'[privacy] noise_on = "gradients" with {by_trust}',
        "noise is added only to a sum of uploads there",
        'use noise_on = "upload", or trust = "local"',
    )
    yield Refusal(
        p.by_coins and sample,
        '[privacy] sampling = "poisson" with level = "sample"',
        "minibatches have a fixed size, and coins are of clients",
        'leave it out, or use level = "client" with trust = "central"',
    )
    yield Refusal(
        p.by_coins and not sample and p.trust != "central",
        f'[privacy] sampling = "poisson" of clients with {by_trust}',
        "the number of participating clients would be visible, and there would be no noise when none participates",
        'use trust = "central", or sampling = "fixed"',
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
