"""Write `api.json`: which of the functions and methods used here the real CuPy has, and their parameters.

python tests/device/api.py        where CuPy is installed; no device is needed
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

# methods and ufuncs are compiled, and say nothing of their parameters but in their documentation
METHODS = {
    "all": ["axis", "out", "keepdims"], "any": ["axis", "out", "keepdims"],
    "argmax": ["axis", "out", "dtype", "keepdims"], "astype": ["dtype", "order", "casting", "subok", "copy"],
    "clip": ["min", "max", "out"], "copy": ["order"], "fill": ["value"], "flatten": ["order"],
    "get": ["stream", "order", "out", "blocking"], "max": ["axis", "out", "keepdims"],
    "min": ["axis", "out", "keepdims"], "reshape": "any", "sum": ["axis", "dtype", "out", "keepdims"],
    "swapaxes": ["axis1", "axis2"], "take": ["indices", "axis", "out"], "transpose": "any", "view": ["dtype"],
}  # fmt: skip
UFUNC = ["x1", "x2", "out", "dtype"]


def found() -> dict[str, Any]:
    """By name; None where there is none."""
    import cupy
    import cupyx
    from cupyx.scipy import sparse
    from make_believe import FUNCTIONS

    known: dict[str, Any] = {}
    for name in (*FUNCTIONS, "asarray"):
        function = getattr(cupy, name, None)
        if function is None:
            continue
        if isinstance(function, cupy.ufunc):
            known[name] = UFUNC[2 - function.nin :]
        else:
            known[name] = list(inspect.signature(function).parameters)
    for name, parameters in METHODS.items():
        if callable(getattr(cupy.ndarray, name, None)):
            known[f"ndarray.{name}"] = parameters
    if hasattr(sparse.csr_matrix, "__getitem__"):
        known["csr_matrix.__getitem__"] = "any"
    known["csr.vstack"] = list(inspect.signature(sparse.vstack).parameters)
    known["zeros_pinned"] = list(inspect.signature(cupyx.zeros_pinned).parameters)
    for name in ("ElementwiseKernel", "ReductionKernel", "promote_types", "finfo", "get_default_memory_pool"):
        assert hasattr(cupy, name), name
    for name in ("getDeviceCount", "getDeviceProperties", "memGetInfo", "runtimeGetVersion"):
        assert hasattr(cupy.cuda.runtime, name), name
    assert hasattr(cupy.cuda.Device, "use") and callable(cupy.cuda.get_current_stream)
    assert hasattr(cupy.cuda.Stream, "synchronize") and hasattr(cupy.ndarray, "__cuda_array_interface__")
    return {"cupy": cupy.__version__, "functions": dict(sorted(known.items()))}


if __name__ == "__main__":
    Path(__file__).with_name("api.json").write_text(json.dumps(found(), indent=1) + "\n")
