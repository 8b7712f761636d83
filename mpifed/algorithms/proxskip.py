"""ProxSkip, or Scaffnew: local steps with control variates, until a coin ends them; TAMUNA: also with masks.

K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik: "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!" (ICML 2022, arXiv:2202.09357). L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik:
"TAMUNA: Doubly Accelerated Distributed Optimization with Local Training, Compression, and Partial Participation" (2023,
arXiv:2302.09832).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le
from typing_extensions import Self

from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, from_zero
from mpifed.algorithms.refused_steps import too_many
from mpifed.core.record import Array, beside
from mpifed.core.refusals import Refusal
from mpifed.core.round import Round


@dataclass(frozen=True)
class ProxSkip(LocalMethod):
    """Steps y_i <- y_i - gamma (gradient - h_i); after each, with probability p, clients take the mean of their models.

    The gradient has that of l2 in it. At the mean h_i <- h_i + (p / gamma) (x - y_i) (Algorithm 2, Scaffnew). A round
    is the steps up to the mean: at least one, 1 / p on average, drawn by the job's seed, as many for all; so there is
    no `local_steps`, `local_epochs` or `local_least` to set. gamma is the learning rate of `[client_optimizer]`; with
    f_i that are mu-strongly convex and L-smooth, gamma = 1 / L and p = sqrt(mu / L) are the paper's.

    # differs from the paper: clients are weighted by their rows, so that the weighted sum of all h_i stays 0; and some
    may be absent, who keep h_i. TAMUNA, for which this is proven, then has h_i move less.

    A client is sent the model as a round begins, and the mean change as it ends: two vectors down, one up.
    """

    gain = 1.0
    regularized = False
    refuses: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("local_steps", "local_epochs", "local_least"), "a coin ends the local steps: set p"),
        "steps": "control variates are of plain steps",
        "fewer": "a coin ends the steps of all clients together",
        "schedule": "h_i moves by a change divided by the learning rate",
        "server_optimizer": "the model is the mean of those of the clients, from which h_i follows",
    }
    why_no_privacy = "takes as many local steps as a coin says, of which no sensitivity is accounted for"
    p: Annotated[float, Gt(0), Le(1)] = field(kw_only=True)
    """The probability with which a local step is the last of the round."""

    def in_round(self, now: Round) -> Self:
        return replace(self, local_steps=int(now.rng("coins").geometric(self.p)))

    start_client = start_memory = from_zero  # h_i = 0; the mean change

    def push(self, h_i: Array, sent: Sent, local: Local) -> Array:
        return local.step * h_i

    def renew(self, h_i: Array, sent: Sent, upload: Array, local: Local) -> Array:
        return h_i - self.p / local.step * upload

    def absorb(self, memory: Array, mean: Array, done: Done) -> tuple[Array, Array]:
        return mean, mean

    def hear(self, h_i: Array, mean: Array, local: Local) -> Array:
        """With `renew` h_i + (p / gamma) (x - y_i): both x and y_i are counted from the model that was sent."""
        return h_i + self.p / local.step * mean

    def conflicts(self) -> Iterator[Refusal]:
        """Also where a round of 20 / p steps, than which one in 10^8 is longer, would be too long."""
        yield from super().conflicts()
        yield too_many("p", int(20 / self.p) * self.batch_size)


@dataclass(frozen=True)
class TAMUNA(ProxSkip):
    """ProxSkip in which each coordinate of the model is sent by `senders` of the round's clients alone.

    In the paper s is `senders`, c `clients_per_round`. Which coordinates a client sends is drawn anew in each round: of
    a cyclic pattern its columns are permuted. Their mean is over the s clients that send them, and the h_i of these
    move in them, by chi times what they would in ProxSkip, chi = N (s - 1) / (s (N - 1)), the largest that is proven.
    With s = c no coordinate is left out; with all clients in a round that is ProxSkip. Clients count alike.

    # differs from the paper: coordinates that are left out travel as zeros.
    """

    weights = "uniform"
    refuses: ClassVar[dict[str, str]] = ProxSkip.refuses | {"cohorts": "all rounds must have equally many clients"}
    senders: Annotated[int, Ge(2)] | None = None
    """By how many clients of a round each coordinate of the model is sent; by default all of them."""

    @property
    def cohort(self) -> int:
        """c, the number of clients in a round."""
        return self.problem.clients_per_round or self.problem.clients

    @property
    def s(self) -> int:
        return self.senders or self.cohort

    @property
    def gain(self) -> float | None:  # type: ignore[override]
        """Where coordinates are left out, an upload is no multiple of the change."""
        return 1.0 if self.s == self.cohort else None

    @property
    def chi(self) -> float:
        N = self.problem.clients
        return N * (self.s - 1) / (self.s * (N - 1))

    def sends(self, now: Round, clients: Array) -> Array:
        """[n, d] which coordinates clients [n] send in a round."""
        c = len(now.ids)
        columns = now.rng("masks").permutation(c)[np.searchsorted(now.ids, clients)]
        cycle: Array = (columns[:, None] - np.arange(c)) % c < self.s
        return cycle[:, self.s * np.arange(self.layout.size) % c]

    def masked(self, vectors: Array, local: Local) -> Array:
        """[n, d] what of vectors, [d] or [n, d], the clients send."""
        if self.s == self.cohort:
            return vectors
        return vectors * beside(vectors, self.sends(local.now, local.block.clients))

    def upload(self, h_i: Array, sent: Sent, change: Array, local: Local) -> Array:
        return self.masked(change, local)

    def renew(self, h_i: Array, sent: Sent, upload: Array, local: Local) -> Array:
        return super().renew(h_i, sent, self.chi * upload, local)

    def absorb(self, memory: Array, mean: Array, done: Done) -> tuple[Array, Array]:
        return super().absorb(memory, self.cohort / self.s * mean, done)

    def hear(self, h_i: Array, mean: Array, local: Local) -> Array:
        return super().hear(h_i, self.masked(self.chi * mean, local), local)

    def conflicts(self) -> Iterator[Refusal]:
        yield from super().conflicts()
        yield Refusal(
            not 2 <= self.s <= self.cohort,
            "[algorithm] senders",
            f"{self.s} clients are to send each coordinate, and {self.cohort} take part in a round",
            "take 2 at least, and no more than take part",
        )
