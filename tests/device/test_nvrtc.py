"""NVRTC takes every kernel, in the words that the real CuPy puts around it; needs the library, but no device."""

from __future__ import annotations

import pytest
from all_kernels import BOTH, REDUCTIONS, uses
from real_code import compiled, elementwise_code, reduction_code

from mpifed.maths.kernels import OPTIONS


@pytest.mark.parametrize("arch", [80, 90])
def test_every_kernel_compiles(arch: int) -> None:
    cupy = pytest.importorskip("cupy")
    if not hasattr(cupy, "_core"):
        pytest.skip("the double of CuPy is loaded")
    codes = [elementwise_code(cupy, *use, name=f"kernel_{i}") for i, use in enumerate(uses())]
    codes += [reduction_code(one, T, f"{one.name}_{T}") for one in REDUCTIONS for T in BOTH]
    ptx = compiled(cupy, codes, arch, OPTIONS)
    assert ptx.count(".entry") == len(codes)
    assert "atom." not in ptx and "red." not in ptx  # nothing is added in an order that may change
