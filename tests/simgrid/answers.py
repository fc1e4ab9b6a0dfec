"""Run workloads in SimGrid and print their end times.

    python3 answers.py < workloads.json > answers.json

Any Python with SimGrid's bindings runs this file (written for 3.32), without this package. It expresses a workload
(blinkccl/cost/simulate/workload.py) in SimGrid's terms. Each actor and each stream is a SimGrid actor. Slots, arrivals,
queues and copy engines are semaphores, and executions are sleeps. A transfer is a communication between two hosts of
its own, routed over the links of its path. Only transfers take time on links, which SimGrid's max-min solver shares.

Input: ``{"programs": [{"latency": "network" | "slept", "workload": {...}}, ...]}``. With "network", a separate link of
the hop has the latency, and SimGrid's CM02 shares links in proportion to 1/latency. With "slept", the transfer sleeps
before its bytes move, and links are shared equally.

Output: ``{"version": "...", "answers": [{"finish_s": ..., "actor_s": [...], "open_order": n}, ...]}``, in the same
order; ``open_order`` counts claims of an engine or a stream by different actors at the same instant.
"""

import json
import os
import sys
from collections import deque

import simgrid
from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, Semaphore, this_actor

#: The pure fluid model, without windows, protocol overhead and acknowledgements. Rates are recomputed at every event.
#: The lazy mode, SimGrid's default, can give a transfer more than the rate of its link (3.32, if two transfers with the
#: same first link begin at the same instant).
MODEL = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/weight-S:0",
    "network/crosstraffic:0",
    "network/optim:Full",
    "network/maxmin-selective-update:no",
    "maxmin/precision:1e-9",
    "surf/precision:1e-12",
)
#: Scale of time, because SimGrid treats times below its precision as equal and may lose them: a microsecond becomes a
#: second. The power of two avoids rounding.
SCALE = 2.0**20
#: Relative distance of times below which claims of one resource may have either order.
NEAR = 1e-9
#: Bytes per second of the link with a hop's latency, high enough never to be the limit.
WIDE = 1e12


class Program:
    """A workload in SimGrid."""

    def __init__(self, workload: dict, slept: bool) -> None:
        self.engine = Engine(["answers", "--log=root.thres:error", *(f"--cfg={entry}" for entry in MODEL)])
        self.actors, self.hops, self.slept = workload["actors"], workload["hops"], slept
        zone = NetZone.create_full_zone("zone")
        links = [zone.create_link(f"link{i}", rate / SCALE).seal() for i, rate in enumerate(workload["rates"])]
        self.ends = [self._route(zone, number, hop, links) for number, hop in enumerate(self.hops)]
        self.home = zone.create_host("home", 1e9).seal()
        zone.seal()
        self.arrived = [Semaphore(0) for _ in self.hops]
        self.landed = [Semaphore(0) for _ in self.hops]
        self.landed_at = [deque() for _ in self.hops]
        self.slots = [Semaphore(hop["slots"]) for hop in self.hops]
        self.read = {hop["frees"] for hop in self.hops}
        self.fired = [Semaphore(0) for _ in self.actors]
        self.engines = [Semaphore(count) for count in workload["engines"]]
        self.queued = [Semaphore(0) for _ in range(workload["streams"])]
        self.queue = [deque() for _ in range(workload["streams"])]
        self.appends = [[] for _ in self.queue]
        self.asks = [[] for _ in self.engines]
        self.open_order = 0
        self.actor_s = [0.0] * len(self.actors)

    def _route(self, zone, number: int, hop: dict, links: list) -> tuple:
        ends = tuple(zone.create_host(f"{side}{number}", 1e9).seal() for side in ("from", "to"))
        own = zone.create_link(f"own{number}", WIDE)
        own.set_latency(0.0 if self.slept else hop["latency_s"] * SCALE)
        way = [LinkInRoute(link) for link in (*(links[i] for i in hop["path"]), own.seal())]
        zone.add_route(ends[0].netpoint, ends[1].netpoint, None, None, way, False)
        return ends

    def run(self) -> dict:
        for number in range(len(self.queue)):
            Actor.create(f"stream{number}", self.home, self.stream, number).daemonize()
        for number, hop in enumerate(self.hops):
            if hop["signal_s"] > 0.0:
                Actor.create(f"signal{number}", self.home, self.signal, number).daemonize()
        for number, row in enumerate(self.actors):
            if row["chunks"]:
                Actor.create(f"actor{number}", self.home, self.actor, number)
        self.engine.run()
        return {"finish_s": max(self.actor_s, default=0.0), "actor_s": self.actor_s, "open_order": self.open_order}

    def actor(self, number: int) -> None:
        """Run an actor of the workload."""
        row = self.actors[number]
        this_actor.sleep_until(row["start_s"] * SCALE)
        for chunk in range(row["chunks"]):
            size = row["last_bytes"] if chunk == row["chunks"] - 1 else row["bytes"]
            for hop in row["receives"]:
                self.arrived[hop].acquire()
                if hop not in self.read:
                    self.slots[hop].release()
            if row["stream"] >= 0:
                self.append(row["stream"], (-1, number, size))
                self.fired[number].acquire()
            for hop in row["sends"]:
                self.slots[hop].acquire()
                self.append(self.hops[hop]["stream"], (hop, number, size))
        self.actor_s[number] = self.engine.clock / SCALE

    def claim(self, others: list, actor: int | None, waits: bool = True) -> None:
        """Record a claim of a resource by ``actor``, and count it if its order with another claim is open.

        Claims of one actor at one instant are ordered; None is a stream that continues with its next task.
        """
        clock = self.engine.clock
        while others and others[0][0] < clock * (1 - NEAR):
            others.pop(0)
        self.open_order += sum((actor is None or actor != other) and (waits or waited) for _, other, waited in others)
        others.append((clock, actor, waits))

    def append(self, stream: int, task: tuple) -> None:
        self.claim(self.appends[stream], task[1])
        self.queue[stream].append(task)
        self.queued[stream].release()

    def stream(self, number: int) -> None:
        """Run the tasks of a stream in order."""
        while True:
            idle = self.queued[number].would_block
            self.queued[number].acquire()
            hop, actor, size = self.queue[number].popleft()
            if hop < 0:
                row = self.actors[actor]
                this_actor.sleep_for((row["launch_s"] + size * row["pace_s_per_byte"]) * SCALE)
                self.fired[actor].release()
            else:
                self.transfer(hop, size, actor if idle else None)

    def transfer(self, hop: int, size: float, actor: int | None) -> None:
        row = self.hops[hop]
        if row["pool"] >= 0:
            self.claim(self.asks[row["pool"]], actor, self.engines[row["pool"]].would_block)
            self.engines[row["pool"]].acquire()
        if self.slept:
            this_actor.sleep_for(row["latency_s"] * SCALE)
        Comm.sendto(*self.ends[hop], int(size))
        if row["frees"] >= 0:
            self.slots[row["frees"]].release()
        if row["pool"] >= 0:
            self.engines[row["pool"]].release()
        if row["signal_s"] > 0.0:
            self.landed_at[hop].append(self.engine.clock)
            self.landed[hop].release()
        else:
            self.arrived[hop].release()

    def signal(self, hop: int) -> None:
        """Deliver messages of a hop a while after their last byte."""
        while True:
            self.landed[hop].acquire()
            this_actor.sleep_until(self.landed_at[hop].popleft() + self.hops[hop]["signal_s"] * SCALE)
            self.arrived[hop].release()


def answer(program: dict) -> dict:
    """SimGrid's answer for one program, from a separate process because a process has one engine."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        try:
            result = Program(program["workload"], program["latency"] == "slept").run()
            with os.fdopen(write, "w") as pipe:
                json.dump(result, pipe)
            code = 0
        finally:
            os._exit(code)  # SimGrid's threads end with the process
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0 or not text:
        raise SystemExit(f"SimGrid ended with status {status} on a program of {len(program['workload']['hops'])} hops")
    return json.loads(text)


def main() -> None:
    """Read workloads from stdin and write answers to stdout."""
    programs = json.load(sys.stdin)["programs"]
    answers = [answer(program) for program in programs]
    json.dump({"version": simgrid.simgrid_version, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
