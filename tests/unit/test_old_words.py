"""No word of an earlier version stands where a user reads: documents, jobs, help texts, `mpifed explain`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import click
import pytest
from pages import DOCUMENTS, PAGES, ROOT

from mpifed.cli import main
from mpifed.core.nearest import SYNONYMS
from mpifed.explain.entries import entries
from mpifed.job.renamed import RENAMED, TABLES, VALUES

NO_JOB = {"rows"}  # keys of other files too: maps of clients have rows
JOBS = sorted((ROOT / "jobs").rglob("*.toml"))
TEXTS = [page for page in dict.fromkeys([*PAGES, *DOCUMENTS]) if page.name != "CHANGELOG.md"]
_QUOTED = re.compile(r"^ *```(?P<kind>\w*).*?\n(?P<block>.*?)^ *```$|`(?P<inline>[^`\n]+)`", re.DOTALL | re.MULTILINE)


@cache
def _keys() -> set[str]:
    """All keys of jobs."""
    return {key.name for entry in entries() for key in entry.keys}


def _named(table: str) -> str:
    """A table, by its name now or of old."""
    return "|".join([table, *(old for old, now in TABLES.items() if now == table)])


def _anywhere() -> Iterator[str]:
    """Patterns of what is an old word wherever it stands."""
    for table in TABLES:
        yield rf"\[{table}\]"
        yield rf"(?<![\w.]){table}\.(?:{'|'.join(sorted(_keys() | {one.key for one in RENAMED if one.key}))})\s*="
    for entry in RENAMED:
        if entry.key is not None:
            yield rf"\[(?:{_named(entry.table)})\]`? `?{entry.key}\b(?! (?:and|of|says|is))"
            if not entry.algorithms or entry.key not in _keys():
                yield rf"(?<![\w.])(?:{_named(entry.table)})\.{entry.key}\b(?!\()"
    for (table, key, old), _ in VALUES.items():
        yield rf"(?<![\w-]){old}(?![\w-])" if "-" in old else rf"(?:{table}\.|\b){key}\s*=\s*\"?{old}\b"
    yield r"\bshow (?:JOB|SWEEP)\b"
    yield r"mpifed show \S*\.toml\b"
    yield r"mpifed show .*--(?:scale|select|weak|latency|bandwidth)\b"


def _assigned() -> Iterator[str]:
    """Patterns of what is an old word where a job is written: `key = ...`."""
    for word in {entry.key for entry in RENAMED if entry.key} | {*SYNONYMS}:
        if word not in _keys() | NO_JOB:
            yield rf"(?<![\w.-])(?:[a-z_]+\.)?{word}\s*=(?!=)"


@cache
def _compiled() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Either; only when a test asks, since all classes of jobs are read for it."""
    return re.compile("|".join(_anywhere())), re.compile("|".join(_assigned()))


def old_words(text: str, is_job: bool = False) -> list[str]:
    """Those in a text; of Markdown, keys in blocks that are no program, without comments."""
    anywhere, wherever_assigned = _compiled()
    blocks = (match for match in _QUOTED.finditer(text) if match["kind"] != "python")
    quoted = [text] if is_job else [re.sub(r"#.*", "", one["block"] or one["inline"] or "") for one in blocks]
    assigned = [match[0] for part in quoted for match in wherever_assigned.finditer(part)]
    return [*(match[0] for match in anywhere.finditer(text)), *assigned]


def test_documents_and_jobs() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (*TEXTS, *JOBS)}
    assert {path: old for path, text in texts.items() if (old := old_words(text, path.suffix == ".toml"))} == {}


def test_help_texts() -> None:
    commands = [main, *main.commands.values()]
    commands += [one for group in commands[1:] if isinstance(group, click.Group) for one in group.commands.values()]
    texts = [one.get_help(click.Context(one)) for one in commands]
    assert len(texts) > 10 and [old for text in texts for old in old_words(text)] == []


def test_what_explain_prints() -> None:
    texts = [text for entry in entries() for text in (entry.text, *(key.meaning for key in entry.keys))]
    assert len(texts) > 200 and [old for text in texts for old in old_words(text)] == []


@pytest.mark.parametrize(
    "planted",
    [
        "with `[sum] min_clients = 2`", "set [objective] penalty", "`[model] penalty`", "--set algorithm.step=0.1",
        "`algorithm.step_size` was", "--set sum.channel=masked", "`[record] every = 10`", "```toml\nbatch = 20\n```",
        "`lr = 0.1`", "take ssca-horizontal", "`compute.device=cuda`", '```toml\nname = "network"\n```',
        "see `mpifed show JOB`", "mpifed show runs/a --select best", "mpifed show jobs/a.toml",
    ],
)  # fmt: skip
def test_a_planted_word_is_seen(planted: str) -> None:
    assert old_words(f"Some text. {planted}" if "```" not in planted else planted)
    assert old_words("batch = 20", is_job=True)
