"""Writes ``nccl_functions.def``, NCCL's functions with their types, from NCCL's headers. Needs Python alone.

python native/shim/generate_functions.py DIRECTORY    # that of nccl.h; git diff shows what is new
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TABLE = HERE / "nccl_functions.def"
TYPES = HERE / "nccl_types.h"
INDENT = " " * 4
GLUE = "\N{NO-BREAK SPACE}"  # lines end between parameters

#: These do more than forward; they are written by hand.
HANDLED = (
    "ncclAllGather", "ncclAllGatherConfig", "ncclAllReduce", "ncclAllReduceConfig", "ncclAlltoAll",
    "ncclAlltoAllConfig", "ncclBcast", "ncclBroadcast", "ncclBroadcastConfig", "ncclCommAbort", "ncclCommDestroy",
    "ncclCommFinalize", "ncclCommGetAsyncError", "ncclCommGrow", "ncclCommInitAll", "ncclCommInitRank",
    "ncclCommInitRankConfig", "ncclCommInitRankScalable", "ncclCommRevoke", "ncclCommShrink",
    "ncclCommSplit", "ncclCommSuspend", "ncclCommWindowRegister", "ncclGather", "ncclGatherConfig", "ncclGroupEnd",
    "ncclGroupSimulateEnd",
    "ncclGroupStart", "ncclRecv", "ncclRedOpCreatePreMulSum", "ncclRedOpDestroy", "ncclReduce", "ncclReduceConfig",
    "ncclReduceScatter", "ncclReduceScatterConfig", "ncclScatter", "ncclScatterConfig", "ncclSend",
)  # fmt: skip

#: Declared, but in no library up to 2.32.3: who looks for it must not find it.
DECLARED_ONLY = frozenset({"ncclCftBarrierCreateRequirement"})

#: What a function says when the real library lacks it, where that is no ncclResult_t: an expression of C++.
ABSENT = {
    "ncclGetErrorString": "text_of(result)",
    "ncclGetLastError": "last_words()",
    "ncclLLA2ACalcSlots": "0",
    "ncclParamDumpAll": "void()",
    "ncclResetDebugInit": "void()",
    "ncclTeamRankToLsa": "-1",
    "ncclTeamRankToWorld": "-1",
}
#: The same by type. A team that nobody can be asked about is the calling rank alone.
ABSENT_OF_TYPE = {"ncclResult_t": "refusal", "ncclTeam_t": "kAlone"}

PLAIN = (
    "void", "bool", "char", "unsigned", "int", "float", "double", "size_t",
    "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t",
)  # fmt: skip


class Function(NamedTuple):
    """One function of the ABI: texts of C++."""

    result: str
    name: str
    parameters: tuple[str, ...]
    arguments: tuple[str, ...]

    def row(self) -> str:
        macro = "BLINK_HANDLED" if self.name in HANDLED else "BLINK_FORWARDED"
        absent = ABSENT.get(self.name) or ABSENT_OF_TYPE.get(self.result)
        if absent is None:
            raise SystemExit(f"say in ABSENT what {self.name} returns where it is missing")
        parameters = ", ".join(text.replace(" ", GLUE) for text in self.parameters)
        row = f"{macro}({self.result}, {self.name}, ({parameters}), ({', '.join(self.arguments)}), {absent})"
        return fill(row, 118, subsequent_indent=INDENT).replace(GLUE, " ") + "\n"


def version_of(directory: Path) -> str:
    text = (directory / "nccl.h").read_text(encoding="utf-8")
    found = [re.search(rf"^#define NCCL_{part}\s+(\d+)", text, re.MULTILINE) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(match[1] for match in found if match)


def declared_types() -> frozenset[str]:
    """The names that nccl_types.h declares."""
    text = TYPES.read_text(encoding="utf-8")
    names = re.findall(r"^typedef\s[^;]*?(?:\{[^}]*\}\s*)?\b(\w+);", text, re.MULTILINE)
    return frozenset(names)


def _type(text: str, known: frozenset[str], where: str) -> str:
    """``X const*`` → ``const X*``; what is passed by address and unknown is ``void*``."""
    words = re.findall(r"\w+|\*", text)
    stars = "".join(word for word in words if word == "*")
    constant = "const " if "const" in words[: words.index("*") if stars else None] else ""
    names = [word for word in words if word not in ("*", "const", "struct")]
    name = " ".join(names)
    if f"{name}_t" in known and name not in known:
        name += "_t"
    if all(part in PLAIN for part in names) or name in known:
        return constant + name + stars
    if stars:
        return f"{constant}void{stars}"
    raise SystemExit(f"{where}: '{name}' is passed by value: say in {TYPES.name} how it is laid out")


def _parameter(text: str, index: int, known: frozenset[str], where: str) -> tuple[str, str]:
    """The parameter as C++ and its name; headers up to 2.28 leave some without one."""
    text = text.split("=")[0].strip()
    last = re.split(r"[\s*]", text)[-1]
    if last in ("", "const", *PLAIN) or last in known:
        text += f" argument{index}"
    match = re.fullmatch(r"(.*?[\s*])(\w+)", text, re.DOTALL)
    if match is None:
        raise SystemExit(f"{where}: cannot read the parameter '{text}'")
    return f"{_type(match[1], known, where)} {match[2]}", match[2]


def _functions_in(text: str, known: frozenset[str]) -> list[Function]:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)  # both sides of every #if: no function is missed
    text = re.sub(r'extern\s+"C"\s*\{?', " ", text)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)\s*\)|NCCL_EXTERN_C\b|__host__", " ", text)
    found = []
    for match in re.finditer(r"(?:^|[;{}])\s*((?:\w+[\s*]+)+)(nccl[A-Z]\w*)\s*\(([^(){};]*)\)\s*(?=;)", text):
        result, name, inside = match[1], match[2], " ".join(match[3].split())
        if {"typedef", "inline", "NCCL_IR_EXTERN_C", "return"} & set(result.split()) or "INLINE" in result:
            continue
        parts = inside.split(",") if inside not in ("", "void") else []
        pairs = [_parameter(part, index, known, name) for index, part in enumerate(parts)]
        found.append(Function(_type(result, known, name), name, tuple(p for p, _ in pairs), tuple(a for _, a in pairs)))
    return found


def functions_of(directory: Path) -> list[Function]:
    """All public host functions that the headers in ``directory`` declare, by name."""
    known = declared_types()
    files = [directory / "nccl.h"]
    device = directory / "nccl_device"
    # Before 2.32 the host functions of the device interface were declared all over its headers.
    files += [device / "host.h"] if (device / "host.h").is_file() else sorted(device.glob("*.h"))
    named: dict[str, Function] = {}
    for file in files:
        for function in _functions_in(file.read_text(encoding="utf-8"), known):
            named.setdefault(function.name, function)
    return [named[name] for name in sorted(named) if name not in DECLARED_ONLY]


def table_of(version: str, functions: list[Function]) -> str:
    head = (
        f"// NCCL's {len(functions)} functions, made by generate_functions.py from the headers of {version}.\n"
        "// BLINK_HANDLED and BLINK_FORWARDED(result, name, (parameters), (arguments), what it returns where the real\n"
        "// library lacks it): the former are written by hand, the latter do nothing but forward.\n"
    )
    rows = "".join(function.row() for function in functions)
    return f"{head}{rows}#undef BLINK_HANDLED\n#undef BLINK_FORWARDED\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not (Path(arguments[0]) / "nccl.h").is_file():
        print(f"{__doc__}\nexpected the directory that holds nccl.h, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    TABLE.write_text(table_of(version_of(directory), functions_of(directory)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
