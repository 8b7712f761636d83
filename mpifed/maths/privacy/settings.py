"""`[privacy]`: what a job protects, from whom, and with which noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt

from mpifed.maths.privacy.sensitivity import reach
from mpifed.maths.ranges import Size, Weight


@dataclass(frozen=True)
class Privacy:
    """The settings of differential privacy; the units of `clip` are those of a gradient, or of an upload.

    `level` is what two neighbouring data sets differ in: one record of one client, or all records of one client.
    `trust` says whom it is protected from. "local": each client adds noise for itself, and so is protected from the
    server too. "distributed": the clients present share the noise of the sum between them, which protects from
    whoever sees the sum and nothing else, as under secure aggregation. "central": a trusted server adds the noise,
    which protects from whoever sees its models.
    `adjacency`: "replace-one" exchanges it for another; "add-remove" leaves it out, while its place, and with it the
    number of records, stays public (zero-out).
    `sampling` is how a minibatch is drawn (level "sample"), or who takes part (level "client"): so many without
    replacement, or each by a coin of its own.
    `noise_on`: each clipped gradient, or what a client uploads after its local steps.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    delta: Annotated[float, Gt(0), Lt(1)]
    clip: Annotated[float, Gt(0)] | None = None  # G: the norm to which a record's gradient, or an upload, is clipped
    epsilon: Size | None = None  # after all rounds of the job, from which the noise is computed; or
    noise_multiplier: Weight | None = None  # standard deviation of the noise / sensitivity
    level: Literal["sample", "client"] = "sample"
    trust: Literal["local", "distributed", "central"] = "local"
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    sampling: Literal["fixed", "poisson"] = "fixed"
    noise_on: Literal["gradients", "upload"] | None = None  # gradients for local noise on level "sample", else upload
    accountant: Literal["pld", "rdp"] = "pld"
    accounting: Literal["rigorous", "paper"] = "rigorous"  # whose epsilon `epsilon` is
    noise: Literal["secure", "test"] = "secure"  # from the system's entropy, or a function of the job's seed
    # integers, of which epsilon is computed; or floats, whose rounding tells the noise, and which protect nobody
    distribution: Literal["discrete", "float"] = "discrete"

    @property
    def noised(self) -> str:
        """`noise_on`, with its default."""
        return self.noise_on or ("gradients" if self.level == "sample" and self.trust == "local" else "upload")

    @property
    def on_gradients(self) -> bool:
        """Whether every clipped gradient is made noisy, and not the upload."""
        return self.noised == "gradients"

    @property
    def on_grid(self) -> bool:
        """Whether what is released are integers; where there is no noise at all, nothing need be rounded."""
        return self.distribution == "discrete" and self.noise_multiplier != 0

    @property
    def whole(self) -> bool:
        """Whether integers are summed, and not what each client has made of its own."""
        return self.trust != "local" and self.on_grid

    @property
    def protects(self) -> bool:
        """Whether the noise is drawn in secret, and in a way that tells nothing more; else epsilon is nobody's."""
        return self.noise == "secure" and self.distribution == "discrete"

    @property
    def by_coins(self) -> bool:
        """Whether each client takes part by a coin of its own, so that how many do is secret."""
        return self.level == "client" and self.sampling == "poisson"

    @property
    def bound(self) -> float:
        """G."""
        assert self.clip is not None  # the job is checked for it
        return self.clip

    @property
    def multiplier(self) -> float:
        """The noise multiplier, once it is settled."""
        assert self.noise_multiplier is not None  # a run computes it before anything is played
        return self.noise_multiplier

    @property
    def reach(self) -> float:
        """By how much a sum of clipped contributions can change: 2 G when one is replaced, G when it is left out."""
        return reach(self.bound, self.adjacency)
