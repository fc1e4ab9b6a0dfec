"""The file that libblink.so reads, and the cache in which the next job finds it."""

import os
import re
import shutil
import subprocess
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from jobs_by_hand import on

from blinkccl.codegen.layout import Geometry, ProgramGroup
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.native.headers import DIRECTORY, abi
from blinkccl.nccl import bundle as bundles
from blinkccl.nccl.bundle import Bundle, BundleCache, digest_of
from blinkccl.nccl.choices import SEARCH_FROM_BYTES, ChoiceRow, ChoiceTable, Terms, clamped, table
from blinkccl.nccl.images import Image, texts
from blinkccl.nccl.programs import candidates, wanted
from blinkccl.nccl.topology_of_job import place

ROOT = Path(__file__).resolve().parents[3]
GEOMETRY = Geometry(2, 4, 65536, 8192, 4, 1 << 20)


@cache
def chosen(protocol="", algorithm="optimal"):
    """The choices of four GPUs of a DGX-1V without NCCL."""
    where = place(on("dgx-1v", (1, 4, 5, 6)))
    planned = candidates(where, wanted(algorithm), 4, {})
    return clamped(table(planned, 4, Terms(80, 20, protocol=protocol), None), GEOMETRY)


def bundle(tmp_path, content=b"code", archs=("sm_80", "sm_90"), protocol="", algorithm="optimal"):
    rows = chosen(protocol, algorithm)
    group = ProgramGroup([one.program for one in rows.candidates])
    written = texts(rows.candidates, group, rows.protocols)
    built = tmp_path / "built.cubin"
    built.write_bytes(content)
    images = tuple(Image(one, arch, f"{one.name}-{arch}.cubin", built) for one in written for arch in archs)
    shape = replace(GEOMETRY, copy_slots=0, copy_slot_bytes=0) if not rows.copies else GEOMETRY
    return Bundle(group.layout(shape), images, rows, 20)


def read(result):
    return bundles.read(result.content())


def program_named(result, row, protocol):
    """The name in the text of the program that the row's kernel for ``protocol`` runs."""
    kernel = row["kernel"][bundles.PROTOCOLS.index(protocol)]
    (listed,) = {
        tuple(line.removesuffix(")").split(", ")[2:])
        for text in dict.fromkeys(image.text.text for image in result.images)
        for line in text.splitlines()
        if line.startswith(f"BLINK_ENTRY({kernel}, ")
    }
    return listed[row["number"]].removesuffix("::run")


def test_a_file_reads_back_as_written(tmp_path):
    result = bundle(tmp_path)
    file = read(result)
    (head,) = file["header"]
    members = {name: head[name] for name in ("parts", "slots", "slot_bytes", "line_bytes", "threads", "copy_slots")}
    assert tuple(members.values()) == (2, 4, 65536, 8192, 512, 0)
    assert [row["bytes"] for row in file["segment"]] == list(result.layout.segment_bytes)
    names = [member.name for member in fields(result.layout.connections[0])]
    assert [[row[name] for name in names] for row in file["connection"]] == [
        [getattr(one, name) for name in names] for one in result.layout.connections
    ]
    assert [row["why"] for row in file["choice"]] == [row.why for row in result.table.choices]


@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: x[:100], lambda x: b"", lambda x: x + b"\0"])
def test_truncated_files_are_not_read(tmp_path, change):
    with pytest.raises(ValueError, match="expected"):
        bundles.read(change(bundle(tmp_path).content()))


@pytest.mark.parametrize("place", [0, 8, 30, 200, -1])
def test_damaged_files_are_not_read(tmp_path, place):
    content = bytearray(bundle(tmp_path).content())
    content[place] ^= 4
    with pytest.raises(ValueError, match="expected"):
        bundles.read(bytes(content))


def test_choices_name_programs_that_serve_them(tmp_path):
    result = bundle(tmp_path)
    file = read(result)
    for row in file["choice"]:
        one = file["program"][row["program"]]
        assert (one["collective"], one["root"]) == (row["collective"], row["root"])
        name = list(COLLECTIVES)[row["collective"]] + ("" if row["root"] < 0 else f"_root{row['root']}")
        protocol = bundles.PROTOCOLS[row["protocol"]]
        assert program_named(result, one, protocol) == f"{name}_optimal"


def test_choices_that_calls_compare_name_both_programs(tmp_path):
    result = bundle(tmp_path, algorithm="hybrid")
    file = read(result)
    compared = [row for row in file["choice"] if row["other_program"] >= 0]
    assert compared
    for row in compared:
        one, other = file["program"][row["program"]], file["program"][row["other_program"]]
        assert (other["collective"], other["root"]) == (row["collective"], row["root"])
        protocol = bundles.PROTOCOLS[row["other_protocol"]]
        assert program_named(result, other, protocol).endswith("_hybrid")
        own = bundles.PROTOCOLS[row["protocol"]]
        assert program_named(result, one, own).endswith("_optimal")
        assert 0 < row["other_chunk_bytes"] <= GEOMETRY.capacity_bytes(protocol)


def test_each_program_has_as_many_parts_as_its_blocks_and_the_memory_allow(tmp_path):
    result = bundle(tmp_path)
    for blocks in (1, 2, 20):
        rows = read(replace(result, blocks=blocks))["program"]
        assert [row["parts"] for row in rows] == [min(GEOMETRY.parts, blocks // row["channels"]) for row in rows]


def test_kernels_that_are_never_launched_are_not_written(tmp_path):
    result = bundle(tmp_path)
    written = {kernel for row in read(result)["program"] for kernel in row["kernel"] if kernel}
    entries = {part.entry(one) for image in result.images for part in image.text.parts for one in part.protocols}
    assert written == entries
    texts = "".join(dict.fromkeys(image.text.text for image in result.images))
    assert sorted(re.findall(r"^BLINK_ENTRY\((\w+),", texts, re.M)) == sorted(entries)


def test_a_file_is_a_kernel_with_the_programs_that_it_serves(tmp_path):
    result = bundle(tmp_path)
    names = [text.name for text in dict.fromkeys(image.text for image in result.images)]
    assert names[0].startswith("reduces-")
    assert names[-1].startswith("moves-")
    assert set(names) <= {f"{kind}-{one}" for kind in ("reduces", "moves") for one in ("simple", "ll", "ll128")}
    for image in result.images:
        (protocol,) = {part.protocols for part in image.text.parts}
        assert image.text.name.endswith(f"-{protocol[0]}")
        assert [part.number for part in image.text.parts] == list(range(len(image.text.parts)))


def test_programs_name_an_image_for_every_architecture(tmp_path):
    file = read(bundle(tmp_path))
    for row in file["program"]:
        ids = file["program_image"][row["first_image"] : row["first_image"] + row["image_rows"]]
        assert [file["image"][one["image"]]["arch"] for one in ids] == ["sm_80", "sm_90"]


def test_the_digest_is_of_rows_and_code(tmp_path):
    one, same, other = bundle(tmp_path).content(), bundle(tmp_path).content(), bundle(tmp_path, b"other").content()
    assert one == same
    assert bundles.read(one)["header"][0]["digest"] != bundles.read(other)["header"][0]["digest"]
    assert bundles.read(one)["choice"] == bundles.read(other)["choice"]


def test_a_reason_is_always_one_line(tmp_path):
    result = bundle(tmp_path)
    row = ChoiceRow(0, 10, (), "allreduce", -1, "two\nlines  of\twhy\0")
    file = read(replace(result, table=ChoiceTable((row, *result.table.choices))))
    assert file["choice"][0]["why"] == "two lines of why?"


def test_copy_engines_have_room_entry_and_graph_kernel(tmp_path):
    result = bundle(tmp_path, protocol="copies", archs=("sm_80", "host"))
    file = read(replace(result, search=True))
    assert not any(row["search"] for row in read(result)["choice"])
    assert (file["header"][0]["copy_slots"], file["header"][0]["copy_slot_bytes"]) == (4, 1 << 20)
    assert all(row["copy_tail"] > 0 < row["copy_head"] for row in file["connection"])
    for row, (part, images) in zip(file["program"], result.programs, strict=True):
        kind = "reduces" if part.candidate.collective.reduces else "moves"
        assert row["kernel"] == (f"blink_{kind}_simple", "", "", f"blink_{part.candidate.name}_copies")
        assert [file["image"][number]["arch"] for number in images] == ["sm_80", "host"]
    for row in file["choice"]:
        assert bundles.PROTOCOLS[row["protocol"]] == "copies"
        assert row["chunk_bytes"] <= 1 << 20
        assert row["search"] == (row["least"] >= SEARCH_FROM_BYTES)


def test_code_for_copy_engines_is_written_where_they_run(tmp_path):
    for image in bundle(tmp_path).images:
        assert not image.text.copies
        assert "BLINK_FOLD_ENTRY" not in image.text.text
        assert "BLINK_COPY_ENTRY" not in image.text.text
    for image in bundle(tmp_path, protocol="copies").images:
        assert image.text.copies
        assert image.text.text.count("\nBLINK_FOLD_ENTRY(blink_fold)\n") == 1
        assert image.text.text.count("\nBLINK_ENTRY(") == 1
        assert image.text.text.count("\nBLINK_COPY_ENTRY(") == len(image.text.parts)


def test_files_that_only_move_say_so(tmp_path):
    for image in bundle(tmp_path).images:
        reduces = [part.candidate.collective.reduces for part in image.text.parts]
        assert any(reduces) is all(reduces)
        assert ("#define BLINK_MOVES_ONLY" in image.text.text) is not any(reduces)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A compiled program with libblink.so's own reader."""
    shim, place = ROOT / "native/shim", tmp_path_factory.mktemp("reader")
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    source = place / "read.cpp"
    source.write_text(
        '#include <cstdio>\n#include "bundle.h"\nint main(int, char** argv) {\n  blink::shim::Bundle bundle;\n'
        "  std::string why;\n"
        "  if (!blink::shim::read_bundle(argv[1], &bundle, &why)) { std::puts(why.c_str()); return 1; }\n"
        '  std::printf("%d %zu %zu %zu\\n", bundle.nranks, bundle.connections.size(), bundle.programs.size(), '
        "bundle.choices.size());\n}\n"
    )
    rooms = [f"-I{one}" for one in (shim, shim.parent / "preload", DIRECTORY)]
    parts = [shim / "bundle.cpp", *(shim.parent / f"preload/{name}.cpp" for name in ("sha256", "log"))]
    flags = ["-std=c++17", f"-DBLINK_ABI={abi()}u", *rooms]
    subprocess.run(["g++", *flags, source, *parts, "-o", place / "read"], check=True)
    return place / "read"


@pytest.mark.parametrize("protocol", ["", "simple", "ll", "ll128", "copies"])
def test_libblink_reads_it(tmp_path, reader, protocol):
    """The reader of libblink.so accepts the file as complete and consistent."""
    result = bundle(tmp_path, protocol=protocol)
    path = BundleCache(tmp_path / "bundles").put("0" * 40, result)
    read = subprocess.run([reader, path], capture_output=True, text=True)
    expected = [4, len(result.layout.connections), len(result.programs), len(result.table.choices)]
    assert (read.returncode, read.stdout.split()) == (0, [str(number) for number in expected])


def test_only_complete_bundles_are_found(tmp_path):
    cache = BundleCache(tmp_path / "bundles")
    digest = digest_of(["a question"])
    assert cache.find(digest) is None
    path = cache.put(digest, bundle(tmp_path))
    assert cache.find(digest) == path
    assert path.stat().st_mode & 0o077 == 0
    assert [one.name for one in (tmp_path / "bundles").iterdir()] == [digest]
    next(path.glob("*.cubin")).unlink()
    assert cache.find(digest) is None
    assert cache.put(digest, bundle(tmp_path)) == path
    assert cache.find(digest) == path
    code, content = next(path.glob("*.cubin")), (path / bundles.FILE).read_bytes()
    code.write_bytes(b"c0de")
    assert cache.find(digest) is None
    code.write_bytes(b"code")
    assert cache.find(digest) == path
    (path / bundles.FILE).write_bytes(content[:-1])
    assert cache.find(digest) is None


def test_a_job_that_was_slower_finds_that_of_the_faster(tmp_path):
    cache = BundleCache(tmp_path / "bundles")
    first = cache.put("0" * 40, bundle(tmp_path))
    before = (first / bundles.FILE).stat().st_ino
    assert cache.put("0" * 40, bundle(tmp_path)) == first
    assert (first / bundles.FILE).stat().st_ino == before


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The directory of bundles outside the cache."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_a_directory_of_others_is_not_used(tmp_path, temporary):
    directory = tmp_path / "bundles"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    path = BundleCache(directory).put("0" * 40, bundle(tmp_path))
    assert path.parent == temporary
    assert bundles.read((path / bundles.FILE).read_bytes())["header"][0]["nranks"] == 4
    assert BundleCache(directory).find("0" * 40) is None


def test_incomplete_bundles_are_not_found_again(tmp_path, temporary):
    cache = BundleCache(tmp_path / "bundles")
    path = cache.put(None, bundle(tmp_path))
    assert path.parent == temporary
    assert (path / bundles.FILE).is_file()
    assert not (tmp_path / "bundles").exists()


def test_a_temporary_bundle_is_removed_after_the_end_of_its_rank(tmp_path, temporary, monkeypatch):
    """The parent of a planner is the requesting rank, and any end of it counts."""
    killed, lives = (subprocess.Popen(["sleep", "100"]) for _ in range(2))
    try:
        paths = []
        for asker in (killed, lives):
            monkeypatch.setattr("os.getppid", lambda asker=asker: asker.pid)
            paths.append(BundleCache(None).put("0" * 40, bundle(tmp_path)))
        killed.kill()
        killed.wait()
        last = BundleCache(None).put("0" * 40, bundle(tmp_path))
        assert sorted(temporary.iterdir()) == sorted([paths[1], last])
    finally:
        for asker in (killed, lives):
            asker.kill()
            asker.wait()


def test_old_bundles_above_the_limit_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_BUNDLES", 2)
    cache = BundleCache(tmp_path / "bundles")
    result = bundle(tmp_path)
    for number in range(3):
        path = cache.put(f"{number:040d}", result)
        if number < 2:
            os.utime(path, (number, number))
    left = sorted(one.name for one in (tmp_path / "bundles").iterdir())
    assert left == [f"{number:040d}" for number in (1, 2)]
