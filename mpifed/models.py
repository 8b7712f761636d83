"""PyTorch modules to begin with, for `[model] name = "torch"`, `build = "mpifed.models:cnn"`.

Images have shape [c, h, w]; a text is a row of bytes, and its class what comes next. None of them normalizes over a
batch or draws random numbers. `replace_batch_norm` makes of your own one that does not, `low_rank` one of which few
parameters train.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import register_parametrization


def mlp(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two hidden layers of 200 units with ReLU: the 2NN of McMahan et al. (AISTATS 2017, arXiv:1602.05629)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
        nn.Linear(200, outputs),
    )  # fmt: skip


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CNN of McMahan et al. 2017: two 5 x 5 convolutions (32, 64) with ReLU and 2 x 2 maxima, 512 units, ReLU.

    1,663,370 parameters for images of [1, 28, 28] and ten classes, as they count.
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(), nn.Linear(512, outputs),
    )  # fmt: skip


def small_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two strided 3 x 3 convolutions (8, 16 channels) with group norms and ReLU, and a linear layer."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * math.ceil(height / 4) * math.ceil(width / 4), outputs),
    )  # fmt: skip


def resnet18(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """ResNet-18 with `GroupNorm`, for images as small as CIFAR's: its first layer is a 3 x 3 convolution of stride 1.

    K. He et al.: "Deep Residual Learning for Image Recognition" (CVPR 2016, arXiv:1512.03385); norms as K. Hsieh et al.
    take them for federated data (ICML 2020, arXiv:1910.00189). 11,173,962 parameters for [3, h, w] and ten classes.
    """
    blocks = [nn.Sequential(_convolution(shape[0], 64, 3), nn.ReLU())]
    for before, channels in pairwise((64, 64, 128, 256, 512)):
        blocks += [_Residual(before, channels), _Residual(channels, channels)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))


def _convolution(before: int, channels: int, size: int, stride: int = 1) -> nn.Sequential:
    """Channels `before` become `channels`, normalized."""
    layer = nn.Conv2d(before, channels, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.GroupNorm(32, channels))


class _Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a way past them; where there are more channels after it, of half the height and width."""

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        stride = 1 if before == channels else 2
        self.through = nn.Sequential(
            _convolution(before, channels, 3, stride), nn.ReLU(), _convolution(channels, channels, 3)
        )
        nn.init.zeros_(self.through[-1][-1].weight)  # so that a deep network begins as a shallow one
        self.past = nn.Identity() if stride == 1 else _convolution(before, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.through(x) + self.past(x))


class ByteLSTM(nn.Module):  # type: ignore[misc]
    """What byte of a text comes next, by two layers of 256 LSTM cells: that of McMahan et al. 2017 for Shakespeare.

    Bytes are embedded in 8 dimensions; data need `--scale none`, since 255 divides them to 0 here by default.
    800,768 parameters, and 257 for each class.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedded = nn.Embedding(256, 8)
        self.cells = nn.LSTM(8, 256, 2, batch_first=True)
        self.scores = nn.Linear(256, outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.cells(self.embedded(x.flatten(1).long()))[0][:, -1])
        return scores


class ByteTransformer(nn.Module):  # type: ignore[misc]
    """What byte of a text comes next, by two encoder layers of width 64 with four heads, which normalize first.

    Data need `--scale none`, since 255 divides bytes to 0 here by default.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.embedded, self.places = nn.Embedding(256, 64), nn.Parameter(0.1 * torch.randn(math.prod(shape), 64))
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        )
        self.scores = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.layers(self.embedded(x.flatten(1).long()) + self.places)[:, -1])
        return scores


class _LowRank(nn.Module):  # type: ignore[misc]
    """A matrix as the sum of one that does not train and a product of two small ones that do."""

    def __init__(self, matrix: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = matrix.shape
        self.down = nn.Parameter(torch.randn(rank, columns).to(matrix) / math.sqrt(columns))
        self.up = nn.Parameter(torch.zeros(rows, rank).to(matrix))

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix + self.up @ self.down


def low_rank(net: nn.Module, rank: int) -> nn.Module:
    """The module with an adapter of low rank beside each matrix of its linear and attention layers; none else trains.

    W + B A in the place of W, B beginning with zeros: LoRA (E. Hu et al., ICLR 2022, arXiv:2106.09685). Parameters that
    have no adapter and shall train, as those of a last layer, get `requires_grad_(True)` afterwards.

    Parameters
    ----------
    net : is changed; its weights must not depend on PyTorch's generator, which the job's seed sets
    rank : of B A, the rows of A
    """
    net.requires_grad_(False)
    for layer in [one for one in net.modules() if isinstance(one, (nn.Linear, nn.MultiheadAttention))]:
        for name, matrix in [*layer.named_parameters(recurse=False)]:
            if matrix.ndim == 2:
                register_parametrization(layer, name, _LowRank(matrix, rank))
    return net


def replace_batch_norm(net: nn.Module) -> nn.Module:
    """The module with `GroupNorm` in the place of all batch norms, which no sum over samples can train.

    Groups are the most, up to 32, that divide the channels and have four or more each; scales and shifts are kept
    (Y. Wu, K. He: "Group Normalization", ECCV 2018, arXiv:1803.08494; for federated data K. Hsieh et al., ICML 2020).

    Parameters
    ----------
    net : is changed, but for a batch norm itself

    Raises
    ------
    ValueError
        where a batch norm is lazy, and does not know its channels yet.
    """
    if not isinstance(net, _BatchNorm):
        for name, layer in net.named_children():
            setattr(net, name, replace_batch_norm(layer))
        return net
    channels = net.num_features
    if not channels:
        raise ValueError(f"{type(net).__name__}: has no channels yet; let a sample pass before, or name them")
    groups = max(number for number in range(1, min(32, max(1, channels // 4)) + 1) if channels % number == 0)
    norm = nn.GroupNorm(groups, channels, net.eps, net.affine)
    if net.affine:
        norm.weight, norm.bias = net.weight, net.bias
    return norm
