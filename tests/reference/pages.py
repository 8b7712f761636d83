"""The generic loop of methods with local steps: a page says what a client and the server do, as its paper prints it.

`PAGES` has a page for every method of `tests/methods.py` that has local steps.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from loops import Objective, close, played, present, rows_of, step_size

from mpifed.core.round import Round
from mpifed.testing import Job, minibatches

PAGES: dict[str, type[Page]] = {}


class Page:
    """FedAvg, and what a page may say otherwise. Models are vectors [d]; what clients keep, [N, d], is here too."""

    name: ClassVar[str]
    steps: ClassVar[dict[str, Any]] = {"local_steps": 3}  # of [algorithm], how many local steps a round has
    uniform: ClassVar[bool] = False  # whether clients count alike in the mean, or by rows
    # attributes that must be what clients keep, [N, d], by its name in their state ("": all of it); and what the server
    kept: ClassVar[dict[str, str]] = {}
    memory: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        PAGES[cls.name] = cls

    def __init__(self, task: Job) -> None:
        self.task, self.data, self.objective = task, rows_of(task.data.path), Objective(task)
        self.settings = task.algorithm
        self.N, self.x = len(self.data), self.objective.start
        if "weights" in self.settings:
            self.uniform = self.settings["weights"] == "uniform"  # type: ignore[misc]  # which is of a class
        self.zeros, self.velocity = np.zeros((self.N, len(self.x))), np.zeros_like(self.x)
        self.square = self.velocity + (task.server_optimizer or {}).get("tau", 0.0) ** 2
        self.rows = np.array([len(y) for _, y in self.data], float)
        self.begin()

    # --- what a page says -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """States before round 1."""

    def before(self, who: list[int], step: float) -> None:
        """What is exchanged before local steps."""

    def start(self, i: int) -> Any:
        """Where client i's steps begin."""
        return self.x

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        """Along whose negative client i steps."""
        return self.gradient(i, at, batch)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        """Moves x, and all states, from where the clients of the round have ended, y_i, after so many steps."""
        self.advance(self.mean(ends) - self.x, max(taken.values()), step)

    def judged(self) -> Any:
        """The model that is measured."""
        return self.x

    # --- hands ------------------------------------------------------------------------------------------------------

    def gradient(self, i: int, at: Any, batch: Any = slice(None)) -> Any:
        """Of client i's mean loss over a minibatch, or all its rows; shortened to `clip_norm`."""
        X, y = self.data[i]
        g = self.objective.gradient(at, X[batch], y[batch])
        norm, most = np.sqrt(np.sum(g * g)), self.task.client_optimizer.get("clip_norm") or np.inf
        return g / norm * most if norm > most else g

    def mean(self, each: dict[int, Any]) -> Any:
        """Over some clients."""
        weight = np.ones(self.N) if self.uniform else self.rows
        return sum(weight[i] * u for i, u in each.items()) / sum(weight[i] for i in each)

    def walk(self, i: int, step: float, batches: list[Any]) -> Any:
        """Where client i's steps end: of momentum SGD in both forms, or of AdamW (arXiv:1711.05101, Algorithm 2)."""
        given, at = self.task.client_optimizer, self.start(i)
        decay, by_step, momentum = given["weight_decay"], given.get("local_schedule"), given.get("momentum", 0.0)
        m, v = np.zeros_like(at), np.zeros_like(at)
        for k, batch in enumerate(batches, start=1):
            g, eta = self.direction(i, at, batch), step
            if by_step:
                eta = step * by_step["initial"] / k ** by_step["exponent"]
            if given["name"] == "sgd":
                g = g + decay * at
                m = momentum * m + g
                at = at - eta * (g + momentum * m if given["nesterov"] else m)
                continue
            b1, b2 = given["beta1"], given["beta2"]
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            at = (1 - eta * decay) * at - eta * (m / (1 - b1**k)) / (np.sqrt(v / (1 - b2**k)) + given["eps"])
        return at

    def advance(self, D: Any, count: int, step: float) -> None:
        """x by the server's optimizer: SGD in both forms of momentum, or Algorithm 2 of arXiv:2003.00295; by the prox.

        The prox goes as far as a constant gradient moves x by so many steps, and the velocity knows of it.
        """
        given, before = self.task.server_optimizer or {}, self.x
        rate, momentum = step_size(given.get("learning_rate", 1.0), self.t), given.get("momentum", 0.0)
        if given.get("name", "sgd") == "sgd":
            self.velocity = momentum * self.velocity + D
            self.x = before + rate * (D + momentum * self.velocity if given.get("nesterov") else self.velocity)
        else:
            beta, v = given.get("beta1", 0.0), self.square
            self.velocity = beta * self.velocity + (1 - beta) * D
            self.square = {
                "adam": 0.99 * v + 0.01 * D**2, "yogi": v - 0.01 * D**2 * np.sign(v - D**2), "adagrad": v + D**2,
            }[given["name"]]  # fmt: skip
            self.x = before + rate * self.velocity / (np.sqrt(self.square) + given["tau"])
        if self.task.regularizer is not None:
            client, away, v = self.task.client_optimizer, 0.0, 0.0
            for _ in range(count):
                g = 1 - step * self.settings.get("mu", 0.0) * away
                v = client["momentum"] * v + g
                away += g + client["momentum"] * v if client["nesterov"] else v
            self.shrink(step * away * rate * (1 + momentum * bool(given.get("nesterov"))))
            self.velocity = (self.x - before) / rate

    def shrink(self, step: float) -> None:
        """x <- prox of the l1 of the job with this step; intercepts are left out."""
        threshold = (self.task.regularizer or {"weight": 0.0})["weight"] * step * self.objective.counted
        self.x = np.sign(self.x) * np.maximum(np.abs(self.x) - threshold, 0)

    def play(self) -> Page:
        """All rounds."""
        rate = self.task.client_optimizer["learning_rate"]
        for t in range(1, self.task.rounds + 1):
            self.t = t
            who, step = present(self.task, t), step_size(rate, t)
            if isinstance(rate, dict) and rate.get("warmup"):
                step *= min(1, t / rate["warmup"])
            batches = {i: minibatches(self.task, t, i) for i in who}
            self.before(who, step)
            ends = {i: self.walk(i, step, batches[i]) for i in who}
            self.server(ends, {i: len(batches[i]) for i in who}, step)
        return self


def same(task: Job, atol: float = 1e-10) -> Page:
    """Models and states are those of the page, to rounding: changes are on a grid of 2^-40."""
    name = "compressed" if task.compression else task.algorithm["name"]
    found, page = played(task), PAGES[name](task).play()
    close(found.model, page.judged(), atol)
    for field, own in page.kept.items():
        close(found.kept(field), getattr(page, own), atol)
    if page.memory:
        close(found.server.memory, getattr(page, page.memory), atol)
    if task.regularizer is not None:
        assert (found.model == 0).any()
    return page


class FedAvg(Page):
    name = "fedavg"


class FedProx(Page):
    """1812.06127, Algorithm 2, whose local problems are solved by stochastic gradient steps."""

    name = "fedprox"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + self.settings.get("mu", 0.0) * (at - self.x)


class Scaffold(Page):
    """1910.06378, Algorithm 1, option II; clients send two changes; the mean of c's is over all clients, by rows."""

    name, kept, memory = "scaffold", {"": "own"}, "c"

    def begin(self) -> None:
        self.own, self.c = self.zeros.copy(), np.zeros_like(self.x)

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) - self.own[i] + self.c

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        dc = 0.0
        for i, y in ends.items():
            new = self.own[i] - self.c + (self.x - y) / (taken[i] * step)
            dc, self.own[i] = dc + self.rows[i] * (new - self.own[i]), new
        super().server(ends, taken, step)
        self.c = self.c + dc / self.rows.sum()


class FedPDM(Page):
    """IEEE MLSP 2023, Algorithm 1, client by client; h = gamma ||x||_1."""

    name, kept = "fedpdm", {"model": "y", "dual": "dual"}

    def begin(self) -> None:
        self.rho, self.taken = self.settings["rho"], list[int]()
        self.y, self.dual = self.zeros + self.x, self.zeros.copy()

    def walk(self, i: int, step: float, batches: list[Any]) -> Any:
        rules = {"prox": 1 / (self.rho + 1 / step), "fedpd": step / self.rho, "paper": step}
        eta = rules[self.settings.get("local_rule", "prox")]
        at = self.y[i] if self.settings.get("start") == "own" else self.x
        for Q, batch in enumerate(batches, start=1):  # noqa: B007  # of which it is the last
            down = self.gradient(i, at, batch) - self.dual[i] + self.rho * (at - self.x)
            at = at - eta * down  # (10a)
            if down @ down <= (self.settings.get("tolerance") or -1.0):  # (11)
                break
        self.taken.append(Q)
        return at

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.y[i], self.dual[i] = y, self.dual[i] + self.rho * (self.x - y)  # (10b), (10c)
        self.x = self.mean({i: y - self.dual[i] / self.rho for i, y in ends.items()})  # (10d), (13)
        self.shrink(1 / self.rho)


class Alone(Page):
    name = "alone"

    def begin(self) -> None:
        self.own = self.zeros + self.x

    def start(self, i: int) -> Any:
        return self.own[i]

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.own[list(ends)] = list(ends.values())
        super().server(ends, taken, step)


class FedCM(Page):
    name = "fedcm"
    m: Any = 0.0

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        a = self.settings.get("alpha", 0.1)
        return a * self.gradient(i, at, batch) + (1 - a) * self.m

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.m = self.mean({i: (self.x - y) / (step * taken[i]) for i, y in ends.items()})
        self.x = self.mean(ends)


class MimeLite(FedCM):
    name = "mime-lite"

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        a = self.settings.get("alpha", 0.1)
        self.m = a * self.mean({i: self.gradient(i, self.x) for i in ends}) + (1 - a) * self.m
        self.x = self.mean(ends)


class FedExP(Page):
    name = "fedexp"
    last: Any = 0.0

    def factor(self, squares: float, square: float) -> float:
        return max(1.0, squares / (2 * (square + self.settings.get("eps", 1e-3))))

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        moved = {i: y - self.x for i, y in ends.items()}
        D = self.mean(moved)
        squares = self.mean({i: u @ u for i, u in moved.items()})
        self.last = self.factor(squares, D @ D) * D
        self.x = self.x + self.last

    def judged(self) -> Any:
        return (self.x + (self.x - self.last)) / 2


class FedExProx(FedExP):
    name = "fedexprox"
    direction = FedProx.direction

    def factor(self, squares: float, square: float) -> float:
        return squares / square

    def judged(self) -> Any:
        return self.x


class FedBuff(Page):
    name, uniform = "fedbuff", True  # where all answer in one instant


class FedAsync(Page):
    name, uniform = "fedasync", True  # where all answer in one instant

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + self.settings.get("rho", 0.005) * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.x = self.x + self.settings.get("alpha", 0.6) * (self.mean(ends) - self.x)


class FedVARP(Page):
    """As the paper has it: the server keeps all M_i."""

    name = "fedvarp"

    def begin(self) -> None:
        self.M = dict(enumerate(self.zeros))

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        moved = {i: y - self.x for i, y in ends.items()}
        self.x = self.x + self.mean(self.M) + self.mean({i: D - self.M[i] for i, D in moved.items()})
        self.M |= moved


class FedACG(Page):
    name = "fedacg"
    m: Any = 0.0

    def start(self, i: int) -> Any:
        return self.x + self.settings.get("lam", 0.85) * self.m

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + 2 * self.settings.get("beta", 1e-3) * (at - self.start(i))

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.m, self.x = self.mean(ends) - self.x, self.mean(ends)


def at_the_top(page: Page, i: int, at: Any, batch: Any) -> Any:
    """The gradient at y + rho g / ||g||."""
    g = page.gradient(i, at, batch)
    return page.gradient(i, at + page.settings["rho"] * g / np.linalg.norm(g), batch)


class FedSAM(Page):
    """2206.02618, Algorithm 1."""

    name = "fedsam"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return at_the_top(self, i, at, batch)


class FedDyn(Page):
    """2111.04263, Algorithm 1."""

    name, uniform, kept = "feddyn", True, {"": "h"}

    def begin(self) -> None:
        self.h, self.alpha = self.zeros.copy(), self.settings["alpha"]

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) - self.h[i] + self.alpha * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.h[i] -= self.alpha * (y - self.x)
        self.mean_of_ends = self.mean(ends)
        self.x = self.mean_of_ends - self.mean(dict(enumerate(self.h))) / self.alpha

    def judged(self) -> Any:
        return self.mean_of_ends


class FedSpeed(FedDyn):
    """2302.10429, with lambda = 1 / alpha."""

    name = "fedspeed"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        mix = self.settings.get("mix", 1.0)
        quasi = (1 - mix) * self.gradient(i, at, batch) + mix * at_the_top(self, i, at, batch)
        return quasi - self.h[i] + self.alpha * (at - self.x)


class FedADMM(Page):
    """2204.03529, Algorithm 1."""

    name, uniform, kept = "fedadmm", True, {"dual": "dual"}

    def begin(self) -> None:
        self.rho = self.settings["rho"]
        self.y, self.dual = self.zeros + self.x, self.zeros.copy()

    def start(self, i: int) -> Any:
        return self.y[i] if self.settings.get("start") == "own" else self.x

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + self.dual[i] + self.rho * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.dual[i] += self.rho * (y - self.x)
            self.y[i] = y
        self.x = self.mean(dict(enumerate(self.y + self.dual / self.rho)))


class FedSplit(Page):
    """2005.05238, Algorithm 1."""

    name, uniform = "fedsplit", True

    def begin(self) -> None:
        self.y, self.z = self.zeros + self.x, self.zeros + self.x

    def start(self, i: int) -> Any:
        starts = {"own": self.y[i], "paper": 2 * self.x - self.z[i]}
        return starts.get(self.settings.get("start", "server"), self.x)

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + (at - (2 * self.x - self.z[i])) / self.settings["s"]

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.y[i], self.z[i] = y, self.z[i] + 2 * (y - self.x)
        self.x = self.mean(dict(enumerate(self.z)))


class DeltaSGD(Page):
    """2306.11201, Algorithm 1."""

    name = "delta-sgd"

    def walk(self, i: int, step: float, batches: list[Any]) -> Any:
        at, last, eta, theta = self.x, None, step, 1.0
        gamma, delta = self.settings.get("gamma", 2.0), self.settings.get("delta", 0.1)
        for batch in batches:
            g = self.gradient(i, at, batch)
            if last is not None:
                turned = g - self.gradient(i, last, batch)
                bound = gamma * np.linalg.norm(at - last) / (2 * np.linalg.norm(turned))
                before, eta = eta, min(bound, np.sqrt(1 + delta * theta) * eta)
                theta = eta / before
            last, at = at, at - eta * g
        return at


class FedNova(FedProx):
    """2007.07481, (9), with the ||a_i||_1 of its three examples."""

    name = "fednova"

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        r, pull = self.task.client_optimizer["momentum"], step * self.settings.get("mu", 0.0)

        def norm(K: int) -> float:
            if pull:
                return (1 - (1 - pull) ** K) / pull
            return (K - r * (1 - r**K) / (1 - r)) / (1 - r)

        a = {i: norm(K) for i, K in taken.items()}
        direction = self.mean({i: (y - self.x) / a[i] for i, y in ends.items()})
        self.x = self.x + self.mean(a) * direction


class ProxSkip(Page):
    """arXiv:2202.09357, Algorithm 2: h_i moves after the coin, with x of its own round."""

    name, kept = "proxskip", {"": "h"}
    steps: ClassVar[dict[str, Any]] = {}  # until the coin

    def begin(self) -> None:
        self.h = self.zeros.copy()

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) - self.h[i]

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        assert len(set(taken.values())) == 1
        super().server(ends, taken, step)
        for i, y in ends.items():
            self.h[i] += self.settings["p"] / step * (self.x - y)


class TAMUNA(ProxSkip):
    """arXiv:2302.09832, Algorithm 1: coordinate k is sent by the clients whose columns are s k, ..., s k + s - 1."""

    name, uniform = "tamuna", True

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        who, s, d = list(ends), self.settings["senders"], len(self.x)
        columns = Round(self.t - 1, self.task.seed, np.ones(self.N, bool)).rng("masks").permutation(len(who))
        chi, self.x = self.N * (s - 1) / (s * (self.N - 1)), np.zeros(d)
        for k in range(d):
            slots = [(s * k + j) % len(who) for j in range(s)]
            senders = [i for i, at in zip(who, columns, strict=True) if at in slots]
            self.x[k] = sum(ends[i][k] for i in senders) / s
            for i in senders:
                self.h[i, k] += chi * self.settings["p"] / step * (self.x[k] - ends[i][k])


class FedLin(Page):
    """arXiv:2102.07053, Algorithm 1, without compression."""

    name = "fedlin"

    def before(self, who: list[int], step: float) -> None:
        self.own = {i: self.gradient(i, self.x) for i in who}
        self.g = self.mean(self.own)

    def walk(self, i: int, step: float, batches: list[Any]) -> Any:
        return super().walk(i, step / len(batches), batches)

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) - self.own[i] + self.g


class MIME(FedLin):
    """arXiv:2008.03606, Algorithm 1, with SGD and momentum as the base optimizer."""

    name = "mime"
    m: Any = 0.0
    walk = Page.walk

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        a = self.settings.get("alpha", 0.1)
        return a * (self.gradient(i, at, batch) - self.gradient(i, self.x, batch) + self.g) + (1 - a) * self.m

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        super().server(ends, taken, step)
        a = self.settings.get("alpha", 0.1)
        self.m = a * self.g + (1 - a) * self.m


# --- compressed uploads: compressors, and what each paper keeps ------------------------------------------------------


def compressed(said: dict[str, Any], u: Any, now: Round, i: int) -> tuple[Any, float]:
    """C(u), and omega, or 0 where C is biased."""
    d, name, size = len(u), said["name"], abs(u)
    k = said.get("k") or max(1, round(said.get("fraction", 0) * d))
    if name == "sign":
        return np.where(u < 0, -1, 1) * size.mean(), 0.0
    out = np.zeros(d)
    if name == "top-k":
        for j in sorted(range(d), key=lambda j: (-size[j], j))[:k]:
            out[j] = u[j]
        return out, 0.0
    if name == "rand-k":
        for j in now.draw("compression", np.array([i]), np.array([d]), k)[0]:
            out[j] = d / k * u[j]
        return out, d / k - 1
    level = now.rng("compression", i).random(d)
    if name == "natural":
        low = 2.0 ** np.floor(np.log2(np.where(u == 0, 1.0, size)))
        return np.sign(u) * low * np.where(level < size / low - 1, 2, 1), 1 / 8
    s, norm = said["levels"], np.linalg.norm(u)
    whole = np.floor(size * s / norm)
    out = norm / s * np.sign(u) * (whole + (level >= 1 - (size * s / norm - whole)))
    return out, min(d / s**2, d**0.5 / s)


class Compressed(Page):
    """FedAvg, as each paper has its memory; the server's estimates are sums over all clients' own."""

    name = "compressed"

    def begin(self) -> None:
        self.said: dict[str, Any] = self.task.compression  # type: ignore[assignment]  # a table
        self.own, self.average, self.seen = self.zeros.copy(), self.zeros.copy(), set[int]()

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        memory, now = self.said["memory"], Round(self.t - 1, self.task.seed, np.zeros(self.N, bool))
        before, direction = self.own.copy(), {}
        for i, y in ends.items():
            u = y - self.x
            if memory == "ef21-sgdm":
                a = self.said.get("alpha", 0.1) if i in self.seen else 1.0
                self.average[i] = u = (1 - a) * self.average[i] + a * u
            self.seen.add(i)
            message = {"none": u, "error-feedback": u + self.own[i]}.get(memory, u - self.own[i])
            sent, omega = compressed(self.said, message, now, i)
            direction[i] = sent = sent / (1 if memory in ("none", "diana") else 1 + omega)
            if memory == "error-feedback":
                self.own[i] = message - sent
            elif memory.startswith("ef21"):
                self.own[i] += sent
            elif memory == "diana":
                self.own[i] += self.said.get("alpha", 1 / (1 + omega)) * sent
        everybody = self.mean(dict(enumerate(before if memory == "diana" else self.own)))
        moved = {"none": 0.0, "error-feedback": 0.0, "diana": everybody}
        self.x = self.x + (moved[memory] + self.mean(direction) if memory in moved else everybody)
