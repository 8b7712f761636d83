"""The CUDA source that the real CuPy makes of a kernel, and what NVRTC makes of that; no device is needed.

CuPy has no public way to see it: this asks the parts that its ElementwiseKernel and ReductionKernel ask.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from compiled import parameters

_HEADERS = "complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h"
_HEAD = "".join(f"#include <cupy/{name}>\n" for name in _HEADERS)
_NDARRAY, _INDEXER, _SCALAR = 1, 2, 3  # CuPy's kinds of arguments


def elementwise_code(cupy: Any, source: Any, types: dict[str, str], scalars: frozenset[str], name: str) -> str:
    """Of a `KernelSource`, its letters standing for `types`, its arguments arrays but for `scalars`."""
    from cupy._core import _carray, _kernel, _scalar

    kernel = cupy.ElementwiseKernel(source.inputs, source.outputs, source.body, source.name)
    infos = []
    for one in (*parameters(source.inputs), *parameters(source.outputs)):
        dtype = np.dtype(types.get(one.type, one.type)).type
        if one.name in scalars:
            infos.append(_kernel._ArgInfo(_SCALAR, _scalar.CScalar, dtype, 0, True, True))
        else:
            infos.append(_kernel._ArgInfo(_NDARRAY, cupy.ndarray, dtype, 1, True, True))
    infos.append(_kernel._ArgInfo(_INDEXER, _carray.Indexer, None, 1, True, True))
    pairs = tuple((letter, np.dtype(name).type) for letter, name in sorted(types.items()))
    code: str = _kernel._get_elementwise_kernel_code(
        tuple(infos), _kernel._TypeMap(pairs), kernel.params, source.body, name, ""
    )
    return code


def reduction_code(source: Any, dtype: str, name: str) -> str:
    """Of a `mpifed.maths.kernels.ReductionKernel` over arrays of `dtype`, in the words of CuPy's template."""
    (given,), (made,) = parameters(source.inputs), parameters(source.outputs)
    names = {"float32": "float", "float64": "double"}
    return (
        f"typedef {names[dtype]} T; typedef {names[made.type]} result;\n"
        f'extern "C" __global__ void {name}(const T* values, result* out, long long width) {{\n'
        f"result a = {source.first};\nfor (long long j = 0; j < width; ++j) {{ const T& {given.name} = values[j]; "
        f"const result b = {source.each}; a = {source.both}; }}\nresult& {made.name} = out[0];\n{made.name} = a;\n}}\n"
    )


def compiled(cupy: Any, codes: Sequence[str], arch: int, options: tuple[str, ...]) -> str:
    """PTX of several kernels for a compute capability, by NVRTC; RuntimeError with what it says."""
    _load_nvrtc()
    code = _HEAD + "".join(f"namespace kernel_{number} {{\n{one}\n}}\n" for number, one in enumerate(codes))
    folder = Path(cupy.__file__).parent / "_core" / "include"
    flags = (
        f"--gpu-architecture=compute_{arch}", "-std=c++17", f"-I{folder}", *(f"-I{path}" for path in _cuda_headers()),
        *(f"-I{path}" for path in sorted(folder.glob("cupy/_cccl/*"))), *options,
    )  # fmt: skip
    nvrtc = cupy.cuda.nvrtc
    program = nvrtc.createProgram(code, "kernels.cu", (), ())
    try:
        nvrtc.compileProgram(program, flags)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"{error}\n{nvrtc.getProgramLog(program)}") from error
    ptx: bytes = nvrtc.getPTX(program)
    return ptx.decode()


def _wheels() -> list[Path]:
    """Where NVIDIA's wheels are."""
    found = importlib.util.find_spec("nvidia")
    return [Path(root) for root in (found.submodule_search_locations or [])] if found else []


def _cuda_headers() -> list[Path]:
    return [path for root in _wheels() for path in sorted(root.glob("*/include"))]


@cache
def _load_nvrtc() -> None:
    """That of a wheel, if there is one, where CuPy looks for it."""
    for root in _wheels():
        for path in sorted(root.glob("cuda_nvrtc/lib/libnvrtc.so.*")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
