"""Generated text: names, methods, comments, lines; the same bytes in every process; no injection through names."""

import re
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from blinkccl.codegen.channels import channel_loops
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.codegen.text import TREES_SHOWN, WIRES, Kernel, cuda_text, header
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import UsageError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.model import Cut, Forest, Share, Tree
from support.planned import asked, by_hand, planned
from support.processes import said_with_any_hash_seed
from support.programs import random_program


def plan(name: str, spec: str = "dgx-1v", gpus: str | None = "1,4,5,6", algorithm: str = "optimal") -> Forest:
    return planned(algorithm, asked(spec, name, gpus, root=1))


def text_of(program: Program, forest: Forest | None = None) -> str:
    return cuda_text([Kernel("x", program, forest)])


def function(text: str, name: str) -> list[str]:
    """The lines of a channel's function, with the comment above it."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if f" {name}(KernelContext<Wire>& context) {{" in line)
    first = next(i for i in range(start, 0, -1) if not lines[i - 1])
    return lines[first : lines.index("}", start) + 1]


def test_the_root_of_a_tree() -> None:
    text = text_of(lower(plan("allreduce")))
    assert function(text, "rank2_channel1") == [
        "// GPU 5, channel 1.",
        "//   tree 1, root: reduces GPU 1's, GPU 6's and its own data, keeps the result and sends it to GPU 1 and "
        "GPU 6.",
        "template <class Wire>",
        "BLINK_DEVICE void rank2_channel1(KernelContext<Wire>& context) {",
        "  enum : End { from_gpu1, from_gpu6, to_gpu1, to_gpu6 };",
        "  context.contributors(4);",
        "  const Slice& tree1 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block",
        "  context.open(1, 11, 5, 8);",
        "  const Word end = latest(tree1.chunks + 2);",
        "  for (Word tick = 2; tick < end && context.running(); ++tick) {",
        "    context.recv_reduce_copy_send(tree1, tick - 2, ends(from_gpu1, from_gpu6), 2, ends(to_gpu1, to_gpu6), "
        "complete);",
        "  }",
        "  context.close();",
        "}",
    ]


def test_the_largest_share_is_named_where_shares_differ() -> None:
    uneven = lower(plan("allgather"))
    assert sorted({part.stop - part.start for part in uneven.slices}) == [Fraction(1, 2), Fraction(1)]
    text = text_of(uneven)
    line = "  context.largest(1, 1);  // every share has as many chunks as the whole block"
    assert text.count(line) == text.count("context.largest(") == text.count("context.open(")
    lines = function(text, "rank0_channel0")
    assert lines.index(line) == min(n for n, text_line in enumerate(lines) if "context.slice(" in text_line) - 1
    six = text_of(lower(plan("allreduce", gpus=None)))
    assert "  context.largest(1, 6);  // every share has as many chunks as 1/6 of the block\n" in six
    assert "context.largest(" not in text_of(lower(plan("allreduce")))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_role_is_one_call_and_every_loop_one_function(name: str) -> None:
    program = lower(plan(name))
    text, loops = text_of(program), channel_loops(program)
    assert text.count("BLINK_DEVICE void rank") == len(loops)
    assert len(re.findall(r"^    context\.\w+\(", text, re.MULTILINE)) == sum(len(loop.executions) for loop in loops)
    for loop in loops:
        number = loop.rank * len(program.channels) + loop.channel
        assert f"    case {number}: return rank{loop.rank}_channel{loop.channel}(context);" in text
    for protocol, wire in WIRES.items():
        assert f"BLINK_ENTRY(blink_x_{protocol}, {wire}, x::run)" in text
    if not COLLECTIVES[name].reduces:
        assert "contributors" not in text
        assert "reduce" not in re.sub("reduce_scatter|^//.*$", "", text, flags=re.MULTILINE)


def test_the_comment_names_the_source() -> None:
    forest = plan("allreduce")
    program = lower(forest)
    assert header(program, forest).splitlines() == [
        "// allreduce among 4 GPUs of dgx-1v, by optimal. Made by Blink; a change is lost when it is made again.",
        "// ranks  0 = GPU 1, 1 = GPU 4, 2 = GPU 5, 3 = GPU 6",
        "// rate   2 × 25 GB/s = 50 GB/s; optimal",
        "// from   program 0e488bea2e763b80, forest 20af7d87adb22047, topology 038686c314e9956e",
        "// tree 0: 1/2 of S, root GPU 5; up 1→5 4→5 6→5; down 5→1 5→4 5→6",
        "// tree 1: 1/2 of S, root GPU 5; up 4→6 1→5 6→5; down 5→1 5→6→4",
    ]
    alone = header(program)
    assert "// rate   2 units\n" in alone
    assert "dgx-1v" not in alone
    slow = replace(forest, certificate=Cut((1,), Fraction(3), Fraction(1)))
    assert "2 × 25 GB/s = 50 GB/s; bound 3 × 25 GB/s = 75 GB/s" in header(program, slow)


def test_other_collectives_speak_of_blocks_and_paths() -> None:
    gather = header(lower(plan("gather", "ring:4", None)))
    assert "// gather (root GPU 1) among 4 GPUs" in gather
    assert "// path 1: 1/4 of S, block of GPU 1; stays in place\n" in gather
    assert "// path 3: 1/8 of S, block of GPU 3; 3→0→1\n" in gather
    assert "// path 1: 1/3 of S, from GPU 0 for GPU 1; 0→1\n" in header(lower(plan("alltoall", "ring:3", None)))
    assert "// tree 0: 1/10 of S, block of GPU 0, root GPU 0; down 0→1→2→3→4\n" in header(
        lower(plan("allgather", "ring:5", None, "ring"))
    )


def test_names_from_outside_cannot_leave_the_comment() -> None:
    forest = plan("allreduce")
    nasty = "x\\\n#error\n\u2028*/"
    named = replace(forest, algorithm=nasty, topology=replace(forest.topology, name=nasty))
    lines = header(lower(forest), named).splitlines()
    assert all(line.startswith("//") and "\\" not in line for line in lines)
    assert "#error" in lines[0]


def test_long_plans_name_some_of_their_trees_and_no_line_is_long() -> None:
    forest = plan("alltoall", "ring:9", None)
    text = text_of(lower(forest), forest)
    assert len(forest.shares) > TREES_SHOWN
    assert f"// … and {len(forest.shares) - TREES_SHOWN} more\n" in text
    assert max(map(len, text.splitlines())) <= 120
    wide = Tree(0, tuple((r, 0) for r in range(1, 16)))
    share = Share(Fraction(1), 0, None, 0, wide, wide.reversed())
    star = by_hand(Collective("allreduce", 16), parse_spec("clique:16"), [share])
    assert max(map(len, text_of(lower(star), star).splitlines())) <= 120


def test_two_connections_with_one_gpu_have_two_names() -> None:
    named = 0
    for seed in range(80):
        program, _ = random_program(Random(seed))
        text = text_of(program)
        named += "_b" in text
        for opened in re.findall(r"enum : End \{ (.*?) \};\n +context\.open\((.*?)\);", text, re.DOTALL):
            names, ids = ([item.strip() for item in part.split(",")] for part in opened)
            assert len(dict.fromkeys(names)) == len(names) == len(ids)
    assert named >= 5


def test_a_file_of_several_programs_shares_connections() -> None:
    up, down = lower(plan("allreduce")), lower(plan("broadcast"))
    group = ProgramGroup([up, down])
    text = cuda_text([Kernel("allreduce", up), Kernel("broadcast_1", down)], group)
    assert text.count("#include") == 1
    assert text.index("namespace allreduce {") < text.index("namespace broadcast_1 {")
    assert text.count("BLINK_ENTRY(") == 6
    assert max(int(number) for ids in re.findall(r"context\.open\((.+?)\)", text) for number in ids.split(",")) < len(
        group.ways
    )
    with pytest.raises(UsageError, match="different names, got a, a"):
        cuda_text([Kernel("a", up), Kernel("a", down)])
    for name in ("", "Allreduce", "a-b", "1a", "a b", "a{"):
        with pytest.raises(UsageError, match="lower-case letters"):
            Kernel(name, up)
    with pytest.raises(UsageError, match="at least one program"):
        cuda_text([])


def test_the_same_bytes_in_every_process() -> None:
    code = (
        "from random import Random\n"
        "from blinkccl.codegen.text import Kernel, cuda_text\n"
        "from support.programs import random_program\n"
        "for seed in range(12):\n"
        "    print(cuda_text([Kernel('x', random_program(Random(seed))[0])]))\n"
    )
    assert said_with_any_hash_seed(code).count("BLINK_ENTRY") == 36


def test_code_does_not_depend_on_slots() -> None:
    one, two = (
        lower(plan("allreduce", "dgx-a100", "0,1,2", name), slots) for name, slots in (("one_shot", 1), ("one_shot", 7))
    )
    assert text_of(one).split("#include")[1] == text_of(two).split("#include")[1]
