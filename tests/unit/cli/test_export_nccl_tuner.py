"""``blink export --to nccl-tuner``: compiled, loaded and asked as NCCL asks it, in each version of the interface."""

from __future__ import annotations

import ctypes as c
import os
import shutil
import subprocess
from string import Template

import pytest

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.baselines.nccl_model import SERVED, cost_lines
from blinkccl.baselines.nccl_server import NcclServer
from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError
from blinkccl.export import nccl_tuner
from blinkccl.export.nccl_graph import channels_of, rings_of
from blinkccl.export.nccl_tuner import FUNCTIONS, PROTOCOLS, fastest, rows_of, write
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_spec

CC = os.environ.get("CC") or shutil.which("cc")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
JOBS = [("hgx-h100", tuple(range(8))), ("dgx-1v", (0, 1, 2, 3)), ("pcie-8gpu", (0, 2, 5))]
SIZE, INT, POINTER = c.c_size_t, c.c_int, c.c_void_p
#: NCCL 2.30's table of costs, and what it says of what is ruled out.
SHAPE, IGNORED = (7, 3), -1.0
LOGGER = c.CFUNCTYPE(None, INT, c.c_ulong, c.c_char_p, INT, c.c_char_p)


def forest_of(spec, ranks, algorithm="ring"):
    return ALGORITHMS[algorithm].plan(Request(parse_spec(spec), Collective("allreduce", len(ranks)), ranks))


def table_of(spec, ranks):
    """The rows as they should be."""
    nccl = NcclServer.of(parse_spec(spec), ranks)
    after = channels_of(rings_of(forest_of(spec, ranks)), nccl.server, nccl.channels)
    return {name: list(rows_of(nccl, after, name)) for name in SERVED}


@pytest.fixture(scope="module", params=JOBS, ids=lambda job: job[0])
def built(request, tmp_path_factory):
    if CC is None:
        pytest.skip("there is no C compiler")
    spec, ranks = request.param
    place = tmp_path_factory.mktemp("tuner")
    forest = forest_of(spec, ranks)
    (file,) = write(lower(forest), forest, parse_spec(spec))
    (place / file.name).write_text(file.text)
    subprocess.run(
        [CC, *STRICT, "-fvisibility=hidden", "-shared", "-fPIC", file.name, "-o", "tuner.so"], cwd=place, check=True
    )
    return c.CDLL(str(place / "tuner.so")), len(ranks), table_of(spec, ranks), place


class Plugin:
    """One version of the interface, as NCCL's headers have it."""

    def __init__(self, library, version):
        fields = [("name", c.c_char_p), *((name, POINTER) for name in ("init", "choose", "end"))]
        layout = type(
            "Layout", (c.Structure,), {"_fields_": [*fields, *([("chunk", POINTER)] if version == 6 else [])]}
        )
        self.version, self.rows = version, layout.in_dll(library, f"ncclTunerPlugin_v{version}")
        assert self.rows.name == b"Blink"
        assert version < 6 or not self.rows.chunk
        self.said: list[bytes] = []

    def open(self, ranks, nodes):
        context = POINTER(1)
        log = LOGGER(lambda level, flags, file, line, text: self.said.append(text))
        if self.version < 5:
            init = c.CFUNCTYPE(INT, SIZE, SIZE, LOGGER, POINTER)(self.rows.init)
            assert init(ranks, nodes, log, c.byref(context)) == 0
        else:
            init = c.CFUNCTYPE(INT, POINTER, c.c_uint64, SIZE, SIZE, LOGGER, POINTER, POINTER)(self.rows.init)
            assert init(c.byref(context), 7, ranks, nodes, log, None, None) == 0
        assert len(self.said) == 1
        return context

    def chosen(self, context, function, size, ruled_out=()):
        """(algorithm, protocol) that it asks for; None: it leaves the choice to NCCL."""
        channels = INT(0)
        if self.version == 2:
            algorithm, protocol = INT(-1), INT(-1)
            nvls = INT(int((4, 2) not in ruled_out))
            kinds = (POINTER, INT, SIZE, INT, INT, INT, POINTER, POINTER, POINTER)
            ask = c.CFUNCTYPE(INT, *kinds)(self.rows.choose)
            out = (c.byref(algorithm), c.byref(protocol), c.byref(channels))
            assert ask(context, function, size, 0, nvls, 1, *out) == 0
            found = None if algorithm.value < 0 else (algorithm.value, protocol.value)
        else:
            costs = ((c.c_float * SHAPE[1]) * SHAPE[0])()
            for a in range(SHAPE[0]):
                for p in range(SHAPE[1]):
                    costs[a][p] = IGNORED if (a, p) in ruled_out else 1 + a + p
            before = [list(row) for row in costs]
            registered = (INT,) if self.version > 3 else ()
            kinds = (POINTER, INT, SIZE, INT, POINTER, INT, INT, *registered, POINTER)
            ask = c.CFUNCTYPE(INT, *kinds)(self.rows.choose)
            assert ask(context, function, size, 1, costs, *SHAPE, *(0 for _ in registered), c.byref(channels)) == 0
            changed = [(a, p) for a, row in enumerate(before) for p, cost in enumerate(row) if costs[a][p] != cost]
            assert len(changed) <= 1
            assert all(costs[a][p] == 0 for a, p in changed)
            found = changed[0] if changed else None
        assert channels.value == 0
        return found

    def close(self, context):
        assert c.CFUNCTYPE(INT, POINTER)(self.rows.end)(context) == 0


def wanted(table, name, size):
    row = [row for row in table[name] if row.least <= size][-1]
    return nccl_tuner.ALGORITHMS[row.algorithm], PROTOCOLS[row.protocol]


def sizes(rows):
    return sorted({0, 1, 2**40, *(max(0, row.least + beside) for row in rows for beside in (-1, 0, 1))})


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_every_version_says_what_the_table_says(built, version):
    library, ranks, table, _ = built
    plugin = Plugin(library, version)
    context = plugin.open(ranks, 1)
    assert context.value
    for name, rows in table.items():
        for size in sizes(rows):
            right = wanted(table, name, size)
            expected = None if version == 2 and right[1] == PROTOCOLS["LL128"] else right
            assert plugin.chosen(context, FUNCTIONS[name], size) == expected
            assert plugin.chosen(context, FUNCTIONS[name], size, {right}) is None or version == 2
    assert plugin.chosen(context, 5, 1 << 20) is None
    assert plugin.chosen(context, -1, 1 << 20) is None
    plugin.close(context)


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_other_communicators_are_left_alone(built, version):
    library, ranks, table, _ = built
    for other in ((ranks + 1, 1), (ranks, 2), (1, 1)):
        plugin = Plugin(library, version)
        context = plugin.open(*other)
        assert not context.value
        assert all(plugin.chosen(context, FUNCTIONS[name], 1 << 24) is None for name in table)
        plugin.close(context)


def test_v2_names_no_nvls_where_there_is_none(built):
    library, ranks, table, _ = built
    plugin = Plugin(library, 2)
    context = plugin.open(ranks, 1)
    for name, rows in table.items():
        for size in sizes(rows):
            found = plugin.chosen(context, FUNCTIONS[name], size, {(4, 2)})
            assert found is None or found[0] != 4


_MAIN = Template("""
#include "$plugin"
int main(void) {
  void* context = NULL;
  if (ncclTunerPlugin_v6.init(&context, 1, $ranks, 1, NULL, NULL, NULL)) return 1;
  for (int function = -2; function < 16; ++function) {
    for (int shift = 0; shift < 64; ++shift) {
      for (int algorithms = 0; algorithms <= 2; ++algorithms) {
        float costs[6] = {1, 1, 1, 1, 1, 1};
        int channels = 0;
        if (ncclTunerPlugin_v6.choose(context, function, (size_t)1 << shift, 1, (float**)costs, algorithms, 3, 0,
                                      &channels)) return 2;
      }
    }
  }
  return ncclTunerPlugin_v6.finalize(context);
}
""")


def test_a_narrower_table_of_costs_is_not_left(built, tmp_path):
    """Under the sanitizers: an NCCL with fewer algorithms, and every size."""
    _, ranks, _, place = built
    (tmp_path / "main.c").write_text(_MAIN.substitute(plugin=place / nccl_tuner.NAME, ranks=ranks))
    build = [CC, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "main.c", "-o", "main"]
    subprocess.run(build, cwd=tmp_path, check=True)
    subprocess.run(["./main"], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.parametrize(("spec", "ranks"), JOBS)
def test_rows_are_the_fastest_by_the_cost_model(spec, ranks):
    nccl = NcclServer.of(parse_spec(spec), ranks)
    after = channels_of(rings_of(forest_of(spec, ranks)), nccl.server, nccl.channels)
    for name in SERVED:
        for power in range(nccl_tuner.FIRST, nccl_tuner.LAST + 1):
            *_, seconds = fastest(nccl, after, name, 1 << power)
            times = [float(line.time_us(1 << power)) * 1e-6 for line in cost_lines(after, name)]
            switch = nccl.in_switch(name)
            times += [] if switch is None else [float(switch.time_us(1 << power)) * 1e-6]
            assert seconds == pytest.approx(min(times))
    assert (nccl.in_switch("allreduce") is not None) == (spec == "hgx-h100")
    assert any(row.algorithm == "NVLS" for row in rows_of(nccl, after, "allreduce")) == (spec == "hgx-h100")


def test_what_is_refused_and_what_people_are_told(blink, tmp_path):
    path = tmp_path / "plan.json"
    blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-3", "-o", path)
    blink("export", path, "--to", "nccl-tuner").assert_refused("is no ring through all GPUs")
    blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-3", "--algo", "ring", "-o", path)
    text = blink("export", path, "--to", "nccl-tuner", "--topo", "dgx-1v").out
    assert " *   export NCCL_TUNER_PLUGIN=$PWD/libnccl-tuner-blink.so\n" in text
    assert " * It leaves alone communicators that are not of 4 ranks on one node.\n" in text
    assert "NCCL by itself ring Simple" in text
    two = parse_spec("2x dgx-a100")
    plan = ALGORITHMS["ring"].plan(Request(two, Collective("allreduce", len(two.ranks)), two.ranks))
    with pytest.raises(UnsupportedError, match="these GPUs are of 2"):
        write(lower(plan), plan, two)
