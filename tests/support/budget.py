"""The budget of lines: the size of each room, compared with the table in CONTRIBUTING.md.

    python tests/support/budget.py            exit code 1, with a sentence per room over its limit
    python tests/support/budget.py --table    the table with the current numbers

The lines of code files count: Python, C, C++, headers, CMake, and parts of pages of ``blink show``.
"""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "native", "tests", "reproduction")
CODE = {*(".py", ".c", ".h", ".cpp", ".inc", ".def", ".cu", ".f90", ".cmake", ".js", ".css", ".html"), "CMakeLists.txt"}
ROW = re.compile(r"^\| `([\w./]+)` \| +([\d,]+) \|$", re.MULTILINE)


def room_of(file: Path) -> str | None:
    """Return the row that a file counts for; None for files outside of the budget, as benchmarks and examples."""
    match file.parts:
        case ("tests", *_) | ("native", "tests", *_):
            return "tests"
        case ("src", "blinkccl", "apps", room, _, *_):
            return f"apps/{room}"
        case ("src", "blinkccl", room, _, *_):
            return room
        case ("src", "blinkccl", _):
            return "ground"
        case ("native", folder, _, *_):
            return f"native/{folder}"
        case ("native", _):
            return "native"
        case ("reproduction", *_):
            return "reproduction"
    return None


def lines_by_room() -> Counter[str]:
    lines: Counter[str] = Counter()
    for file in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*")):
        room = room_of(file.relative_to(ROOT))
        if room is not None and not CODE.isdisjoint((file.suffix, file.name)) and file.is_file():
            lines[room] += len(file.read_bytes().splitlines())
    return lines


def allowed() -> dict[str, int]:
    """Return the table of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return {room: int(number.replace(",", "")) for room, number in ROW.findall(text)}


def main() -> int:
    lines, budget = lines_by_room(), allowed()
    if "--table" in sys.argv:
        for room in sorted(lines, key=lambda room: (room == "tests", -lines[room], room)):
            print(f"| `{room}` | {lines[room]:,} |")
        print(f"source {sum(lines.values()) - lines['tests']:,}, tests {lines['tests']:,}")
        return 0
    faults = [
        f"{room} has {lines[room]:,} lines, and CONTRIBUTING.md allows {budget.get(room, 0):,}: remove as many in it, "
        "take them from another row, or say in the commit that raises the row why"
        for room in sorted({*lines, *budget})
        if lines[room] > budget.get(room, 0)
    ]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
