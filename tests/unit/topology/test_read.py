"""Files are recognised by their content; errors name the file and the line."""

from pathlib import Path

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology import formats
from blinkccl.topology.formats import parse_topology, read_topology

OURS = Path(formats.__file__).parent / "fixtures"
REFUSED = {"dgx-2-truncated.nvidia-smi.txt", "no-gpu-tags.nccl.xml", "rings.nccl-graph.xml", "README.md"}
FILES = sorted(p.name for p in OURS.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_every_fixture_reads_or_is_refused_by_name(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(TopologyError, match=name.replace(".", r"\.")):
            read_topology(OURS / name)
    else:
        topology = read_topology(OURS / name)
        assert name in topology.name or name.endswith(".json")
        assert len(topology.ranks) >= 2


def test_the_name_of_the_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    for name in sorted(set(FILES) - REFUSED):
        path.write_bytes((OURS / name).read_bytes())
        assert read_topology(path).ranks == read_topology(OURS / name).ranks


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    data = (OURS / "dgx-1v.nvidia-smi.txt").read_bytes()
    assert parse_topology(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"), "x") == parse_topology(data, "x")


@pytest.mark.parametrize("mark", [b"> ", b">> ", b"> > "])
@pytest.mark.parametrize("name", ["dgx-1v.nvidia-smi.txt", "dgx-1p-old-driver.nvidia-smi.txt"])
def test_the_marks_of_a_quoted_mail(name: str, mark: bytes) -> None:
    data = (OURS / name).read_bytes()
    quoted = b"On Monday a colleague wrote:\n" + b"".join(mark + line for line in data.splitlines(keepends=True))
    assert parse_topology(quoted, "x") == parse_topology(data, "x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b" \n\n", "the file is empty"),
        (b"ok\n\xff\xfe", "line 2: byte 0xff is no UTF-8 text"),
        (b"\0" * 100, "no topology"),
        (b"x" * (8 * 1024 * 1024 + 1), "larger than 8 MiB"),
    ],
)
def test_bad_content(data: bytes, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology(data, "bad")


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="cannot be read"):
        read_topology(tmp_path)
    with pytest.raises(TopologyError, match="cannot be read: No such file"):
        read_topology(tmp_path / "nothing")
