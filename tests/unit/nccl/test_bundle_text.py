"""The text that libblink.so reads, and the cache on which the next job finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from jobs_by_hand import on

from blinkccl.codegen.layout import Geometry, ProgramGroup
from blinkccl.native.headers import DIRECTORY
from blinkccl.nccl import bundle as bundles
from blinkccl.nccl.bundle import Bundle, BundleCache, digest_of
from blinkccl.nccl.choices import SEARCH_FROM_BYTES, ChoiceRow, ChoiceTable, Terms, clamped, table
from blinkccl.nccl.geometry import largest
from blinkccl.nccl.images import Image, texts
from blinkccl.nccl.programs import candidates, wanted
from blinkccl.nccl.topology_of_job import place

ROOT = Path(__file__).resolve().parents[3]
GEOMETRY = Geometry(2, 4, 65536, 8192, 4, 1 << 20)


@cache
def chosen(protocol="", algorithm="optimal"):
    """What four GPUs of a DGX-1V take where there is no NCCL."""
    where = place(on("dgx-1v", (1, 4, 5, 6)))
    planned = candidates(where, wanted(algorithm), 4, {})
    return clamped(table(planned, 4, Terms(80, largest(2), protocol=protocol), None), GEOMETRY)


def bundle(tmp_path, content=b"code", processors=2, archs=("sm_80", "sm_90"), protocol="", algorithm="optimal"):
    rows = chosen(protocol, algorithm)
    group = ProgramGroup([one.program for one in rows.candidates])
    written = texts(rows.candidates, group, rows.protocols, processors)
    built = tmp_path / "built.cubin"
    built.write_bytes(content)
    images = tuple(Image(one, arch, f"{one.name}-{arch}.cubin", built) for one in written for arch in archs)
    shape = replace(GEOMETRY, copy_slots=0, copy_slot_bytes=0) if not rows.copies else GEOMETRY
    return Bundle(group.layout(shape), images, rows)


def lines_of(text, kind):
    return [line.split() for line in text.splitlines() if line.startswith(f"{kind} ")]


def test_the_text_has_its_lines_in_order_and_all_of_them(tmp_path):
    made = bundle(tmp_path)
    text = made.text()
    assert text.startswith("blink-bundle 2\nplan ")
    assert text.endswith("\n")
    kinds = list(dict.fromkeys(line.split()[0] for line in text.splitlines()[1:]))
    assert kinds == ["plan", "ranks", "geometry", "segment", "connection", "image", "program", "choice"]
    assert "\ngeometry parts 2 slots 4 slot_bytes 65536 line_bytes 8192 threads 512\n" in text
    assert len(lines_of(text, "segment")) == 4
    assert len(lines_of(text, "connection")) == len(made.layout.connections)
    assert len(lines_of(text, "choice")) == len(made.table.choices)


def test_choices_name_programs_that_serve_them(tmp_path):
    text = bundle(tmp_path).text()
    programs = lines_of(text, "program")
    for row in lines_of(text, "choice"):
        collective, root, program, protocol = row[2], row[4], int(row[10]), row[12]
        one = programs[program]
        assert (one[3], one[5]) == (collective, root)
        kernel = one[one.index(protocol) + 1]
        assert kernel == f"blink_{collective}{'' if root == '-1' else f'_root{root}'}_optimal_{protocol}"


def test_choices_that_calls_compare_name_both_programs(tmp_path):
    text = bundle(tmp_path, algorithm="hybrid").text()
    programs = lines_of(text, "program")
    found = [row for row in lines_of(text, "choice") if row[17] == "other"]
    assert found
    for row in found:
        number, protocol, chunk, why = int(row[18]), row[20], int(row[22]), row[23]
        one = programs[number]
        assert (one[3], one[5]) == (row[2], row[4])
        assert one[one.index(protocol) + 1].endswith(f"_hybrid_{protocol}")
        assert programs[int(row[10])][one.index(row[12]) + 1].endswith(f"_optimal_{row[12]}")
        assert 0 < chunk <= GEOMETRY.capacity_bytes(protocol)
        assert (row[19], row[21], why) == ("protocol", "chunk", "why")


def test_kernels_that_nobody_launches_are_not_written(tmp_path):
    made = bundle(tmp_path)
    text = made.text()
    for image in made.images:
        for part in image.text.parts:
            for protocol in ("simple", "ll", "ll128"):
                entry = f"blink_{part.candidate.name}_{protocol}"
                used = protocol in part.protocols
                assert (f"BLINK_ENTRY({entry}," in image.text.text) is used
                assert (f" {entry} " in text.replace("\n", " ")) is used


def test_files_are_per_collective_or_per_kernel(tmp_path):
    few, many = bundle(tmp_path), bundle(tmp_path, processors=64)
    assert [text.name for text in dict.fromkeys(image.text for image in few.images)][:4] == [
        "allreduce",
        "allgather",
        "reduce_scatter",
        "alltoall",
    ]
    kernels = sum(len(part.protocols) for image in few.images[::2] for part in image.text.parts)
    assert len(many.images) == 2 * kernels
    assert many.images[0].text.name == "allreduce_optimal-" + many.images[0].text.parts[0].protocols[0]
    # Root 0 is what benchmarks and most programs use: it is compiled before the others.
    names = [image.text.name for image in few.images]
    assert names.index("scatter") < names.index("broadcast-other-roots")


def test_programs_name_an_image_for_every_architecture(tmp_path):
    text = bundle(tmp_path).text()
    images = lines_of(text, "image")
    for row in lines_of(text, "program"):
        ids = [int(number) for number in row[row.index("image") + 1].split(",")]
        assert [images[number][3] for number in ids] == ["sm_80", "sm_90"]


def test_the_plan_is_a_hash_of_text_and_code(tmp_path):
    one, same, other = bundle(tmp_path).text(), bundle(tmp_path).text(), bundle(tmp_path, b"other").text()
    assert one == same
    assert one.splitlines()[1] != other.splitlines()[1]
    assert one.splitlines()[2:] == other.splitlines()[2:]


def test_a_reason_is_one_line_whatever_it_holds(tmp_path):
    made = bundle(tmp_path)
    row = ChoiceRow("allreduce", -1, 0, 9, None, "-", 0, False, "two\nlines  of\twhy")
    text = replace(made, table=ChoiceTable((row, *made.table.choices))).text()
    assert "why two lines of why\n" in text


def test_copy_engines_have_room_entry_and_graph_kernel(tmp_path):
    made = bundle(tmp_path, protocol="copies", archs=("sm_80", "host"))
    text = made.text()
    assert " line_bytes 8192 threads 512 copy_slots 4 copy_slot_bytes 1048576\n" in text
    assert all(row[-6::2] == ["copy_ring", "copy_tail", "copy_head"] for row in lines_of(text, "connection"))
    images = lines_of(text, "image")
    for row in lines_of(text, "program"):
        name = f"{row[3]}{'' if row[5] == '-1' else f'_root{row[5]}'}_optimal"
        assert row[-8:] == [
            "simple",
            f"blink_{name}_simple",
            "ll",
            "-",
            "ll128",
            "-",
            "copies",
            f"blink_{name}_copies",
        ]
        ids = [int(number) for number in row[row.index("image") + 1].split(",")]
        assert [images[number][3] for number in ids] == ["sm_80", "host"]
    for row in lines_of(text, "choice"):
        searched = "1" if int(row[6]) >= SEARCH_FROM_BYTES else "0"
        assert (row[12], int(row[14]) <= 1 << 20, row[16]) == ("copies", True, searched)


@pytest.mark.parametrize("processors", [2, 64])
def test_code_for_copy_engines_is_written_where_they_run(tmp_path, processors):
    for image in bundle(tmp_path, processors=processors).images:
        assert not image.text.copies
        assert "BLINK_FOLD_ENTRY" not in image.text.text
        assert "BLINK_COPY_ENTRY" not in image.text.text
    for image in bundle(tmp_path, processors=processors, protocol="copies").images:
        assert image.text.copies
        assert image.text.text.count("\nBLINK_FOLD_ENTRY(blink_fold)\n") == 1
        for entry in ("\nBLINK_ENTRY(", "\nBLINK_COPY_ENTRY("):
            assert image.text.text.count(entry) == len(image.text.parts)


def test_files_that_only_move_say_so(tmp_path):
    for image in bundle(tmp_path).images:
        reduces = [part.candidate.collective.reduces for part in image.text.parts]
        assert any(reduces) is all(reduces)
        assert ("#define BLINK_MOVES_ONLY" in image.text.text) is not any(reduces)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A program with libblink.so's own reader."""
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
    command = ["g++", "-std=c++17", f"-I{shim}", f"-I{DIRECTORY}", source, shim / "bundle.cpp", "-o", place / "read"]
    subprocess.run(command, check=True)
    return place / "read"


@pytest.mark.parametrize("protocol", ["", "simple", "ll", "ll128", "copies"])
def test_libblink_reads_it(tmp_path, reader, protocol):
    """The reader of libblink.so itself says whether the text is well-formed and consistent."""
    made = bundle(tmp_path, protocol=protocol)
    path = BundleCache(tmp_path / "bundles").put("0" * 40, made)
    read = subprocess.run([reader, path], capture_output=True, text=True)
    expected = [4, len(made.layout.connections), len(made.programs), len(made.table.choices)]
    assert (read.returncode, read.stdout.split()) == (0, [str(number) for number in expected])


def test_what_was_put_is_found_and_only_if_it_is_whole(tmp_path):
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
    (path / bundles.TEXT).write_text("")
    assert cache.find(digest) is None


def test_a_job_that_was_slower_finds_that_of_the_faster(tmp_path):
    cache = BundleCache(tmp_path / "bundles")
    first = cache.put("0" * 40, bundle(tmp_path))
    before = (first / bundles.TEXT).stat().st_ino
    assert cache.put("0" * 40, bundle(tmp_path)) == first
    assert (first / bundles.TEXT).stat().st_ino == before


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where bundles go that are not kept."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_a_directory_of_others_is_not_used(tmp_path, temporary):
    directory = tmp_path / "bundles"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    path = BundleCache(directory).put("0" * 40, bundle(tmp_path))
    assert path.parent == temporary
    assert (path / bundles.TEXT).read_text().startswith("blink-bundle 2")
    assert BundleCache(directory).find("0" * 40) is None


def test_what_lacks_something_is_not_found_again(tmp_path, temporary):
    cache = BundleCache(tmp_path / "bundles")
    path = cache.put(None, bundle(tmp_path))
    assert path.parent == temporary
    assert (path / bundles.TEXT).is_file()
    assert not (tmp_path / "bundles").exists()


def test_a_temporary_bundle_goes_when_who_has_asked_has_ended(tmp_path, temporary, monkeypatch):
    """However it ended; the parent of a planner is the rank that has asked."""
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


def test_old_bundles_go_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_BUNDLES", 2)
    cache = BundleCache(tmp_path / "bundles")
    made = bundle(tmp_path)
    for number in range(3):
        path = cache.put(f"{number:040d}", made)
        if number < 2:
            os.utime(path, (number, number))
    left = sorted(one.name for one in (tmp_path / "bundles").iterdir())
    assert left == [f"{number:040d}" for number in (1, 2)]
