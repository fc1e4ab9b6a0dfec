"""README and the site's pages show real output: tests run their commands and code and compare.

The blocks of a page run in order, in one folder and one Python namespace:

- ``$ blink …`` and other commands after ``$``: the lines below are the whole output; a line ``…`` stands for any number
  of lines, ``…`` inside a line for any text.
- A ``python`` block is executed; an ``output`` block right after it is its output.
- A comment before a block is a directive. ``<!-- file: NAME -->``: the reader saves it as NAME. ``<!-- exit: 1 -->``:
  the exit code of its last command. ``<!-- numbers vary: WHY -->``: numbers are not compared.
  ``<!-- env: NAME=VALUE -->``: set from there on. ``<!-- slow: WHY -->``: a merge skips it. ``<!-- not run: WHY -->``:
  it needs equipment that is missing, and is listed in :data:`NOT_RUN`. ``<!-- needs: networkx -->``: it runs if that is
  installed.
- Text between ``<!-- samples: FILE -->`` and ``<!-- end of samples -->`` is written and tested by FILE's own test.

Other blocks, without ``$`` or in other languages, are only for display.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from blinkccl.cli import console
from blinkccl.cli.app import command as root
from blinkccl.runtime.communicator import Communicator
from support.examples import ALL_TESTS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(path for folder in ("docs", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.md"))),
]


def name_of(page: Path) -> str:
    """The name of a page in reports."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


#: Page → the reasons of its blocks that are not run, in order.
NOT_RUN: dict[str, list[str]] = {
    "README.md": ["needs the processes that torchrun starts"],
    "benchmarks/cables.md": ["needs root and network namespaces"],
    "docs/frameworks.md": [
        "needs the processes that torchrun starts",
        "needs a package index",
        "needs the processes that torchrun starts",
        "needs Ray; tests/frameworks runs it",
    ],
    "docs/howto/cables.md": ["needs root and network namespaces"],
    "docs/howto/laboratory.md": ["needs root and network namespaces"],
    "docs/howto/mpi.md": ["needs an MPI library"],
    "docs/howto/nccl.md": ["needs two GPUs", "needs NCCL's and CUDA's doubles; tests/unit/cli runs it on them"],
    "docs/howto/pytorch.md": [
        "needs the processes that torchrun starts",
        "takes a minute of two cores",
        "needs the processes that torchrun starts",
    ],
    "docs/howto/slurm.md": ["needs Slurm"],
    "docs/howto/tuning.md": ["needs two GPUs"],
    "docs/index.md": ["needs GPUs"],
    "docs/mpi.md": ["needs an MPI library; tests/mpi runs it where one is"],
    "docs/pytorch.md": [
        "needs the processes that torchrun starts",
        "takes a minute of two cores",
        "needs the processes that torchrun starts",
        "needs the processes that torchrun starts",
        "needs the processes that torchrun starts",
    ],
}
#: Variables that Blink sets for its own processes.
OWN_VARIABLES = {
    "BLINK_BENCH_DEADLINE_S",
    "BLINK_MPI_BINDING",
    "BLINK_MPI_BUNDLES",
    "BLINK_MPI_RANKS",
    "BLINK_MPI_SHARED_DIR",
}
#: Width of the terminal that pages show, as GitHub and the site display it without a scroll bar; wide tables are whole.
COLUMNS, WIDE = 104, ("blink bench ", "blink topo --list")
#: Languages of blocks that are only for display.
SHOWN = {"", "text", "output", "cuda", "json", "toml"}
_COMMENT = re.compile(
    r"<!-- (env|exit|file|needs|not run|numbers vary|samples|slow): (.+?) -->|<!-- (end) of samples -->"
)


@dataclass
class Block:
    """A block of code with its directives."""

    page: Path
    line: int
    language: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)
    #: The ``output`` block after it.
    output: str | None = None

    @property
    def runs(self) -> bool:
        """True if the block contains code to run, and can run."""
        return (self.language == "python" or self.text.startswith("$ ")) and not {"not run", "file"} & {
            *self.directives
        }

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, including those in lists and quotes, without samples."""
    blocks: list[Block] = []
    directives: dict[str, str] = {}
    sampled = False
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            for key, value, end in _COMMENT.findall(token.content):
                sampled = not end and (sampled or key == "samples")
                directives |= {key: value} if not end else {}
        elif token.type in ("fence", "code_block") and not sampled:
            if token.info == "output" and blocks and blocks[-1].language == "python":
                blocks[-1].output = token.content
            else:
                blocks.append(Block(page, (token.map or [0])[0] + 1, token.info.strip(), token.content, directives))
        if token.type != "html_block":
            directives = {}
    return blocks


BLOCKS = {page: blocks_of(page) for page in PAGES}


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a shell session with the output below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", "").partition("\n")
        yield command, shown


def as_shown(shown: str, printed: str, vary: bool = False) -> bool:
    """True if the lines are the whole output, except for ``…`` and blanks at ends of lines.

    ``vary``: numbers, and blanks before them, are not compared.
    """
    if vary:
        shown, printed = (re.sub(r" *\d[\d.]*(e[+-]\d+)?", "#", text) for text in (shown, printed))
    lines = [line.rstrip() for line in shown.rstrip().splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in lines
    )
    got = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
    return re.fullmatch(pattern, got) is not None


def renewed(shown: str, printed: str) -> str:
    """The new text of a block: the whole output, or with ``…``, the old lines replaced by the most similar new ones.

    A ``…`` in the program's own output (``4K … 64K``) is literal.
    """
    got = [line.rstrip() for line in printed.rstrip().splitlines()]
    open_lines = {line for line in shown.splitlines() if _stands_for_more(line, got)}
    if not open_lines:
        return "".join(f"{line}\n" for line in got)
    lines = []
    for line in shown.splitlines():
        if line not in open_lines and got:
            best = max(range(len(got)), key=lambda at: (SequenceMatcher(None, line, got[at]).ratio(), -at))
            line, got = got[best], got[best + 1 :]
        lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _stands_for_more(line: str, printed: list[str]) -> bool:
    """True if a page's line is ``…`` alone, or fits a printed line that does not hold its ``…`` literally."""
    if line.strip() == "…":
        return True
    pattern = re.compile(re.escape(line.rstrip()).replace("…", ".*"))
    return "…" in line and line.rstrip() not in printed and any(map(pattern.fullmatch, printed))


class Runner:
    """Run the blocks of one page; with ``update``, write their output into it."""

    def __init__(self, blink: Any, capsys: pytest.CaptureFixture[str], update: bool) -> None:
        self.blink, self.capsys, self.update = blink, capsys, update
        self.names: dict[str, Any] = {}
        self.columns: int | None = COLUMNS

    def run(self, block: Block) -> None:
        """Run a block; AssertionError if its exit code or output differs from the page."""
        if "file" in block.directives:
            Path(block.directives["file"]).write_text(block.text, encoding="utf-8")
        elif block.runs and block.language == "python":
            self._python(block)
        elif block.runs:
            *before, last = commands(block.text)
            for command, shown in before:
                self._command(block, command, shown, 0)
            self._command(block, *last, int(block.directives.get("exit", 0)))

    def close(self) -> None:
        """Leave the groups that the page's code has joined, as at the end of its process."""
        for one in self.names.values():
            if isinstance(one, Communicator):
                one.close()

    def _python(self, block: Block) -> None:
        self.capsys.readouterr()
        exec(compile(block.text, str(block), "exec"), self.names)
        printed = self.capsys.readouterr().out
        if block.output is not None:
            self._compare(block, block.output, [printed], "```output\n", "```\n")

    def _command(self, block: Block, command: str, shown: str, code: int) -> None:
        self.columns = None if command.startswith(WIDE) else COLUMNS
        if command.startswith("blink ") and not re.search(r" [|<>] ", command):
            ended = self.blink(*shlex.split(command)[1:])
            texts = [ended.out, ended.err + ended.out, ended.out + ended.err][code > 0 :]
            assert ended.code == code, f"{block}: {command} ended with {ended.code}\n{texts[1]}"
        else:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["bash", "-c", command],
                env=os.environ | {"PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
            )
            texts = [done.stdout]
            assert done.returncode == code, f"{block}: {command} ended with {done.returncode}\n{done.stdout}"
        self._compare(block, shown, texts, f"$ {command}\n")

    def _compare(self, block: Block, shown: str, printed: list[str], above: str, below: str = "") -> None:
        if any(as_shown(shown, text, "numbers vary" in block.directives) for text in printed):
            return
        assert self.update, f"{block}: {above}prints\n{printed[-1]}"
        page = block.page.read_text(encoding="utf-8")
        new = page.replace(f"{above}{shown}{below}", f"{above}{renewed(shown, printed[0])}{below}", 1)
        assert new != page, f"{block}: {above}write this by hand\n{printed[0]}"
        block.page.write_text(new, encoding="utf-8")


def _is_here(name: str) -> bool:
    if name == "native library":
        from blinkccl.engines.native_library import find

        return find() is not None
    return find_spec(name) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.runs for block in BLOCKS[page])], ids=name_of)
def test_a_page_shows_the_output_of_its_blocks(
    page: Path, blink: Any, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runner = Runner(blink, request.getfixturevalue("capsys"), request.config.getoption("--update-golden"))
    monkeypatch.setattr(console, "width", lambda: runner.columns)
    with closing(runner):
        for block in BLOCKS[page]:
            if ("slow" not in block.directives or ALL_TESTS) and _is_here(block.directives.get("needs", "blinkccl")):
                for name, _, value in (pair.partition("=") for pair in block.directives.get("env", "").split()):
                    monkeypatch.setenv(name, value)
                runner.run(block)


def test_blocks_that_are_not_run_are_known() -> None:
    reasons_of = {
        name_of(page): [block.directives["not run"] for block in blocks if "not run" in block.directives]
        for page, blocks in BLOCKS.items()
    }
    assert {page: reasons for page, reasons in reasons_of.items() if reasons} == NOT_RUN


def test_every_block_is_run_or_only_for_display() -> None:
    languages = SHOWN | {"python"}
    unknown = [
        f"{block}: {block.language!r}"
        for blocks in BLOCKS.values()
        for block in blocks
        if not (
            block.language in languages or block.language.startswith("{") or {"not run", "file"} & {*block.directives}
        )
    ]
    assert not unknown, "say what runs these: " + "\n".join(unknown)


def code_of(tokens: list[Token] | None) -> Iterator[str]:
    """All code of a page, line by line."""
    for token in tokens or []:
        if token.type in ("fence", "code_block", "code_inline"):
            yield from (line.strip() for line in token.content.replace("\\\n", "").splitlines())
        yield from code_of(token.children)


OPTIONS = {name: {text for option in command.params for text in option.opts} for name, command in root.commands.items()}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_on_a_page_exist(page: Path) -> None:
    wrong = []
    for line in code_of(MarkdownIt().parse(page.read_text(encoding="utf-8"))):
        named = re.match(r"(?:\$ )?blink ([a-z]+)\b(.*?)(?: -- .*)?$", line)
        if named is not None and (named[1] in OPTIONS or line.startswith("$")):
            options = re.findall(r"(?<= )--?[a-zA-Z][\w-]*", named[2])
            wrong += [line for option in options if option not in OPTIONS.get(named[1], ())]
    assert not wrong, "\n".join(wrong)


def test_every_environment_variable_is_documented() -> None:
    """Exceptions: variables between Blink's own processes, and names of numbers in headers."""
    texts = [
        path.read_text(encoding="utf-8")
        for folder in ("src/blinkccl", "native")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".cpp", ".h", ".c", ".inc") and not {"include", "tests", "build"} & {*path.parts}
    ]
    headers = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/blinkccl/native/include").rglob("*.h"))
    read = {name for text in texts for name in re.findall(r'"(BLINK_[A-Z_]*[A-Z])"', text)}
    listed = set(re.findall(r"`(BLINK_[A-Z_]+)`", (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")))
    assert {name for name in read - listed if not re.search(rf"\b{name}\b", headers)} == OWN_VARIABLES
    assert listed <= read


def test_the_plan_in_python_is_the_printed_one(blink: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in BLOCKS[ROOT / "README.md"] if "blinkccl.plan(" in block.text)
    shown = re.search(r"# (75.+)", block.text)
    assert shown is not None
    printed = blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6").out
    exec(block.text, {})
    assert capsys.readouterr().out == f"{shown[1]}\n{printed}"


def test_the_generated_code_is_the_exported_one(blink: Any, tmp_path: Path) -> None:
    (block,) = (block for block in BLOCKS[ROOT / "docs/howto/nccl.md"] if block.language == "cuda")
    plan = str(tmp_path / "plan.json")
    blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", "-o", plan)
    assert block.text in blink("export", plan, "--to", "cuda").out


WRONG = {
    "output": "```python\nprint(1)\n```\n\n```output\n2\n```\n",
    "command": "```\n$ echo a b\na\n```\n",
    "exit code": "<!-- exit: 1 -->\n```\n$ true\n```\n",
    "second command": "    $ true\n    $ false\n",
    "file": "<!-- file: x -->\n```\na\n```\n\n```\n$ cat x\nb\n```\n",
}


@pytest.mark.parametrize("page", WRONG.values(), ids=WRONG)
def test_a_page_with_wrong_output_fails(
    page: str, blink: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    runner = Runner(blink, capsys, update=False)
    *before, last = blocks_of(path)
    for block in before:
        runner.run(block)
    with pytest.raises(AssertionError, match=r"page.md:\d+"):
        runner.run(last)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a  \nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n…\n", "a\nb\nc\n", True),
        ("…\nc\n", "a\nb\nc\n", True),
        ("…\nb\n", "a\nb\nc\n", False),
        ("in … ms\n", "in 3.4 ms\n", True),
        ("b\na\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_the_whole_output_is_compared(shown: str, printed: str, same: bool) -> None:
    assert as_shown(shown, printed) is same


@pytest.mark.parametrize(
    ("shown", "printed", "new"),
    [
        ("a\nb\n", "c\n", "c\n"),
        ("one\n…\nthree 3\n", "one\ntwo\nthree 4\n", "one\n…\nthree 4\n"),
        ("in … ms\nold 1\n", "in 3.4 ms\nold 2\n", "in … ms\nold 2\n"),
        ("x\n 4K … 64K  a\n", "w\nx\n 4K … 64K  a\n", "w\nx\n 4K … 64K  a\n"),
        ("x\n 4K … 64K  a\n", "x\n 4K         b\n16K … 64K  a\n", "x\n 4K         b\n16K … 64K  a\n"),
        ("…\n 4K … 64K  a\n", "x\n 4K … 32K  a\n", "…\n 4K … 32K  a\n"),
    ],
)
def test_renewed_output_keeps_its_omissions(shown: str, printed: str, new: str) -> None:
    assert renewed(shown, printed) == new
    assert as_shown(new, printed)
