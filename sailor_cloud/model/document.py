"""The PlanDocument: one value for `plan -o`, `--json`, `up --plan`, `simulate`, `diff` and `export`."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, TypeAdapter, ValidationError

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.job import Constraints, Goal, Job
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.offer import Hardware, Offer
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.shown import Rows, Shown, html_table
from sailor_cloud.model.untrusted import MOST_PLAN_BYTES, MOST_PLAN_VALUES, REPORTS, check_values, read_at_most
from sailor_cloud.units import SECONDS_PER_HOUR, counted, duration_text, probability_text, usd_text, usd_texts

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA_VERSION = 1


class Status(StrEnum):
    """The origin of a plan; `given` ones were stated, not searched, and need not keep any limit."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    GIVEN = "given"


class CostKind(StrEnum):
    """Groups of cost lines, in the order in which reports show them."""

    COMPUTE = "compute"
    DISK = "disk"
    ADDRESS = "address"
    EGRESS = "egress"
    CHECKPOINT = "checkpoint"
    STARTUP = "startup"
    TEARDOWN = "teardown"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """A connection between two zones with traffic of the plan, and the figures used for it.

    `usd_per_gb` is None if the plan has no prices.
    """

    src_zone: str
    dst_zone: str
    bytes_per_iteration: float
    bandwidth_bytes_per_s: float
    rtt_ms: float
    usd_per_gb: float | None
    measured: bool
    source: str
    as_of: date


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRef:
    """A compute profile by name and content."""

    id: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A factor on seconds or bytes from the owner's finished runs, and the share of their error that is left."""

    what: str
    runs: int
    factor: float
    error_left: float
    unit: str = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Inputs(Shown):
    """The inputs of a plan. `machine`: the one whose cores local nodes share; None without such nodes.

    `unpriced` are nodes without a price; `corrections` come from the owner's measurements.
    """

    offers: Rows[Offer]
    links: tuple[LinkUse, ...]
    compute_profiles: tuple[ProfileRef, ...]
    machine: LocalMachine | None = None
    unpriced: tuple[Hardware, ...] = ()
    corrections: tuple[Correction, ...] = ()

    def shown_facts(self) -> list[tuple[str, str]]:
        links, profiles = counted(len(self.links), "link"), counted(len(self.compute_profiles), "compute profile")
        return [("inputs", counted(len(self.offers), "offer")), ("links", links), ("profiles", profiles)]

    def shown_rows(self) -> list[tuple[str, Rows[Any]]]:
        return [("offers", self.offers), ("links", Rows(self.links))]

    def offers_by_id(self) -> dict[str, Offer]:
        return {offer.id: offer for offer in self.offers}

    def hardware_by_id(self) -> dict[str, Hardware]:
        """Return the hardware of nodes, with or without a price."""
        return {hardware.id: hardware for hardware in (*self.offers, *self.unpriced)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What the search optimised, and the resulting value; a larger value is better only for throughput."""

    goal: Goal
    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """How a published planner found the plan. `estimate_s`: seconds of an iteration by its cost model.

    The planner skipped some of its `proposals`, best first: `out_of_memory`, `over_limits` of the job, `inexpressible`
    in whole microbatches and nodes. `oracle`: our simulator chose among them.
    """

    name: str
    oracle: bool
    estimate_s: float | None
    proposals: int
    out_of_memory: int
    over_limits: int
    inexpressible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What the search took; `strategy` if a published planner replaced ours.

    `cut_short`: the time limit ended it. `weakest_branch`: the plans whose bound is that of the document, if the proof
    of one search raised it branch by branch.
    """

    seconds: float
    cut_short: bool = False
    strategy: StrategyRun | None = None
    weakest_branch: Annotated[str | None, Field(exclude_if=lambda branch: branch is None)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds of one iteration on the busiest path by cause; they sum to the iteration."""

    compute_s: float
    transfer_s: float
    bubble_s: float
    sync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak bytes of one device of a stage, by part, and the device's limit.

    `measured`: the kept activations of its layers were measured, or the owner's runs measured the peak of such stages.
    """

    pipeline: int
    stage: int
    parts: dict[str, int]
    total_bytes: int
    limit_bytes: int
    measured: bool = False

    @property
    def tensor_bytes(self) -> int:
        """What torch counts: without what the allocator and the framework hold besides tensors."""
        return self.total_bytes - self.parts.get("allocator", 0) - self.parts.get("framework", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorShare:
    """One source of uncertainty of an iteration's time: its share of the variance, and its error alone.

    `measured` is False for an estimate; `measurement` would reduce the uncertainty.
    """

    what: str
    share: float
    error_p50: float
    measured: bool
    measurement: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Shown):
    """How the plan will run. `error_p50` and `error_p90` are relative errors of the iteration time, in both directions.

    `error_shares`: their sources, largest first. `iteration_s_1f1b`: the time in 1F1B, if the plan has another
    schedule.
    """

    iteration_s: float
    iteration_s_replay: float
    error_p50: float
    error_p90: float
    throughput_iterations_per_s: float
    samples_per_s: float
    duration_s: float | None
    waits: Waits
    memory: tuple[StageMemory, ...]
    error_shares: tuple[ErrorShare, ...] = ()
    iteration_s_1f1b: Annotated[float | None, Field(exclude_if=lambda seconds: seconds is None)] = None

    def shown_facts(self) -> list[tuple[str, str]]:
        facts = [
            ("prediction", f"{duration_text(self.iteration_s_replay)}/iteration"),
            ("error", f"± {100 * self.error_p50:.0f} %"),
            ("pace", f"{self.samples_per_s:,.4g} samples/s"),
        ]
        return facts if self.duration_s is None else [*facts, ("run", duration_text(self.duration_s))]

    def shown_rows(self) -> list[tuple[str, Rows[Any]]]:
        return [("peak memory by stage", Rows(self.memory)), ("sources of error", Rows(self.error_shares))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsQuantile:
    """Time and money that a run does not exceed with a probability."""

    probability: float
    duration_s: float
    total_usd: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals(Shown):
    """The distribution of a run's time and money, and the probability that it ends within the job's limits.

    `within_limits`: within budget, deadline and TTL. Prices and preemptions are expected values.
    """

    quantiles: tuple[TotalsQuantile, ...]
    within_budget: float | None
    within_deadline: float | None
    within_limits: float | None

    def shown_facts(self) -> list[tuple[str, str]]:
        facts = [("totals", counted(len(self.quantiles), "quantile"))]
        if self.within_limits is not None:
            facts.append(("within limits", f"within limits {probability_text(self.within_limits)}"))
        return facts

    def shown_rows(self) -> list[tuple[str, Rows[TotalsQuantile]]]:
        return [("not exceeded with a probability", Rows(self.quantiles))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One item of the bill; `usd` is the expected and `worst_usd` the worst case.

    `what` is for people. `part` is its name in a run's ledger; lines may share one, since the ledger charges nodes from
    start-up to teardown as one. It is empty in older documents.
    """

    kind: CostKind
    what: str
    quantity: float
    unit: str
    usd_per_unit: float
    usd: float
    worst_usd: float
    price_source: str
    price_as_of: date
    stale: bool
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cost(Shown):
    """Money of the whole run, all-in. Without a number of steps, the totals are None.

    `usd_per_iteration` is None for a command with an unknown rate.
    """

    usd_per_iteration: float | None
    usd_per_hour: float
    worst_case_usd_per_hour: float
    total_usd: float | None
    worst_case_usd: float | None
    lines: Rows[CostLine]

    def to_frame(self) -> DataFrame:
        """Return the bill as a pandas frame, one row per line."""
        return self.lines.to_frame()

    def shown_facts(self) -> list[tuple[str, str]]:
        per_hour = ("per hour", f"{usd_text(self.usd_per_hour)} USD/h")
        if self.total_usd is None or self.worst_case_usd is None:
            return [("bill", f"{len(self.lines)} lines"), per_hour]
        worst = ("worst case", f"at worst {usd_text(self.worst_case_usd)} USD")
        return [("bill", f"{usd_text(self.total_usd)} USD"), worst, per_hour]

    def shown_rows(self) -> list[tuple[str, Rows[CostLine]]]:
        return [("lines of the bill", self.lines)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another plan worth knowing, and its benefit; `restrictions` name the smaller space in which it is the best."""

    label: str
    plan: Plan
    iteration_s: float
    throughput_iterations_per_s: float
    usd_per_hour: float
    total_usd: float | None
    restrictions: tuple[str, ...] = ()
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """Another plan on the Pareto frontier of time and money, by the replay.

    Money is `total_usd` (`usd_per_iteration` without a number of steps, when `total_usd` is None), or the cost of the
    nodes per hour without traffic. `cheapest`: it is on the frontier of the first; other points are only on that of the
    second. `devices`: how many of each accelerator are bought.
    """

    iteration_s: float
    throughput_iterations_per_s: float
    usd_per_hour: float
    usd_per_iteration: float
    total_usd: float | None
    devices: dict[str, int]
    zones: tuple[str, ...]
    nodes_usd_per_hour: float | None = None
    cheapest: bool = True
    duration_s: float | None = None

    @property
    def usd(self) -> float:
        """USD of the run, or of an iteration without a number of steps."""
        return self.usd_per_iteration if self.total_usd is None else self.total_usd

    @property
    def seconds(self) -> float:
        """Seconds of the run, or of an iteration without a number of steps."""
        return self.iteration_s if self.duration_s is None else self.duration_s


# Zones of a plan that are named; more are counted.
_NAMED_ZONES = 3


def machines_text(devices: Mapping[str, int], markets: Sequence[str], zones: Sequence[str]) -> str:
    """Return devices, markets and zones in words, such as `8 A100-40 spot in us-central1-a`."""
    bought = " + ".join(f"{count} {name}" for name, count in devices.items())
    named = " and ".join(part for part in (", ".join(zones[:-1]), *zones[-1:]) if part)
    place = named if len(zones) <= _NAMED_ZONES else f"{len(zones)} zones"
    return f"{bought} {' and '.join(markets)} in {place}"


class Pick(StrEnum):
    """The criterion by which a plan is chosen."""

    CHEAPEST = "cheapest"
    BALANCED = "balanced"
    FASTEST = "fastest"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Choice(Shown):
    """A plan to choose from, with the offers of its nodes. It keeps the job's limits.

    It is the best for each of its `picks`. One choice is the `chosen` one, which is also the document's plan.
    Probabilities are None without such a limit; `within_limits` counts budget, deadline and TTL. `devices`: how many of
    each accelerator are bought.
    """

    picks: tuple[Pick, ...]
    chosen: bool
    plan: Plan
    offers: tuple[Offer, ...]
    iteration_s: float
    duration_s: float | None
    usd_per_hour: float
    usd_per_iteration: float
    total_usd: float | None
    within_budget: float | None
    within_deadline: float | None
    within_limits: float | None
    devices: dict[str, int]
    zones: tuple[str, ...]
    markets: tuple[str, ...]
    why: str

    @property
    def usd(self) -> float:
        """USD of the run, or of an iteration without a number of steps."""
        return self.usd_per_iteration if self.total_usd is None else self.total_usd

    @property
    def seconds(self) -> float:
        """Seconds of the run, or of an iteration without a number of steps."""
        return self.iteration_s if self.duration_s is None else self.duration_s

    @property
    def runs_on(self) -> str:
        """Devices, markets and zones, such as `8 A100-40 spot in us-central1-a`."""
        return machines_text(self.devices, self.markets, self.zones)

    def shown_facts(self) -> list[tuple[str, str]]:
        per = "/iteration" if self.duration_s is None else ""
        facts = [("choice", " and ".join(self.picks)), ("cost", f"{usd_text(self.usd)} USD{per}")]
        return [*facts, ("time", f"{duration_text(self.seconds)}{per}"), ("runs on", self.runs_on)]


class Subject(StrEnum):
    """What a job names and a plan may leave out."""

    ACCELERATOR = "accelerator"
    ZONE = "zone"
    MARKET = "market"
    CLOUD = "cloud"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LeftOut(Shown):
    """Something that the job names and the chosen plan leaves out, and what insisting on it would change.

    `why` is the reason as text. The other fields describe the plan that the same choice would take among those that use
    it: the cheapest, the fastest, or the one with the smallest sum of time and money, each relative to the chosen plan.
    Without such a plan, `runs_on` is empty and figures are None. `keeps_limits` is False if every plan that uses it
    exceeds a limit.
    """

    subject: Subject
    name: str
    why: str
    runs_on: str = ""
    iteration_s: float | None = None
    total_usd: float | None = None
    usd_per_iteration: float | None = None
    keeps_limits: bool = False
    plan: Annotated[Plan | None, Field(exclude_if=lambda plan: plan is None)] = None

    @property
    def title(self) -> str:
        """The name, with its subject unless it is an accelerator: `T4-16`, `zone us-central1-b`."""
        return self.name if self.subject is Subject.ACCELERATOR else f"{self.subject} {self.name}"

    def shown_facts(self) -> list[tuple[str, str]]:
        return [
            ("left out", self.title),
            ("insisting on it", self.why),
            ("would run on", self.runs_on or "nothing"),
        ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Decision(Shown):
    """The cheapest, the fastest and the balanced plan, without duplicates, and what the chosen one leaves out.

    The balanced one is the point of the frontier farthest from the line between the two others, both axes scaled to 0
    to 1. `asked`: the requested pick; without it the goal decides. `notes` say if another choice is far cheaper.
    `complete` is False while the search continues. Without `choices`, it only says what was requested.
    """

    chosen: Pick
    asked: Pick | None
    choices: tuple[Choice, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...] = ()
    complete: bool = True

    def to_frame(self) -> DataFrame:
        """Return the choices as a pandas frame, one row each; totals are None without a number of steps."""
        import pandas

        return pandas.DataFrame(
            {
                "picks": " and ".join(choice.picks),
                "chosen": choice.chosen,
                "total_usd": choice.total_usd,
                "hours": None if choice.duration_s is None else choice.duration_s / SECONDS_PER_HOUR,
                "usd_per_hour": choice.usd_per_hour,
                "usd_per_iteration": choice.usd_per_iteration,
                "iteration_s": choice.iteration_s,
                "within_budget": choice.within_budget,
                "within_deadline": choice.within_deadline,
                "within_limits": choice.within_limits,
                "runs_on": choice.runs_on,
                "why": choice.why,
            }
            for choice in self.choices
        )

    def shown_facts(self) -> list[tuple[str, str]]:
        names = (" and ".join(choice.picks) for choice in self.choices)
        usd = zip(names, usd_texts([choice.usd for choice in self.choices]), strict=True)
        return [("decision", self.chosen.value), *((name, f"{name} {amount} USD") for name, amount in usd)]

    def _repr_html_(self) -> str:
        """Return the choices with the reason for each, then the notes, then what insisting on anything would change."""
        per = "" if all(choice.duration_s is not None for choice in self.choices) else " per iteration"
        rows = [
            (
                "chosen" if choice.chosen else "",
                " and ".join(choice.picks),
                usd,
                duration_text(choice.seconds),
                "unknown" if choice.within_limits is None else probability_text(choice.within_limits),
                choice.runs_on,
            )
            for choice, usd in zip(self.choices, usd_texts([choice.usd for choice in self.choices]), strict=True)
        ]
        header = ("", "choose", f"USD{per}", f"time{per}", "in limits", "runs on")
        parts = [html_table(header, rows, [choice.why for choice in self.choices])] if rows else []
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        if self.left_out:
            left = [(row.title, row.why, row.runs_on) for row in self.left_out]
            parts.append(html_table(("why not", "insisting on it", "would run on"), left))
        return "".join(parts)

    def choice(self, pick: Pick) -> Choice:
        """Return the choice that is best by a pick. Raises RequestError if there is none."""
        found = next((choice for choice in self.choices if pick in choice.picks), None)
        if found is None:
            again = "write it again with 'sailor-cloud plan JOB -o FILE'"
            raise RequestError(f"the plan document holds no {pick.value} plan to choose; {again}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """On-demand nodes that continue training if the others' spot capacity is lost once, for `outage_s`.

    `risk`: the probability of such a loss within the run. The run then takes `duration_s`; with all nodes on spot it
    would take `without_s`. `costs_usd`: the difference to all nodes on spot; `saves_usd`: the difference to all nodes
    on demand.
    """

    nodes: tuple[str, ...]
    costs_usd: float
    saves_usd: float
    outage_s: float
    risk: float
    duration_s: float
    without_s: float


_NO_POINTS: Rows[FrontierPoint] = Rows()


class Ground(StrEnum):
    """What ruled something out."""

    PRECISION = "precision"
    PRICE = "price missing"
    PROFILE = "profile missing"
    QUOTA = "quota"
    MEMORY = "memory"
    BANDWIDTH = "bandwidth"
    TORCH = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Something that was ruled out before or during the search; `restrictions` name a smaller space without a plan.

    For something ruled out only in a zone and a market, `subject` names it without them, so that reports can join
    zones. All three are empty otherwise and in older documents.
    """

    what: str
    why: str
    restrictions: tuple[str, ...] = ()
    ground: Ground | None = None
    subject: str = ""
    zone: str = ""
    market: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapPart:
    """One part of a plan's goal, in `unit` (s or USD); the first is the proven bound."""

    what: str
    amount: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """The constraint that can't be met, and the smallest change that would suffice.

    `message` is the complete text. `reason` and `remedies` are its parts, if it has any: each remedy alone permits a
    plan.
    """

    constraint: str
    limit: float | None
    needed: float | None
    unit: str
    message: str
    reason: str = ""
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanDocument(Shown):
    """See docs/design.md. `plan` is None exactly when `status` is infeasible. So is `prediction`, except that a command
    without a model never has one.

    So are `cost` and `objective` of a searched plan; a given one has no objective, and no cost if a node has no price.
    `engine` names the training program of the prediction; `up` runs ours. `ttl_s` is the longest life of the nodes
    after their start: the deadline with its grace, else the budget divided by the worst-case rate. `frontier`: cost
    against throughput, fastest first, regardless of limits. `gap_parts`: the parts of the goal, from work alone to the
    plan's figure; in seconds if the goal is throughput. `totals` is None without a number of steps or a price, `anchor`
    without deliberate on-demand nodes. `decision` is None for a plan that was not searched, and in older documents.
    """

    schema_version: int
    status: Status
    created_at: datetime
    as_of: datetime
    job: Job
    inputs: Inputs
    objective: Objective | None
    constraints: Constraints
    optimality_gap: float | None
    bound: float | None
    search: Search
    plan: Plan | None
    prediction: Prediction | None
    cost: Cost | None
    ttl_s: float | None
    infeasibility: Infeasibility | None
    alternatives: Rows[Alternative]
    rejected: tuple[Rejected, ...]
    frontier: Rows[FrontierPoint] = _NO_POINTS
    gap_parts: tuple[GapPart, ...] = ()
    engine: str = "sailor"
    totals: Totals | None = None
    decision: Decision | None = None
    anchor: Annotated[Anchor | None, Field(exclude_if=lambda anchor: anchor is None)] = None

    @property
    def iteration_s(self) -> float | None:
        """The predicted seconds of an iteration, or the stated ones of a command without a model; None if unknown."""
        return self.job.iteration_s if self.prediction is None else self.prediction.iteration_s_replay

    @property
    def home(self) -> Offer:
        """The offer of the first node, in whose cloud and region the run's own bucket is."""
        assert self.plan is not None
        return self.inputs.offers_by_id()[self.plan.nodes[0].offer]

    @property
    def devices(self) -> dict[str, int]:
        """How many of each accelerator are bought, most first."""
        bought: Counter[str] = Counter()
        hardware = self.inputs.hardware_by_id()
        for node in () if self.plan is None else self.plan.nodes:
            bought[hardware[node.offer].accelerator] += node.devices
        return dict(bought.most_common())

    def check_offers(self) -> None:
        """Raise RequestError unless every node has an offer in the inputs, and every stage a node of the plan."""
        if self.plan is None:
            return
        described = self.inputs.hardware_by_id()
        problems = [
            Problem(path=f"plan.nodes[{index}]", message=f"is of {node.offer!r}, which inputs don't describe")
            for index, node in enumerate(self.plan.nodes)
            if node.offer not in described
        ] + self.plan.device_problems()
        if not self.plan.pipelines:
            problems.append(Problem(path="plan.pipelines", message="are none"))
        if problems:
            raise RequestError(problems)

    def shown_facts(self) -> list[tuple[str, str]]:
        facts = [("plan", self.job.name), ("status", self.status.value)]
        if self.infeasibility is not None:
            facts.append(("why", self.infeasibility.message))
        if self.devices:
            facts.append(("buys", " + ".join(f"{count} {name}" for name, count in self.devices.items())))
        if self.iteration_s is not None:
            facts.append(("iteration", f"{duration_text(self.iteration_s)}/iteration"))
        if self.prediction is not None and self.prediction.duration_s is not None:
            facts.append(("run", duration_text(self.prediction.duration_s)))
        if self.cost is not None:
            facts += [("cost", value) for value in (next(iter(self.cost.shown_facts()))[1],) if self.cost.total_usd]
            facts.append(("nodes and traffic", f"{usd_text(self.cost.usd_per_hour)} USD/h"))
        return facts

    def _repr_html_(self) -> str:
        """Return the decision, as reports begin with it, then the facts and the other plans."""
        decision = "" if self.decision is None else self.decision._repr_html_()
        return f"{decision}{Shown._repr_html_(self)}"

    def shown_rows(self) -> list[tuple[str, Rows[Any]]]:
        return [
            ("alternatives", self.alternatives),
            ("frontier, fastest first", self.frontier),
        ]

    def to_json(self) -> str:
        """Return the document as indented JSON; equal documents yield equal text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> PlanDocument:
        """Return the plan in a file. Raises RequestError if the file is unreadable or wrong."""
        try:
            content = read_at_most(path, MOST_PLAN_BYTES)
        except OSError as error:
            raise RequestError(
                f"can't read plan {path}: {error.strerror}; 'sailor-cloud plan JOB -o {path}' writes one"
            ) from error
        return cls.from_json(content, origin=str(path))

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str = "plan document") -> PlanDocument:
        """Return the document of a JSON text. Raises RequestError with every fault and its path."""

        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
                raise RequestError([Problem(path=origin, message=f"has {twice[:80]!r} more than once in one object")])
            return found

        try:
            raw = json.loads(text, object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            hint = "a plan document is what 'sailor-cloud plan JOB -o plan.json' writes"
            if Path(origin).suffix in (".yaml", ".yml"):
                raise RequestError([Problem(path=origin, message="is a job file, not a plan", hint=hint)]) from error
            if Path(origin).suffix in REPORTS:
                raise RequestError([Problem(path=origin, message="is a report, not a plan", hint=hint)]) from error
            reason = " ".join(str(error).split())
            raise RequestError([Problem(path=origin, message=f"is not JSON: {reason}", hint=hint)]) from error
        check_values(raw, origin=origin, most=MOST_PLAN_VALUES)
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if version != SCHEMA_VERSION:
            message = f"is {version!r}, this version reads {SCHEMA_VERSION}"
            hint = "write the document again with 'sailor-cloud plan JOB -o FILE'"
            raise RequestError([Problem(path=f"{origin}: schema_version", message=message, hint=hint)])
        try:
            return _adapter().validate_python(raw, strict=False)
        except ValidationError as error:
            problems = [
                Problem(path=f"{origin}: {'.'.join(str(part) for part in fault['loc'])}", message=fault["msg"])
                for fault in error.errors()
            ]
            raise RequestError(problems) from error

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain JSON values."""
        return cast(dict[str, Any], _adapter().dump_python(self, mode="json"))


def holds_plan(path: Path) -> bool:
    """Return whether a file is to be read as a plan document: a `.json` file that is not a job's values."""
    if path.suffix != ".json":
        return False
    try:
        content = read_at_most(path, MOST_PLAN_BYTES)
    except OSError:
        return True
    return b'"schema_version"' in content or b'"resources"' not in content


@cache
def _adapter() -> TypeAdapter[PlanDocument]:
    return TypeAdapter(PlanDocument)
