"""Speed, processor time, memory and start-up of mpifed beside other software that simulates federated learning.

    python benchmarks/rivals/rivals.py [--installed] [--quick] [--cases 1 2 3 cnn] [--only NAME ...]
                                       [--leave-out VARIANT ...] [--verify]

Installs every rival in an environment of its own (benchmarks/.cache/rivals/NAME, from requirements/NAME.txt), compares
their models with NumPy's (reference.py), and measures all variants one after the other within each repetition.
README.md beside this file tells what is run, and how it is fair. Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from common import CASES, PENALTY, shards, start_model  # noqa: E402
from launch import ENVIRONMENTS, environment_of, run  # noqa: E402
from reference import federated_averaging  # noqa: E402
from show import markdown, text  # noqa: E402
from variants import OFTEN, VARIANTS, Variant, measured  # noqa: E402

TOLERANCE = 1e-6  # of any weight after 4 rounds in float32; the largest weights are near 0.2
SAMPLES = 70  # of each of 6 clients, where models are compared


def install(rival: str) -> None:
    """Make a rival's environment, unless it is complete; ends with its error where that fails."""
    folder, done = environment_of(rival), environment_of(rival) / "installed"
    if done.exists():
        return
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    commands = [[sys.executable, "-m", "venv", str(folder)]]
    for wanted in ("", "-alone"):  # -alone: without what the packages say they need, which the other file lists
        if (HERE / "requirements" / f"{rival}{wanted}.txt").exists():
            more = ["--no-deps"] if wanted else []
            commands.append([*pip, *more, "--requirement", str(HERE / "requirements" / f"{rival}{wanted}.txt")])
    for command in commands:
        print(f"{rival}: {' '.join(command[-3:])}", flush=True)
        subprocess.run(command, check=True)
    done.touch()


def installed(rival: str) -> bool:
    """Whether a rival's environment is complete; ours always is."""
    return not rival or (environment_of(rival) / "installed").exists()


def prepared(case: str) -> Path:
    """The folder with the clients' data of a case, one .npz each."""
    if not CASES[case].shuffle:
        folder = ENVIRONMENTS / "compared"
        if not folder.exists():
            folder.mkdir(parents=True)
            for client, (x, y) in enumerate(shards(prepared("2"), range(CASES[case].clients))):
                np.savez(folder / f"shard-{client:05d}.npz", x=x[:SAMPLES], y=y[:SAMPLES])
        return folder
    from prepared import prepared as made

    return made(CASES[case].clients, "rows") / "npz"


def verify(variant: Variant, case: str) -> dict[str, Any]:
    """A variant's model after 4 rounds of a small case, against NumPy's: the largest difference, or an error."""
    asked, data = CASES[case], prepared(case)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.npy")
        found = run(variant, case, 3, data, ["--warm-up", "1", "--model", str(model)])
        if "error" in found:
            return {"case": case, "variant": variant.name, "error": found["error"]}
        w = np.load(model)
    start = start_model(784, asked.network)
    clients = [(x.astype(np.float64), y) for x, y in shards(data)]
    expected = federated_averaging(clients, start, asked.batch, asked.step, 4, PENALTY)
    counted = found["rows"] == 4 * asked.clients * SAMPLES and found["steps"] == 4 * asked.local_steps(SAMPLES)
    difference = float(np.abs(w - expected).max())
    agrees = counted and difference < TOLERANCE
    return {"case": case, "variant": variant.name, "difference": difference, "counted": counted, "agrees": agrees}


def verified(rivals: list[str]) -> list[dict[str, Any]]:
    """All comparisons, each printed when it is done."""
    results = []
    for variant in VARIANTS:
        if variant.rival not in rivals:
            continue
        compared = ("step", "epoch", "cnn-epoch") if "cnn" in variant.rounds else ("step", "epoch")
        for case in ("step",) if variant.setting == "joined" else compared:
            result = verify(variant, case)
            results.append(result)
            said = result.get("error") or f"largest difference {result['difference']:.1e}, rows {result['counted']}"
            print(f"{variant.name}, {case}: {'agrees' if result.get('agrees') else 'DIFFERS'}; {said}", flush=True)
    return results


def counted(case: str, found: dict[str, Any], samples: int) -> bool | None:
    """Whether a run read the rows and took the steps that its rounds have; None where it counts none."""
    if found["rows"] is None:
        return None
    rounds, asked = found["rounds_counted"], CASES[case]
    expected = rounds * asked.rows(samples), rounds * asked.local_steps(samples)
    return (found["rows"], found["steps"]) == expected


def repetitions(
    cases: list[str], rivals: list[str], without: list[str], times: int, share: float
) -> list[dict[str, Any]]:
    """Every repetition of every variant; in each, all of a case one right after the other, from another one on."""
    results, failed = [], set()
    for case in cases:
        data, asked = prepared(case), [one for one in measured(case) if one.rival in ("", *rivals)]
        variants = [one for one in asked if one.name not in without]
        samples = len(shards(data, range(1))[0][1])
        for number in range(times):
            first = number * 5 % len(variants)
            for variant in variants[first:] + variants[:first]:
                if (case, variant.name) in failed or number >= variant.repetitions(case, times):
                    continue
                rounds = max(int(variant.rounds[case] * share), 2)
                found = run(variant, case, rounds, data, ["--warm-up", "3" if rounds >= OFTEN else "1"])
                if "error" in found:
                    failed.add((case, variant.name))
                else:
                    found["counted"] = counted(case, found, samples)
                results.append(found | {"case": case, "variant": variant.name, "repetition": number})
                said = found.get("error") or f"{1e3 * found['seconds_per_round']:.2f} ms a round"
                print(f"case {case}, repetition {number}, {variant.name}: {said}", file=sys.stderr, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--installed", action="store_true", help="run what is installed, and install nothing")
    parser.add_argument("--quick", action="store_true", help="1 repetition of a fifth of the rounds")
    parser.add_argument("--cases", nargs="+", choices=["1", "2", "3", "cnn"], default=["1", "2", "3", "cnn"])
    known = list(dict.fromkeys(one.rival for one in VARIANTS if one.rival))
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="these rivals")
    names = sorted({one.name for one in VARIANTS})
    parser.add_argument("--leave-out", nargs="+", choices=names, default=[], help="say, what takes minutes")
    parser.add_argument("--verify", action="store_true", help="compare models, and measure nothing")
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    from bench import machine

    from mpifed.run.environment import commit

    if not given.installed:
        for rival in given.only:
            install(rival)
    rivals = [rival for rival in given.only if installed(rival)]
    about = {"started": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": machine()}
    times, share = (1, 0.2) if given.quick else (given.repetitions, 1.0)
    compared = verified(rivals) if given.verify else []
    results = [] if given.verify else repetitions(given.cases, rivals, given.leave_out, times, share)
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    written = ENVIRONMENTS / ("verified.json" if given.verify else "results.json")
    written.write_text(json.dumps(about | {"commit": commit(), "results": results or compared}, indent=1))
    if results:
        (ENVIRONMENTS / "results.md").write_text(markdown(results, about))
        print(text(results))
    missing = [rival for rival in given.only if rival not in rivals]
    print(f"everything: {written}" + (f"; not installed: {', '.join(missing)}" if missing else ""))
    if any(not one.get("agrees") for one in compared) or any(one.get("counted") is False for one in results):
        raise SystemExit("not all did the same work: see above")


if __name__ == "__main__":
    main()
