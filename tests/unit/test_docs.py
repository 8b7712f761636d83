"""README and documents: links lead somewhere, jobs are jobs, command lines parse, code runs, as do the tutorials.

That of PyTorch is in tests/models; anchors are looked at by `make docs`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from documents import (
    DOCUMENTS,
    FENCE,
    NOTEBOOKS,
    PAGES,
    ROOT,
    Play,
    blocks,
    commands,
    launched,
    name_of,
    play,
    text_of,
)  # fmt: skip
from jobs_in_python import in_text
from written_files import FIRST, LEDGER, points_of

from mpifed.algorithms.algorithm import Algorithm
from mpifed.cli import main
from mpifed.core import errors
from mpifed.core.errors import MpifedError, UsageError
from mpifed.core.exchange import Exchange
from mpifed.files.ends import ENDS
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.job.reading import read_table
from mpifed.job.sweep import points

__all__ = ["play"]  # a fixture
Launch = Callable[..., Any]
EXAMPLES = ROOT / "jobs" / "examples"
JOBS = [path for path in sorted((ROOT / "jobs").rglob("*.toml")) if path.stem != "own_jax" or find_spec("jax")]
ALWAYS = {"runs/quickstart", "runs/quickstart-ssca", "data/digits"}  # made by `make run`, with which everybody begins
# what fragments are fragments of: a key of a page must be one of at least one of these jobs
BASE = {"name": "base", "rounds": 10, "data": {"path": "data/digits"}, "model": {"name": "softmax"}}
BASES: tuple[dict[str, Any], ...] = (
    {**BASE, "algorithm": {"name": "fedavg", "batch_size": 10, "local_steps": 2},
     "client_optimizer": {"learning_rate": 0.1}},
    {**BASE, "algorithm": {"name": "ssca", "batch_size": 10, "rho": [0.9, 0.6], "gamma": [0.9, 0.7]}},
)  # fmt: skip


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader writes the files of a page, beside the clone's jobs."""
    for name in ("jobs", "slurm"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_documents_are_short() -> None:
    """Words that are written, outside of code and what hooks generate: whoever adds a paragraph shortens another."""
    texts = {name_of(page): FENCE.sub("", text_of(page)).split() for page in PAGES if page.name != "CHANGELOG.md"}
    words = {name: sum(any(map(str.isalnum, word)) for word in text) for name, text in texts.items()}
    assert words["README.md"] <= 700 and sum(words.values()) <= 25_000, sorted(words.items(), key=lambda one: one[1])
    assert len(re.findall(r"\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)) <= 40


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    paths = re.findall(r"\]\(([^)\s:#]+)(?:#[^)\s]*)?\)", FENCE.sub("", text_of(page)))
    drawn = f"{page.stem}-"  # by a notebook itself
    assert [path for path in paths if not (page.parent / path).exists() and not path.startswith(drawn)] == []


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_job_is_a_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    assert all(point.job.rounds > 0 for point in points(read_table(path), str(path)))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml", "console")], ids=name_of)
def test_jobs_and_command_lines_of_a_page(page: Path, reader: Path) -> None:
    """Every file that a command names is in the repository, or made by something before it on the page."""
    made = set(ALWAYS)
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            made |= {word for word in block.text.split('"') if "." in word or "/" in word}
        if block.language == "toml":
            check_job(in_text(block.text))
        for words in commands(block) if block.language == "console" else ():
            if (of_mpifed := launched(words)) is not None:
                check_command(of_mpifed[1], made)


def check_job(table: dict[str, Any]) -> None:
    """A job by itself, or in the place of the same tables of one of the bases."""
    refused = []
    for base in BASES if "rounds" not in table else ({},):
        parts = {key: value for key, value in table.items() if isinstance(value, dict) and "name" not in value}
        try:
            assert points({**base, **table, **{key: {**base.get(key, {}), **parts[key]} for key in parts}}, "the page")
            return
        except UsageError as error:
            refused.append(str(error))
    raise AssertionError("\n".join(refused))


def check_command(words: list[str], made: set[str]) -> None:
    """One command: as click reads it; then what it names is there, and its job is one with its changes."""
    name, *arguments = words
    command = main.get_command(click.Context(main), name)
    if isinstance(command, click.Group):  # a command for each source of data
        _, command, arguments = command.resolve_command(click.Context(command, info_name=name), arguments)
    assert command is not None
    values = command.make_context(name, list(arguments)).params
    job, changes = values.get("job"), values.get("changes") or ()
    if name == "new":  # it writes the job, whose runs have the name of the file
        job = Path(job or "quickstart.toml")
        made |= {str(job), f"runs/{job.stem}"}
    paths = [values[one.name] for one in command.params if isinstance(one.type, click.Path) and one.name != "out"]
    paths += [change.removeprefix("data.path=") for change in changes if change.startswith("data.path=")]
    for path in (each for value in paths for each in (value if isinstance(value, tuple) else (value,))):
        near = any(f"{path}/".startswith(f"{one}/") or one.startswith(f"{path}/") for one in made)
        capital = Path(str(path)).name.partition(".")[0].isupper()  # for which the reader has one
        assert path is None or near or capital or Path(path).exists(), f"{' '.join(words)}: {path} is made nowhere"
    if job is not None and Path(job).is_file() and (Path(job).stem != "own_jax" or find_spec("jax") is not None):
        made.add(f"runs/{points(read_table(Path(job), changes), str(job))[0].job.name}")
    made |= {str(values["out"])} if values.get("out") else set()


# --- code of the pages ------------------------------------------------------------------------------------------------

SHOWN = {
    "docs/how-to/models.md": ("own_objective.py", "own_jax.py"),
    "docs/how-to/constraints.md": ("own_constraint.py",),
    "docs/how-to/own-method.md": ("own_local_steps.py",),
    "docs/tutorials/train-under-a-constraint.md": ("ssca.toml",),
    "docs/reference/python.md": ("script.py",),
}


@pytest.mark.parametrize("page", SHOWN)
def test_pages_show_the_examples(page: str) -> None:
    """As they are run below."""
    for name in SHOWN[page]:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        job = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        code = job if name.endswith(".toml") else text.split('"""', 2)[2]
        assert f"{code.strip()}\n" in [block.text for block in blocks(ROOT / page, "python", "toml")]


@pytest.mark.docs
def test_other_python_runs(launch: Launch, digits: Path, tmp_path: Path) -> None:
    """Blocks that are neither an example nor of a tutorial, without what needs an extra that is not installed."""
    settings = ("--set", f"data.path={digits}", "--set", "rounds=3", "--out", tmp_path / "runs/quickstart")
    run = launch(0, "run", ROOT / "jobs/quickstart.toml", *settings, cwd=tmp_path)
    assert run.code == 0, run.text
    (tmp_path / "data").mkdir()
    (tmp_path / "data/digits").symlink_to(digits)
    pages = [page for page in DOCUMENTS if name_of(page) not in SHOWN and "tutorials" not in page.parts]
    for page, block in ((each, block) for each in pages for block in blocks(each, "python")):
        if "from torch" in block.text and find_spec("torch") is None:
            continue
        program: dict[str, Any] = {"program": ("-c", block.text)}
        command: list[str] = []
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        if block.title == "waves.py":  # a source of data, which the page then uses
            lines = [line for console in blocks(page, "console") for line in commands(console)]
            source = f"{block.title.removesuffix('.py')}:"
            (command,) = (words[1:] for words in lines if words[1:2] == ["data"] and words[2].startswith(source))
            program = {}
        ended = launch(0, *command, cwd=tmp_path, **program)
        assert ended.code == 0 and ended.out, f"{page}: {ended.text}"


def example(launch: Launch, job: str, data: Path, folder: Path, *more: str, ranks: int | None = None) -> Path:
    """The run of an example from the top folder; on 2 ranks, as its header says, or in this process."""
    changes = [word for change in (f"data.path={data}", *more) for word in ("--set", change)]
    ended = launch(ranks, "run", EXAMPLES / job, *changes, "--out", folder / "run", cwd=ROOT)
    assert ended.code == 0, ended.text
    return folder / "run"


@pytest.mark.docs
def test_an_objective_of_ones_own(launch: Launch, regression: Path, tmp_path: Path) -> None:
    run = example(launch, "own_objective.toml", regression, tmp_path, "algorithm.batch_size=10", ranks=2)
    losses = read_history(run)["train_loss"]
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.docs
def test_an_algorithm_of_ones_own(launch: Launch, digits: Path, tmp_path: Path) -> None:
    """FedSGD with momentum at the server is FedAvg with one local step and that of `[server_optimizer]`."""
    same = ("client_optimizer.learning_rate=0.1", "server_optimizer.momentum=0.9")
    changes = (("algorithm.batch_size=10",), ('algorithm={name="fedavg", batch_size=10}', *same))
    how = ("own_algorithm.toml", digits)
    own, fedavg = (example(launch, *how, tmp_path / str(len(more)), *more, ranks=2) for more in changes)
    losses = read_history(own)["train_loss"]
    assert losses[-1] < 0.2 * losses[0]
    weights = [read_model(run / "model.safetensors")["first"] for run in (own, fedavg)]
    np.testing.assert_allclose(*weights, atol=1e-5)  # the same minibatches, in another order


@pytest.mark.docs
def test_local_steps_written_out(launch: Launch, digits: Path, tmp_path: Path) -> None:
    """Learning rates, penalties, weight decay and the prox are those of FedAvg, which draws the same rows."""
    names = ("jobs.examples.own_local_steps:LocalSteps", "fedavg")
    how = ("own_local_steps.toml", digits)
    runs = [example(launch, *how, tmp_path / n, f"algorithm.name={n}", "algorithm.batch_size=10") for n in names]
    own, fedavg = (read_model(run / "model.safetensors") for run in runs)
    for name, leaf in own.items():
        assert np.abs(leaf).max() > 0.1
        np.testing.assert_allclose(leaf, fedavg[name], atol=1e-5)  # float32, in another order
    changes = ["--set", f"data.path={digits}", "--set", "client_optimizer.momentum=0.5"]
    ended = launch(None, "run", EXAMPLES / "own_local_steps.toml", *changes, "--out", tmp_path / "refused", cwd=ROOT)
    assert (ended.code, "the clients of this method take plain steps" in ended.text) == (2, True), ended.text


@pytest.mark.docs
def test_an_encrypted_job_and_scripts(launch: Launch, sides: Path, digits: Path, tmp_path: Path) -> None:
    """The channel has the bits of the plain one; FedExP is ahead of FedAvg where its paper says so."""
    few = ("rounds=6", "record.evaluate_every=2")
    runs = [
        example(launch, "encrypted.toml", sides, tmp_path / channel, f"aggregation.security={channel}", *few, ranks=n)
        for channel, n in (("encrypted", 3), ("plain", None))
    ]
    assert summary(runs[0])["model_sha256"] == summary(runs[1])["model_sha256"]
    ended = launch(0, digits, tmp_path / "run", program=(str(EXAMPLES / "script.py"),))
    assert ended.code == 0 and f"accuracy {summary(tmp_path / 'run')['test_accuracy']}" in ended.out, ended.text
    ended = launch(0, program=(str(ROOT / "jobs/methods/published.py"), "fedexp"))
    assert ended.code == 0, ended.err


# --- what tutorials say of what their readers get ---------------------------------------------------------------------


@pytest.mark.parametrize("page", NOTEBOOKS, ids=name_of)
def test_notebooks_show_what_they_draw(page: Path) -> None:
    """As they are committed: with a picture, and without an error or the names of a machine's folders."""
    assert "![What the cell above draws]" in text_of(page)
    assert not [block for block in blocks(page, "text") if "Traceback" in block.text or "/tmp/" in block.text]


@pytest.mark.docs
def test_train_on_a_csv(play: Play) -> None:
    folder = play("train-on-a-csv") / "runs"
    run, again = summary(folder / "tumours"), summary(folder / "by-file")
    assert run["model_sha256"] == again["model_sha256"]
    fedavg, falling, scaffold = (summary(point) for point in points_of(folder / "methods"))
    assert all(run["test_accuracy"] >= 0.95 for run in (fedavg, falling, scaffold))
    assert max(falling["kkt_residual"], scaffold["kkt_residual"]) < fedavg["kkt_residual"] == run["kkt_residual"]


@pytest.mark.docs
def test_compare_methods(play: Play, launch: Launch) -> None:
    """And the same again on two ranks, to the same bits."""
    folder = play("compare-methods")
    runs = points_of(folder / "runs/compare")
    assert len(runs) == 15 and (folder / "compare.pdf").exists() and (folder / "compare.png").exists()
    histories = [pd.read_csv(runs[point] / "history.csv") for point in (0, 9, 12)]
    fedavg, scaffold, feddyn = (int((history["test_accuracy"] >= 0.9).idxmax()) for history in histories)
    assert max(scaffold, feddyn) < fedavg
    hashes = [summary(run)["model_sha256"] for run in runs]
    (page,) = (page for page in NOTEBOOKS if page.stem == "compare-methods")
    (code,) = (block.text for block in blocks(page, "python") if "mf.sweep" in block.text)
    (folder / "compare.py").write_text(code.replace("resume=True", "overwrite=True"), encoding="utf-8")
    again = launch(2, program=("compare.py",), cwd=folder, env={"MPLBACKEND": "agg"})
    assert again.code == 0, again.text
    assert hashes == [summary(run)["model_sha256"] for run in points_of(folder / "runs/compare")]


@pytest.mark.docs
def test_write_a_method(play: Play) -> None:
    folder = play("write-a-method") / "runs"
    runs = [folder / "plain", folder / "masked", *(points_of(folder / "inertia")[point] for point in (3, 0))]
    plain, masked, drawn, free = (summary(run)["model_sha256"] for run in runs)
    assert plain == masked == drawn != free


@pytest.mark.docs
def test_train_under_a_constraint_and_submit_to_a_cluster(play: Play) -> None:
    folder = play("train-under-a-constraint") / "runs"
    free, constrained = (summary(folder / name) for name in ("ssca", "constrained"))
    assert free["train_loss"] < 0.07 and 0.94 <= free["test_accuracy"] <= 0.97
    assert 0.12 <= constrained["train_loss"] <= 0.13 and constrained["exit"] == 0
    folder = play("submit-to-a-cluster", {"sweep.toml": "rounds=20"}) / "runs"
    assert summary(folder / "cluster")["rounds"] == 300 and len(points_of(folder / "sweep")) == 6


# --- what hooks make --------------------------------------------------------------------------------------------------


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A module of docs/hooks."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    return importlib.import_module


def test_the_contract_is_described(hook: Callable[[str], Any]) -> None:
    """Every member of the classes that algorithms are written with: what it is, takes and returns."""
    contract = hook("contract")
    tables = {kind: list(contract.members(kind)) for kind in contract.CLASSES}
    assert not [(kind.__name__, one.signature) for kind, rows in tables.items() for one in rows if not one.text]
    every = {one.signature for one in tables[Algorithm]}
    assert not [name for name in dir(Algorithm) if name[0] != "_" and not any(one.startswith(name) for one in every)]
    given = {one.signature.partition(" ")[0] for one in tables[Algorithm] if one.default == "must be given"}
    assert given == {"exchanges", "measures", "start_server(now)"}
    assert {one.signature: one.default for one in tables[Exchange]}["clear"] == "`False`"
    assert "type: ignore" not in "\n".join(contract.sections())


def test_columns_codes_and_public_names_are_described(hook: Callable[[str], Any]) -> None:
    """In the tables that are put into the pages, of which each has its place.

    Whoever changes a public name runs `python docs/hooks/api.py`, and says so in the changelog.
    """
    generated, api = hook("generated"), hook("api")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    whole = "\n".join(generated.on_page_markdown(text, None, None, None) for text in pages)
    assert not [marker for marker in generated.GENERATED if marker not in "".join(pages)]
    assert "<!-- generated" not in whole
    assert not [name for name in FIRST + LEDGER if f"| `{name}` | " not in whole]
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, MpifedError)]
    codes = {kind.exit_code for kind in kinds}
    assert {0, *codes} == {end.code for end in ENDS} and not [code for code in codes if f"| {code} | " not in whole]
    assert api.PAGE.read_text(encoding="utf-8") == api.page()
