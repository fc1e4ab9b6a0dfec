"""One verdict on P2P between the GPUs of a case, for a program that decides before it starts (vLLM's RFC 51513).

The verdict can only object: "veto" means that all users of P2P (NCCL, custom AllReduce, symmetric memory) should go
without, "pass" that evidence shows P2P at work and none speaks against it, "unknown" that there is no evidence. It does
not say that P2P is the fastest way.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blinkccl.apps.doctor.evidence import Case, ChannelHop, Location, MeasuredCall, PeerAccess, Started
from blinkccl.apps.doctor.finding import Finding
from blinkccl.apps.doctor.rules.servers import gpu_name, model_of

#: Causes that speak against P2P between all GPUs, worst first.
_AGAINST = ("wrong-results", "nvlink-peer-broken", "iommu", "no-result", "p2p-forced")
#: Environment that keeps NCCL, vLLM and Blink off P2P.
_WITHOUT = {"NCCL_P2P_DISABLE": "1", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}


class P2pVerdict(msgspec.Struct, frozen=True, rename={"places": "evidence"}):
    """``verdict`` is "veto", "pass" or "unknown"; ``cause`` that of the finding behind a veto.

    ``environment`` has the variables to set, and ``unset`` those to remove, before the program starts; ``vllm`` the
    arguments to add to vLLM's, whose AllReduce heeds no variable. ``pairs`` are the pairs of GPUs with a refusal,
    empty if all are meant.
    """

    verdict: str
    cause: str
    why: str
    environment: dict[str, str]
    unset: tuple[str, ...] = ()
    vllm: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    places: tuple[Location, ...] = ()


def p2p_verdict(case: Case, findings: Sequence[Finding]) -> P2pVerdict:
    """The verdict that follows from the findings of a case, from refusals, and from the GPUs' name."""
    against = [one for cause in _AGAINST for one in findings if one.cause == cause and one.wrong]
    hops = [hop for hop in case.of(ChannelHop) if hop.transport == "P2P"]
    refused = [one for one in case.of(PeerAccess) if not one.allowed]
    if against:
        worst = against[0]
        if worst.cause == "p2p-forced":
            return P2pVerdict("veto", worst.cause, worst.title, {}, ("NCCL_P2P_LEVEL",), places=worst.places)
        return _veto(worst.cause, worst.title, refused if worst.cause == "nvlink-peer-broken" else [], worst.places)
    model = model_of(case)
    if refused:
        return _veto("p2p-off", "the driver refuses P2P", refused, tuple(dict.fromkeys(one.place for one in refused)))
    if model is not None and not model.peers and not hops:
        return _veto("p2p-off", f"{gpu_name(case)} has no P2P over PCIe", [], ())
    rows = case.of(MeasuredCall)
    allowed = [one for one in case.of(PeerAccess) if one.allowed]
    if (hops and rows and not case.of(Started)) or allowed:
        places = tuple(dict.fromkeys(piece.place for piece in (*hops[:2], *allowed[:2])))
        return P2pVerdict("pass", "", "P2P is in use or allowed, and nothing speaks against it", {}, places=places)
    return P2pVerdict("unknown", "", "no evidence of P2P between these GPUs", {})


def _veto(cause: str, why: str, refused: Sequence[PeerAccess], places: tuple[Location, ...]) -> P2pVerdict:
    pairs = tuple((one.a, one.b) for one in refused)
    return P2pVerdict("veto", cause, why, dict(_WITHOUT), (), ("--disable-custom-all-reduce",), pairs, places)
