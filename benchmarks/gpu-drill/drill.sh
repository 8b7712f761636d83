#!/bin/bash
# The first contact with a CUDA machine without network, in about 8 minutes, from the root of the tree: wheels lie in .whl,
# results go to $OUT. Each stage has its own limit and writes at once.
export TMPDIR=${TMPDIR:-$(mktemp -d)} OUT=${OUT:-$PWD/out}
SITE=$TMPDIR/site
export PYTHONPATH=$SITE:$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPIR_CVAR_ENABLE_HEAVY_YIELD=1
mkdir -p "$OUT"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" .whl/*.whl || exit 3
M=$(bash benchmarks/gpu-drill/mpi.sh "$PWD") && export MPIEXEC=$M/bin/mpiexec MPI4PY_LIBMPI=$M/lib/libmpi.so.12
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv; nproc
python3 -m pip list 2>/dev/null | grep -iE '^(numpy|scipy|h5py|cupy|torch|mpi4py|pytest|hypothesis|typing.extensions|click|rich|scikit-learn|threadpoolctl)'
python3 -W error -c 'import cupy, h5py, scipy, mpifed.cli; print("cupy", cupy.__version__, cupy.cuda.runtime.runtimeGetVersion())' || echo "a warning or error at import: tests run with -W default"
python3 -c 'from mpifed.core import loops; print("loops compiled:", loops.compiled is not None)'
echo "== tests"
timeout 270 python3 -m pytest tests/device/test_gpu.py -m gpu -p no:cacheprovider -W default -q --durations=10 --timeout=120 --maxfail=25 2>&1 | tee "$OUT/tests.log" | tail -60
echo "== bench"
timeout 150 python3 benchmarks/device.py --quick --rounds 5 2>&1 | tee "$OUT/bench.log" | tail -30; cp benchmarks/.cache/device.json "$OUT/" 2>/dev/null
echo "== torch and case 1"
timeout 100 python3 benchmarks/gpu-drill/probe.py 2>&1 | tee "$OUT/probe.log" | tail -40
