"""The topology of a job, and the vertex of each rank."""

import pytest
from jobs_by_hand import job, on, settings

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.nccl.topology_of_job import canonical, place, without
from support.fake_nvml import FakeNvml

XML = """<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
<pci busid="0000:a1:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
  <gpu dev="1" sm="70" rank="1" gdr="1"><nvlink target="0000:a0:00.0" count="2" tclass="0x030200"/></gpu></pci>
<pci busid="0000:a0:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
  <gpu dev="0" sm="70" rank="0" gdr="1"><nvlink target="0000:a1:00.0" count="2" tclass="0x030200"/></gpu></pci>
</cpu></system>
"""


def nvml(mig=0):
    """NVML on a machine of two GPUs with four NVLinks between them."""
    fake = FakeNvml(2, {(0, 1): 4})
    fake.answers["nvmlDeviceGetUUID"] = lambda gpu: f"GPU-00000000-0000-0000-0000-{gpu + 7:012x}"
    fake.answers["nvmlDeviceGetMigMode"] = lambda gpu: (mig, mig)
    if not mig:
        fake.fails["nvmlDeviceGetMigMode"] = 3
    return fake


def buses(rank):
    return f"0000:{0xA1 - rank:02x}:00.0"


@pytest.mark.parametrize("written", ["0000:1A:00.0", "00000000:1a:00.0", "0000:1a:00", "00000000:1A:00"])
def test_all_forms_of_a_bus_id_are_equal(written):
    assert canonical(written) == "0000:1a:00.0"


def test_gpus_of_a_named_topology_are_assigned_by_device_numbers():
    assert place(on("dgx-1v", (1, 4, 5, 6))).ranks == (1, 4, 5, 6)


def test_processes_that_see_one_gpu_each_are_assigned_by_rank():
    placed = place(on("dgx-1v", (1, 4, 5, 6), device=0))
    assert placed.ranks == (0, 1, 2, 3)


def test_a_device_that_the_named_topology_has_not_is_refused():
    with pytest.raises(TopologyError, match=r"BLINK_TOPO=ring:4 has 4 GPUs.* rank 3 has device 6"):
        place(on("ring:4", (0, 1, 2, 6)))


def test_a_topology_of_processors_is_refused():
    with pytest.raises(TopologyError):
        place(on("no-such-machine", (0, 1)))


def test_gpus_of_a_named_xml_file_are_assigned_by_bus_ids(tmp_path):
    file = tmp_path / "machine.xml"
    file.write_text(XML)
    placed = place(job(2, bus_id=buses, settings=settings(topo=str(file))))
    assert placed.ranks == (1, 0)
    message = r"has no GPU 0000:00:00.0 of rank 0; it has 0000:a0:00.0, 0000:a1:00.0"
    with pytest.raises(TopologyError, match=message):
        place(job(2, settings=settings(topo=str(file))))


def test_nccls_topology_file_keeps_its_meaning(tmp_path):
    file = tmp_path / "nccl.xml"
    file.write_text(XML)
    notes = []
    placed = place(job(2, bus_id=buses, settings=settings(nccl_topo_file=str(file))), notes.append)
    assert placed.ranks == (1, 0)
    assert placed.topology.link[0, 1].gb_per_s == 50
    assert notes == []


def test_an_incomplete_topology_file_is_left_to_probing(tmp_path):
    file = tmp_path / "nccl.xml"
    file.write_text('<system version="1"><cpu numaid="0"><pci busid="0000:a0:00.0" class="0x030200"/></cpu></system>')
    notes = []
    placed = place(job(2, bus_id=buses, settings=settings(nccl_topo_file=str(file))), notes.append, nvml())
    assert placed.ranks == (1, 0)
    assert "no <gpu> tag" in notes[0]
    assert "probed instead" in notes[0]


def test_probed_gpus_are_found_by_bus_id_or_uuid():
    assert place(job(2, bus_id=buses), nvml=nvml()).ranks == (1, 0)
    by_uuid = job(2, uuid=lambda rank: f"{8 - rank:032x}")
    assert place(by_uuid, nvml=nvml()).ranks == (1, 0)
    assert place(by_uuid, nvml=nvml()).topology.link[0, 1].gb_per_s == 100


def test_a_gpu_that_rank_0_does_not_see_is_refused():
    with pytest.raises(UnsupportedError, match=r"has no GPU 0000:01:00.0 of rank 1; it has 0000:a0:00.0"):
        place(job(2, bus_id=lambda rank: ("0000:a0:00.0", "0000:01:00.0")[rank]), nvml=nvml())


def test_gpus_in_mig_mode_are_refused():
    with pytest.raises(UnsupportedError, match="rank 0 is in MIG mode"):
        place(job(2, bus_id=buses), nvml=nvml(mig=1))


def test_two_instances_of_one_gpu_are_refused():
    with pytest.raises(UnsupportedError, match="ranks 0 and 1 are on two MIG instances"):
        place(job(2, bus_id="0000:a0:00.0", settings=settings(topo="ring:2")))


def test_without_nvml_the_error_names_the_variable():
    silent = nvml()
    silent.fails["nvmlInit"] = 12
    with pytest.raises(UnsupportedError, match="BLINK_TOPO"):
        place(job(2), nvml=silent)


def test_ranks_that_share_a_gpu_are_a_clique_with_a_note():
    notes = []
    placed = place(job(3, device=0, uuid="0" * 32, bus_id="0000:a0:00.0"), notes.append)
    assert (placed.ranks, placed.real, len(placed.topology.links)) == ((0, 1, 2), False, 6)
    assert "ranks 0-2 share GPUs" in notes[0]
    assert placed.topology.notes[-1] == notes[0]


def test_a_bad_pair_loses_its_direct_links_and_a_note_says_so():
    placed = place(on("dgx-1v", (1, 4, 5, 6)))
    assert (1, 5) in placed.topology.link
    left = without(placed, {(0, 2): "3 of 9 bytes arrive wrong", (3, 0): "CUDA grants no peer access"})
    gone = set(placed.topology.link) - set(left.topology.link)
    assert gone == {(1, 5), (5, 1)}
    assert left.topology.notes[-2] == (
        "GPU1 → GPU5: missing, measured: 3 of 9 bytes arrive wrong; their direct links are left out"
    )
    assert left.topology.notes[-1] == "GPU6 → GPU1: missing, measured: CUDA grants no peer access"
