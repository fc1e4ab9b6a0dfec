"""``blinkccl.plan``: a plan as an object, with rate, proof, check, simulation, export and picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blinkccl.api.topo import Spec, topology_of
from blinkccl.errors import ScheduleError, TimeUpError, UsageError, VerificationError
from blinkccl.show.text import Paint, fit, gb_per_s_text, plain, rate_text
from blinkccl.topology.stated import assumed
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest, Share
from blinkccl.units import bus_factor

if TYPE_CHECKING:
    from blinkccl.cost.baselines.candidate import Conditions, Estimate
    from blinkccl.cost.choice.auto import Choice
    from blinkccl.proof.audit import Audit
    from blinkccl.show.page import Exhibit
    from blinkccl.trees.packing.clock import Clock


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate: exactly, in lanes (the topology's unit of capacity), and in GB/s as nccl-tests counts them."""

    lanes: Fraction
    algbw_gb_per_s: float
    busbw_gb_per_s: float


@dataclass(frozen=True, repr=False)
class Check:
    """An audit, printed like the output of ``blink check``."""

    audit: Audit

    @property
    def ok(self) -> bool:
        """True if every statement is true and the program is valid."""
        return self.audit.ok

    def __str__(self) -> str:
        from blinkccl.show.check_text import audit_text

        return audit_text(self.audit).rstrip("\n")

    def __repr__(self) -> str:
        from blinkccl.show.plan_text import headline

        return f"<Check {headline(self.audit.forest)}: {'ok' if self.ok else 'refused'}>"


@dataclass(frozen=True, repr=False)
class Plan:
    """A collective's trees and the proof of their rate; created by :func:`plan` and :func:`load`.

    ``print`` shows the output of ``blink plan``. ``forest`` has the trees in the package's own form. ``request`` is the
    job; None for a file, which has only the links of its plan. ``choice`` has the algorithms' times at a size, if one
    was given. ``stated`` is the document of a file; its statements may be false.

    Examples
    --------
    >>> import blinkccl
    >>> plan = blinkccl.plan("broadcast", "dgx-1v", gpus="0-3", root=2)
    >>> plan.rate.lanes, plan.bound.lanes, plan.optimal
    (Fraction(4, 1), Fraction(4, 1), True)
    >>> print(plan.proof)
    proof   no schedule of unicast store-and-forward trees on these links is faster:
            the links out of {...} carry 4 lanes together,
            and all of the data must cross them: at most 4
    >>> sum(share.weight for share in plan.shares)
    Fraction(1, 1)
    >>> print(plan.explain("1M").splitlines()[0])
    broadcast of 1M (1,048,576 bytes) among GPUs 0-3 of dgx-1v
    >>> plan.export("cuda").splitlines()[0]
    '// broadcast ...'
    """

    forest: Forest
    request: Request | None = None
    choice: Choice | None = field(default=None, compare=False)
    stated: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def rate(self) -> Rate:
        """The rate of the plan on links at their nominal rate."""
        return self._rate(self.forest.rate)

    @property
    def bound(self) -> Rate:
        """The upper bound on the rate of every schedule of such trees."""
        return self._rate(self.forest.bound)

    @property
    def optimal(self) -> bool:
        """True if the rate equals the bound."""
        return self.forest.optimal

    @property
    def order(self) -> str | None:
        """The order of the sum of every element, ``"0+1+2+3+(4+5+6+7)"``; None without ``deterministic``."""
        return self.forest.order

    @property
    def price(self) -> Fraction:
        """The cost of that order, as a ratio of the bound of plans in any order to the rate."""
        return self.forest.price

    @property
    def proof(self) -> str:
        """The proof of the bound, in words."""
        from blinkccl.show.plan_text import certificate_lines

        return "\n".join(certificate_lines(self.forest))

    @property
    def shares(self) -> tuple[Share, ...]:
        """The parts of the data, each with its ``weight`` and its trees, ``reduce`` and ``broadcast``."""
        return self.forest.shares

    def check(self) -> Check:
        """The result of ``blink check``: ``ok``, and when printed a line for each statement, proved or false.

        The links are compared with those of the machine, unless the plan is from a file.
        """
        from blinkccl.proof.audit import audit

        stated = self.document() if self.stated is None else self.stated
        return Check(audit(stated, None if self.request is None else self.request.topology))

    def simulate(self, size: int | str) -> Estimate:
        """The predicted time for ``size`` bytes (or ``"64M"``), as in ``blink sim plan.json``.

        The result has ``seconds``, ``algbw_gb_per_s``, ``busbw_gb_per_s``, and ``detail`` on the execution. Raises
        UsageError for an invalid size, UnsupportedError if no execution with known costs can run the plan, and
        VerificationError if the plan is invalid.
        """
        from blinkccl.cost.choice.candidates import code_of, of_forest

        size_bytes, request = bytes_of(size), self._job()
        return of_forest(self.forest, code_of(request), _conditions(request)).at(size_bytes)

    def explain(self, size: int | str) -> str:
        """The text of ``blink explain``: the plan, this or another, that runs a call of ``size`` bytes, and why.

        UsageError for a plan from a file, which lacks the whole machine.
        """
        from blinkccl.show.explain import explain, explain_text

        size_bytes = bytes_of(size)
        if self.request is None:
            raise UsageError(
                "explain needs the whole machine, and a plan from a file has only its own links: plan again with "
                "blinkccl.plan"
            )
        return explain_text(explain(self.request, size_bytes, _conditions(self.request))).rstrip("\n")

    def export(self, to: str, size: int | str | None = None) -> str:
        """The plan in another tool's text format, as ``blink export --to`` prints it: ``"cuda"``, ``"nccl-graph"``, ….

        ``size`` is for formats of one size, such as ``"goal"``. UsageError for an unknown or binary format,
        UnsupportedError if the format cannot express the plan, VerificationError if the plan is false.
        """
        from blinkccl.api.export import exported
        from blinkccl.formats.registry import Choices, format_of

        if format_of(to).per_rank:
            raise UsageError(f"{to} is one binary file per rank, and no text: use blink export --to {to} -o PREFIX")
        choices = Choices(size_bytes=None if size is None else bytes_of(size))
        format_of(to).check(choices)
        audit = self.check().audit
        if not audit.ok or audit.program is None:
            raise VerificationError(audit.all_faults)
        machine = None if self.request is None else self.request.topology
        return "\n".join(file.text for file in exported(audit.program, audit.forest, to, choices, machine))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the JSON of ``blink plan -o``, which :func:`load` and ``blink check`` read."""
        from blinkccl.trees.forest.document import dumps, to_document

        try:
            Path(path).write_text(dumps(to_document(self.forest)), encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None

    def text(self, paint: Paint = plain, width: int | None = None, size_bytes: int | None = None) -> str:
        """The output of ``blink plan`` in ``width`` columns; ``size_bytes`` is the size of NCCL's rate (64 MiB)."""
        from blinkccl.show.beside import SIZE_BYTES, beside_plan, choice_text
        from blinkccl.show.plan_text import plan_text

        lines = [] if self.choice is None else [choice_text(self.choice)]
        if self.request is not None:
            size = SIZE_BYTES if size_bytes is None else size_bytes
            lines += beside_plan(self.forest, self.request, size, lambda s: self.simulate(s).algbw_gb_per_s)
        return plan_text(self.forest, paint, width) + "".join(fit(f"\n{line}\n", width) for line in lines)

    def document(self, seconds: float | None = None) -> dict[str, Any]:
        """The object of ``blink plan --json``; ``seconds`` is how long planning took."""
        from blinkccl.show.beside import choice_document, in_switch, in_switch_document
        from blinkccl.trees.forest.document import to_document

        document = to_document(self.forest, seconds)
        if rates := assumed(self.forest.topology):
            document["assumed"] = rates
        if self.choice is not None:
            document["choice"] = choice_document(self.choice)
        if self.request is None or self.forest.combining:
            return document
        in_network = in_switch(self.request, self.forest)
        if in_network is not None:
            document["in_switch"] = in_switch_document(in_network)
        return document

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def __repr__(self) -> str:
        from blinkccl.show.plan_text import headline

        return f"<Plan {headline(self.forest)}: {rate_text(self.forest.rate, self.forest.topology)}>"

    def show(self, path: str | PathLike[str], size: int | str = "64M") -> None:
        """Draw the plan into a file like ``blink show``: .html, .svg or .txt, by the suffix of ``path``.

        Its player shows a simulation of ``size`` bytes. UsageError for another suffix.
        """
        from blinkccl.show.page import check_form, exhibit_file

        check_form(Path(path))
        shown = exhibit_file(self._exhibit(bytes_of(size)), Path(path))
        Path(path).write_text(shown, encoding="utf-8", newline="\n")

    def _repr_html_(self) -> str:
        from blinkccl.show.page import exhibit_cell

        return exhibit_cell(self._exhibit(bytes_of("64M")))

    def _exhibit(self, size_bytes: int) -> Exhibit:
        from blinkccl.show.show import of_plan

        machine = None if self.request is None else self.request.topology
        return of_plan(self.forest, machine, size_bytes=size_bytes)

    def _rate(self, lanes: Fraction) -> Rate:
        factor = bus_factor(self.forest.collective.name, len(self.forest.ranks))
        unit = self.forest.topology.unit_gb_per_s
        return Rate(lanes, float(lanes) * unit, float(lanes * factor) * unit)

    def _job(self) -> Request:
        forest = self.forest
        return self.request or Request(forest.topology, forest.collective, forest.ranks)


def plan(
    collective: str,
    topology: Spec = None,
    *,
    gpus: str | Iterable[int] | None = None,
    root: int | None = None,
    src: int | None = None,
    dst: int | None = None,
    algo: str = "auto",
    links: str | None = None,
    relays: bool = False,
    size: int | str | None = None,
    timeout: float | None = None,
    deterministic: str | None = None,
) -> Plan:
    """Pack spanning trees into the links of a job until a bottleneck is full, and prove that no trees are faster.

    Parameters
    ----------
    collective
        ``"allreduce"``, ``"broadcast"``, ``"reduce"``, ``"allgather"``, ``"reduce_scatter"``, ``"gather"``,
        ``"scatter"``, ``"alltoall"`` or ``"sendrecv"``.
    topology
        As for :func:`blinkccl.topo`; None: this machine.
    gpus
        The ranks in order: numbers, or text like ``"1,4-6"``, per server ``"0,1+0-3"``. None: all.
    root, src, dst
        Numbers of GPUs in the topology. None: the first rank, for ``dst`` the last.
    algo, links, relays, size
        The options of ``blink plan``. If fast links do not connect the GPUs and no ``links`` are given, the plan is on
        PCIe and a warning is logged. With a ``size`` (bytes, or ``"64M"``), ``auto`` is the fastest algorithm at that
        size by simulation.
    timeout
        Most seconds of planning. None: no limit.
    deterministic
        ``"order"``: sum every element in one order, ``Plan.order``, at the cost ``Plan.price``.

    Raises
    ------
    UsageError
        If the collective, the algorithm, root, src or dst is unknown, or there are fewer than two ranks.
    TopologyError
        If the topology cannot be read, it lacks a GPU, or the links do not connect the ranks.
    UnsupportedError
        If the algorithm cannot serve the job.
    TimeUpError
        If there is no plan after ``timeout`` seconds.

    Examples
    --------
    >>> import blinkccl
    >>> plan = blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 4, 5, 6])
    >>> plan
    <Plan allreduce among 4 ranks (1,4-6) of dgx-1v, by optimal: 2 lanes = 50 GB/s>
    >>> plan.rate
    Rate(lanes=Fraction(2, 1), algbw_gb_per_s=50.0, busbw_gb_per_s=75.0)
    >>> plan.rate == plan.bound, plan.check().ok
    (True, True)
    >>> f"{plan.simulate('64M').busbw_gb_per_s:.1f} GB/s"
    '58.6 GB/s'
    """
    from blinkccl.api.job import gpus_of, request

    for name, value in {"collective": collective, "algo": algo, "links": links}.items():
        if not isinstance(value, str) and (name != "links" or value is not None):
            raise UsageError(f"{name} {value!r}: expected a name, as text")
    size_bytes = None if size is None else bytes_of(size)
    machine = topology_of(topology)
    job = request(machine, gpus_of(gpus, machine), collective, (root, src, dst), (links, relays))
    return plan_of(replace(job, deterministic=deterministic), algo, size_bytes, timeout_s=timeout)


def plan_of(
    request: Request,
    algo: str = "auto",
    size_bytes: int | None = None,
    timeout_s: float | None = None,
    listener: Callable[[Clock], None] | None = None,
) -> Plan:
    """The plan of a request by ``algo``, or by the fastest algorithm at ``size_bytes``.

    ``listener`` is called with the state of the search; TimeUpError after ``timeout_s`` seconds.
    """
    from blinkccl.trees.packing.clock import Clock

    if timeout_s is not None and not 0 < timeout_s < inf:
        raise UsageError(f"timeout {timeout_s}: expected seconds, more than 0")
    clock = Clock(timeout_s, listener)
    try:
        with clock.running():
            return _plan_of(request, algo, size_bytes)
    except TimeUpError:
        bound = None if clock.bound is None else float(clock.bound) * request.network.unit_gb_per_s
        known = "and no bound" if bound is None else f"but a bound of {gb_per_s_text(bound)}"
        raise TimeUpError(
            f"{request.collective.name} among {len(request.ranks)} ranks of {request.topology.name} has no plan after "
            f"{timeout_s:g} s, {known}: give a longer timeout"
        ) from None


def _plan_of(request: Request, algo: str, size_bytes: int | None) -> Plan:
    row = algorithm(algo)
    if size_bytes is None:
        return Plan(row.plan(request), request)
    if request.deterministic is not None:
        raise UsageError(
            "a size selects trees for that size, and deterministic needs the same trees at all sizes: leave one out"
        )
    if algo != "auto":
        raise UsageError(f"a size is for algo auto, got algo {algo}: leave one out")
    from blinkccl.cost.choice.auto import prepare
    from blinkccl.cost.choice.candidates import code_of

    chosen = prepare(request, _conditions(request), code_of(request)).choose(size_bytes, places=2)
    return Plan(chosen.best.forest, request, chosen)


def load(path: str | PathLike[str]) -> Plan:
    """The plan in a file, with its own statements; :meth:`Plan.check` verifies them.

    ScheduleError if the file cannot be read or is no plan.

    Examples
    --------
    >>> import blinkccl, tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     blinkccl.plan("broadcast", "ring:4").save(file.name)
    ...     plan = blinkccl.load(file.name)
    >>> print(plan.check())
    broadcast root 0 among 4 ranks (0-3) of ring:4, by optimal
      ok  trees: 2 shares; every contribution once, every destination served
      ok  rate: 2 lanes = 50 GB/s, recomputed from the loads of 6 links
      ok  bound: 2 lanes = 50 GB/s, by the cut in the plan
      ok  optimal on the links that the plan lists
      ok  program: 8 roles, 6 queues, 2 channels; complete, live with finite buffers, no link overloaded
    proved
    """
    from blinkccl.trees.forest.document import MAX_BYTES, from_document, loads

    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ScheduleError(f"{path} cannot be read: {error.strerror or error}") from None
    stated = loads(content, str(path))
    try:
        return Plan(from_document(stated), stated=stated)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None


def bytes_of(size: int | str, name: str = "size") -> int:
    """The bytes of a size such as ``"64M"``; UsageError, with ``name``, if it is invalid."""
    from blinkccl.cost.simulate.run import parse_size

    return parse_size(name, str(size))


def _conditions(request: Request) -> Conditions:
    """The conditions of simulation: the machine's calibration."""
    from blinkccl.cost.baselines.candidate import Conditions
    from blinkccl.cost.simulate.calibration import calibration_for

    return Conditions(calibration_for(request.topology))
