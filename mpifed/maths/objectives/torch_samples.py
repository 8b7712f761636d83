"""The gradient of each sample by a module of PyTorch, for clipping: its norm, and sums of the gradients times factors.

By each parameter it is kept as an outer product. A linear layer's is that of the derivative by its output and of its
input, whose norm needs no product (I. Goodfellow: "Efficient Per-Example Gradient Computations", 2015,
arXiv:1510.01799); by all other layers it is formed, by `torch.func.vmap` of the layer alone, and is that of a one and
itself. So one pass of all samples serves (compare Z. Bu, J. Mao, S. Xu: "Scalable and Efficient Training of Large
Convolutional Neural Networks with Differential Privacy", NeurIPS 2022, arXiv:2205.10683). All layers must be PyTorch's
own, so that no code of a user sees a batch; samples pass one by one otherwise. What is scaled is what the norm is of,
never the loss: another way back, from scaled derivatives, may round otherwise where terms cancel, and large inputs
would make of that a gradient of any norm.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, nn

Losses: TypeAlias = "Callable[[Tensor], Tensor]"  # of outputs [s, L], each sample's

_TRIED = 2  # samples
_TOLERANCE = 1e-9
_LARGEST = 1e200  # of squared norms of an outer product's vectors: no product of smaller ones underflows unseen


class Outer(NamedTuple):
    """The gradients of s samples by one parameter: outer products of the rows of two matrices."""

    left: Tensor  # [s, i]
    right: Tensor  # [s, j]; i j numbers of the parameter


class Gradients(NamedTuple):
    """The gradients of s samples by all parameters that train; None by those that have no part in the losses."""

    tensors: Sequence[Tensor]
    parts: list[Outer | None]

    def squares(self) -> Tensor:
        """[s] float64 squared norms; infinite where they are too large."""
        import torch

        def of_part(part: Outer) -> Tensor:
            left, right = ((rows.double() ** 2).sum(1) for rows in part)
            return torch.where((left < _LARGEST) & (right < _LARGEST), left * right, torch.inf)

        return sum(map(of_part, filter(None, self.parts)))  # type: ignore[return-value]  # of one at least

    def weighted(self, factors: Tensor) -> list[Tensor]:
        """The sum times factors [s], a tensor for each parameter; factors of 0 leave out what need not be finite."""
        taken = factors != 0

        def of_part(tensor: Tensor, part: Outer | None) -> Tensor:
            if part is None:
                return tensor.new_zeros(tensor.shape)
            each, left, right = (rows[taken] for rows in (factors, *part))
            return ((left * each[:, None]).T @ right).reshape(tensor.shape)

        return list(map(of_part, self.tensors, self.parts))


def by_layers(net: nn.Module, tensors: Sequence[Tensor], samples: Tensor, losses_of: Losses) -> Gradients:
    """By one pass of all samples, right if `layers_give` says so."""
    import torch
    from torch.autograd.graph import get_gradient_edge

    met: list[tuple[nn.Module, Tensor, Any]] = []  # what hooks of PyTorch are given

    def note(layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        (x,) = given
        met.append((layer, x.detach(), get_gradient_edge(output)))

    hooks = [layer.register_forward_hook(note) for layer in net.modules() if _own(layer)]
    try:
        losses = losses_of(net(samples))
    finally:
        for hook in hooks:
            hook.remove()
    edges = [left for *_, left in met]
    slopes = torch.autograd.grad(losses.sum(), edges, allow_unused=True, retain_graph=True)
    parts: dict[int, Outer] = {}
    with torch.no_grad():
        for (layer, entered, _), slope in zip(met, slopes, strict=True):
            if slope is not None:
                parts |= {id(_own(layer)[name]): part for name, part in _of_layer(layer, entered, slope)}
    return Gradients(tensors, [parts.get(id(tensor)) for tensor in tensors])


def layers_give(net: nn.Module, shape: tuple[int, ...]) -> int | None:
    """The numbers that `by_layers` keeps of a sample of that shape; None if it does not give the gradients.

    All layers must be PyTorch's own, which go one way for all numbers: at random parameters in float64 two samples then
    have their gradients in training, or no others have.
    """
    import torch

    if not all(map(_is_pytorchs, net.modules())):
        return None

    losses: list[Tensor] = []

    def losses_of(z: Tensor) -> Tensor:
        losses.append((z * torch.randn_like(z)).sum(1))
        return losses[0]

    try:
        net = copy.deepcopy(net).to("cpu", torch.float64).train()
        samples = drawn_samples(net, (_TRIED, *shape), 0).double()
        tensors = [tensor for tensor in net.parameters() if tensor.requires_grad]
        for tensor in tensors:
            tensor.data = tensor.detach() + 0.1 * torch.randn_like(tensor)
        came = by_layers(net, tensors, samples, losses_of)
        for one, loss in zip(torch.eye(_TRIED).double(), losses[0], strict=True):
            expected = torch.autograd.grad(loss, tensors, materialize_grads=True, retain_graph=True)
            torch.testing.assert_close(came.weighted(one), list(expected), rtol=_TOLERANCE, atol=_TOLERANCE)
    except Exception:  # they differ; or it is of the user's own code, or of layers that vmap does not take
        return None
    numbers: int = sum(rows.numel() for part in came.parts if part for rows in part)
    return numbers // _TRIED


def _is_pytorchs(layer: nn.Module) -> bool:
    """Whether a layer runs PyTorch's own code alone, and changes no parameter, as embeddings of a `max_norm` do."""
    import torch

    own = vars(layer)
    hooks = any(held for name, held in own.items() if "hook" in name) or torch.nn.modules.module._has_any_global_hook()
    functions = any(callable(held) for held in own.values()) or own.get("max_norm") is not None
    tensors = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
    hooks = hooks or any(each._backward_hooks or each._post_accumulate_grad_hooks for each in tensors)
    return getattr(torch.nn, type(layer).__name__, None) is type(layer) and plain and not hooks and not functions


def drawn_samples(net: nn.Module, size: tuple[int, ...], seed: int) -> Tensor:
    """Normal numbers, or indices where a layer takes indices; in float32."""
    import torch

    generator = torch.manual_seed(seed)
    if any(isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for layer in net.modules()):
        return torch.randint(0, 2, size, generator=generator, dtype=torch.float32)
    return torch.randn(size, generator=generator, dtype=torch.float32)


def _of_layer(layer: nn.Module, entered: Tensor, slopes: Tensor) -> Iterator[tuple[str, Outer]]:
    """By each of a layer's own parameters, from its inputs and the derivatives by its outputs, [s, ...] both."""
    from torch import nn
    from torch.func import functional_call, vjp, vmap

    own = {name: tensor.detach() for name, tensor in _own(layer).items()}
    if type(layer) is nn.Linear and entered.ndim == 2 and len(entered) == len(slopes):
        if "weight" in own:
            yield "weight", Outer(slopes, entered)
        if "bias" in own:
            yield "bias", _formed(slopes)
        return

    def of_sample(x: Tensor, slope: Tensor) -> dict[str, Tensor]:
        _, back = vjp(lambda own: functional_call(layer, own, (x[None],)), own)
        gradients: dict[str, Tensor] = back(slope[None])[0]
        return gradients

    for name, each in vmap(of_sample)(entered, slopes).items():
        yield name, _formed(each)


def _formed(each: Tensor) -> Outer:
    """Of gradients [s, ...]."""
    return Outer(each.new_ones(len(each), 1), each.flatten(1))


def _own(layer: nn.Module) -> dict[str, Tensor]:
    """The parameters of a layer itself that train."""
    return {name: tensor for name, tensor in layer.named_parameters(recurse=False) if tensor.requires_grad}
