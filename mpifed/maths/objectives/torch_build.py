"""Modules of PyTorch as a user's function builds them, and the settings of PyTorch that decide bits."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.core.contract import own_object
from mpifed.core.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

_READ_ONLY = "The given NumPy array is not writable"  # a warning: nothing writes to parameters and samples

_COPIES = 9  # of all parameters, in float32, that `check` holds at once: measured; a run holds more


def library() -> Any:  # the module torch, which mypy does not see where it is not installed
    try:
        import torch
    except ImportError as error:
        raise UsageError('[model] name = "torch": PyTorch is missing; pip install "mpifed[torch]"') from error
    return torch


def built(build: str, seed: int, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The module that the user's function "module:function" gives after PyTorch's generator was seeded.

    Raises
    ------
    UsageError
        when there is no such function, it fails, or it gives something else.
    """
    place, torch = f'[model] build = "{build}"', library()
    with _settings_kept():
        function = own_object(build, place)
        if isinstance(function, torch.nn.Module):
            raise UsageError(f"{place}: is a module; give a function that builds it, after the job's seed was set")
        try:
            given = _asked_for(function, {"shape": shape, "outputs": outputs})
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_default_dtype(torch.float32)  # whatever the import set
                torch.manual_seed(seed)
                net = function(**given)
                if isinstance(net, torch.nn.Module):
                    _give_shapes(net, shape)
        except Exception as error:  # it is the user's own code
            raise UsageError(
                f"{place}: {type(error).__name__}: {error}; correct the function (it is given shape = {shape} and "
                f"outputs = {outputs}, where it has arguments of these names)"
            ) from error
    if not isinstance(net, torch.nn.Module):
        raise UsageError(f"{place}: gives a {type(net).__name__}; a torch.nn.Module is expected")
    module: nn.Module = net
    return module


def too_large(net: nn.Module) -> list[str]:
    """Why there is not the memory on this machine to go on with a module; none elsewhere than on Linux."""
    numbers, free = sum(parameter.numel() for parameter in net.parameters()), _free_bytes()
    if free is None or _COPIES * 4 * numbers <= free:
        return []
    return [
        f"has {numbers:,} parameters, {4 * numbers / 2**30:.1f} GiB; a check or a run takes at least {_COPIES} times "
        f"that on every rank, and {free / 2**30:.1f} GiB of memory are free; take a smaller module or a larger machine"
    ]


def _free_bytes() -> int | None:
    """The memory that a process may still take on Linux; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _give_shapes(net: nn.Module, shape: tuple[int, ...]) -> None:
    """Lazy layers get their shapes, and initial parameters, from a first sample."""
    torch = library()
    if any(map(torch.nn.parameter.is_lazy, net.parameters())):
        with torch.no_grad():
            net.eval()(torch.zeros(1, *shape, dtype=torch.float32))


def _asked_for(function: Callable[..., object], offered: dict[str, object]) -> dict[str, object]:
    """The arguments that a function has by these names, or takes by any name."""
    taken = inspect.signature(function).parameters
    any_name = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    return {name: value for name, value in offered.items() if any_name or name in taken}


@contextmanager
def _settings_kept() -> Iterator[None]:
    """What a user's module sets for the whole process holds while it builds, and not when others compute."""
    torch = library()
    dtype, enabled = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(enabled)
        _settle()


def _settle() -> None:
    """What decides bits: one thread, deterministic algorithms, no TF32."""
    torch = library()
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # the same switch without the compiler, whose import takes 3 s
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("ignore", _READ_ONLY, UserWarning)
