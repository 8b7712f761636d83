"""What passes of a few samples show: whether a PyTorch module is a function of each sample and of its parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from mpifed.maths.objectives.torch_dropout import masks_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_SAMPLES = 3


class Passes(NamedTuple):
    """What samples are tried, and what is expected of them."""

    shape: tuple[int, ...]  # of a sample
    outputs: int  # how many the data ask for
    logits: bool  # whether the loss takes the outputs as logits


def wrong_passes(net: nn.Module, passes: Passes) -> list[str]:
    """Errors that passes of a few samples show, in evaluation and, with dropout, in training."""
    import torch

    net.train().float()
    masks, samples = masks_of(net, passes.shape), (_samples(net, passes.shape, 0), _samples(net, passes.shape, 1))
    wrong = _wrong_passes(net, passes, *samples)
    if wrong or masks is None:
        return wrong
    for layer in masks.layers:
        layer.p = 0.5  # a mask that is not the sample's own shows in few samples
    seeds = torch.arange(1, 2 * _SAMPLES + 1, dtype=torch.float32).reshape(_SAMPLES, 2)
    first, second = (torch.cat([part.flatten(1), seeds], 1) for part in samples)
    return _wrong_passes(net, passes, first, second, with_seeds=True)


def _wrong_passes(net: nn.Module, passes: Passes, first: Tensor, second: Tensor, with_seeds: bool = False) -> list[str]:
    """Errors in passes of these samples, [s, *shape], or [s, p + 2] with the seeds of dropout."""
    import torch

    given, generator = first.clone(), torch.random.get_rng_state()
    before = {name: tensor.detach().clone() for name, tensor in state(net)}
    came = f"samples of shape [{', '.join(map(str, (_SAMPLES, *passes.shape)))}]"
    try:
        with torch.no_grad():
            z = net(first)
            net(second)
            same_samples = torch.equal(first, given)
            repeated, alone = net(given), net(given[:1])
            net.eval()
            evaluated = net(given)
        net.train()
        traced = net(given)
    except Exception as error:  # it is the user's own code
        return [
            f"{_first_line(error)}; it was called with {came}, float32: correct it, or give the [model] shape that it "
            f"takes{_or_flat(passes.shape)}{_of_embeddings(net)}"
        ]
    finally:
        net.train()
    if not isinstance(z, torch.Tensor) or z.shape != (_SAMPLES, passes.outputs):
        shown = list(z.shape) if isinstance(z, torch.Tensor) else f"a {type(z).__name__}"
        return [
            f"gives {shown} for {came}; [{_SAMPLES}, {passes.outputs}] is expected, "
            + ("a logit for each class of the data" if passes.outputs > 1 else "a value for each sample")
        ]
    if z.dtype != torch.float32:
        return [f"gives {_name(z.dtype)} for parameters and samples of float32; leave out what converts (autocast)"]
    if not same_samples:
        return ["changes its samples in place; write x = x - 1 for x -= 1, and set inplace=False in the first layers"]
    for name, tensor in state(net):
        if not torch.equal(before[name], tensor):
            return [
                f'"{name}" changes when samples pass: a state that no exchange sends; leave it out, or take a layer '
                "without it (torch.nn.GroupNorm for batch normalization)"
            ]
    if not torch.equal(generator, torch.random.get_rng_state()):
        return [
            "draws from PyTorch's own generator when samples pass, as torch.nn.functional.dropout does, so that no run "
            "could be repeated; of random numbers there is dropout alone, as a layer: self.drop = torch.nn.Dropout(0.5)"
        ]
    if not torch.equal(z, repeated):
        return [
            "gives other outputs for the same samples: random numbers of its own, or a state that changes when samples "
            "pass; leave both out"
        ]
    if not torch.isfinite(z).all():
        return ["gives outputs that are not finite for samples of normal numbers; correct it"]
    if not _close(z[:1], alone):
        return [
            "a sample's output depends on the other samples of the batch; losses must be means over samples (take "
            "torch.nn.GroupNorm or LayerNorm for layers that normalize over the batch, and batch_first=True for "
            "layers of sequences)"
        ]
    if not with_seeds and not (
        isinstance(evaluated, torch.Tensor) and evaluated.shape == z.shape and _close(z, evaluated)
    ):
        return [
            "gives other outputs in eval() than in train(): one function is trained and evaluated here, in train(); "
            "leave out what asks for self.training"
        ]
    if not _close(z, traced.detach()):
        return ["gives other outputs where gradients are enabled; leave out what asks for torch.is_grad_enabled()"]
    if passes.logits and z.shape[1] > 1 and (z >= 0).all() and _close(z.sum(1), torch.ones(_SAMPLES)):
        return ["gives probabilities, and the loss takes logits: leave the softmax at the end out"]
    return _wrong_derivatives(net, given, traced) or _wrong_in_float64(net, given, z) or _wrong_settings()


def _wrong_derivatives(net: nn.Module, samples: Tensor, z: Tensor) -> list[str]:
    """Outputs must be differentiable by every parameter that they depend on."""
    import torch

    trained = {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}
    hint = "leave out detach(), .data, .item(), .numpy() and torch.no_grad()"
    if not z.requires_grad:
        return [f"its outputs have no derivative by any parameter; {hint}"]
    try:
        gradients = torch.autograd.grad(z.sum(), list(trained.values()), allow_unused=True)
    except Exception as error:  # it is the user's own code
        return [f"{_first_line(error)}, on the way back; correct it"]
    for (name, tensor), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None:
            continue
        with torch.no_grad():
            own = tensor.clone()
            tensor.add_(0.5)
            moved = net(samples)
            tensor.copy_(own)
        if not torch.equal(moved, z.detach()):
            return [f'its outputs depend on parameter "{name}", and have no derivative by it; {hint}']
    return []


def _wrong_in_float64(net: nn.Module, samples: Tensor, z: Tensor) -> list[str]:
    import torch

    remedy = "[compute] dtype and clipping ask for it: take the dtype of the samples, x.dtype, where you make tensors"
    try:
        with torch.no_grad():
            wide = net.double()(samples.double())
    except Exception as error:  # it is the user's own code
        return [f"{_first_line(error)}, with parameters and samples of float64; {remedy}"]
    finally:
        net.float()
    if wide.dtype != torch.float64 or not torch.allclose(wide.float(), z.detach(), rtol=1e-2, atol=1e-3):
        return [f"gives {_name(wide.dtype)}, or other outputs, with parameters and samples of float64; {remedy}"]
    return []


def _wrong_settings() -> list[str]:
    """Settings of the whole process, which decide bits, as a pass must leave them."""
    import torch

    if torch.get_num_threads() != 1 or not torch.are_deterministic_algorithms_enabled():
        return ["its pass changes torch.set_num_threads or use_deterministic_algorithms; leave that out"]
    return []


def _samples(net: nn.Module, shape: tuple[int, ...], seed: int) -> Tensor:
    """[_SAMPLES, *shape] normal numbers, or indices where a layer takes indices."""
    import torch

    generator, size = torch.Generator().manual_seed(seed), (_SAMPLES, *shape)
    if (rows := _embedded(net)) is not None:
        return torch.randint(0, rows, size, generator=generator).to(torch.float32)
    return torch.randn(size, generator=generator, dtype=torch.float32)


def _embedded(net: nn.Module) -> int | None:
    """The least number of rows of any embedding; None without one."""
    from torch import nn

    embeddings = [layer for layer in net.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))]
    return min((layer.num_embeddings for layer in embeddings), default=None)


def _or_flat(shape: tuple[int, ...]) -> str:
    return f" ([{math.prod(shape)}] is that of vectors)" if len(shape) > 1 else ""


def _of_embeddings(net: nn.Module) -> str:
    return "" if _embedded(net) is None else "; samples come as floats: an embedding takes x.long()"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _close(one: Tensor, other: Tensor) -> bool:
    import torch

    return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-5))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def state(net: nn.Module) -> list[tuple[str, Tensor]]:
    """All buffers and parameters, by name."""
    return [*net.named_buffers(), *net.named_parameters()]
