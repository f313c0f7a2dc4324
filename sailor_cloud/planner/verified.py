"""Checks a given plan against the job and against current data, since a plan file is untrusted input.

Everything that money or safety depends on is computed again: which offers the job allows, their prices, the iteration
time, the cost, the limits, the lifetime of nodes. Only another search could confirm what the file says about other
plans or its own quality, so that is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime

from sailor_cloud.catalog import Catalog
from sailor_cloud.clock import Clock
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import Cost, Decision, PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.shown import Rows
from sailor_cloud.network import Network
from sailor_cloud.planner.purchase import purchase
from sailor_cloud.planner.space.candidates import Candidates, collect
from sailor_cloud.planner.space.goals import TIE
from sailor_cloud.planner.space.quotas import name, used
from sailor_cloud.simulator.lifetime import too_short, ttl_s
from sailor_cloud.simulator.resimulate import broken_limits, simulate_document, without_search_results
from sailor_cloud.workload import ComputeProfiles

# Prices and measurements change between the day of a plan and the day of its purchase. Beyond this share, the plan is
# no longer what the user agreed to.
TOLERANCE = 0.05
# Smaller differences come from the order of summation.
_SAME = 1e-6
_AGAIN = "write it again with 'sailor-cloud plan JOB -o FILE', or give the --pricing, --network and --profiles it had"
_OF_THE_DAY = ("usd_per_hour", "as_of_from", "as_of_to", "source", "confidence", "zone_confidence", "outlier", "listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The plan with all figures computed again, and its differences from the given figures in words."""

    document: PlanDocument
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A figure of the file and its value here. Both may be None."""

    path: str
    claimed: float | None
    found: float | None
    unit: str

    @property
    def ratio(self) -> float:
        """By what share the two differ: 0 for equal ones."""
        if self.claimed is None or self.found is None:
            return 0.0 if self.claimed is self.found else float("inf")
        return abs(self.claimed - self.found) / max(abs(self.found), 1e-300)

    def __str__(self) -> str:
        return f"the file says {_figure(self.claimed, self.unit)}, here it is {_figure(self.found, self.unit)}"


def verified(
    document: PlanDocument,
    *,
    catalog: Catalog,
    network: Network,
    profiles: ComputeProfiles,
    decoder: Decoder,
    as_of: datetime,
) -> Verified:
    """Return a given plan at today's prices. Raises RequestError with everything that keeps it from being bought."""
    plan = document.plan
    if plan is None:
        raise RequestError(f"the document is {document.status} and holds no plan")
    job = document.job
    plan.check(layers=decoder.layers, global_batch_size=job.training.global_batch_size)
    candidates = collect(job, catalog)
    known = {pool.offer.id: pool.offer for pool in candidates.pools}
    problems = [*_plan_problems(document, plan), *_offer_problems(document, plan, known)]
    if problems:
        raise RequestError(problems)
    problems = list(_excess(plan, candidates))
    wanted = replace(document.inputs, offers=Rows(known[offer] for offer in sorted({n.offer for n in plan.nodes})))
    simulation = simulate_document(
        replace(document, inputs=wanted),
        catalog=catalog,
        network=network,
        profiles=profiles,
        decoder=decoder,
        as_of=as_of,
    )
    found = simulation.document
    assert found.cost is not None
    assert found.prediction is not None
    duration_s = found.prediction.duration_s
    lasting = ttl_s(
        job.constraints,
        found.cost,
        duration_s=duration_s,
        offers=found.inputs.offers,
        as_of=as_of,
    )
    found = replace(without_search_results(found), ttl_s=lasting, decision=_asked(document))
    if not simulation.evaluation.fits:
        problems.append(Problem(path="plan", message="does not fit into the memory of its devices"))
    problems += [Problem(path="plan", message=message) for message in broken_limits(found)]
    if lasting is not None and (why := too_short(lasting, duration_s)):
        problems.append(Problem(path="plan", message=why, hint=_AGAIN))
    claims = [claim for claim in _claims(document, found) if claim.ratio > _SAME]
    problems += [Problem(path=c.path, message=str(c), hint=_AGAIN) for c in claims if c.ratio > TOLERANCE]
    if problems:
        raise RequestError(problems)
    return Verified(document=found, differences=tuple(f"{claim.path}: {claim}" for claim in claims))


def verified_purchase(document: PlanDocument, *, catalog: Catalog, clock: Clock) -> Verified:
    """Return a plan without a model at today's prices. Raises RequestError if it differs from today's purchase."""
    found = purchase(document.job, catalog=catalog, clock=clock)
    if found.plan is None or found.plan != document.plan:
        why = "buys other nodes today" if found.infeasibility is None else found.infeasibility.message
        raise RequestError([Problem(path="plan", message=f"is not what the job buys: it {why}", hint=_AGAIN)])
    claims = [claim for claim in _claims(document, found) if claim.ratio > _SAME]
    problems = [Problem(path=c.path, message=str(c), hint=_AGAIN) for c in claims if c.ratio > TOLERANCE]
    if problems:
        raise RequestError(problems)
    return Verified(document=found, differences=tuple(f"{claim.path}: {claim}" for claim in claims))


def _asked(document: PlanDocument) -> Decision | None:
    """Return the decision that the user asked for, which re-plans follow; None if the goal decided."""
    if document.decision is None or document.decision.asked is None:
        return None
    asked = document.decision.asked
    return Decision(chosen=asked, asked=asked, choices=(), left_out=())


def _plan_problems(document: PlanDocument, plan: Plan) -> Iterator[Problem]:
    if document.constraints != document.job.constraints:
        yield Problem(path="constraints", message="are not those of the job")
    if plan.precision is not document.job.training.precision:
        message = f"is {plan.precision}, the job trains in {document.job.training.precision}"
        yield Problem(path="plan.precision", message=message)
    twice = [node for node, count in Counter(node.id for node in plan.nodes).items() if count > 1]
    if twice:
        yield Problem(path="plan.nodes", message=f"names {', '.join(twice)} more than once")


def _offer_problems(document: PlanDocument, plan: Plan, known: dict[str, Offer]) -> Iterator[Problem]:
    """Yield what is wrong with the offers: the job or the catalog lacks them, or has others under their names."""
    given = document.inputs.offers_by_id()
    for index, node in enumerate(plan.nodes):
        path = f"plan.nodes[{index}]"
        if node.offer not in known:
            message = f"is of {node.offer!r}, which the job does not allow or no price is known for"
            yield Problem(path=path, message=message, hint="'sailor-cloud explain JOB' says what is ruled out and why")
        elif node.devices != known[node.offer].accelerator_count:
            message = f"has {node.devices} devices, {node.offer} has {known[node.offer].accelerator_count}"
            yield Problem(path=path, message=message)
    for name_of, offer in given.items():
        if name_of not in known:
            continue
        for field in fields(Offer):
            mine, theirs = getattr(known[name_of], field.name), getattr(offer, field.name)
            if field.name not in _OF_THE_DAY and mine != theirs:
                path = f"inputs.offers: {name_of}: {field.name}"
                yield Problem(path=path, message=f"the file says {theirs!r}, here it is {mine!r}")


def _excess(plan: Plan, candidates: Candidates) -> Iterator[Problem]:
    """Yield the limits of the job's resources and of the account that the nodes exceed."""
    pools = {pool.offer.id: index for index, pool in enumerate(candidates.pools)}
    nodes = Counter(pools[node.offer] for node in plan.nodes)
    devices: Counter[int] = Counter()
    for pool, count in nodes.items():
        devices[candidates.pools[pool].row] += count * candidates.pools[pool].devices
    for row, count in devices.items():
        limit = candidates.rows[row]
        if count > limit.devices:
            message = f"has {count} {limit.accelerator} in {limit.zone}, at most {limit.devices} may be bought"
            yield Problem(path="plan.nodes", message=message)
    for quota in candidates.quotas:
        taken = used(quota, candidates, nodes)
        if taken > quota.remaining * (1 + TIE):
            message = f"takes {taken:g} of {name(quota)}, of which {quota.remaining:g} is left"
            yield Problem(path="plan.nodes", message=message)


def _claims(given: PlanDocument, found: PlanDocument) -> Iterator[_Claim]:
    """Yield the figures that a user agrees to: prices, time, money, lifetime."""
    here = found.inputs.offers_by_id()
    for offer in given.inputs.offers:
        if offer.id in here:
            path = f"inputs.offers: {offer.id}: usd_per_hour"
            yield _Claim(path, offer.usd_per_hour, here[offer.id].usd_per_hour, "USD/h")
    yield _Claim("prediction.iteration_s_replay", given.iteration_s, found.iteration_s, "s")
    for name_of, unit in _MONEY:
        yield _Claim(f"cost.{name_of}", _money(given.cost, name_of), _money(found.cost, name_of), unit)
    yield _Claim("ttl_s", given.ttl_s, found.ttl_s, "s")


_MONEY = (
    ("usd_per_hour", "USD/h"),
    ("worst_case_usd_per_hour", "USD/h"),
    ("total_usd", "USD"),
    ("worst_case_usd", "USD"),
)


def _money(cost: Cost | None, name_of: str) -> float | None:
    figure: float | None = getattr(cost, name_of, None)
    return figure


def _figure(value: float | None, unit: str) -> str:
    return "nothing" if value is None else f"{value:.6g} {unit}"
