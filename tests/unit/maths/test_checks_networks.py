"""The checks of networks of other libraries, on one of NumPy: silent about the right one, and each mistake is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from mpifed.core.record import map_leaves, vectors
from mpifed.core.row_seeds import seeds_of, words
from mpifed.maths.checks.examined import Broken, Examined
from mpifed.maths.checks.networks import examine_network
from mpifed.maths.checks.objectives import Task, examine_term
from mpifed.maths.objectives import NeuralNetwork, SampleGradients
from mpifed.maths.terms import ErrorRate, Loss


@dataclass(frozen=True)
class Hidden(NeuralNetwork):
    """tanh(X w + b) v."""

    def initial(self, features: int, outputs: int, rng: Any) -> dict[str, Any]:
        return {"w": np.zeros((features, 5)), "b": rng.standard_normal(5), "v": rng.standard_normal((5, outputs))}

    def outputs(self, parameters: Any, X: Any, gradient: bool) -> Any:
        w, b, v = parameters
        hidden = np.tanh(X @ w + b)

        def back(slopes: Any) -> Any:
            down = slopes @ v.T * (1 - hidden**2)
            return type(parameters)(X.T @ down, down.sum(axis=0), hidden.T @ slopes)

        return hidden @ v, back


@dataclass(frozen=True)
class Dropping(Hidden):
    """Half of the hidden units, by the seeds that stand behind the features in training."""

    stochastic: ClassVar[bool] = True
    seeds_of_samples: ClassVar[bool] = True

    def outputs(self, parameters: Any, X: Any, gradient: bool) -> Any:
        w, b, v = parameters
        features, seeds = X[:, : len(w)], seeds_of(X[:, len(w) :].astype(np.int64)) if X.shape[1] > len(w) else None
        hidden, kept = np.tanh(features @ w + b), np.ones((len(X), 5), X.dtype)
        if seeds is not None:
            each = seeds if self.seeds_of_samples else np.arange(len(X))[::-1]
            kept = (2 * (words(each[:, None], np.arange(5)) >= 0)).astype(X.dtype)

        def back(slopes: Any) -> Any:
            down = slopes @ v.T * kept * (1 - hidden**2)
            return type(parameters)(features.T @ down, down.sum(axis=0), (kept * hidden).T @ slopes)

        return kept * hidden @ v, back


class Values(Hidden):
    """Real targets."""

    loss_name = "mse"


def task(classes: int = 3) -> Task:
    rng = np.random.default_rng(1)
    return Task(
        4, classes, "float32", True, rng.standard_normal((1, 6, 4)), np.arange(6) % classes, (1,),
        lambda: np.random.default_rng(2),
    )  # fmt: skip


def examine(network: NeuralNetwork) -> int:
    return examine_network(Examined(network, lambda value: value), task())


def test_the_loss_of_real_targets_is_the_mean_over_those_of_a_sample() -> None:
    rng = np.random.default_rng(3)
    network, scores, y = Values(), rng.standard_normal((2, 7, 3)), rng.standard_normal((2, 7, 3))
    weights = rng.uniform(size=(2, 7))
    targets = vectors(y)
    losses = [[sum((scores[n, s] - y[n, s]) ** 2) / 3 for s in range(7)] for n in range(2)]
    np.testing.assert_allclose(network.loss((), scores, targets), losses, rtol=1e-14)
    slope = network.slope((), scores, targets, weights)
    np.testing.assert_allclose(slope.loss, losses, rtol=1e-14)
    np.testing.assert_allclose(slope.scores, 2 / 3 * (scores - y) * weights[..., None], rtol=1e-14)


def test_a_right_network() -> None:
    assert examine(Hidden()) == 3


def test_a_network_with_dropout_is_tried_in_training_too() -> None:
    assert examine(Dropping()) == 6
    by_place = dataclass(frozen=True)(type("ByPlace", (Dropping,), {"seeds_of_samples": False}))()
    with pytest.raises(Broken, match="depend on the other samples of the call"):
        examine(by_place)


def test_terms_on_a_network() -> None:
    here = Examined(Hidden(), lambda value: value)
    start = Hidden()
    model = start.start(4, 3, np.random.default_rng(0), "float32")
    for term in (Loss((0,)), ErrorRate()):
        assert examine_term(Examined(term, lambda value: value), Examined(start, here.place), model, task()) > 0


def other(**methods: Callable[..., Any]) -> NeuralNetwork:
    network: NeuralNetwork = dataclass(frozen=True)(type("Other", (Hidden,), methods))()
    return network


def outputs(change: Callable[[Any, Any], tuple[Any, Any]]) -> NeuralNetwork:
    """What outputs() gives, changed."""
    return other(outputs=lambda self, *arguments: change(*Hidden().outputs(*arguments)))


def _changed(change: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    """What sample_gradients() gives, changed."""
    return lambda self, *given: (
        SampleGradients(*change(*part)) for part in NeuralNetwork.sample_gradients(self, *given)
    )


state = np.random.default_rng(3)
WRONG: dict[str, tuple[NeuralNetwork, str]] = {
    "a derivative": (outputs(lambda z, back: (z, lambda s: map_leaves(lambda g: 2 * g, back(s)))),
                     'along a direction of length 1 in "b" the way back gives'),
    "float64": (outputs(lambda z, back: (z.astype("f8"), back)), "is of float64 where the arguments are of float32"),
    "the shape": (outputs(lambda z, back: (z[:, 0], back)), r"has shape \(6,\); \(6, 3\) is expected"),
    "no way back": (outputs(lambda z, back: z), r"outputs\(\) gives a ndarray; \(outputs \[s, L\], the way back\)"),
    "noise": (outputs(lambda z, back: (z + state.standard_normal(z.shape), back)), "leave out random numbers"),
    "the batch": (outputs(lambda z, back: (z - z.mean(axis=0), back)), "depend on the other samples of the call"),
    "fields": (outputs(lambda z, back: (z, lambda s: back(s)[:2])), "is a plain tuple; a NamedTuple like that of"),
    "its start": (other(initial=lambda *_: {"w": np.full((4, 5), np.nan), "b": np.zeros(5), "v": np.ones((5, 3))}),
                  '"w" of what initial.. gives is not finite'),
    "a number": (other(initial=lambda *_: {"w": np.ones((4, 5)), "b": np.array(1.0), "v": np.ones((5, 3))}),
                 '"b" of what initial.. gives is a single number'),
    "chance": (other(initial=lambda *_: {"w": state.standard_normal((4, 5)), "b": np.ones(5), "v": np.ones((5, 3))}),
               "different models for equal generators"),
    "norms": (other(sample_gradients=_changed(lambda squares, weighted: (2 * squares, weighted))),
              "are not the squared norms of single gradients"),
    "sums": (other(sample_gradients=_changed(lambda squares, weighted: (squares, lambda f: weighted(abs(f))))),
             "is not the sum of gradients times factors"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_networks(kind: str) -> None:
    network, message = WRONG[kind]
    with pytest.raises(Broken, match=message):
        examine(network)
