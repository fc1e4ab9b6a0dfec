"""Plain English in the pages and rooms of :data:`PLAIN`: a noun as subject, short sentences, the field's own words.

The test counts relative clauses used as nouns, phrases that readers had to parse twice, and locals named for an act
instead of a thing.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Folders whose files and folders are read one by one; others are read as a whole.
OPENED = (
    "src/blinkccl",
    "src/blinkccl/trees",
    "native",
    "tests",
    "tests/unit",
    "tests/unit/formats",
    "tests/unit/trees",
)
#: Logs in it have lines like comments.
LOGS = "tests/unit/formats/test_nccl_tests.py"
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks",
    "docs",
    "examples",
    "reproduction",
)
#: The most of these words in a thousand, and of sentences with more than thirty words in a hundred.
MOST_CLAUSES, MOST_LONG = 2.0, 2.0
CLAUSE = re.compile(r"\b(what|whatever|who|whoever|whom)\b", re.IGNORECASE)
BEGINNING = re.compile(r"(what|whatever|whether|who|whom|which|how|where|that|so|of|as)\b", re.IGNORECASE)
TURNS = re.compile(
    r"\b(is none|of these it|so many|goes on|of ours|as they are|alike|adds? up|says so|such a one|so long as it is)\b",
    re.IGNORECASE,
)
ACTS = {"found", "there", "theirs", "ours", "told", "said", "asked", "kept", "given"}


def files(place: str) -> list[Path]:
    path = ROOT / place
    return [p for p in (path, *sorted(path.rglob("*"))) if p.suffix in (".md", ".py", ".h", ".cpp")]


def rooms() -> list[str]:
    places = [place.relative_to(ROOT).as_posix() for folder in OPENED for place in sorted((ROOT / folder).iterdir())]
    return [place for place in places if place not in (*OPENED, LOGS) and files(place)]


PLAIN = (*PAGES, *rooms())


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def prose(path: Path) -> Iterator[str]:
    """The paragraphs of a page, the docstrings and comments of a Python file, or the comments of a C++ file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield re.sub(r"^    [^\n]*$|^```.*?^```$|!\[.*?\]\(.*?\)", "", text, flags=re.MULTILINE | re.DOTALL)
        return
    mark = "#" if path.suffix == ".py" else "//"
    for block in re.findall(rf"(?:^[ \t]*{mark}.*\n?)+", text, re.MULTILINE):
        yield " ".join(re.findall(rf"^\s*{mark}:? ?(.+)$", block, re.MULTILINE))
    if path.suffix == ".py":
        yield from docstrings(ast.parse(text))


def sentences(text: str) -> list[str]:
    """Sentences of more than three words; code is one word, and rows of tables and headings are left out."""
    text = re.sub(r"```.*?```|``?[^`]*``?", " x ", text, flags=re.DOTALL)
    text = re.sub(r"^\s*((\||>|#).*$|(-|\*|\d+\.) )", "\n\n", text, flags=re.MULTILINE)
    parts = re.split(r"(?<=[.!?:;])\s+|\n\s*\n", text)
    return [part for part in parts if len(part.split()) > 3]


@pytest.mark.parametrize("place", PLAIN)
def test_it_is_plain_english(place: str) -> None:
    text_sentences = [sentence for path in files(place) for text in prose(path) for sentence in sentences(text)]
    words = sum(len(sentence.split()) for sentence in text_sentences)
    clauses = [sentence for sentence in text_sentences if CLAUSE.search(sentence)]
    long = [sentence for sentence in text_sentences if len(sentence.split()) > 30]
    assert [sentence for sentence in text_sentences if TURNS.search(sentence)] == []
    assert 1000 * sum(len(CLAUSE.findall(sentence)) for sentence in clauses) <= MOST_CLAUSES * words, clauses
    assert 100 * len(long) <= MOST_LONG * len(text_sentences), long


@pytest.mark.parametrize("place", PLAIN)
def test_docstrings_and_locals_name_things(place: str) -> None:
    for path in files(place):
        if path.suffix == ".py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert [text for text in docstrings(tree) if BEGINNING.match(text)] == [], path
            stored = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
            assert [f"{path}:{node.lineno}: {node.id}" for node in stored if node.id in ACTS] == []


@pytest.mark.parametrize(
    "text",
    [
        "What it is. Who knows what that is said to whom?",
        "It goes on as they are.",
        "One " + "long " * 31 + "sentence.",
    ],
)
def test_sentences_that_are_not_plain_are_counted(text: str) -> None:
    counted = sentences(text)
    assert any(CLAUSE.search(s) or TURNS.search(s) or len(s.split()) > 30 for s in counted)
