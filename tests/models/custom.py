"""A module of PyTorch that is a function of its layers and the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Custom(nn.Module):
    """Layers, parameters and buffers by name, and a function of the module and the samples."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **layers: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            if isinstance(layer, Tensor) and not isinstance(layer, nn.Parameter):
                self.register_buffer(name, layer)
            else:
                setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def of_one(function: Callable[[Any, Tensor], Any], **more: Any) -> Callable[[], nn.Module]:
    """Builds a module of one layer, and what more it has."""
    return lambda: Custom(function, layer=nn.Linear(64, 10), **more)
