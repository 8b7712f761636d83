"""The shipped jobs, small enough to run in a moment: each with its own settings, on data that are made here.

A row is a job of `jobs/`, of sweeps one of its methods, or its first point. It is run by the command line, in this
process, and says the SHA-256 of its model and its history. Clients differ in size, so that a weight matters.
"""

from __future__ import annotations

import bz2
import contextlib
import copy
import csv
import functools
import io
import itertools
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mapped import with_map
from methods import METHODS, class_of
from numpy.typing import NDArray
from written_files import points_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "jobs"
ROUNDS = 3
TEST_ROWS = 360
KEPT = 1797 - TEST_ROWS
COLUMNS = [0, 4, 12, 18, 32, 46, 64]
PARTS = [0, 71, 213, 426, 700, 1011, KEPT]  # where the rows of six clients begin, and those of the last end
ALL_ROWS = 5000  # a minibatch of so many has every row: nothing is drawn, and weights of rows are all that they change
# of a history; the values of constraints have numbers after it
MEASURES = ("train_loss", "objective", "test_loss", "test_accuracy", "test_rmse", "constraint_")
UNMET = 69  # the exit code of a run that ends before its limits are met


@dataclass(frozen=True)
class Row:
    """A job, what is changed in it, and in its data.

    `split` names a map of ours in the place of its own division.
    """

    name: str
    job: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    point: int | None = None
    split: str | None = None


class Outcome(NamedTuple):
    """What a row gave: by measure, a value for each round from 0 on."""

    sha256: str
    history: dict[str, list[float]]


# --- rows --------------------------------------------------------------------------------------------------------


def rows(table: str) -> list[Row]:
    """Those of a table: "laws"; "models", of PyTorch and JAX; "real", the jobs as they are, for three rounds.

    Of real data nothing is measured, since it would change no bit.
    """
    networks = table == "models"
    found = [row for row in shipped() if of_networks(settings(row.job)["model"]["name"]) == networks]
    if table == "models":
        found = [shorter(row) for row in found]
    elif table == "laws":
        found = [*map(moving, found), *absent(), *families()]
    found = [drawn_again(row) for row in found]
    measured = {"record.evaluate_every": 0 if table == "real" else 1}
    return [replace(row, changes={**measured, **row.changes}) for row in found]


def settings(job: str) -> dict[str, Any]:
    """The tables of a job file."""
    return tomllib.loads((JOBS / job).read_text(encoding="utf-8"))


def of_networks(model: str) -> bool:
    """Whether a model needs PyTorch or JAX."""
    return model == "torch" or "own_jax" in model


def shipped() -> Iterator[Row]:
    """A row for each job; of a sweep with methods, one for each of them, else its first point."""
    for path in sorted(JOBS.rglob("*.toml")):
        job = path.relative_to(JOBS).as_posix()
        sweep = settings(job).get("sweep")
        if sweep is None:
            yield Row(job, job)
            continue
        changes = {"sweep.seeds": 1} if "seeds" in sweep else {}
        if "methods" not in sweep:
            yield Row(job, job, changes, point=0)
        for point, method in enumerate(sweep.get("methods", [])):
            yield Row(f"{job} ({method.get('label', point)})", job, changes, point=point)


def labelled(job: str, label: str) -> Row:
    """The row of a method of a sweep."""
    return next(row for row in shipped() if row.name == f"{job} ({label})")


def method_of(row: Row) -> dict[str, Any]:
    """The tables of a row's method in its job; none where that has no methods."""
    methods = settings(row.job).get("sweep", {}).get("methods")
    return methods[row.point] if methods else {}


def changed(row: Row, changes: Mapping[str, object]) -> Row:
    """A row with other settings, in its method's own tables where it has them."""
    method, others = copy.deepcopy(method_of(row)), dict(row.changes)
    for key, value in changes.items():
        table, _, name = key.partition(".")
        if table in method:
            method[table] = {**method[table], name: value} if name else value
        else:
            others[key] = value
    if method == method_of(row):
        return replace(row, changes=others)
    return replace(row, changes={**others, "sweep.methods": [method]}, point=0)


def algorithm_of(row: Row) -> dict[str, Any]:
    """Its table `[algorithm]`."""
    (method,) = row.changes.get("sweep.methods", [method_of(row)])
    return {**settings(row.job), **method, **row.changes}["algorithm"]


def moving(row: Row) -> Row:
    """HyFDCA by the paper's rule with its last model: the best of so few rounds may be the first, which is zero."""
    by_paper = algorithm_of(row).get("rule") == "paper"
    return changed(row, {"algorithm.returns": "last"}) if by_paper else row


def drawn_again(row: Row) -> Row:
    """A private job whose noise is secret, with noise that comes again."""
    if (privacy := {**settings(row.job), **method_of(row)}.get("privacy")) is None:
        return row
    of_test = {"privacy.public_preparation": True}  # other rows stand for those of which all know classes and scale
    if privacy.get("noise", "secure") == "secure":
        of_test["privacy.noise"] = "test"
    return changed(row, of_test)


def shorter(row: Row) -> Row:
    """A network of PyTorch with two clients a round, and three passes in the place of 20, two of five, or one step."""
    if settings(row.job)["model"]["name"] != "torch":
        return row
    changes: dict[str, object] = {"participation.clients_per_round": 2}
    if (passes := algorithm_of(row).get("local_epochs")) is None:
        return changed(row, changes | {"algorithm.local_steps": 1, "record.evaluate_rows": 40})
    return changed(row, changes | {"algorithm.local_epochs": {20: 3, 5: 2}.get(passes, passes)})


def absent() -> Iterator[Row]:
    """Hybrid jobs where 11 of 16 clients participate."""
    away = {"participation.clients_per_round": 11}
    for data in ("a9a", "mnist"):
        for method in ("FedAvg", "HyFEM", "HyFDCA", "HyFDCA, theory", "HyFDCA, damped"):
            row = labelled(f"hyfdca/{data}.toml", method)
            last = {"algorithm.returns": "last"} if "HyFDCA" in method else {}
            yield replace(changed(row, {**away, **last}), name=f"{row.name}, absent clients")


def families() -> list[Row]:
    """One job of each method, of whose rows nothing is drawn, on six clients."""
    every = {"participation.clients_per_round": 6}
    whole = {"algorithm.batch_size": ALL_ROWS}
    exactly = {"algorithm.batch_size": KEPT}  # there, more than there are are refused
    steps = {**whole, **every, "algorithm.local_steps": 3}
    cocoa = {**every, "algorithm": {"name": "cocoa"}}
    # where gamma binds every step, since it is below lambda
    theory = {**every, "algorithm.rule": "theory", "algorithm.gamma": [5e-5, 0.0], "algorithm.returns": "last"}
    sgd = labelled("ssca/rows.toml", "SGD, B = 100")
    hybrid = {name: labelled("hyfdca/a9a.toml", name) for name in ("FedAvg", "HyFEM", "bundle", "HyFDCA, line search")}
    local = {
        name: labelled("fedpdm/rigorous.toml", f"{name}, without noise") for name in ("FedProx", "SCAFFOLD", "FedPDM")
    }
    examples = {name: Row("", f"examples/own_{name}.toml") for name in ("algorithm", "local_steps")}
    seen: dict[str, tuple[Row, Mapping[str, object], str]] = {
        "fedavg": (sgd, whole, "rows"),
        "fedprox": (local["FedProx"], steps, "rows"),
        "scaffold": (local["SCAFFOLD"], steps, "rows"),
        "fedpdm": (local["FedPDM"], steps, "rows"),
        "ssca": (labelled("ssca/rows.toml", "Algorithm 1, B = 100"), whole, "rows"),
        "ssca, constraint": (labelled("ssca/rows-limit.toml", "Algorithm 2, B = 100"), whole, "rows"),
        "ssca, columns": (labelled("ssca/columns.toml", "Algorithm 3, B = 1000"), exactly, "columns"),
        "ssca, columns, constraint": (
            labelled("ssca/columns-limit.toml", "Algorithm 4, B = 1000"), exactly, "columns",
        ),
        "vertical-sgd": (labelled("ssca/columns.toml", "SGD, B = 1000"), exactly, "columns"),
        "cocoa": (hybrid["HyFDCA, line search"], cocoa, "rows"),
        "hybrid-fedavg": (hybrid["FedAvg"], {**whole, **every}, "grid"),
        "hyfem": (hybrid["HyFEM"], {**whole, **every}, "grid"),
        "hyfdca": (hybrid["HyFDCA, line search"], theory, "grid"),
        # it searches along a line; by the penalty's weight its steps are divided
        "bundle": (hybrid["bundle"], every, "grid"),
        "own algorithm": (examples["algorithm"], whole, "rows"),
        "own local steps": (examples["local_steps"], whole, "rows"),
    }  # fmt: skip
    named = {name.partition(",")[0] for name in seen}
    for name, method in METHODS.items():
        if method.least is not None and method.data == "rows" and name.partition("-h")[0] not in named:
            own = {**method.control, "name": name, "batch_size": ALL_ROWS}
            del own["client_optimizer"]  # a table of the job
            if "weights" in {one.name for one in fields(class_of(name))}:
                own["weights"] = "rows"
            seen[name] = (sgd, {"algorithm": own}, "rows")
    rows = {name: replace(changed(row, changes), split=split) for name, (row, changes, split) in seen.items()}
    return [replace(row, name=f"families/{name}") for name, row in rows.items()]


# --- data --------------------------------------------------------------------------------------------------------


def shards_command(job: str) -> list[str]:
    """The arguments of `mpifed data` that the head of a job names, without `--out`."""
    if job == "heterogeneous/exact.toml":  # its README has a script
        return ["svmlight", "a9a.bz2", "--test", "a9a.t.bz2", "--split", "grid", "--map", "sorted"]
    lines = (JOBS / job).read_text(encoding="utf-8").splitlines()
    head = " ".join(line.lstrip("# ").rstrip("\\") for line in lines if line.startswith("#"))
    _, found, command = head.partition("Make the shards: ")
    if not found:
        raise ValueError(f"{job}: no line '# Make the shards:  mpifed data ...' at its head")
    words = shlex.split(command)
    return words[2 : words.index("--out")]


def sorted_map(path: Path, labels: NDArray[Any], cuts: NDArray[Any]) -> Path:
    """A map of rows sorted by class, as they come, over clients: client k has those from cuts[k] to cuts[k + 1]."""
    order = np.argsort(labels, kind="stable")
    held = [" ".join(map(str, order[first:end])) for first, end in itertools.pairwise(cuts)]
    path.write_text(
        "client,rows,columns\n" + "".join(f"{k},{rows},all\n" for k, rows in enumerate(held)), encoding="ascii"
    )
    return path


def moved_by_an_ulp(X: NDArray[Any], seed: int) -> NDArray[np.float32]:
    """Each value but zero one float32 up or down; none of them for seed 0."""
    X = X.astype(np.float32)
    if not seed:
        return X
    ends = np.random.default_rng(seed).choice(np.array([-np.inf, np.inf], np.float32), X.shape)
    return np.where(X == 0, X, np.nextafter(X, ends))


@functools.cache
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's: pixels [s, 64] from 0 to 240, bytes as MNIST's are, and classes [s]."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return (15 * X).astype(np.uint8), y


class Data:
    """Folders of shards for rows, made when they are first asked for.

    `seed` above 0 moves each value by one ulp.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.seed = folder, seed
        self.made: dict[tuple[str, ...], Path] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, row: Row) -> Path:
        """The shards of a row."""
        words = tuple(self.mapped(row.split) if row.split else self.reduced(shards_command(row.job)))
        if words not in self.made:
            invoke("data", *with_map(words), "--out", self.folder / f"shards-{len(self.made)}")
            self.made[words] = self.folder / f"shards-{len(self.made)}"
        return self.made[words]

    def reduced(self, words: list[str]) -> list[str]:
        """The command of a job's head with rows that are here, unequal clients where rows are divided, at most 20."""
        source, *rest = words
        given = dict(itertools.pairwise(rest))
        if source in ("mnist", "digits"):
            scale = [] if "--scale" in given or self.seed else ["--scale", "unit"]
            start = ["npz", self.images(), *scale]
        elif source == "svmlight":
            start, rest = ["svmlight", *self.svmlight()], rest[3:]
        elif source == "csv":
            start, rest = ["csv", self.csv()], rest[1:]
        elif source.endswith(":Texts"):  # pixels stand for bytes
            start, rest = ["npz", self.images()], [*rest[2:], "--split", "rows", "--clients", "6"]
            given["--split"] = "rows"
        elif source == "synthetic" and "--task" in given:
            start, rest = ["npz", self.images(), "--scale", "unit", "--labels", "even-odd"], rest[8:]
        elif source == "synthetic":
            start, rest = ["npz", self.line()], rest[4:]
        else:
            raise ValueError(f"`mpifed data {source}` has no reduced form: say here what stands for its rows")
        if "--test-fraction" not in given and source != "svmlight":
            rest += ["--test-fraction", "0.2"]
        if "--map" in given:
            labels = digits()[1][:-TEST_ROWS] % 2
            cuts = (len(labels) * np.linspace(0, 1, 11) ** 1.5).astype(int)
            rest[-1] = str(sorted_map(self.folder / "sorted.csv", labels, cuts))
        elif given["--split"] != "columns" and not given.get("--partition", "").startswith(("classes", "shards")):
            rest += ["--skew", "power:0.5"]
        if given.get("--clients") in ("100", "200"):
            rest[rest.index("--clients") + 1] = "20"
        return [*start, *rest]

    def mapped(self, split: str) -> list[str]:
        """Six clients: with 71 to 426 rows each; with 4 to 18 columns; or with two times three such parts."""
        cells = {
            "rows": [(PARTS[k : k + 2], [0, 64]) for k in range(6)],
            "columns": [([0, KEPT], COLUMNS[k : k + 2]) for k in range(6)],
            "grid": [(PARTS[a : a + 4 : 3], COLUMNS[b : b + 3 : 2]) for a in (0, 3) for b in (0, 2, 4)],
        }[split]
        lines = [f"{k},{a}-{b - 1},{first}-{end - 1}\n" for k, ((a, b), (first, end)) in enumerate(cells)]
        scale = ["--scale", "unit-rows"] if split == "grid" else []
        path = self.folder / f"{split}.csv"
        path.write_text("client,rows,columns\n" + "".join(lines), encoding="ascii")
        return ["svmlight", *self.svmlight(), "--split", "grid", "--map", str(path), *scale]

    def images(self) -> str:
        """A file of images of one channel; bytes, which are scaled when they are read, or moved."""

        def write(path: Path) -> None:
            X, y = digits()
            pixels = moved_by_an_ulp(X / np.float32(255), self.seed) if self.seed else X
            np.savez(path, X=pixels.reshape(-1, 1, 8, 8), y=y)

        return self.file("images.npz", write)

    def csv(self) -> str:
        """A file of columns, the class last."""

        def write(path: Path) -> None:
            X, y = digits()
            names = ",".join([*(f"pixel{at}" for at in range(64)), "digit"])
            table = np.column_stack([moved_by_an_ulp(X, self.seed), y])
            np.savetxt(path, table, "%.9g", ",", header=names, comments="")

        return self.file("digits.csv", write)

    def svmlight(self) -> list[str]:
        """Files of odd against even digits in sparse form: the first rows, and the last to test with."""

        def write(path: Path) -> None:
            X, y = digits()
            lines = [
                f"{label % 2} " + " ".join(f"{at + 1}:{values[at]:.9g}" for at in np.flatnonzero(values)) + "\n"
                for values, label in zip(moved_by_an_ulp(X / np.float32(240), self.seed), y, strict=True)
            ]
            chosen = lines[KEPT:] if path.name.startswith("test") else lines[:KEPT]
            path.write_text("".join(chosen), encoding="ascii")

        return [self.file("train.svm", write), "--test", self.file("test.svm", write)]

    def line(self) -> str:
        """A file of a linear regression."""

        def write(path: Path) -> None:
            rng = np.random.default_rng(0)
            X = rng.standard_normal((600, 20))
            y = X @ rng.standard_normal(20) + 0.1 * rng.standard_normal(600)
            np.savez(path, X=moved_by_an_ulp(X, self.seed), y=y)

        return self.file("line.npz", write)

    def file(self, name: str, write: Callable[[Path], object]) -> str:
        """A file of this folder, written when it is first asked for."""
        path = self.folder / name
        if not path.exists():
            write(path)
        return str(path)


class RealData:
    """The data of the jobs, by the commands at their heads, with the files in the folder of real data."""

    def __init__(self, folder: Path, files: Path) -> None:
        self.folder, self.files = folder, files
        self.made: dict[tuple[str, ...], Path] = {}

    def of(self, row: Row) -> Path:
        """The shards of a row."""
        words = tuple(self.found(word) for word in shards_command(row.job))
        if words not in self.made:
            path = self.folder / f"shards-{len(self.made)}"
            invoke("data", *with_map(words), "--out", path)
            self.made[words] = path
        return self.made[words]

    def found(self, word: str) -> str:
        """A word of a command, names of files with their folder."""
        if word == "sorted":
            with bz2.open(self.files / "libsvm/a9a.bz2", "rt") as lines:
                labels = np.array([int(line.split(maxsplit=1)[0]) for line in lines])
            cuts = np.arange(0, len(labels) + 1, len(labels) // 10)
            return str(sorted_map(self.folder / "sorted.csv", labels, cuts))
        return str(self.files / "libsvm" / word) if word.endswith(".bz2") else word


# --- runs --------------------------------------------------------------------------------------------------------


def run(row: Row, data: Path, out: Path) -> Outcome:
    """Train, and read what came of it."""
    changes = {"rounds": ROUNDS, "data.path": str(data), **row.changes}
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={in_toml(value)}")]
    point = [] if row.point is None else ["--point", row.point]
    invoke("run", JOBS / row.job, *words, *point, "--out", out, "--progress", "none", may_end_with=UNMET)
    folder = out if row.point is None else points_of(out)[row.point]
    shown = json.loads(invoke("show", folder, "--json"))
    lines: list[dict[str, str]] = []
    if (folder / "history.csv").exists():
        with (folder / "history.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    measured = [name for name in (lines or [{}])[0] if name.startswith(MEASURES) and lines[-1][name]]
    return Outcome(shown["model_sha256"], {name: [float(line[name]) for line in lines] for name in measured})


def invoke(*words: object, may_end_with: int = 0) -> str:
    """What a command of mpifed prints."""
    from mpifed.cli import main

    out, err = io.StringIO(), io.StringIO()
    arguments = [str(word) for word in words]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(arguments)
    except SystemExit as ended:
        code = ended.code
    if code not in (None, 0, may_end_with):
        raise RuntimeError(f"mpifed {shlex.join(arguments)} ended with {code}:\n{out.getvalue()}{err.getvalue()}")
    return out.getvalue()


def in_toml(value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {in_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)
