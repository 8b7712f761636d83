"""Networks of PyTorch: any `torch.nn.Module` whose loss is a mean over samples.

The module's parameters are those of the model, under the names of its `state_dict`. Buffers, and parameters that need
no gradient, are constants: those of a module that is built with seed 0, alike on every rank. PyTorch runs in one thread
and with deterministic algorithms, so that a client's numbers depend on its own parameters and samples alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from numpy.random import Generator

from mpifed.core.contract import own_module, own_object
from mpifed.core.protocols import Features, Head, Parameters, Slope
from mpifed.core.record import ABSENT, Array, NamedArrays, namespace, of_vectors
from mpifed.maths.objectives.network import NeuralNetwork, Pullback, SampleGradients
from mpifed.maths.objectives.torch_build import built, too_large
from mpifed.maths.objectives.torch_build import library as _torch
from mpifed.maths.objectives.torch_checks import wrong_module
from mpifed.maths.objectives.torch_module import Held, as_array, as_tensor, trained
from mpifed.maths.objectives.torch_passes import Passes
from mpifed.maths.objectives.torch_samples import Gradients

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TorchNetwork(NeuralNetwork):
    """A `torch.nn.Module` that a function of yours builds: needs `pip install mpifed[torch]`."""

    build: str
    """"module:function": gives the `torch.nn.Module`, from no arguments, or from those of `shape` and `outputs` that it
    has. Its initial parameters are drawn by PyTorch's generator, which the job's seed sets."""
    shape: tuple[int, ...] | None = None
    """Shape of a sample as the module takes it, such as [1, 28, 28]; where absent that of the data, or [features]."""
    loss_name: str = field(default="cross-entropy", metadata={"key": "loss"})
    """"cross-entropy" of classes; "mse", (z - y)^2 / 2, of real targets; or "module:function", which gives the loss of
    each sample [s] from the outputs [s, L] and the targets, [s] or, of several reals, [s, L], both tensors."""

    @property
    def classifies(self) -> bool:
        """Whether targets are classes; a loss of one's own says so by `targets = "real"` as its attribute."""
        if self._own_loss is not None:
            return getattr(self._own_loss, "targets", "classes") == "classes"
        return self.loss_name != "mse"

    @property
    def nonnegative(self) -> bool:
        return self._own_loss is None

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        """Whether the module has dropout; known since `start`."""
        return self._held.masks is not None

    def of_shape(self, shape: tuple[int, ...] | None) -> TorchNetwork:
        return self if self.shape is not None or shape is None else replace(self, shape=shape)

    def check(self, features: int, outputs: int) -> list[str]:
        place = f'[model] build = "{self.build}"'
        if self.loss_name not in ("cross-entropy", "mse") and own_module(self.loss_name) is None:
            return [f'[model] loss = "{self.loss_name}": give "cross-entropy", "mse", or your own as "module:function"']
        shape = self._shape_of(features)
        if math.prod(shape) != features:
            return [
                f"[model] shape = {list(shape)}: is of {math.prod(shape)} numbers, and a sample of the data has "
                f"{features}; give the shape of the data"
            ]
        net = built(self.build, 0, shape, outputs)
        wrong = too_large(net)  # before there are three of them
        if not wrong:
            again, other = (built(self.build, seed, shape, outputs) for seed in (0, 1))
            wrong = wrong_module(net, again, other, Passes(shape, outputs, logits=self.loss_name == "cross-entropy"))
        return [f"{place}: {line}" for line in wrong] or self._wrong_loss(features, outputs)

    def initial(self, features: int, outputs: int, rng: Generator) -> dict[str, Array]:
        net = built(self.build, int(rng.integers(2**62)), self._shape_of(features), outputs)
        self._hold(features, outputs)
        return {name: tensor.detach().numpy().copy() for name, tensor in trained(net)}

    @property
    def samples_at_once(self) -> int:
        return self._held.samples

    def outputs(self, parameters: NamedArrays, X: Array, gradient: bool) -> tuple[Array, Pullback]:
        torch, held = _torch(), self._held
        at = held.bind(parameters)
        with torch.set_grad_enabled(gradient):
            z: Tensor = held.net(held.samples_of(X))

        def back(slopes: Array) -> NamedArrays:
            if held.bound != at:  # another pass has bound other parameters since, to which the graph would refer
                return self.outputs(parameters, X, True)[1](slopes)
            return held.gradient(parameters, z, as_tensor(slopes))

        return as_array(z.detach(), X), back

    def gradient(self, model: Parameters, X: Features, y: Array, weights: Array) -> Parameters:
        """The same as by `outputs` and `slope`, bit for bit, by a single way back."""
        pairs = zip(model.head, self.shapes(model.head), strict=True)
        gradients = [namespace(y).empty((len(y), *shape), leaf.dtype) for leaf, shape in pairs]
        out = Parameters(ABSENT, type(model.head)(*gradients))
        self.put_gradient(model, X, y, weights, out)
        return out

    def put_gradient(self, model: Parameters, X: Features, y: Array, weights: Array, out: Parameters) -> None:
        """As `Objective.put_gradient`: PyTorch adds what it finds to the leaves of `out`."""
        held, at = self._held, self.samples_at_once
        assert not isinstance(X, tuple)  # sparse data are refused
        for i, (parameters, x) in enumerate(self._of_each(model, X)):
            held.bind(parameters, [leaf[i] for leaf in out.head])
            for j in range(0, max(len(x), 1), at):
                losses = self._losses(held.net(held.samples_of(x[j : j + at])), _targets(y[i, j : j + at]))
                losses.backward(as_tensor(weights[i, j : j + at]).to(losses.dtype), inputs=held.tensors)

    def loss(self, head: Head, scores: Array, y: Array) -> Array:
        with _torch().no_grad():
            losses: Array = as_array(self._of_outputs(scores, y)[1], scores).reshape(y.shape)
        return losses

    def slope(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        z, losses = self._of_outputs(scores, y)
        each = as_tensor(weights.reshape(-1)).to(losses.dtype)
        (slopes,) = _torch().autograd.grad(losses, z, each)
        return Slope(ABSENT, as_array(slopes, scores).reshape(scores.shape))

    def sample_gradients(self, parameters: NamedArrays, X: Array, y: Array) -> Iterator[SampleGradients]:
        """By one pass where each layer gives its part; else by gradients of some samples at a time."""
        held, like = self._held, type(parameters)
        held.bind(parameters)
        z, seen = held.of_samples.forward(held.samples_of(X))
        of_layers = None if seen is None else held.of_samples.by_layers(self._losses(z, _targets(y)), seen)
        if of_layers is None:
            slopes = self.slope(ABSENT, as_array(z.detach(), X), y, namespace(y).ones(y.shape)).scores
            parts = held.of_samples.one_by_one(held.samples_of(X), as_tensor(slopes))
        else:
            parts = iter([of_layers])
        for part in parts:

            def weighted(factors: Array, part: Gradients = part) -> NamedArrays:
                return like(*[as_array(leaf, X) for leaf in part.weighted(as_tensor(factors))])

            yield SampleGradients(as_array(part.squares, X), weighted)

    @cached_property
    def _own_loss(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        if own_module(self.loss_name) is None:
            return None
        loss: Callable[[Tensor, Tensor], Tensor] = own_object(self.loss_name, f'[model] loss = "{self.loss_name}"')
        return loss

    def _of_outputs(self, scores: Array, y: Array) -> tuple[Tensor, Tensor]:
        """(outputs [m, L] that take a derivative, losses [m]) of all m samples."""
        z = as_tensor(scores.reshape(-1, scores.shape[-1])).requires_grad_()
        return z, self._losses(z, _targets(y))

    def _losses(self, z: Tensor, y: Tensor) -> Tensor:
        """[s] the loss of each sample, from outputs [s, L] and targets [s] or, of several reals, [s, L]."""
        if self._own_loss is not None:
            return self._own_loss(z, y.to(z.dtype) if y.is_floating_point() else y.long())
        if self.loss_name == "mse":
            residual = z - y.reshape(z.shape)
            return (residual * residual).mean(-1) / 2
        losses: Tensor = _torch().nn.functional.cross_entropy(z, y.long(), reduction="none")
        return losses

    def _wrong_loss(self, features: int, outputs: int) -> list[str]:
        """The error of a loss of one's own that is no loss of each sample."""
        if self._own_loss is None:
            return []
        torch, place = _torch(), f'[model] loss = "{self.loss_name}"'
        z = torch.linspace(-1, 1, 3 * outputs).reshape(3, outputs).requires_grad_()
        real = torch.linspace(0.1, 0.9, 3 * outputs).reshape((3, outputs) if outputs > 1 else (3,))
        y = torch.arange(3) % outputs if self.classifies else real
        try:
            loss, alone = self._own_loss(z, y), self._own_loss(z[:1], y[:1])
        except Exception as error:  # it is the user's own code
            return [f"{place}: {type(error).__name__}: {error}; it is called with outputs [s, {outputs}], targets [s]"]
        if not isinstance(loss, torch.Tensor) or tuple(loss.shape) != (3,):
            shape = f" of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            return [
                f"{place}: gives a {type(loss).__name__}{shape} for 3 samples; the loss of each sample, of shape [3], "
                'is expected: their mean is taken here (losses of PyTorch have reduction="none")'
            ]
        if not torch.allclose(loss[:1], alone, rtol=1e-4, atol=1e-6):
            return [f"{place}: a sample's loss depends on the other samples; only means over samples can be summed"]
        if not loss.requires_grad:
            return [f"{place}: has no derivative by the outputs; compute it by PyTorch's functions, without detach()"]
        return []

    def _shape_of(self, features: int) -> tuple[int, ...]:
        return self.shape or (features,)

    def _hold(self, features: int, outputs: int) -> None:
        """Build the module through which samples pass, once."""
        if "_held" not in self.__dict__:
            shape = self._shape_of(features)
            self.__dict__["_held"] = Held(built(self.build, 0, shape, outputs), shape)

    @cached_property
    def _held(self) -> Held:
        raise AssertionError("start() comes first")


def _targets(y: Array) -> Tensor:
    """[m] the targets of all m samples; of several reals [m, t]."""
    flat = y.reshape(-1)
    return as_tensor(namespace(y).ascontiguousarray(of_vectors(flat) if flat.dtype.names else flat))
