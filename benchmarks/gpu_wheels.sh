#!/bin/bash
# Wheels in build/wheels for a machine with a GPU and without a network, where benchmarks/gpu_drill.sh runs: of $GPU_PYTHON
# (python3.12), for Linux since 2018; of what that machine has, none.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${GPU_PYTHON:-python3.12}
platforms=()
for name in linux manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
    platforms+=(--platform "${name}_x86_64")
done
rm -rf build/wheels
"$python" -m pip wheel --quiet --no-deps --wheel-dir build/wheels .
"$python" -m pip download --quiet --only-binary=:all: "${platforms[@]}" --dest build/wheels \
    "$(ls build/wheels/mpifed-*.whl)[mpich]" pytest-mpi pytest-timeout
cd build/wheels
for there in numpy scipy h5py torch cupy pytest hypothesis click scikit_learn threadpoolctl iniconfig packaging pluggy pygments; do
    rm -f "$there"-*
done
du -sh .
