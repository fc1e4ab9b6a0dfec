"""Mutation test with frozen mutants: small faults, each with the test that detected it, in mutants.json.

    python benchmarks/mutants.py                     run all; exit code 1 if one is no longer detected
    python benchmarks/mutants.py --only packing      run those whose file's path has this text
    python benchmarks/mutants.py --freeze 200        add to the file until it has this many, in rooms that have the
                                                     fewest for their lines; with --only, in rooms with this text

A mutant changes one comparison, sum, small number, condition or negation of one line. It is located by the text of its
line, in any file; a line that no file contains counts as gone. First its own test runs, by name, then, if that passes,
all tests of the room. A mutant of native code is compiled and meets native tests; packing and the simulator have tests
with sanitizers instead. A mutant that no test detected when it was frozen is not run again. Run this in a clean
checkout with its .venv: it changes files while it runs, and restores them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src/blinkccl", ROOT / "tests"
FILE = Path(__file__).with_suffix(".json")
#: The rooms of the sentence "links, trees, certificate, program, bytes", and those that compute their cost.
ROOMS = ["topology", "collectives", "trees/forest", "trees/packing", "trees/algorithms", "proof", "schedule", "engines"]
ROOMS += ["cost/simulate", "cost/baselines", "cost/choice", "codegen", "nccl", "formats", "runtime"]
#: Native rooms, and the beginnings of the names of the native tests that run their code; "": those of SANITIZED.
NATIVE = {
    "native/packing": "",
    "native/simulate": "",
    "native/src": "test_host|test_kernels|test_team",
    "native/bootstrap": "test_bootstrap",
    "native/device": "test_device|test_emulated",
}
SANITIZED = "tests/unit/native/test_sanitized_libraries.py"
SWAPS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
NATIVE_SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
NATIVE_SWAPS |= {"+": "-", "-": "+"}
NATIVE_OPERATOR = re.compile(r"(?<= )(<=?|>=?|[!=]=|&&|\|\||[-+])(?= )")
#: Seconds for the tests of one mutant; one that does not end counts as detected.
TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` at ``column`` of the ``nth`` line with this text becomes ``new``; ``noticed``: the detecting test."""

    file: str
    line: str
    nth: int
    column: int
    old: str
    new: str
    noticed: str | None = None


def sites(source: str) -> Iterator[tuple[int, int, str, str]]:
    """Every expression of Python that can be changed: the index of its line, its column, itself, its replacement."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
            continue
        changed = copy.deepcopy(node)
        match changed:
            case ast.Compare(ops=[operation]) if type(operation) in SWAPS:
                changed.ops = [SWAPS[type(operation)]()]
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                changed.op = ast.Sub() if isinstance(changed.op, ast.Add) else ast.Add()
            case ast.BoolOp():
                changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
            case ast.UnaryOp(op=ast.Not()):
                changed = changed.operand
            case ast.Constant(value=0 | 1 | 2) if type(changed.value) is int:
                changed = ast.Constant(changed.value + 1)
            case _:
                continue
        text, old = lines[node.lineno - 1], ast.get_source_segment(source, node)
        if old is not None and text.isascii() and text[node.col_offset :].startswith(old):  # not within an f-string
            yield node.lineno - 1, node.col_offset, old, f"({ast.unparse(changed)})"


def native_sites(source: str) -> Iterator[tuple[int, int, str, str]]:
    """Every operator of C++ between spaces that can be changed, in the same form."""
    for index, text in enumerate(source.splitlines()):
        code = "" if text.lstrip().startswith(("#", "static_assert")) else text.partition("//")[0]
        for operator in NATIVE_OPERATOR.finditer(code):
            yield index, operator.start(), operator[0], NATIVE_SWAPS[operator[0]]


def files_of(room: str) -> list[Path]:
    if room in NATIVE:
        return sorted(f for f in (ROOT / room).rglob("*") if f.suffix in (".cpp", ".h", ".inc"))
    return sorted((SOURCE / room).rglob("*.py"))


def chosen(path: Path, rng: random.Random) -> Mutant | None:
    """One mutant of a file."""
    source, python = path.read_text(encoding="utf-8"), path.suffix == ".py"
    lines, made = source.splitlines(), []
    for index, at, old, new in sites(source) if python else native_sites(source):
        text = lines[index].strip()
        nth = sum(line.strip() == text for line in lines[:index])
        column = at - (len(lines[index]) - len(lines[index].lstrip()))
        made.append(Mutant(str(path.relative_to(SOURCE if python else ROOT)), text, nth, column, old, new))
    return rng.choice(made) if made else None


def place(mutant: Mutant) -> tuple[Path, int] | None:
    """The present file and line: in its own file first, then in one of that name, then in any."""
    if mutant.file.startswith("native/"):
        own, files = ROOT / mutant.file, [file for room in NATIVE for file in files_of(room)]
    else:
        own, files = SOURCE / mutant.file, [*SOURCE.rglob("*.py"), *ROOT.glob("reproduction/**/*.py")]
    for path in sorted(files, key=lambda f: (f != own, f.name != own.name, f)):
        at = [i for i, line in enumerate(path.read_text(encoding="utf-8").splitlines()) if line.strip() == mutant.line]
        if at:
            return path, at[min(mutant.nth, len(at) - 1)]
    return None


def tests_of(path: Path) -> list[str]:
    """The tests of a file's room, those named after the file first."""
    in_core = path.is_relative_to(SOURCE)
    folder = TESTS / "unit" / path.parent.relative_to(SOURCE) if in_core else TESTS / "reproduction"
    named = folder / f"test_{path.stem}.py"
    return [str(file.relative_to(ROOT)) for file in [named, folder] if file.exists()]


def first_failure(tests: list[str]) -> str | None:
    """The name of the first test that fails, "timeout", or None."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)
    except subprocess.TimeoutExpired:
        return "timeout"
    if ran.returncode in (0, 5):
        return None
    failed = re.search(r"^(?:FAILED|ERROR) \S+?([^/\s]+\.py)(?:::(?:\w+::)*(\w+))?", ran.stdout, re.MULTILINE)
    return "pytest" if failed is None else "::".join(part for part in failed.groups() if part)


def first_native_failure(tests: Iterable[str]) -> str | None:
    """The file of the first of these native tests that fails, "does not compile", "timeout", or None."""
    build, environment = ROOT / "build/mutants", {**os.environ, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}
    configure = ["cmake", "-G", "Ninja", "-S", "native", "-B", str(build), "-DBLINK_TESTS=ON"]
    for name in tests:
        for command in [configure, ["cmake", "--build", str(build), "--target", name]]:
            if subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, check=False).returncode:
                return "does not compile"
        try:
            ran = subprocess.run([build / name], capture_output=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)
        except subprocess.TimeoutExpired:
            return "timeout"
        if ran.returncode:
            return f"{name}.cpp"
    return None


def native_tests_of(path: Path) -> list[str]:
    """The native tests of a file's room, those named after the file first, then the shortest."""
    pattern = NATIVE["/".join(path.relative_to(ROOT).parts[:2])]
    tests = [f for f in (ROOT / "native/tests").glob("test_*.cpp") if re.match(pattern, f.stem)]
    return [f.stem for f in sorted(tests, key=lambda f: (path.stem not in f.stem, f.stat().st_size))]


def own_test(name: str) -> list[str]:
    """The present place of the test that detected a mutant: [] if no test has its name."""
    file, _, function = name.partition("::")
    holders = [
        f for f in sorted(TESTS.rglob("test_*.py")) if re.search(rf"^\s*def {function}\(", f.read_text(), re.MULTILINE)
    ]
    holders.sort(key=lambda f: f.name != file)
    return [f"{holders[0].relative_to(ROOT)}", "-k", function] if function and holders else []


def play(mutant: Mutant) -> str | None:
    """The test that detects the mutant; None without one; "gone" if its line is gone."""
    at = place(mutant)
    if at is None:
        return "gone"
    path, index = at
    source = path.read_text(encoding="utf-8")
    lines = source.split("\n")
    start = len(lines[index]) - len(lines[index].lstrip()) + mutant.column
    lines[index] = lines[index][:start] + mutant.new + lines[index][start + len(mutant.old) :]
    path.write_text("\n".join(lines), encoding="utf-8")
    noticed = mutant.noticed or ""
    try:
        if path.suffix == ".py":
            own = own_test(noticed)
            return (own and first_failure(own)) or first_failure(tests_of(path))
        room = "/".join(path.relative_to(ROOT).parts[:2])
        if not NATIVE[room]:
            return first_failure([SANITIZED, "-k", path.parent.name])
        own = [noticed.removesuffix(".cpp")] if noticed.endswith(".cpp") else []
        return first_native_failure(dict.fromkeys([*own, *native_tests_of(path)]))
    finally:
        path.write_text(source, encoding="utf-8")


def write(mutants: list[Mutant]) -> None:
    FILE.write_text("[\n" + ",\n".join(json.dumps(asdict(m)) for m in mutants) + "\n]\n", encoding="utf-8")


def freeze(count: int, seed: int, only: str) -> None:
    rng, mutants = random.Random(seed), frozen()
    files = {room: files_of(room) for room in [*ROOMS, *NATIVE] if only in room}
    size = {path: len(path.read_text(encoding="utf-8").splitlines()) for paths in files.values() for path in paths}
    places = [at[0] for at in map(place, mutants) if at is not None]
    have = Counter({room: sum(path in paths for path in places) for room, paths in files.items()})
    while len(mutants) < count:
        room = max(files, key=lambda room: sum(size[path] for path in files[room]) / (have[room] + 1))
        mutant = chosen(rng.choices(files[room], [size[path] for path in files[room]])[0], rng)
        if mutant is None or any(replace(m, noticed=None) == mutant for m in mutants):
            continue
        noticed = play(mutant)
        if noticed == "does not compile":
            continue
        mutants.append(replace(mutant, noticed=noticed))
        have[room] += 1
        print(f"{len(mutants):4} {noticed or 'SURVIVED':60} {mutant.file}: {mutant.old} → {mutant.new}", flush=True)
        write(mutants)


def frozen(only: str = "") -> list[Mutant]:
    """The mutants of the file whose paths have this text."""
    rows = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    return [Mutant(**row) for row in rows if only in row["file"]]


def compare(only: str) -> int:
    lost = gone = 0
    mutants = [mutant for mutant in frozen(only) if mutant.noticed is not None]
    for mutant in mutants:
        noticed = play(mutant)
        gone += noticed == "gone"
        if noticed is None:
            lost += 1
            print(f"NOT NOTICED {mutant.file}: {mutant.line}: {mutant.old} → {mutant.new}, then by {mutant.noticed}")
    print(f"{len(mutants)} mutants were noticed; now {lost} of these are not, {gone} are gone")
    return 1 if lost else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only files whose path has this text")
    parser.add_argument("--freeze", type=int, metavar="COUNT", help="add mutants to the file up to this number")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.freeze:
        freeze(options.freeze, options.seed, options.only)
        return 0
    if not FILE.exists():
        parser.error(f"{FILE.name} is not there: --freeze COUNT on the commit to compare with writes it")
    return compare(options.only)


if __name__ == "__main__":
    sys.exit(main())
