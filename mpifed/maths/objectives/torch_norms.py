"""Squared norms of each sample's gradient by a module of PyTorch, for clipping.

A linear layer's gradient of one sample is the outer product of its input and the derivative by its output, whose norm
needs no product (I. Goodfellow: "Efficient Per-Example Gradient Computations", 2015, arXiv:1510.01799). Convolutions
are linear in the patches of their input, of which a sample has many: either the products of all pairs of patches give
the norm, or the gradient itself, whichever is smaller (Z. Bu, J. Mao, S. Xu: "Scalable and Efficient Training of Large
Convolutional Neural Networks with Differential Privacy", NeurIPS 2022, arXiv:2205.10683). One pass of all samples thus
serves norms and clipped gradient alike. Of modules with other layers that train, each sample's gradient is formed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

Layer: TypeAlias = Any  # a layer of the kind that a function is for, with the members of that kind

if TYPE_CHECKING:
    from torch import Tensor, nn

_TRIED = (2, 3)  # samples, of the passes that are compared
_TOLERANCE = 1e-9


class Seen(NamedTuple):
    """What a layer has met in a pass."""

    layer: nn.Module
    entered: Tensor  # [s, ...] its input
    version: int  # of the input: another one if it was written to since
    left: Any  # torch.autograd.graph.GradientEdge, of its output


@dataclass(frozen=True)
class SampleNorms:
    """The norms of the gradients of samples of a `shape`, by the parameters that train.

    Parameters
    ----------
    at_once : samples whose gradients are in memory at a time, where layers do not give the norms
    most_bytes : of what a layer forms at a time
    """

    net: nn.Module
    shape: tuple[int, ...]
    at_once: int
    most_bytes: int

    def forward(self, samples: Tensor) -> tuple[Tensor, list[Seen] | None]:
        """(outputs [s, L], what layers have met; None: layers do not give the norms)."""
        return (self.net(samples), None) if not self._layers_do else self._observed(samples)

    def by_layers(self, losses: Tensor, seen: list[Seen]) -> Tensor | None:
        """[s] float64, of losses [s] whose graph is kept; None where a layer's own part does not follow from this."""
        import torch

        if len({id(one.layer) for one in seen}) < len(seen) or any(len(one.entered) != len(losses) for one in seen):
            return None
        slopes = torch.autograd.grad(
            losses, [one.left for one in seen], torch.ones_like(losses), retain_graph=True, allow_unused=True
        )
        if any(one.entered._version != one.version for one in seen):
            return None
        squares = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
        for one, slope in zip(seen, slopes, strict=True):
            if slope is not None:
                squares += self._squares(one.layer, one.entered, slope)
        return squares

    def by_gradients(self, parameters: dict[str, Tensor], samples: Tensor, slopes: Tensor) -> Tensor:
        """[s] float64, from the derivatives [s, L] by the outputs: of a gradient for each sample."""
        import torch
        from torch.func import functional_call, grad, vmap

        fixed = constants(self.net)

        def loss_of(parameters: dict[str, Tensor], x: Tensor, slope: Tensor) -> Tensor:
            z = functional_call(self.net, {**fixed, **parameters}, (x[None],))
            along: Tensor = (z[0] * slope).sum()
            return along

        each_of = vmap(grad(loss_of), (None, 0, 0))
        try:  # not through recurrent layers, nor TorchScript
            each_of(parameters, samples[:1], slopes[:1])
        except Exception:  # as the user's layers raise it; what is wrong in other ways, the loop says
            return self._one_by_one(samples, slopes)
        parts = []
        for x, slope in zip(samples.split(self.at_once), slopes.split(self.at_once), strict=True):
            each = each_of(parameters, x, slope)
            parts.append(torch.stack([(leaf.double() ** 2).flatten(1).sum(1) for leaf in each.values()]).sum(0))
        squares: Tensor = torch.cat(parts)
        return squares

    def _one_by_one(self, samples: Tensor, slopes: Tensor) -> Tensor:
        """[s] float64, from a way back for each sample."""
        import torch

        # one that several layers share counts once
        tensors = list({id(tensor): tensor for layer in self._layers for tensor in _own(layer).values()}.values())
        squares = []
        for x, slope in zip(samples.split(1), slopes.split(1), strict=True):
            leaves = torch.autograd.grad(self.net(x), tensors, slope, allow_unused=True)
            squares.append(sum((leaf.double() ** 2).sum() for leaf in leaves if leaf is not None))
        total: Tensor = torch.stack(squares)
        return total

    def _observed(self, samples: Tensor) -> tuple[Tensor, list[Seen] | None]:
        from torch.autograd.graph import get_gradient_edge

        seen: list[Seen] = []

        def note(layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
            seen.append(Seen(layer, given[0].detach(), given[0]._version, get_gradient_edge(output)))

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        try:
            return self.net(samples), seen
        finally:
            for hook in hooks:
                hook.remove()

    def _squares(self, layer: nn.Module, entered: Tensor, slope: Tensor) -> Tensor:
        """[s] float64 of the parameters of one layer."""
        import torch

        of_kind = _KINDS[type(layer).__name__]
        memory = 8 * _numbers(layer, entered[:1], slope[:1])
        parts = [
            of_kind(layer, x.double(), q.double())
            for x, q in zip(*(t.split(max(1, self.most_bytes // memory)) for t in (entered, slope)), strict=True)
        ]
        squares: Tensor = torch.cat(parts)
        return squares

    @cached_property
    def _layers(self) -> list[nn.Module]:
        """The layers that have parameters of their own which train."""
        return [layer for layer in self.net.modules() if _own(layer)]

    @cached_property
    def _layers_do(self) -> bool:
        """Whether the layers give the norms: all are known, have their parameters alone, and are used once in a pass.

        Beside the structure, passes of few samples are compared with the gradients of each.
        """
        own = [id(tensor) for layer in self._layers for tensor in _own(layer).values()]
        if len(set(own)) != len(own) or not all(map(_known, self._layers)):
            return False
        try:
            return all(map(self._agree, _TRIED))
        except Exception:  # of the user's own code, or of a PyTorch without edges: what follows works without
            return False

    def _agree(self, number: int) -> bool:
        """Whether so many samples have the norms of their gradients, at random parameters in float64."""
        import copy

        import torch

        net = copy.deepcopy(self.net).to("cpu", torch.float64)
        generator = torch.Generator().manual_seed(number)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        for tensor in net.parameters():
            if tensor.requires_grad:
                tensor.data = tensor.detach() + 0.1 * normal(*tensor.shape)
        tried = SampleNorms(net, self.shape, number, self.most_bytes)
        samples = normal(number, *self.shape)
        z, seen = tried._observed(samples)
        tensors = [tensor for one in seen or () for tensor in _own(one.layer).values()]
        uses = _uses(z)
        if any(count > 1 for count in uses.values()) or not set(uses) <= {id(tensor) for tensor in tensors}:
            return False
        losses = (z * normal(*z.shape)).sum(1)
        squares = tried.by_layers(losses, seen or [])
        slopes = [
            torch.autograd.grad(loss, tensors, retain_graph=True, materialize_grads=True) for loss in losses.unbind()
        ]
        expected = torch.stack([torch.stack([(leaf**2).sum() for leaf in leaves]).sum() for leaves in slopes])
        return squares is not None and torch.allclose(squares, expected, rtol=_TOLERANCE, atol=0)


def constants(net: nn.Module) -> dict[str, Tensor]:
    """Buffers and parameters that need no gradient."""
    named = {**dict(net.named_buffers()), **dict(net.named_parameters())}
    return {name: tensor for name, tensor in named.items() if not tensor.requires_grad}


def _own(layer: nn.Module) -> dict[str, Tensor]:
    """The parameters of a layer itself that train."""
    return {name: tensor for name, tensor in layer.named_parameters(recurse=False) if tensor.requires_grad}


def _uses(z: Tensor) -> Counter[int]:
    """How often each parameter, by its `id`, enters the graph of `z`."""
    uses: Counter[int] = Counter()
    met, following = {z.grad_fn}, [z.grad_fn]
    while following:
        for node, _ in following.pop().next_functions:
            if hasattr(node, "variable"):  # where a tensor's derivatives arrive
                uses[id(node.variable)] += 1
            elif node is not None and node not in met:
                met.add(node)
                following.append(node)
    return uses


def _known(layer: nn.Module) -> bool:
    """Whether the layer is one of PyTorch's own below, as PyTorch made it."""
    from torch import nn

    if type(layer) not in (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm):
        return False
    if type(layer) is nn.Conv2d and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return False
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return not any(hooks) and set(_own(layer)) <= {"weight", "bias"}


def _linear(layer: Layer, entered: Tensor, slope: Tensor) -> Tensor:
    """Inputs [s, ..., in] and slopes [s, ..., out]: the sum over `...` of outer products."""
    entered, slope = (tensor.reshape(len(tensor), -1, tensor.shape[-1]) for tensor in (entered, slope))
    return _of_products(layer, entered.mT[:, None], slope.mT[:, None])


def _convolution(layer: Layer, entered: Tensor, slope: Tensor) -> Tensor:
    """Linear in the patches [s, groups, in, places]; slopes [s, groups, out, places]."""
    from torch.nn.functional import unfold

    patches = unfold(entered, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    slope = slope.flatten(2)
    both = (tensor.unflatten(1, (layer.groups, -1)) for tensor in (patches, slope))
    return _of_products(layer, *both)


def _of_products(layer: Layer, inputs: Tensor, slopes: Tensor) -> Tensor:
    """[s] of weights with gradients slopes [s, g, out, t] @ inputs' [s, g, t, in], and of biases with the sums."""
    squares = slopes.new_zeros(len(slopes))
    places = slopes.shape[-1]
    if layer.weight.requires_grad:
        if places == 1:
            squares += ((inputs**2).sum(2) * (slopes**2).sum(2)).sum((1, 2))
        elif places**2 < inputs.shape[2] * slopes.shape[2]:
            squares += ((inputs.mT @ inputs) * (slopes.mT @ slopes)).sum((1, 2, 3))
        else:
            squares += ((slopes @ inputs.mT) ** 2).sum((1, 2, 3))
    if layer.bias is not None and layer.bias.requires_grad:
        squares += (slopes.sum(3) ** 2).sum((1, 2))
    return squares


def _numbers(layer: Layer, entered: Tensor, slope: Tensor) -> int:
    """About how many numbers the norm of one sample forms."""
    if type(layer).__name__ == "Conv2d":
        places = slope[0, 0].numel()
        patches = int(layer.weight[0].numel()) * layer.groups * places
        numbers: int = 2 * patches + min(2 * places**2 * layer.groups, layer.weight.numel()) + 2 * slope.numel()
        return numbers
    places = slope[..., 0].numel() if type(layer).__name__ == "Linear" else 1
    numbers = 2 * (entered.numel() + slope.numel())
    return numbers + (min(2 * places**2, layer.weight.numel()) if places > 1 else 0)


def _group_norm(layer: Layer, entered: Tensor, slope: Tensor) -> Tensor:
    """Scales and shifts of channels, [s, channels, ...]."""
    from torch.nn.functional import group_norm

    normalized = group_norm(entered, layer.num_groups, eps=layer.eps)
    return _of_scales(layer, *(tensor.flatten(2).sum(2) for tensor in (normalized * slope, slope)))


def _layer_norm(layer: Layer, entered: Tensor, slope: Tensor) -> Tensor:
    """Scales and shifts of the last axes, [s, ..., *normalized_shape]."""
    from torch.nn.functional import layer_norm

    normalized = layer_norm(entered, layer.normalized_shape, eps=layer.eps)
    size = layer.weight.numel()
    return _of_scales(layer, *(tensor.reshape(len(slope), -1, size).sum(1) for tensor in (normalized * slope, slope)))


def _of_scales(layer: Layer, by_weight: Tensor, by_bias: Tensor) -> Tensor:
    """[s] from the gradients [s, ...] by the two parameters."""
    squares = by_weight.new_zeros(len(by_weight))
    for parameter, gradient in ((layer.weight, by_weight), (layer.bias, by_bias)):
        if parameter is not None and parameter.requires_grad:
            squares += (gradient**2).sum(1)
    return squares


_KINDS: dict[str, Callable[[Layer, Tensor, Tensor], Tensor]] = {
    "Linear": _linear, "Conv2d": _convolution, "GroupNorm": _group_norm, "LayerNorm": _layer_norm,
}  # fmt: skip
