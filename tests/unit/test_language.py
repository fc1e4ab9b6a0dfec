"""The words that docs/glossary.md replaced stay away, and every page that a text names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Struck words in prose and in identifiers (any case, singular), and their replacements.
STRUCK = {
    "arrivals": "peer write probe",
    "births": "pending communicators",
    "board": "shared page",
    "contender": "candidate",
    "contenders": "candidates",
    "door": "descriptor exchange",
    "firing": "execution",
    "firings": "executions",
    "gbps": "gb_per_s (bytes) or gbit_per_s (bits)",
    "halved": "split transfer",
    "handover": "descriptor exchange",
    "hub": "coordinator",
    "hubs": "coordinators",
    "law": "verifier",
    "lawful": "valid",
    "lawless": "invalid",
    "laws": "verifier",
    "lodged": "reply in place",
    "lookout": "coordinator (while ranks meet), locks on the segment (afterwards)",
    "poke": "store_shared",
    "retired": "deferred release",
    "rival": "NCCL predictor",
    "shelf": "bundle cache",
    "spoke": "client",
    "spokes": "clients",
    "weather": "memory baseline",
}
#: Uses of a struck word as a name from elsewhere, or for the contents of files of an earlier version.
ALLOWED = {
    "gbps": re.compile(r"Gbps\b|of an earlier blink|since version 2|Version 1 called|_renamed|\.replace\("),
}
_SUFFIXES = {".py", ".cpp", ".h", ".c", ".md", ".toml", ".txt", ".cmake", ".cu"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def texts() -> list[Path]:
    """The texts of the project: sources, native sources, pages."""
    folders = [path for folder in ("src", "native", "docs") for path in (ROOT / folder).rglob("*")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md"]
    return sorted(path for path in [*folders, *pages] if path.suffix in _SUFFIXES and path.name != "glossary.md")


def test_struck_words_stay_away() -> None:
    faults = []
    for path in texts():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for word in dict.fromkeys(word.lower() for word in _WORD.findall(line)):
                if word in STRUCK and not (word in ALLOWED and ALLOWED[word].search(line)):
                    faults.append(f"{path.relative_to(ROOT)}:{number}: {word!r}: say {STRUCK[word]}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("line", ["law_faults", "LawError", "the law.", "keepsLaw", "KEEP_LAW"])
def test_words_are_found_inside_identifiers(line: str) -> None:
    assert "law" in [word.lower() for word in _WORD.findall(line)]


def test_docstrings_of_modules_are_statements() -> None:
    """Only a room's docstring may be a question, which the table in docs/design.md repeats."""
    asking = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if "?" in docstring.partition("\n")[0] and path.name != "__init__.py":
            asking.append(f"{path.relative_to(ROOT)}: {docstring.partition(chr(10))[0]}")
    assert not asking, "\n".join(asking)


def test_files_that_pages_name_exist() -> None:
    roots = [ROOT, ROOT / "src/blinkccl", ROOT / "src/blinkccl/native/include", ROOT / "native", ROOT / "native/device"]
    missing = []
    for page in [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        named = re.findall(
            r"`((?:\.\./)?[\w-]+(?:/[\w-]+)*/[\w-]+\.(?:py|cpp|h|toml|md|inc))`", page.read_text("utf-8")
        )
        missing += [f"{page.name}: {name}" for name in named if not any((root / name).exists() for root in roots)]
    assert not missing, "\n".join(missing)


def test_pages_that_are_named_exist() -> None:
    missing = []
    for path in [*texts(), *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text) if path.suffix == ".md" else []
        pages = re.findall(r"(?<![\w/.-])((?:docs|benchmarks)/[\w./-]+\.md)", text)
        for name, folder in [*((link, path.parent) for link in links), *((page, ROOT) for page in pages)]:
            if not (folder / name).exists():
                missing.append(f"{path.relative_to(ROOT)}: {name}")
        if re.search(r"\bDESIGN\b|\bfacts/|\btheory\.md\b", text) and path != Path(__file__):
            missing.append(f"{path.relative_to(ROOT)}: a page that is not in this repository")
    assert not missing, "\n".join(missing)
