"""The baselines, each named: what other libraries would do with the same job."""

from __future__ import annotations

from blinkccl.simulate.contenders import Contender

#: The registry.
BASELINES: dict[str, Contender] = {}
