"""FedAvg and FedProx for clients who hold some rows of some columns: hybrid FedAvg, and HyFEM.

Each client fits the labels with its own columns alone, as if it had no others: X_k w_k stands for the whole score.
This is what averaging local models amounts to where no client holds a whole row, and why it falls short there. They
are what T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024,
arXiv:2210.08106) compare with.

Hybrid FedAvg is in its section 2: "computing client weights locally, as before, then concatenating the model weights
and averaging at the overlaps". HyFEM: X. Zhang, W. Yin, M. Hong, T. Chen: "Hybrid Federated Learning: Algorithms and
Implementation" (NeurIPS-SpicyFL 2020, arXiv:2012.12420). Local steps are those of `FedAvg` and `FedProx`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from mpifed.algorithms.cells import Grid, check_cells, own_part, padded, placed_by_columns
from mpifed.algorithms.functions import refused
from mpifed.algorithms.local_method import Local, LocalSteps, slices
from mpifed.core.exchange import Exchange, Field, OwnRecord
from mpifed.core.holdings import by_columns
from mpifed.core.record import Array, leaves, map_leaves
from mpifed.core.refusals import messages
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import Block
from mpifed.hyperparameters import Weight
from mpifed.maths.arrays import power_of_two
from mpifed.maths.objectives import LinearScores, Parameters
from mpifed.maths.problem import model_template, start_model
from mpifed.privacy.open import LocalWork, Open


class OwnColumnsServer(NamedTuple):
    """The server's state."""

    model: Parameters  # w, of `first` alone
    steps: Array  # [] int64, rounds done
    known: Array  # [N] bool, who counted in the last mean


@by_columns("model.first")
class OwnColumnsBroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters  # to each client its own columns
    step: Array  # [] float64, this round's learning rate


class OwnColumnsUpload(NamedTuple):
    """A client's upload."""

    first: Array  # Placed [n, p, h], in its columns: its change, or its w_k, times its weight


@dataclass(frozen=True)
class OwnColumns(LocalSteps, Grid):
    """The base of methods whose clients take local SGD steps in their own columns, on the loss of their own scores.

    As `FedAvg`, and where `pull` is above 0 as `FedProx`. With `lasting` clients go on from the w_k that each keeps,
    and upload it: of absent ones the last counts.
    """

    refuses: ClassVar[dict[str, str]] = {"steps": "columns that no row drawn has are left out of steps"}

    @property
    def weights(self) -> Array:
        """[N] what each client counts in the mean of a column: its rows, or all alike."""
        return np.ones(self.problem.clients) if self.lasting else self.problem.weights

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives the weighted sum of changes, or of models, each in its own columns."""
        shape, heaviest = model_template(self.problem).first.shape, power_of_two(float(self.weights.max()))
        fields = OwnColumnsUpload(Field(shape, 2.0**-40 * heaviest, 2.0**10 * heaviest, held=self.problem.columns))
        keeps = "models" if self.lasting else ""
        return (Exchange(keeps or "changes", fields, self.ask, self.answer, self.absorb, keeps=keeps),)

    def check(self) -> list[str]:
        """The batch must fit the data, and the model must be linear without intercepts."""
        objective = self.problem.objective
        apart = not isinstance(objective, LinearScores) or any(leaves(model_template(self.problem).head))
        message = (
            f"[model] name: {type(objective).__name__} has parameters that belong to no column; take a model "
            "without: hinge, squared-hinge, logistic, least-squares, or softmax without bias"
        )
        least = "[algorithm] local_least: columns that no row drawn has take all steps at once; leave it out"
        return (
            check_cells(self.problem)
            + messages(self.conflicts())
            + refused((apart, message), (self.local_least, least))
        )

    def start_server(self, now: Round) -> OwnColumnsServer:
        """The initial model; no w_k is known yet."""
        return OwnColumnsServer(start_model(self.problem, now), np.int64(0), np.zeros(self.problem.clients, dtype=bool))

    def start_clients(self, block: Block, now: Round) -> OwnRecord:
        """[n, P, h] w_k at the initial model, in the client's columns, padded with zeros; () where none is kept."""
        first = start_model(self.problem, now).first
        models = [own_part(first, shard) for shard in block.shards]
        return padded(models, max(map(len, models))) if self.lasting else ()

    def ask(self, server: OwnColumnsServer, now: Round) -> OwnColumnsBroadcast:
        return OwnColumnsBroadcast(server.model, np.float64(self.step_of(int(server.steps) + 1)))

    def answer(
        self, clients: OwnRecord, broadcast: OwnColumnsBroadcast, block: Block, now: Round
    ) -> tuple[OwnRecord, OwnColumnsUpload]:
        """Local steps from the server's w, and their change; or from w_k, and where they end."""
        values = []
        for i, shard in enumerate(block.shards):
            model = own_part(broadcast.model.first, shard)
            start = clients[i, : shard.features] if self.lasting else None
            value = self._change(model, start, float(broadcast.step), block.only(np.array([i])), now)
            values.append(value + model if self.lasting else value * value.dtype.type(self.weights[shard.client]))
        if self.lasting:
            clients = padded(values, clients.shape[1])
        return clients, OwnColumnsUpload(placed_by_columns(self.problem, values, block))

    def absorb(self, server: OwnColumnsServer, total: OwnColumnsUpload, now: Round) -> OwnColumnsServer:
        """In each column the mean over those of its holders who count; where none does, the model is unchanged."""
        known = now.present | (server.known & self.lasting)
        weight, first = self.problem.columns.summed(known * self.weights), server.model.first.copy()
        held = weight > 0
        mean = total.first[held] / weight[held, None].astype(first.dtype)
        first[held] = mean if self.lasting else first[held] + mean
        return OwnColumnsServer(Parameters(first, ()), server.steps + 1, known)

    # --- local steps ------------------------------------------------------------------------------------------------

    def _change(self, model: Array, start: Array | None, step: float, alone: Block, now: Round) -> Array:
        """[p_i, h] how far the single client of a block ends from `model`, which has its own columns only.

        Of sparse rows, only the columns that occur in the rows drawn take the steps one after the other: in all others
        the steps x <- keep x + push are taken at once.
        """
        at: Array | slice = slice(None)
        near, shard = alone, alone.shards[0]
        if alone.sparse:
            drawn = slices(self.batch_size, self.repeats, bool(self.local_epochs), shard.samples)[-1].stop
            rows: Array = np.unique(alone.draw(now, "minibatch", drawn))
            X = shard.take_sparse(rows, alone.dtype)
            at = np.flatnonzero(np.bincount(X.indices))
            X = X[:, at]
            few_columns: Any = SimpleNamespace(  # what local steps read of a shard
                client=shard.client, samples=shard.samples, sparse=True, y=shard.y,
                take_sparse=lambda few, dtype: X[np.asarray(np.searchsorted(rows, few))],
            )  # fmt: skip
            near = Block((few_columns,), alone.dtype)
        push = step * self.pull * model if self.pull else None
        few, parts = model[at], (None if part is None else part[at].reshape(1, -1) for part in (push, start))
        work = LocalWork(self.most_steps, self.batch_size, self.client_optimizer)
        guard = Open(self.problem, Layout({"first": few.shape}), Parameters(few, ()), work)
        end: Array = Local(self, near, now, step, guard).change(few.reshape(-1), *parts).reshape(few.shape)
        if not alone.sparse:
            return end
        count, (keep, _) = int(self.steps_of(alone.counts[0], np.int64(self.repeats))), self.keeps(step)
        change: Array = (model if start is None else start) * model.dtype.type(keep**count)
        if push is not None:
            change += push * push.dtype.type(sum(keep**r for r in range(count)))
        change -= model
        change[at] = end
        return change


@dataclass(frozen=True)
class HybridFedAvg(OwnColumns):
    """Every round the participating clients take SGD steps in their own columns; overlaps are averaged.

    A client begins at the server's w in its columns, and fits the labels with these alone. Then w in each column moves
    by the mean change over the samples of those present who hold it; a column that none of them holds stays. Local work
    is counted as in `FedAvg`. The paper's
    learning rate a / (b + sqrt(t)) is {initial = a, exponent = 0.5, offset = b}.

    `combine` says what the model is. "overlaps": w. # differs from the paper: "feature-blocks": w divided by the number
    of clients who hold a sample, on average: the number of feature blocks of a grid. Each block has been fitted to the
    whole label, so that where all do well the sum of their scores is too large by that; their mean is not.

    With data split by rows both are FedAvg.
    """

    combine: Literal["overlaps", "feature-blocks"] = "overlaps"
    """What the model is: overlaps: in each column the mean over its holders; feature-blocks: that divided by how many
    clients hold a sample, on average."""

    @property
    def scale(self) -> float:
        """The server's w relative to the model: with "feature-blocks" how many clients hold a sample, on average."""
        return float(self.problem.counts.sum()) / self.problem.samples if self.combine == "feature-blocks" else 1.0

    def start_server(self, now: Round) -> OwnColumnsServer:
        server = super().start_server(now)
        return server._replace(model=map_leaves(lambda w: w * w.dtype.type(self.scale), server.model))

    def model(self, server: OwnColumnsServer) -> Parameters:
        """w; with "feature-blocks" divided by the mean number of holders of a sample."""
        return map_leaves(lambda w: w * w.dtype.type(1 / self.scale), server.model)


@dataclass(frozen=True)
class HyFEM(OwnColumns):
    """Every client has a model of its own columns, drawn towards the server's model, the mean over all clients.

    # differs from the paper: of its formulation, which is made for networks with embeddings to be matched, this is what
    is left for a linear model. It minimizes, over w_0 and every client's w_k,

        sum over k of f_k(w_k) + mu / 2 ||w_k - w_0[M_k]||^2,

    where f_k is the mean loss of client k's rows by the scores of its own columns M_k alone, plus l2 ||w_k||^2.
    Of a round's clients each takes local SGD steps from where its w_k was; and w_0 in each column becomes the mean over
    all who hold it of the last w_k that the server received, without those who never participated. The model is
    w_0. With mu = 0 the clients are independent. Its minimum is not that of the common problem.

    The learning rate as for `HybridFedAvg`.
    """

    mu: Weight = field(kw_only=True)
    """Weight of mu / 2 ||w_k - w_0||^2, which draws a client's model towards the server's; 0: clients are
    independent."""

    lasting: ClassVar[bool] = True

    @property
    def pull(self) -> float:
        return self.mu
