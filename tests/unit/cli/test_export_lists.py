"""``blink export --to mscclpp``, and ``blink check`` of its files and of other tools' files."""

import json

from support import foreign_files


def test_an_exported_plan_is_checked(blink, tmp_path) -> None:
    plan, out = tmp_path / "p.json", tmp_path / "plan.json"
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", "-o", plan).code == 0
    assert blink("export", plan, "--to", "mscclpp", "--in-place", "-o", out).code == 0
    rounded = blink("export", plan, "--to", "mscclpp", "--chunks", "3", "-o", tmp_path / "rounded.json")
    assert "3 chunks per block: 37.5 of 50 GB/s" in rounded.err  # two thirds of the data in one of two equal trees
    checked = blink("check", out)
    assert checked.code == 0
    assert checked.out.startswith("allreduce among 4 ranks, in place\n")
    document = json.loads(blink("check", out, "--json").out)
    assert (document["ok"], len(document["plans"])) == (True, 1)
    assert document["plans"][0]["in_place"] is True
    blink("check", out, "--topo", "dgx-1v").assert_refused("names no links: leave --topo and --links out")
    for verb in (("sim", out), ("export", out, "--to", "cuda")):
        blink(*verb).assert_refused("expected a plan of blink, got an MSCCL++ execution plan; blink check verifies it")


def test_notes_state_the_limits_of_files(blink, tmp_path) -> None:
    plan = tmp_path / "p.json"
    assert blink("plan", "broadcast", "--topo", "dgx-1v", "--gpus", "0-4", "--root", "2", "-o", plan).code == 0
    wrote = blink("export", plan, "--to", "mscclpp")
    assert "valid only for calls with root 2" in wrote.err
    blink("export", plan, "--to", "cuda", "--in-place").assert_refused(
        "CUDA C++ supports neither --in-place nor --chunks"
    )
    packed = blink("export", "--to", "nccl-graph", "--topo", "dgx-1v", "--in-place")
    packed.assert_refused("NCCL_GRAPH_FILE supports neither --in-place nor --chunks")
    blink("export", plan, "--to", "mscclpp", "--chunks", "0").assert_refused("--chunks 0: expected at least 1")
    blink("export", plan, "--to", "msccl").assert_refused("was removed: blink export --to mscclpp writes")


def test_a_wrong_file_fails_the_check_and_a_broken_one_is_refused(blink, tmp_path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(foreign_files.text(foreign_files.put_reduce_scatter()).replace('"sem_release"', '"nop"'))
    wrong = blink("check", file)
    assert wrong.code == 1
    assert "GPU 0, thread block 1, operation 0 for semaphore 0 of GPU 0, but only 0 of 1 are ever sent" in wrong.out
    assert json.loads(blink("check", file, "--json").out)["ok"] is False
    other = tmp_path / "broken.json"
    other.write_text('{"gpus": [], "name": "x"}')
    blink("check", other).assert_refused("missing required field `collective`")
    algorithm = tmp_path / "algorithm.xml"
    algorithm.write_text("<algo/>")
    blink("check", algorithm).assert_refused("the root is <algo>, expected <graphs>")
