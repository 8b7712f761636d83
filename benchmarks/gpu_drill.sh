#!/bin/bash
# A first contact with a CUDA machine, in eight minutes at most and without a network: what runs on its device, with which
# bits, and how fast. In the root of the tree, with build/wheels of gpu_wheels.sh: bash benchmarks/gpu_drill.sh
# $OUT gets drill.txt (ten lines), drill.json and a log of each stage. Each stage has its own limit, and none stops the
# next. Where there is no device all stages run on the processor, which rehearses them, and count as `no device`.
set -u
export TMPDIR=${TMPDIR:-$(mktemp -d)} OUT=${OUT:-$PWD/build/drill} PYTHONUNBUFFERED=1 PYTHONPATH=$PWD
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPIR_CVAR_ENABLE_HEAVY_YIELD=1 MPIEXEC=mpiexec
mkdir -p "$OUT" && rm -f "$OUT"/*
# an environment that has what this Python has, and the wheels, of which mpifed's has the compiled loops
python3 -m venv --without-pip --system-site-packages "$TMPDIR/env" || exit 3
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$(echo "$TMPDIR"/env/lib/python3*/site-packages)/there.pth"
python3 -m pip --python "$TMPDIR/env/bin/python" install --quiet --no-index --no-deps build/wheels/*.whl || exit 3
export PATH=$TMPDIR/env/bin:$PATH
cp "$(dirname "$(cd / && PYTHONPATH='' python -c 'import mpifed; print(mpifed.__file__)')")"/core/_loops*.so mpifed/core/
DEVICE=$(python -c 'from mpifed.maths.device import open_device; print(open_device("cuda", 0).name)' 2>/dev/null)
export MPIFED_TEST_DEVICE=cuda
[ -n "$DEVICE" ] || MPIFED_TEST_DEVICE=cpu

stage() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 left=$((480 - SECONDS)) began=$SECONDS code found
    shift 2
    timeout -k 5 $((left < 1 ? 1 : limit < left ? limit : left)) "$@" >"$OUT/$name.log" 2>&1
    code=$?
    case $code in 0) found=passed ;; 124 | 137) found="out of time" ;; 127) found="not here" ;; *) found=failed ;; esac
    [ -n "$DEVICE" ] || found="no device, on the processor $found"
    printf '%s\t%s\t%s\t%s\n' "$name" "$found" $((SECONDS - began)) "$(tail -n 1 "$OUT/$name.log")" | tee -a "$OUT/stages.tsv"
}

tests() { # WHICH
    python -m pytest tests/device/test_gpu.py -m gpu -k "$1" -p no:cacheprovider -W default --timeout=100 --maxfail=25
}
export -f tests

stage import 40 bash -c 'set -o pipefail; python -m mpifed doctor | tee "$OUT/doctor.txt" | grep CuPy'
stage kernel 40 bash -c 'tests "functions or encoded_sums"'
stage methods 120 bash -c 'tests "every_algorithm or every_time"'
stage networks 90 bash -c 'tests network'
stage ranks 90 bash -c 'tests number_of_ranks'
stage seconds 80 python benchmarks/device.py --device "$MPIFED_TEST_DEVICE" --out "$OUT/seconds.json"
stage sanitizer 30 bash -c 'compute-sanitizer --error-exitcode 1 python -m pytest tests/device/test_gpu.py -m gpu -k encoded_sums -W default'
python - "${DEVICE:-no device}" "$SECONDS" <<'END' | tee "$OUT/drill.txt"
import csv, json, os, pathlib, platform, sys
from importlib.metadata import distributions

out = pathlib.Path(os.environ["OUT"])
named = {one.name: one.version for one in distributions() if one.name.startswith(("cupy", "mpi", "numpy", "torch"))}
with open(out / "stages.tsv", newline="") as file:
    stages = [dict(zip(("stage", "found", "seconds", "said"), row)) for row in csv.reader(file, delimiter="\t")]
facts = {"device": sys.argv[1], "cores": os.cpu_count(), "python": platform.python_version(), "versions": named}
(out / "drill.json").write_text(json.dumps(facts | {"seconds": int(sys.argv[2]), "stages": stages}, indent=1) + "\n")
print(f"{facts['device']}, {facts['cores']} cores, Python {facts['python']}")
print(", ".join(f"{name} {version}" for name, version in sorted(named.items())))
for one in stages:
    print(f"{one['stage']:10}{one['seconds']:>4} s  {one['found']}: {one['said'][:120]}")
print(f"{sys.argv[2]} s in all; logs and drill.json in {out}")
END
