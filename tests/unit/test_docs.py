"""README and documents: links lead somewhere, TOML is what the checker of jobs takes, command lines parse."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from documents import DOCUMENTS, PAGES, ROOT, Block, blocks, commands, headings, launched, links, name_of, sentences
from jobs_in_python import in_text
from written_files import FIRST, LEDGER

from mpifed.algorithms.algorithm import Algorithm
from mpifed.cli import main
from mpifed.core import errors
from mpifed.core.errors import MpifedError, UsageError
from mpifed.core.exchange import Exchange
from mpifed.files.ends import ENDS
from mpifed.job.reading import read_table
from mpifed.job.sweep import points

EXAMPLES = ROOT / "jobs" / "examples"
ALWAYS = {"runs/quickstart", "runs/quickstart-ssca", "data/digits"}  # made by `make run`, with which everybody begins
# what fragments are fragments of: a key of a page must be one of at least one of these jobs
_BASE = {"name": "base", "rounds": 10, "data": {"path": "data/digits"}, "model": {"name": "softmax"}}
BASES: tuple[dict[str, Any], ...] = (
    {
        **_BASE, "algorithm": {"name": "fedavg", "batch_size": 10, "local_steps": 2},
        "client_optimizer": {"learning_rate": 0.1},
    },
    {**_BASE, "algorithm": {"name": "ssca", "batch_size": 10, "rho": [0.9, 0.6], "gamma": [0.9, 0.7]}},
)  # fmt: skip


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8_000


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path}: nothing is there"
        generated = {"job.md", "python.md", "command-line.md"}  # their anchors are looked at by `make docs`
        if anchor and target.suffix == ".md" and target.name not in generated:
            assert anchor in headings(target), f"{path}#{anchor}: the page has no such heading"


@pytest.mark.parametrize("page", [page for page in DOCUMENTS if blocks(page, "toml")], ids=name_of)
def test_toml_is_of_a_job(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole jobs, and fragments of jobs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(page, "python"):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
    for block in blocks(page, "toml"):
        check_job(in_text(block.text))


def check_job(table: Mapping[str, Any]) -> None:
    """A job by itself, or in the place of the same tables of one of the bases."""
    refused = []
    for base in BASES if "rounds" not in table else ({},):
        merged = {**base, **table}
        for key, value in table.items():
            if isinstance(value, dict) and "name" not in value:
                merged[key] = {**base.get(key, {}), **value}
        try:
            assert points(merged, "the page")
            return
        except UsageError as error:
            refused.append(str(error))
    raise AssertionError("\n".join(refused))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=name_of)
def test_command_lines_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that they name is in the repository, or made by something before it on the page."""
    made = set(ALWAYS)
    for path in ("jobs", "slurm"):
        (tmp_path / path).symlink_to(ROOT / path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            made |= {word for word in block.text.split('"') if "." in word or "/" in word}
        if block.language == "console":
            for words in commands(block):
                if (of_mpifed := launched(words)) is not None:
                    check_command(of_mpifed[1], made)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_commands_in_sentences(page: Path) -> None:
    """Commands and options are there; what stands in capitals need not be a value. A README shows code as a console."""
    for words in sentences(page):
        check_words(words)
    if page.name == "README.md":
        others = [block.text for block in blocks(page) if block.language not in ("console", "bash", "toml", "python")]
        assert not [text for text in others if re.search("^(mpifed|mpirun|sbatch|make) ", text, re.MULTILINE)]


def check_words(words: list[str]) -> None:
    """A command line with placeholders: the command, its options, and a job or a run where it wants one."""
    if not words or words[0].startswith("-") or words[0].isupper():
        return
    command = main.get_command(click.Context(main), words[0])
    assert command is not None
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    if isinstance(command, click.Group):
        context = click.Context(command)
        subcommands = [command.get_command(context, name) for name in command.list_commands(context)]
        known |= {name for sub in subcommands if sub is not None for one in sub.params for name in one.opts}
    assert not set(options) - known, f"mpifed {' '.join(words)}: no option {set(options) - known}"
    wants = {one.name for one in command.params if isinstance(one, click.Argument)}
    given = {word.partition(".")[0].lower() for word in words[1:] if word.partition(".")[0] in ("JOB", "RUN", "SWEEP")}
    if given and wants & {"job", "run"}:
        assert given & wants, f"mpifed {' '.join(words)}: it takes {wants}"


def check_command(words: list[str], made: set[str]) -> None:
    """One command: as click reads it; then what it names is there, and its job is one with its changes."""
    name, *arguments = words
    command = main.get_command(click.Context(main), name)
    assert command is not None
    if isinstance(command, click.Group):  # a command for each source of data
        _, command, arguments = command.resolve_command(click.Context(command, info_name=name), list(arguments))
        assert command is not None
    context = command.make_context(name, list(arguments), resilient_parsing=False)
    values = context.params
    if name == "new":  # it writes the job, whose runs have the name of the file
        job = Path(values["job"] or "quickstart.toml")
        made |= {str(job), f"runs/{job.stem}"}
    for parameter in context.command.params:
        if parameter.name == "out" or not isinstance(parameter.type, click.Path):
            continue
        value = values[parameter.name]
        for path in value if isinstance(value, tuple) else (value,):
            assert path is None or is_there(str(path), made), f"{' '.join(words)}: {path} is made nowhere before"
    job = values.get("job")
    changes = values.get("changes") or ()
    for change in changes:
        key, _, value = change.partition("=")
        assert key != "data.path" or is_there(value, made), f"{change}: is made nowhere before"
    if job is not None and Path(job).is_file() and (Path(job).stem != "own_jax" or find_spec("jax") is not None):
        first = points(read_table(Path(job), changes), str(job))[0].job
        if name in ("run", "submit"):
            made.add(f"runs/{first.name}")
    if values.get("out"):
        made.add(str(values["out"]))


def is_there(path: str, made: set[str]) -> bool:
    """A file, what was made before, lies in it or holds it, or a name in capitals, for which the reader has one."""
    near = any(f"{path}/".startswith(f"{one}/") or one.startswith(f"{path}/") for one in made)
    return near or Path(path).exists() or _is_capital(path)


def _is_capital(path: str) -> bool:
    return path.rpartition("/")[2].partition(".")[0].isupper()


# --- code of the pages ------------------------------------------------------------------------------------------------

SHOWN = {
    "docs/how-to/own-model.md": ("own_objective.py", "own_jax.py"),
    "docs/how-to/constraints.md": ("own_constraint.py",),
    "docs/how-to/own-algorithm.md": ("own_local_steps.py",),
    "docs/tutorials/write-an-algorithm.md": ("own_algorithm.py",),
    "docs/reference/python.md": ("script.py",),
}


@pytest.mark.parametrize("page", SHOWN)
def test_pages_show_the_examples(page: str) -> None:
    """As they are run by `test_examples.py` and `test_terms.py`."""
    for name in SHOWN[page]:
        code = (EXAMPLES / name).read_text(encoding="utf-8").split('"""', 2)[2].strip()
        assert f"{code}\n" in [block.text for block in blocks(ROOT / page, "python")]


@pytest.mark.parametrize(
    ("page", "path"),
    [("docs/tutorials/a-job-of-ssca.md", "examples/ssca.toml")],
)
def test_pages_show_the_jobs(page: str, path: str) -> None:
    lines = (ROOT / "jobs" / path).read_text(encoding="utf-8").splitlines()
    job = "\n".join(line for line in lines if not line.startswith("#")).strip()
    assert f"{job}\n" in [block.text for block in blocks(ROOT / page, "toml")]


def other_python() -> Iterator[tuple[str, Block]]:
    """Blocks that are neither an example nor of a tutorial, without what an extra needs that is not installed."""
    for page in DOCUMENTS:
        if name_of(page) not in SHOWN and "tutorials" not in page.parts:
            for block in blocks(page, "python"):
                if "from torch" not in block.text or find_spec("torch") is not None:
                    yield name_of(page), block


@pytest.mark.docs
def test_other_python_runs(launch: Callable[..., Any], digits: Path, tmp_path: Path) -> None:
    run = launch(
        0, "run", ROOT / "jobs/quickstart.toml", "--set", f"data.path={digits}", "--set", "rounds=3",
        "--out", tmp_path / "runs/quickstart", cwd=tmp_path,
    )  # fmt: skip
    assert run.code == 0, run.text
    (tmp_path / "data").mkdir()
    (tmp_path / "data/digits").symlink_to(digits)
    halves = [[list(range(1797)), list(columns)] for columns in (range(32), range(32, 64))]
    (tmp_path / "split.json").write_text(json.dumps(halves))
    found = list(other_python())
    assert found
    for page, block in found:
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        if block.title in ("waves.py", "rectangles.py"):  # a source of data, which the page then uses
            lines = [line for console in blocks(ROOT / page, "console") for line in commands(console)]
            source = f"{block.title.removesuffix('.py')}:"
            (command,) = (words[1:] for words in lines if words[1:2] == ["data"] and words[2].startswith(source))
            ended = launch(0, *command, cwd=tmp_path)
            assert ended.code == 0, f"{page}: {ended.text}"
            continue
        ended = launch(0, program=("-c", block.text), cwd=tmp_path)
        assert ended.code == 0, f"{page}: {ended.text}"
        assert ended.out


def hook(name: str) -> Any:
    """A module of docs/hooks."""
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_the_contract_is_described() -> None:
    """Every member of the classes that algorithms are written with: what it is, takes and returns."""
    contract = hook("contract")
    tables = {kind: list(contract.members(kind)) for kind in contract.CLASSES}
    assert not [(kind.__name__, one.signature) for kind, rows in tables.items() for one in rows if not one.text]
    every = {one.signature for one in tables[Algorithm]}
    assert not [name for name in dir(Algorithm) if name[0] != "_" and not any(one.startswith(name) for one in every)]
    given = {one.signature.partition(" ")[0] for one in tables[Algorithm] if one.default == "must be given"}
    assert given == {"exchanges", "measures", "start_server(now)"}
    assert {one.signature: one.default for one in tables[Exchange]}["clear"] == "`False`"
    text = "\n".join(contract.sections())
    assert "| `draw(now, purpose, count, secret=False) -> Integers` | \\[n, count\\] rows of each client" in text
    assert "type: ignore" not in text


def test_columns_and_codes_are_described() -> None:
    """In the tables that are put into the pages, of which each has its place."""
    generated = hook("generated")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    made = [generated.on_page_markdown(text, None, None, None) for text in pages]
    assert not [marker for marker in generated.GENERATED if marker not in "".join(pages)]
    whole = "\n".join(made)
    assert "<!-- generated" not in whole
    assert not [name for name in FIRST + LEDGER if f"| `{name}` | " not in whole]
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, MpifedError)]
    codes = {kind.exit_code for kind in kinds}
    assert {0, *codes} == {end.code for end in ENDS}
    assert not [code for code in codes if f"| {code} | " not in whole]


def test_public_names_are_kept() -> None:
    """With their types; whoever changes one runs `python docs/hooks/api.py`, and says so in the changelog."""
    api = hook("api")
    assert api.PAGE.read_text(encoding="utf-8") == api.page()
