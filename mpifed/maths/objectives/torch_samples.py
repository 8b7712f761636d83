"""The gradient of each sample by a module of PyTorch, for clipping: its norm, and sums of the gradients times factors.

A linear layer's gradient of one sample is the outer product of its input and the derivative by its output, whose norm
needs no product (I. Goodfellow: "Efficient Per-Example Gradient Computations", 2015, arXiv:1510.01799). Where a layer
meets a sample at many places, as convolutions do, and for all else, each sample's gradient is formed, of some samples
at a time. What is scaled is what the norm is of, never the loss: another way back, from scaled derivatives, may round
otherwise where terms cancel, and large inputs of a layer would make of that a gradient of any norm.

Where all layers with parameters are known, one pass of all samples serves (compare Z. Bu, J. Mao, S. Xu: "Scalable and
Efficient Training of Large Convolutional Neural Networks with Differential Privacy", NeurIPS 2022, arXiv:2205.10683).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

Layer: TypeAlias = Any  # a layer of the kind that a function is for, with the members of that kind

if TYPE_CHECKING:
    from torch import Tensor, nn

_TRIED = (2, 3)  # samples, of the passes that are compared
_TOLERANCE = 1e-9
# beginnings of the names of PyTorch's operations that may put rows, of samples, into another order
_MOVE_ROWS = ("Index", "Gather", "Scatter", "MaskedS", "Take", "Embedding")
_LARGEST = 1e200  # of squared norms of an outer product's vectors: no product of smaller ones underflows unseen


class Seen(NamedTuple):
    """What a layer has met in a pass."""

    layer: nn.Module
    own: list[Tensor]  # the parameters that it had, and that train
    entered: Tensor  # [s, ...] its input
    version: int  # of the input: another one if it was written to since
    left: Any  # torch.autograd.graph.GradientEdge, of its output


class Part(NamedTuple):
    """Of some samples' gradients by one parameter, or by all."""

    squares: Tensor  # [s] float64 squared norms
    weighted: Callable[[Tensor], Tensor]  # by factors [s]: the sum; factors of 0 leave out what need not be finite


class Gradients(NamedTuple):
    """The gradients of some samples by all parameters that train."""

    squares: Tensor  # [s] float64
    weighted: Callable[[Tensor], list[Tensor]]  # by factors [s]: the sum, a tensor for each parameter


@dataclass(frozen=True)
class TorchSamples:
    """The gradients of samples of a `shape`, by `tensors`, the parameters that train.

    Parameters
    ----------
    at_once : samples whose gradients are in memory at a time, where layers do not give them
    most_bytes : of what layers form at a time
    """

    net: nn.Module
    tensors: Sequence[Tensor]
    shape: tuple[int, ...]
    at_once: int
    most_bytes: int

    def forward(self, samples: Tensor) -> tuple[Tensor, list[Seen] | None]:
        """(outputs [s, L], what layers have met; None: layers do not give the gradients)."""
        if not self._layers_do:
            return self.net(samples), None
        z, seen = self._observed(samples)
        return z, seen if _by_these_alone(z, seen) else None

    def by_layers(self, losses: Tensor, seen: list[Seen]) -> Gradients | None:
        """Of losses [s] whose graph is kept; None where a layer's own part does not follow from this."""
        import torch

        if len({id(one.layer) for one in seen}) < len(seen) or any(len(one.entered) != len(losses) for one in seen):
            return None
        slopes = torch.autograd.grad(
            losses, [one.left for one in seen], torch.ones_like(losses), retain_graph=True, allow_unused=True
        )
        if any(one.entered._version != one.version for one in seen):
            return None
        parts = dict[int, Part]()
        for one, slope in zip(seen, slopes, strict=True):
            if slope is not None:
                of_kind, room = _KINDS[type(one.layer).__name__], self.most_bytes // len(seen)
                of_layer = of_kind(one.layer, one.entered.double(), slope.double(), room)
                parts |= {id(parameter): part for parameter, part in of_layer if parameter is not None}
        squares = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
        for part in parts.values():
            squares += part.squares

        def weighted(factors: Tensor) -> list[Tensor]:
            each = [(tensor, parts.get(id(tensor))) for tensor in self.tensors]
            return [
                torch.zeros_like(tensor) if part is None else part.weighted(factors).reshape(tensor.shape)
                for tensor, part in each
            ]

        return Gradients(squares, weighted)

    def one_by_one(self, samples: Tensor, slopes: Tensor) -> Iterator[Gradients]:
        """From the derivatives [s, L] by the outputs: a gradient for each sample is formed, of some at a time."""
        import torch
        from torch.func import functional_call, grad, vmap

        named = {name: tensor.detach() for name, tensor in self.net.named_parameters() if tensor.requires_grad}
        fixed = constants(self.net)

        def loss_of(parameters: dict[str, Tensor], x: Tensor, slope: Tensor) -> Tensor:
            z = functional_call(self.net, {**fixed, **parameters}, (x[None],))
            along: Tensor = (z[0] * slope).sum()
            return along

        each_of, at_once = vmap(grad(loss_of), (None, 0, 0)), self.at_once
        try:  # not through recurrent layers, nor TorchScript
            each_of(named, samples[:1], slopes[:1])
        except Exception:  # as the user's layers raise it; what is wrong in other ways, the loop says
            at_once = 1
        for x, slope in zip(samples.split(at_once), slopes.split(at_once), strict=True):
            if at_once > 1:
                yield _of_formed(list(each_of(named, x, slope).values()))
                continue
            leaves = torch.autograd.grad(self.net(x), list(self.tensors), slope, materialize_grads=True)
            yield _of_formed([leaf[None] for leaf in leaves])

    def _observed(self, samples: Tensor) -> tuple[Tensor, list[Seen]]:
        from torch.autograd.graph import get_gradient_edge

        seen: list[Seen] = []

        def note(layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
            x = given[0]
            seen.append(Seen(layer, list(_own(layer).values()), x.detach(), x._version, get_gradient_edge(output)))

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        try:
            return self.net(samples), seen
        finally:
            for hook in hooks:
                hook.remove()

    @cached_property
    def _layers(self) -> list[nn.Module]:
        """The layers that have parameters of their own which train."""
        return [layer for layer in self.net.modules() if _own(layer)]

    @cached_property
    def _layers_do(self) -> bool:
        """Whether layers give the gradients: all are known, have their parameters alone, and are used once in a pass.

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
        """Whether so many samples have the norms of their gradients, and their sum, at random parameters in float64."""
        import copy

        import torch

        net = copy.deepcopy(self.net).to("cpu", torch.float64)
        generator = torch.Generator().manual_seed(number)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        tensors = [tensor for tensor in net.parameters() if tensor.requires_grad]
        for tensor in tensors:
            tensor.data = tensor.detach() + 0.1 * normal(*tensor.shape)
        tried = TorchSamples(net, tensors, self.shape, number, self.most_bytes)
        samples = normal(number, *self.shape)
        z, seen = tried._observed(samples)
        if not _by_these_alone(z, seen):
            return False
        losses = (z * normal(*z.shape)).sum(1)
        came = tried.by_layers(losses, seen)
        slopes = [
            torch.autograd.grad(loss, tensors, retain_graph=True, materialize_grads=True) for loss in losses.unbind()
        ]
        factors = normal(number)
        expected = _of_formed([torch.stack(leaves) for leaves in zip(*slopes, strict=True)])
        return (
            came is not None
            and torch.allclose(came.squares, expected.squares, rtol=_TOLERANCE, atol=0)
            and all(
                torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)
                for one, other in zip(came.weighted(factors), expected.weighted(factors), strict=True)
            )
        )


def constants(net: nn.Module) -> dict[str, Tensor]:
    """Buffers and parameters that need no gradient."""
    named = {**dict(net.named_buffers()), **dict(net.named_parameters())}
    return {name: tensor for name, tensor in named.items() if not tensor.requires_grad}


def _own(layer: nn.Module) -> dict[str, Tensor]:
    """The parameters of a layer itself that train."""
    return {name: tensor for name, tensor in layer.named_parameters(recurse=False) if tensor.requires_grad}


def _by_these_alone(z: Tensor, seen: list[Seen]) -> bool:
    """Whether parameters enter the graph of `z` once, as the layers had them, and rows stay those of their samples.

    Of every pass, since the samples and the parameters may decide which way a module takes.
    """
    uses: Counter[int] = Counter()
    met, following = {z.grad_fn}, [z.grad_fn]
    while following:
        for node, _ in following.pop().next_functions:
            if hasattr(node, "variable"):  # where a tensor's derivatives arrive
                uses[id(node.variable)] += 1
            elif node is not None and node not in met:
                met.add(node)
                following.append(node)
    own = {id(tensor) for one in seen for tensor in one.own}
    moved = any(node.name().startswith(_MOVE_ROWS) for node in met)
    return not moved and set(uses) <= own and all(count == 1 for count in uses.values())


def _known(layer: nn.Module) -> bool:
    """Whether the layer is one of PyTorch's own below, as PyTorch made it."""
    from torch import nn

    if type(layer) not in (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm):
        return False
    if type(layer) is nn.Conv2d and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return False
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return not any(hooks) and set(_own(layer)) <= {"weight", "bias"}


def _of_formed(leaves: list[Tensor]) -> Gradients:
    """From gradients [s, ...] by each parameter."""
    import torch

    parts = [_formed(leaf) for leaf in leaves]
    squares = torch.stack([part.squares for part in parts]).sum(0)
    return Gradients(
        squares,
        lambda factors: [part.weighted(factors).reshape(x.shape[1:]) for part, x in zip(parts, leaves, strict=True)],
    )


def _formed(each: Tensor) -> Part:
    """From gradients [s, ...]."""
    flat = each.flatten(1).double()
    return Part((flat**2).sum(1), lambda factors: _summed(factors, flat))


def _summed(factors: Tensor, each: Tensor) -> Tensor:
    """[d] the sum of rows of [s, d] times factors [s]."""
    factors, each = _taken(factors, factors, each)
    total: Tensor = factors @ each
    return total


def _taken(factors: Tensor, *parts: Tensor) -> list[Tensor]:
    """Without the samples whose factor is 0."""
    taken = factors != 0
    return list(parts) if taken.all() else [part[taken] for part in parts]


def _outer(inputs: Tensor, slopes: Tensor) -> Part:
    """Of outer products of slopes [s, g, out] and inputs [s, g, in]: in all [g, out, in]."""
    import torch

    of_inputs, of_slopes = (inputs**2).sum(2), (slopes**2).sum(2)
    moderate = (of_inputs < _LARGEST) & (of_slopes < _LARGEST)

    def weighted(factors: Tensor) -> Tensor:
        each, x, q = _taken(factors, factors, inputs, slopes)
        return (q * each[:, None, None]).permute(1, 2, 0) @ x.transpose(0, 1)

    return Part(torch.where(moderate, of_inputs * of_slopes, torch.inf).sum(1), weighted)


def _products(inputs: Callable[[slice], Tensor], slopes: Tensor, numbers: int, room: int) -> Part:
    """Of slopes [s, g, out, t] times inputs' [s, g, t, in], in pieces.

    Parameters
    ----------
    inputs : [k, g, in, t] of a slice of samples
    numbers : about how many a sample's product forms
    room : bytes; what does not fit is formed again for the sum
    """
    import torch

    k = max(1, room // (8 * numbers))
    pieces = [slice(at, at + k) for at in range(0, len(slopes), k)]

    def product(piece: slice) -> Tensor:
        return (slopes[piece] @ inputs(piece).mT).flatten(1)

    first = product(pieces[0])
    squares = [(first**2).sum(1), *((product(piece) ** 2).sum(1) for piece in pieces[1:])]

    def weighted(factors: Tensor) -> Tensor:
        total = _summed(factors[pieces[0]], first)
        for piece in pieces[1:]:
            total += _summed(factors[piece], product(piece))
        return total

    return Part(torch.cat(squares), weighted)


OfLayer: TypeAlias = "list[tuple[nn.Parameter | None, Part]]"  # of a layer's parameters


def _linear(layer: Layer, entered: Tensor, slope: Tensor, room: int) -> OfLayer:
    """Inputs [s, ..., in] and slopes [s, ..., out]: the sum over `...` of outer products."""
    x, q = (tensor.reshape(len(tensor), -1, tensor.shape[-1]).mT[:, None] for tensor in (entered, slope))
    return _of_places(layer, lambda piece: x[piece], x[0].numel(), q, room)


def _convolution(layer: Layer, entered: Tensor, slope: Tensor, room: int) -> OfLayer:
    """Linear in the patches [s, groups, in, places]; slopes [s, groups, out, places]."""
    from torch.nn.functional import unfold

    def patches(piece: slice) -> Tensor:
        unfolded: Tensor = unfold(entered[piece], layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        return unfolded.unflatten(1, (layer.groups, -1))

    slopes = slope.flatten(2).unflatten(1, (layer.groups, -1))
    size = layer.weight[0].numel() * layer.groups * slopes.shape[3]
    return _of_places(layer, patches, size, slopes, room)


def _of_places(layer: Layer, inputs: Callable[[slice], Tensor], size: int, slopes: Tensor, room: int) -> OfLayer:
    """Inputs [k, g, in, t] of a slice of samples, of `size` numbers each, and slopes [s, g, out, t]."""
    parts: OfLayer = []
    if layer.weight.requires_grad:
        if slopes.shape[3] == 1:
            parts.append((layer.weight, _outer(inputs(slice(None))[..., 0], slopes[..., 0])))
        else:
            parts.append((layer.weight, _products(inputs, slopes, layer.weight.numel() + size, room)))
    return parts + _trained(layer.bias, lambda: slopes.sum(3))


def _trained(parameter: nn.Parameter | None, form: Callable[[], Tensor]) -> OfLayer:
    """Of a parameter whose gradients [s, ...] are formed, if it is there and trains."""
    return [] if parameter is None or not parameter.requires_grad else [(parameter, _formed(form()))]


def _group_norm(layer: Layer, entered: Tensor, slope: Tensor, room: int) -> OfLayer:
    """Scales and shifts of channels, [s, channels, ...]."""
    from torch.nn.functional import group_norm

    def summed(values: Tensor) -> Tensor:
        return values.reshape(*values.shape[:2], -1).sum(2)

    return [
        *_trained(layer.weight, lambda: summed(group_norm(entered, layer.num_groups, eps=layer.eps) * slope)),
        *_trained(layer.bias, lambda: summed(slope)),
    ]


def _layer_norm(layer: Layer, entered: Tensor, slope: Tensor, room: int) -> OfLayer:
    """Scales and shifts of the last axes, [s, ..., *normalized_shape]."""
    from torch.nn.functional import layer_norm

    def summed(values: Tensor) -> Tensor:
        return values.reshape(len(slope), -1, layer.weight.numel()).sum(1)

    return [
        *_trained(layer.weight, lambda: summed(layer_norm(entered, layer.normalized_shape, eps=layer.eps) * slope)),
        *_trained(layer.bias, lambda: summed(slope)),
    ]


_KINDS: dict[str, Callable[[Layer, Tensor, Tensor, int], OfLayer]] = {
    "Linear": _linear, "Conv2d": _convolution, "GroupNorm": _group_norm, "LayerNorm": _layer_norm,
}  # fmt: skip
