"""Syntax of ``SPEC``, the name of a topology, and of ``--gpus``, an allocation (docs/design.md)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from blinkccl.errors import TopologyError, did_you_mean
from blinkccl.topology.assembly import MAX_VERTICES
from blinkccl.topology.catalog import ALIASES, CATALOG, machine
from blinkccl.topology.fabric import by_rule, compose
from blinkccl.topology.model import Topology
from blinkccl.topology.select import check_ranks, ids_text
from blinkccl.topology.stated import NICS, NOTHING, Stated, parse_stated
from blinkccl.topology.synthetic import FAMILIES, synthetic

_COMPOSED = re.compile(r"(?:(?P<count>[0-9]+)\s*x\s*)?(?P<machine>.+?)\s*(?:@\s*(?P<stated>[^@]+))?", re.DOTALL)
_KNOWN = re.compile(r"(?:\d{1,4}x )?([a-z][\w-]*(?::[\w:=-]+)?)(?: @ [\d.]+Gbps)?")


def parse_spec(text: str) -> Topology:
    """The topology named by ``text``, as in ``parse_spec("2x dgx-1v @ 40Gbps")``.

    - One machine: a catalog name or its alias (``dgx-1v``, ``b200``), a file in any supported format, or a synthetic
      spec (``torus:4x4``).
    - Several of it on one switch (``2x dgx-1v @ 40Gbps``, with the rate of each NIC), on several switches
      (``16x dgx-a100 @ fabric=tree:4:2``; :mod:`blinkccl.topology.fabric`), or on cables
      (``4x dgx-spark @ cables=ring``).
    - Rates that a file does not contain (``node7.txt @ nvlink=50GB/s, nic=400Gbps``;
      :mod:`blinkccl.topology.stated`), and in-network reduction and multicast in all switches
      (``2x dgx-a100 @ switches=sharp``).

    TopologyError if the name is unknown, if the file cannot be read, or if it contains a stated rate itself.
    """
    text = text.strip()
    single = _single(text)
    if single is not None:
        return single
    parsed = _COMPOSED.fullmatch(text)
    if parsed is None or (parsed["count"] is None and parsed["stated"] is None):
        raise TopologyError(_unknown(text))
    switches, rest = _split("switches", parsed["stated"] or "", repr(text))
    if switches is not None:
        if switches != "sharp":
            raise TopologyError(f"{text!r}: switches={switches}: expected switches=sharp, for in-network reduction")
        return with_every_switch(parse_spec(f"{text.partition('@')[0]}@ {rest}" if rest else text.partition("@")[0]))
    rule, rest = _split("cables", rest, repr(text))
    fabric, rest = _split("fabric", rest, repr(text))
    stated = parse_stated(rest, repr(text)) if rest else NOTHING
    server = _single(parsed["machine"], stated)
    if server is None:
        raise TopologyError(_several_at(text) or _unknown(parsed["machine"]))
    if parsed["count"] is None:
        if rule is not None or fabric is not None:
            what = "cables join" if rule is not None else "a fabric joins"
            raise TopologyError(f'{text!r}: {what} servers; add their number: "4x {text}"')
        if stated.nic is not None and not any(x.kind == "net" and x.provenance == "declared" for x in server.links):
            raise TopologyError(f'{text!r}: a network rate needs several servers; add their number: "2x {text}"')
        return server
    if len(parsed["count"]) > 4:
        raise TopologyError(f"{text!r}: {parsed['count']} servers; at most {MAX_VERTICES} vertices")
    if rule is not None and fabric is not None:
        raise TopologyError(f"{text!r}: servers have either cables or a fabric; give one of them")
    if rule is not None:
        return by_rule(rule, server, int(parsed["count"]), stated.nic, repr(text))
    return compose(server, int(parsed["count"]), stated.nic, fabric, repr(text))


def with_every_switch(topology: Topology) -> Topology:
    """``topology`` with in-network reduction in each of its switches."""
    vertices = tuple(replace(v, combines=v.kind == "switch" or v.combines) for v in topology.vertices)
    return replace(topology, vertices=vertices)


def machine_named(name: str) -> Topology | None:
    """The machine named by a catalog name or a rule, or several of these; None for other names, and no file is read."""
    match = _KNOWN.fullmatch(name)
    if match is None or (match[1] not in CATALOG and match[1].partition(":")[0] not in FAMILIES):
        return None
    try:
        return parse_spec(name)
    except TopologyError:
        return None


def _split(key: str, stated: str, where: str) -> tuple[str | None, str]:
    """The rule of ``key=RULE`` in ``stated`` (None without one), and the other items."""
    items = [item.strip() for item in stated.split(",")] if stated else []
    rules = [item.partition("=")[2].strip() for item in items if re.match(rf"{key}\s*=", item)]
    if len(rules) > 1:
        raise TopologyError(f"{where}: {key} is stated twice")
    return (rules[0] if rules else None), ", ".join(item for item in items if not re.match(rf"{key}\s*=", item))


def _single(text: str, stated: Stated = NOTHING) -> Topology | None:
    """One machine: from the catalog, a file or a rule; None for other text."""
    name = ALIASES.get(text, text)
    if name not in CATALOG and _is_path(text):
        # Read on demand: a catalog name needs no parser.
        from blinkccl.topology.formats import read_topology

        return read_topology(Path(text), text, stated)
    named = machine(name) if name in CATALOG else synthetic(text) if text.partition(":")[0] in FAMILIES else None
    rates = [key for key in stated.names() if key != "nic"] + ([NICS] if stated.nics else [])
    if named is not None and rates:
        raise TopologyError(f"{text} already has rates; {', '.join(rates)} can be stated only for files without them")
    return named


def _is_path(text: str) -> bool:
    if not text or "\0" in text:
        return False
    try:
        return Path(text).exists()
    except OSError:
        return False


def _several_at(text: str) -> str:
    """The remedy for a known machine or file with several ``@``; "" for other text."""
    first, *items = [part.strip() for part in text.split("@")]
    name = re.sub(r"^[0-9]+\s*x\s+", "", first)
    if len(items) < 2 or not (name in CATALOG or name in ALIASES or _is_path(name)):
        return ""
    return f'{text!r} has several @; join the items with a comma: "{first} @ {", ".join(items)}"'


def _alike(text: str, names: list[str]) -> list[str]:
    """The names with the digits of ``text``, else those with its letters, else all: an H20 is nearer to no H200."""
    for strip in (r"\D", r"[^a-z]"):
        alike = [name for name in names if re.sub(strip, "", name) == re.sub(strip, "", text.lower())]
        if alike and re.search(r"\d", text):
            return alike
    return names


def _unknown(text: str) -> str:
    if not text:
        return f"no topology given; expected one of {', '.join(CATALOG)}, a file, or e.g. ring:8"
    if "/" in text or text.endswith((".txt", ".xml", ".json")):
        return f"{text}: there is no such file"
    near = did_you_mean(text, _alike(text, [*CATALOG, *ALIASES, *FAMILIES]))
    machines = "a machine" if near else f"one of {', '.join(CATALOG)}"
    return (
        f"unknown topology {text!r}{near}; expected an existing file, {machines}, a rule (ring:8) or several "
        'servers ("2x dgx-1v @ 40Gbps"); blink topo --list shows all machines and rules'
    )


def parse_gpus(text: str | None, topology: Topology, option: str = "--gpus") -> tuple[int, ...]:
    """The ranks of a job, in the order of ``text``: rank ``i`` is vertex ``result[i]``. Messages mention ``option``.

    ``"1,4,5,6"`` with ids of the topology, ``"1 4"`` or ``"GPU1,GPU4"``, ranges as ``"0-3"``; or one list per server,
    joined by ``+``, with each server's own numbers 0 … G−1: ``"0,1,2+0,3,4,5,6"``. None means all GPUs.
    TopologyError for an empty or invalid list, an unknown or duplicate GPU, or a number of lists other than the
    number of servers.
    """
    if text is None:
        return topology.ranks
    if not text.strip():
        raise TopologyError(f"{option} is empty; leave it out for all GPUs")
    where = f"{option} {text}"
    if "+" not in text:
        ranks = _numbers(text, where, max(topology.ranks))
        check_ranks(topology, ranks)
        return tuple(ranks)
    by_server = _by_server(topology)
    lists = text.split("+")
    if len(lists) != len(by_server):
        raise TopologyError(
            f"{where}: {len(lists)} lists for {len(by_server)} server(s) of "
            f"{topology.name}; give one list per server, joined by +"
        )
    chosen: list[int] = []
    for server, (part, own) in enumerate(zip(lists, by_server, strict=True)):
        for local in _numbers(part, where, len(own) - 1):
            if local >= len(own):
                raise TopologyError(f"{where}: server {server} has no GPU {local}; it has {ids_text(range(len(own)))}")
            chosen.append(own[local])
    check_ranks(topology, chosen)
    return tuple(chosen)


def _numbers(part: str, where: str, last_gpu: int) -> list[int]:
    numbers: list[int] = []
    for item in re.split(" ?, ?| ", re.sub(" ?- ?", "-", " ".join(part.split()))):
        match = re.fullmatch(r"(?:GPU)?([0-9]{1,9})(?:-(?:GPU)?([0-9]{1,9}))?", item, re.IGNORECASE)
        if match is None:
            raise TopologyError(f"{where}: {item!r} is no GPU number; expected e.g. 1,4,5 or 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if first < last and last > last_gpu:
            raise TopologyError(f"{where}: the range {item} goes beyond the last GPU, {last_gpu}")
        if last < first:
            raise TopologyError(f"{where}: {item} is no range; give the smaller number first")
        numbers.extend(range(first, last + 1))
    return numbers


def _by_server(topology: Topology) -> list[list[int]]:
    """Ranks of each server, ascending; servers ascending."""
    servers: dict[int, list[int]] = {}
    for rank in topology.ranks:
        servers.setdefault(topology.vertex[rank].server, []).append(rank)
    return [servers[s] for s in sorted(servers)]


def load(spec: str | None, gpus: str | None = None) -> tuple[Topology, tuple[int, ...]]:
    """The topology named by ``spec`` (None: the present machine), and the ranks selected by ``gpus``."""
    if spec is None:
        from blinkccl.topology.probe import probe

        topology = probe()
    else:
        topology = parse_spec(spec)
    return topology, parse_gpus(gpus, topology)
