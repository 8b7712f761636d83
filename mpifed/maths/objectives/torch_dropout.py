"""Dropout whose masks are functions of each sample's seed: PyTorch's layers, with other random numbers.

`torch.nn.Dropout`, `Dropout1d` to `Dropout3d`, `AlphaDropout` and `FeatureAlphaDropout` compute what they do in
PyTorch. A sample's mask follows from its seed (`mpifed.core.row_seeds`), the layer, and how often the layer was used
before in the pass; samples without seeds pass without dropout.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from mpifed.core.row_seeds import COLUMNS, seeds_of, words
from mpifed.maths.objectives.torch_build import library

Layer: TypeAlias = Any  # a dropout layer, with the members that all have

if TYPE_CHECKING:
    from torch import Tensor, nn

_USES = 2**20  # of a layer in a pass, at most
_ALPHA = 1.7580993408473766  # -SELU's limit at minus infinity, as PyTorch has it
_FEWEST_AXES = {"Dropout1d": 3, "Dropout2d": 3, "Dropout3d": 5, "FeatureAlphaDropout": 3}  # of layers of whole channels


def dropout_kind(layer: nn.Module) -> str | None:
    """The name of PyTorch's class whose `forward` a layer has; "" of a dropout layer with another; None of others."""
    from torch import nn
    from torch.nn.modules.dropout import _DropoutNd

    if not isinstance(layer, _DropoutNd):
        return None
    kinds = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
    return next((kind.__name__ for kind in kinds if type(layer).forward is kind.forward), "")


class DropoutMasks:
    """The masks of the dropout layers of a module, which takes samples with seeds, [s, p + 2], as well from now on."""

    def __init__(self, net: nn.Module, shape: tuple[int, ...]) -> None:
        self.shape, self.features = shape, math.prod(shape)
        self.layers: list[Layer] = [layer for layer in net.modules() if dropout_kind(layer) is not None]
        self.passing = False
        self.seeds: Tensor | None = None
        self.uses = [0] * len(self.layers)
        for number, layer in enumerate(self.layers):
            layer.forward = partial(self.drop, number, layer)
        net.register_forward_pre_hook(self._begin, prepend=True)  # hooks of its own get samples alone
        net.register_forward_hook(self._end)

    def has_seeds(self, samples: Tensor) -> bool:
        return bool(samples.ndim == 2 and samples.shape[1] == self.features + COLUMNS)

    def drop(self, number: int, layer: Layer, x: Tensor) -> Tensor:
        """What a layer gives of x [s, ...]."""
        if not self.passing:
            raise RuntimeError(
                "dropout outside of the module's forward, where no sample is known: leave out torch.utils.checkpoint, "
                "which calls layers again on the way back, around dropout"
            )
        if self.seeds is None or not (layer.training and layer.p > 0 and len(x)):
            return x
        kind, p, use = dropout_kind(layer) or "", float(layer.p), self.uses[number]
        self.uses[number] += 1
        if x.ndim < _FEWEST_AXES.get(kind, 1):
            raise ValueError(f"{kind} of a tensor of shape {list(x.shape)}: give it [samples, channels, ...]")
        if len(x) % len(self.seeds):
            raise ValueError(
                f"{kind} of a tensor of shape {list(x.shape)}, of {len(self.seeds)} samples: its first axis must be "
                "that of the samples, so that each has a mask of its own"
            )
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if kind in _FEWEST_AXES else x.shape
        kept = _kept(self.seeds, number * _USES + use, math.prod(shape) // len(self.seeds), p).reshape(shape)
        kept = kept.to(x.dtype)
        if p == 1:
            return x.mul_(kept) if layer.inplace else x * kept
        if "Alpha" not in kind:
            kept.div_(1 - p)
            return x.mul_(kept) if layer.inplace else x * kept
        scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
        shift = (kept - 1) * (_ALPHA * scale) + _ALPHA * scale * p
        kept *= scale
        return x.mul_(kept).add_(shift) if layer.inplace else x * kept + shift

    def _begin(self, net: nn.Module, given: tuple[Tensor]) -> tuple[Tensor] | None:
        """Note the samples' seeds, and give the module its samples alone."""
        x = given[0]
        self.passing, self.uses, self.seeds = True, [0] * len(self.layers), None
        if not self.has_seeds(x):
            return None
        self.seeds = seeds_of(x[:, self.features :].long())
        samples = x[:, : self.features].clone(memory_format=library().contiguous_format)
        return (samples.reshape(-1, *self.shape),)

    def _end(self, net: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        self.passing = False


def _kept(seeds: Tensor, stream: int, count: int, p: float) -> Tensor:
    """[s, count] which units stay, each with probability 1 - p to 2^-32."""
    torch = library()
    begins = words(seeds, torch.tensor(stream))
    drawn = words(begins[:, None], torch.arange((count + 1) // 2, device=begins.device)).view(torch.int32)
    kept: Tensor = drawn[:, :count] >= min(round(p * 2**32), 2**32 - 1) - 2**31
    return kept if p < 1 else kept & False


def masks_of(net: nn.Module, shape: tuple[int, ...]) -> DropoutMasks | None:
    """The masks of a module whose samples have this shape; None of one without dropout."""
    has_some = any(dropout_kind(layer) is not None and getattr(layer, "p") > 0 for layer in net.modules())  # noqa: B009
    return DropoutMasks(net, shape) if has_some else None
