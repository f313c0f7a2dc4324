"""The public functions: the actions of the command line, for programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from sailor_cloud.arguments import (
    check_amount,
    check_count,
    check_observer,
    check_plan,
    choice_of,
    clock_of,
    names_of,
    path_of,
)
from sailor_cloud.clock import Clock, FixedClock
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.resources import own_folder

if TYPE_CHECKING:
    from sailor_cloud.catalog import Catalog
    from sailor_cloud.launch.replanning.replan import Policy
    from sailor_cloud.launch.simulation.market import Trace
    from sailor_cloud.launch.simulation.spot_traces import ZoneTrace
    from sailor_cloud.model.decoder import Decoder
    from sailor_cloud.model.document import Decision, Pick, PlanDocument
    from sailor_cloud.model.job import Job
    from sailor_cloud.model.machine import LocalMachine
    from sailor_cloud.model.offer import Offer
    from sailor_cloud.model.shown import Rows
    from sailor_cloud.planner import Restriction
    from sailor_cloud.planner.explaining import Explanation
    from sailor_cloud.planner.marginal import Gain
    from sailor_cloud.planner.strategies import Comparison, Contender
    from sailor_cloud.planner.verified import Verified
    from sailor_cloud.run.folder import RunFolder
    from sailor_cloud.run.options import Outcome
    from sailor_cloud.run.progress import Observer, Replayed, SpotReplayed
    from sailor_cloud.simulator import Evaluation
    from sailor_cloud.simulator.resimulate import Simulation
    from sailor_cloud.workload import ComputeProfiles

_P = ParamSpec("_P")
_R = TypeVar("_R")

# The share of explain's time limit for the search for the plan.
_PLANNING = 0.6
# The evaluations that explain's searches for gains may make in any case.
_LEAST_CHECKS = 5_000
# Options of `plan` about the inputs of planners.
_READ_FROM = ("base", "clock", "profiles", "network", "pricing", "machine", "engine")


def _ignore(*_arguments: object) -> None:
    """Replace a function that the caller did not give."""


def _naming_the_file(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function of a job with errors that name the job's file, as those of `read_job` do."""

    @functools.wraps(function)
    def named(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return function(*arguments, **options)
        except RequestError as error:
            from sailor_cloud.model.job_file import of_file

            job = arguments[0] if arguments else options.get("job")
            if not isinstance(job, Path | str | Mapping):
                raise
            raise of_file(error, "job" if isinstance(job, Mapping) else str(job)) from error

    return named


@_naming_the_file
def plan(
    job: Job | Path | str | Mapping[str, Any],
    *,
    on: str | None = None,
    cluster: Path | str | None = None,
    base: Path | str | None = None,
    clock: Clock | None = None,
    profiles: Path | str | None = None,
    network: Path | str | None = None,
    pricing: Path | str | None = None,
    restrictions: Iterable[Restriction | str] | str = (),
    top: int = 0,
    frontier: bool = False,
    choose: Pick | str | None = None,
    deciding: Callable[[Decision], None] | None = None,
    time_limit_s: float | None = None,
    prove: bool = False,
    progress: Callable[[float], None] | None = None,
    improved: Callable[[str], None] | None = None,
    machine: LocalMachine | None = None,
    strategy: str | None = None,
    oracle: bool = False,
    engine: str = "sailor",
) -> PlanDocument:
    """Return the best plan of a job; reads only data on disk.

    `job` is a job, the path of a job file, or the values of one. With `on`, 'slurm' or 'kubernetes', the job uses the
    nodes of a cluster instead of its resources, which may then be missing. `cluster` is the inventory's file if the job
    names none.

    `engine` names the training program of the plan, or the one whose formulas judge it.

    `strategy` names a published planner that replaces our search; with `oracle` our simulator ranks its plans instead
    of its cost model.

    `restrictions` make the space smaller; `top` requests this many alternatives of other kinds, `frontier` the Pareto
    frontier of time and money. `choose`, 'cheapest', 'balanced' or 'fastest', takes that plan instead of the goal's;
    `deciding` gets the three while the search continues. After `time_limit_s` the incumbent is the answer; a note of
    the decision says if no time was left for the frontier. With `prove` the bound is raised for up to 300 CPU seconds
    after the plan is found. `progress` gets the share of the search that is done, `improved` the goal's figure of each
    better plan in words.

    Local nodes share the cores of `machine`; the default is this one, which is measured if the job may use them. `base`
    is the folder for relative paths in the job, by default that of the job file. `profiles`, `network` and `pricing`
    are folders whose files take precedence over the shipped ones. Raises RequestError for a job with unknown names,
    DataError if prices or profiles are missing. Infeasible is a status, not an error.
    """
    clock = clock_of(clock)
    started_s = clock.monotonic_s()
    from sailor_cloud import planner
    from sailor_cloud.model.document import Pick

    pick = None if choose is None else choice_of(Pick, "choose", choose)
    smaller = {choice_of(planner.Restriction, "restrictions", name) for name in names_of("restrictions", restrictions)}
    check_count("top", top)
    check_amount("time_limit_s", time_limit_s)
    if oracle and strategy is None:
        raise RequestError("oracle belongs to strategy; give both, for example strategy metis")
    if strategy is not None and (smaller or top or frontier or pick):
        raise RequestError(
            "strategy runs another planner's search; restrictions, top, frontier and choose work with ours only"
        )
    job, base = _job_of(job, base, on=on, cluster=cluster)
    prices = _checked_prices(job, pricing)
    if job.model is None:
        if strategy is not None:
            raise RequestError(f"{job.name} states no model, so {strategy} has nothing to plan; add 'model'")
        if choose is not None or smaller or top or engine != "sailor":
            raise RequestError(
                f"{job.name} states no model, so its resources say what is bought and there is nothing to choose from; "
                "leave out choose, restrictions, top and engine, or add 'model'"
            )
        from sailor_cloud.planner.purchase import purchase

        return purchase(job, catalog=prices, clock=clock)
    read: Any = {"base": base, "profiles": profiles, "network": network, "pricing": pricing, "machine": machine}
    known = _inputs(job, prices, clock=clock, engine=engine, **read)
    if strategy is not None:
        return next(islice(_by_strategy(job, strategy, time_limit_s, known), int(oracle), None))
    return planner.search(
        job,
        **known,
        started_s=started_s,
        options=planner.SearchOptions(
            restrictions=tuple(sorted(smaller)),
            alternatives=True,
            frontier=frontier,
            top=top,
            decide=True,
            choose=pick,
            deciding=deciding,
            time_limit_s=time_limit_s,
            prove=prove,
            progress=progress,
            improved=improved,
        ),
    )


def offers(
    *,
    provider: str | None = None,
    zones: Iterable[str] | str | None = None,
    accelerators: Iterable[str] | str | None = None,
    markets: Iterable[str] | str | None = None,
    instance_types: Iterable[str] | str | None = None,
    max_usd_per_hour: float | None = None,
    pricing: Path | str | None = None,
) -> Rows[Offer]:
    """Return the offers that meet all given conditions, at the price that plans count, sorted by id.

    A condition with several names also takes a single one. Raises RequestError for an unknown provider, market,
    accelerator or zone.
    """
    from sailor_cloud import catalog
    from sailor_cloud.model.offer import Market, Provider
    from sailor_cloud.model.shown import Rows

    check_amount("max_usd_per_hour", max_usd_per_hour)
    try:
        seller = None if provider is None else Provider(provider)
    except ValueError as error:
        raise RequestError(str(error)) from error
    sold = None if markets is None else [choice_of(Market, "markets", name) for name in names_of("markets", markets)]
    prices = catalog.load(pricing=own_folder("pricing", pricing))
    places = None if zones is None else names_of("zones", zones)
    names = None if accelerators is None else names_of("accelerators", accelerators)
    types = None if instance_types is None else names_of("instance_types", instance_types)
    try:
        for name in names or ():
            prices.accelerator(name)
        for name in places or ():
            prices.zone(name)
    except DataError as error:
        raise RequestError(str(error)) from error
    return Rows(
        prices.offers(
            provider=seller,
            zones=places,
            accelerators=names,
            markets=sold,
            instance_types=types,
            max_usd_per_hour=max_usd_per_hour,
        )
    )


def read_job(job: Path | str | Mapping[str, Any], *, on: str | None = None) -> Job:
    """Return the job in a file, or of plain values. Raises RequestError with every fault, its place and a hint.

    With `on`, the name of a scheduler, the job needs no resources.
    """
    from sailor_cloud.model import job_file

    if isinstance(job, Mapping):
        return job_file.job_of_values(dict(job), on=on)
    return job_file.read_job(path_of("a job file", job), on=on)


def read_plan(path: Path | str) -> PlanDocument:
    """Return the plan in a file. Raises RequestError if the file is unreadable or wrong."""
    from sailor_cloud.catalog.clusters import register_inventory
    from sailor_cloud.model.document import PlanDocument

    document = PlanDocument.read(path_of("a plan file", path))
    register_inventory(document.job)
    return document


def _job_of(
    job: Job | Path | str | Mapping[str, Any],
    base: Path | str | None,
    *,
    on: str | None = None,
    cluster: Path | str | None = None,
) -> tuple[Job, Path | None]:
    """Return a job with its inventory, its Hub addresses pinned, and the folder for its relative paths."""
    from sailor_cloud.catalog.capacity import with_capacity
    from sailor_cloud.catalog.clusters import with_inventory
    from sailor_cloud.model.job import Job
    from sailor_cloud.workload.models import hub

    base = _base(base)
    if isinstance(job, Path | str):
        base = base or Path(job).parent
    inventory = None if cluster is None else path_of("cluster", cluster)
    found = read_job(job, on=on) if isinstance(job, Path | str | Mapping) else job
    if not isinstance(found, Job):
        raise RequestError(f"a job is a path, a mapping of values or a Job, not {type(job).__name__}")
    return hub.pinned(with_inventory(with_capacity(found, base), base, on=on, cluster=inventory)), base


def _checked_prices(job: Job, pricing: Path | str | None) -> Catalog:
    """Return the prices. Raises RequestError if the job's resources name something without any."""
    from sailor_cloud import catalog
    from sailor_cloud.catalog.job_check import resource_problems

    prices = catalog.load(pricing=own_folder("pricing", pricing))
    problems = resource_problems(job, prices)
    if problems:
        raise RequestError(problems)
    return prices


def _base(given: Path | str | None) -> Path | None:
    return None if given is None else path_of("base", given)


def _inputs(
    job: Job,
    prices: Catalog,
    *,
    base: Path | str | None = None,
    clock: Clock | None = None,
    profiles: Path | str | None = None,
    network: Path | str | None = None,
    pricing: Path | str | None = None,
    machine: LocalMachine | None = None,
    engine: str = "sailor",
) -> dict[str, Any]:
    """Return the inputs of planners, ours and published ones; arguments as in `plan`."""
    from sailor_cloud import network as networks
    from sailor_cloud import workload
    from sailor_cloud.simulator import engine_named

    profiles, network = own_folder("profiles", profiles), own_folder("network", network)
    pricing = own_folder("pricing", pricing)
    sizes = workload.job_decoder(job, base=_base(base))
    if engine == "sailor":
        workload.check_sequence_length(job, sizes)
    return {
        "catalog": prices,
        "network": networks.load(profiles=network, pricing=pricing),
        "profiles": _profiles(_names_local_nodes(job), profiles, machine),
        "clock": clock_of(clock),
        "decoder": sizes,
        "engine": engine_named(engine, profiles=profiles),
    }


def _by_strategy(job: Job, name: str, time_limit_s: float | None, known: dict[str, Any]) -> Iterator[PlanDocument]:
    """Yield the document of a strategy's choice, then that of our simulator's choice among its plans."""
    from sailor_cloud.planner.search import problem_of
    from sailor_cloud.planner.strategies import plans_by, strategy_named

    strategy, clock = strategy_named(name), known["clock"]
    started = clock.monotonic_s()
    space = problem_of(job, **known).space
    return plans_by(
        strategy,
        space.scenario,
        space.candidates,
        elapsed_s=lambda: float(clock.monotonic_s() - started),
        time_limit_s=time_limit_s,
    )


@_naming_the_file
def compare(
    job: Job | Path | str | Mapping[str, Any],
    *,
    strategies: Iterable[str] | str = (),
    oracle: bool = True,
    progress: Callable[[float, int, str], None] | None = None,
    found: Callable[[Contender], None] | None = None,
    **options: Any,
) -> Comparison:
    """Plan a job by our search and by published planners, all judged by our simulator.

    Without names, all `strategies` are compared. Each searches once: its cost model chooses, and with `oracle` our
    simulator chooses too. `progress` gets the number of finished searches, their total, and the planner that searches;
    `found` gets each row at once. `options` are those of `plan`. If its time limit ends our search without a plan, our
    row says so. Raises RequestError for an unknown strategy.
    """
    from time import process_time

    from sailor_cloud import catalog
    from sailor_cloud.planner.space.effort import NoPlanInTimeError
    from sailor_cloud.planner.strategies import STRATEGIES, compared, strategy_named
    from sailor_cloud.planner.strategies.comparison import contender, without_plan

    where = {name: options.pop(name, None) for name in ("on", "cluster")}
    job, options["base"] = _job_of(job, options.get("base"), **where)
    named = [strategy_named(name).name for name in names_of("strategies", strategies)] or [
        strategy.name for strategy in STRATEGIES
    ]
    if job.model is None:
        raise RequestError(f"{job.name} states no model, so {named[0]} has nothing to plan; add 'model'")
    show, tell, of = progress or _ignore, found or _ignore, len(named) + 1
    show(0, of, "sailor-cloud")
    begun = process_time()
    try:
        document = plan(job, progress=lambda share: show(share, of, "sailor-cloud"), **options)
        rows = [contender(document, "sailor-cloud", process_time() - begun)]
    except NoPlanInTimeError as error:
        rows = [without_plan("sailor-cloud", process_time() - begun, str(error))]
    tell(rows[0])
    known = _inputs(
        job,
        catalog.load(pricing=own_folder("pricing", options.get("pricing"))),
        **{name: options[name] for name in _READ_FROM if name in options},
    )
    for number, name in enumerate(named, 1):
        show(number, of, name)
        begun = process_time()
        for document in islice(_by_strategy(job, name, options.get("time_limit_s"), known), 2 if oracle else 1):
            rows.append(contender(document, name, process_time() - begun))
            tell(rows[-1])
    return compared(job.name, rows[0], rows[1:])


@_naming_the_file
def explain(
    job: Job | Path | str | Mapping[str, Any] | PlanDocument,
    *,
    on: str | None = None,
    cluster: Path | str | None = None,
    base: Path | str | None = None,
    clock: Clock | None = None,
    profiles: Path | str | None = None,
    network: Path | str | None = None,
    pricing: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    deciding: Callable[[Decision], None] | None = None,
    planned: Callable[[PlanDocument, Explanation], None] | None = None,
    found: Callable[[Gain], None] | None = None,
    with_gains: bool = True,
    time_limit_s: float | None = None,
    machine: LocalMachine | None = None,
) -> Explanation:
    """Explain the best plan of a job, or the plan of a document or of its `.json` file.

    Arguments and errors are as in `plan`. A document's plan is not searched again. Its figures and the price of
    insisting are computed here; what the document says about its proof and other plans is left out.

    `planned` gets everything except the gains as soon as there is a plan, `found` each gain at once; without
    `with_gains` there are none. `progress` gets, before each search for a gain, the number of finished searches and
    their total. These searches evaluate at most as many plans as the search for the plan, but at least some thousand.
    With `time_limit_s` all searches end after it instead.
    """
    from sailor_cloud import catalog, planner
    from sailor_cloud.catalog.clusters import register_inventory
    from sailor_cloud.model.document import PlanDocument, holds_plan
    from sailor_cloud.planner.explaining import Explanation, reasons, recomputed, ruled_out
    from sailor_cloud.planner.marginal import gains
    from sailor_cloud.planner.search import problem_of

    check_amount("time_limit_s", time_limit_s)
    started_s = clock_of(clock).monotonic_s()
    if isinstance(job, Path | str) and holds_plan(Path(job)):
        base = base or Path(job).parent
        job = read_plan(job)
        job.check_offers()
    read: Any = {"base": base, "profiles": profiles, "network": network, "pricing": pricing, "machine": machine}
    if isinstance(job, PlanDocument):
        if on is not None or cluster is not None:
            raise RequestError("on and cluster belong to a job; a plan has its nodes already")
        register_inventory(job.job)
        given, clock = job, clock or FixedClock(job.as_of)
        job = given.job
        read |= {"machine": machine or given.inputs.machine, "engine": given.engine}
        prices = catalog.load(pricing=own_folder("pricing", pricing))
    else:
        given = None
        job, read["base"] = _job_of(job, base, on=on, cluster=cluster)
        clock, prices = clock_of(clock), _checked_prices(job, pricing)
    known = _inputs(job, prices, clock=clock, **read)
    problem = problem_of(job, **known)
    if given is None:
        # The plan is needed before its explanation, so it gets a share of the time.
        limit_s = None if time_limit_s is None else _PLANNING * time_limit_s
        options = planner.SearchOptions(alternatives=True, decide=True, deciding=deciding, time_limit_s=limit_s)
        document = planner.search(job, **known, problem=problem, options=options, started_s=started_s)
    else:
        document = recomputed(given, problem)
    job = document.job
    so_far = Explanation(
        job=job.name,
        feasible=document.plan is not None,
        verdict=document.status.value,
        reasons=reasons(document),
        left_out=() if document.decision is None else document.decision.left_out,
        ruled_out=ruled_out(problem, document),
        gains=(),
    )
    if planned is not None:
        planned(document, so_far)
    if not with_gains:
        return so_far
    deadline = problem.space.known.deadline
    if time_limit_s is None:
        deadline.most_checks = deadline.checks + max(_LEAST_CHECKS, deadline.checks)
    else:
        deadline.now_s, deadline.at_s = clock.monotonic_s, started_s + time_limit_s
    more = gains(
        job,
        document,
        known["catalog"],
        lambda changed: problem_of(changed, **known),
        problem.space,
        progress or _ignore,
        found or _ignore,
        deadline,
        problem.nearly,
    )
    return dataclasses.replace(so_far, gains=more)


def _names_local_nodes(job: Job) -> bool:
    from sailor_cloud.catalog.providers import of

    return any(of(entry.provider).on_this_machine for entry in job.resources)


def _profiles(local: bool, folder: Path | None, machine: LocalMachine | None) -> ComputeProfiles:
    """Return the compute profiles, with the machine if nodes may be local."""
    from sailor_cloud import workload
    from sailor_cloud.workload.this_machine import this_machine

    found = workload.profiles.load(profiles=folder)
    return dataclasses.replace(found, machine=machine or this_machine(found.local)) if local else found


def choose(
    document: PlanDocument, pick: Pick | str, *, base: Path | str | None = None, profiles: Path | str | None = None
) -> PlanDocument:
    """Return a document with another plan of its decision as the plan, and its figures recomputed.

    `profiles` is a folder whose compute profiles take precedence over the shipped ones. Raises RequestError if the
    document has no decision.
    """
    from sailor_cloud.model.document import Pick, Status
    from sailor_cloud.model.shown import Rows
    from sailor_cloud.planner.explain.decision import warnings
    from sailor_cloud.simulator.lifetime import ttl_s

    check_plan(document)
    decision = document.decision
    if document.job.model is None:
        raise RequestError(f"{document.job.name} states no model, so there is nothing to choose from")
    if decision is None:
        raise RequestError("the plan document holds no choices; write it again with 'sailor-cloud plan JOB -o FILE'")
    pick = choice_of(Pick, "pick", pick)
    picked = decision.choice(pick)
    if picked.chosen:
        return document
    choices = tuple(dataclasses.replace(each, chosen=each is picked) for each in decision.choices)
    other = dataclasses.replace(
        document,
        status=Status.FEASIBLE,
        inputs=dataclasses.replace(document.inputs, offers=Rows(picked.offers)),
        plan=picked.plan,
        objective=None,
        optimality_gap=None,
        bound=None,
        gap_parts=(),
        alternatives=Rows(),
        decision=dataclasses.replace(decision, chosen=pick, asked=pick, choices=choices, left_out=(), notes=()),
    )
    found = _simulated(other, base, profiles, timeline=False).document
    assert found.cost is not None, "what was searched has prices"
    assert found.prediction is not None
    lasting = ttl_s(
        document.constraints,
        found.cost,
        duration_s=found.prediction.duration_s,
        offers=picked.offers,
        as_of=document.as_of,
    )
    notes = tuple(warnings(found.prediction, found.cost, found.as_of.date()))
    assert found.decision is not None
    return dataclasses.replace(found, ttl_s=lasting, decision=dataclasses.replace(found.decision, notes=notes))


def simulate(
    document: PlanDocument | Path | str,
    *,
    base: Path | str | None = None,
    profiles: Path | str | None = None,
    timeline: bool = False,
) -> Evaluation:
    """Simulate the plan of a document, or of its file, again: with the document's offers, on its day.

    `profiles` is a folder whose compute profiles take precedence over the shipped ones. `timeline` also records every
    operation of one iteration. Raises RequestError for a document without a plan.
    """
    return _simulated(document, base, profiles, timeline=timeline).evaluation


def _simulated(
    document: PlanDocument | Path | str, base: Path | str | None, profiles: Path | str | None, *, timeline: bool
) -> Simulation:
    from sailor_cloud import catalog, network, resources, workload
    from sailor_cloud.catalog.clusters import register_inventory
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.simulator.resimulate import simulate_document

    base = _base(base)
    if isinstance(document, Path | str):
        base = base or Path(document).parent
        document = PlanDocument.read(Path(document))
    check_plan(document)
    register_inventory(document.job)
    with resources.data_folders(profiles=profiles):
        return simulate_document(
            document,
            catalog=catalog.load(),
            network=network.load(),
            profiles=workload.profiles.load(),
            decoder=workload.job_decoder(document.job, base=base),
            as_of=document.as_of,
            timeline=timeline,
        )


@_naming_the_file
def simulate_layout(
    job: Job | Path | str | Mapping[str, Any],
    *,
    layout: str,
    nodes: Iterable[str] | str,
    engine: str = "sailor",
    on: str | None = None,
    cluster: Path | str | None = None,
    base: Path | str | None = None,
    clock: Clock | None = None,
    profiles: Path | str | None = None,
    network: Path | str | None = None,
    pricing: Path | str | None = None,
    timeline: bool = False,
    machine: LocalMachine | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Simulation:
    """Predict a layout on nodes, without a search: 'tp=4 pp=2 dp=4' on ['4 x a2-highgpu-8g@us-central1-a'].

    The nodes may be outside the job's resources; a machine without a price has time and memory but no cost. `engine`
    names the training program. Raises RequestError with every reason why the layout does not fit the model, the batch,
    the nodes or the engine; other arguments are those of `plan`.
    """
    from sailor_cloud import catalog as catalogs
    from sailor_cloud import network as networks
    from sailor_cloud import workload
    from sailor_cloud.catalog.providers import of
    from sailor_cloud.planner.documents import given_document
    from sailor_cloud.simulator import Scenario, engine_named, evaluate
    from sailor_cloud.simulator.layout_text import given_plan
    from sailor_cloud.simulator.resimulate import Simulation

    if not isinstance(layout, str):
        raise RequestError(f"layout is {layout!r}; it is text, as 'tp=4 pp=2 dp=4'")
    groups = names_of("nodes", nodes)
    profiles, network = own_folder("profiles", profiles), own_folder("network", network)
    pricing = own_folder("pricing", pricing)
    job, base = _job_of(job, base, on=on, cluster=cluster)
    progress = progress or _ignore
    progress(0, 4, "reading prices")
    prices = catalogs.load(pricing=pricing)
    progress(1, 4, "reading bandwidths")
    links = networks.load(profiles=network, pricing=pricing)
    progress(2, 4, "reading compute profiles")
    scenario = Scenario(
        job=job,
        decoder=workload.job_decoder(job, base=base),
        offers={},
        catalog=prices,
        network=links,
        profiles=_profiles(False, profiles, None),
        as_of=clock_of(clock).now(),
        engine=engine_named(engine, profiles=profiles),
    )
    progress(3, 4, "simulating the layout")
    plan, scenario = given_plan(layout, groups, scenario)
    if any(of(scenario.hardware(node.offer).provider).on_this_machine for node in plan.nodes):
        scenario = dataclasses.replace(scenario, profiles=_profiles(True, profiles, machine))
    evaluation = evaluate(plan, scenario, timeline=timeline)
    return Simulation(document=given_document(scenario, plan, evaluation), evaluation=evaluation)


def verify(document: PlanDocument, *, base: Path | str | None = None, clock: Clock | None = None) -> Verified:
    """Check an external plan against its job and today's data, before `up` runs it.

    Returns it with every figure recomputed, and the differences. Raises RequestError for everything that prevents the
    purchase: offers that the job does not allow, exceeded limits, figures more than 5 % off.
    """
    from sailor_cloud import catalog, network, workload
    from sailor_cloud.catalog.clusters import register_inventory
    from sailor_cloud.catalog.job_check import resource_problems
    from sailor_cloud.planner.verified import verified, verified_purchase

    check_plan(document)
    register_inventory(document.job)
    prices = catalog.load()
    problems = resource_problems(document.job, prices)
    if problems:
        raise RequestError(problems)
    if document.job.model is None:
        return verified_purchase(document, catalog=prices, clock=clock_of(clock))
    sizes = workload.job_decoder(document.job, base=_base(base))
    workload.check_sequence_length(document.job, sizes)
    return verified(
        document,
        catalog=prices,
        network=network.load(),
        profiles=workload.profiles.load(),
        decoder=sizes,
        as_of=clock_of(clock).now(),
    )


def up(
    document: PlanDocument,
    observer: Observer,
    *,
    base: Path | str | None = None,
    clock: Clock | None = None,
    on_start: Callable[[RunFolder, Callable[[], None]], None] | None = None,
    fallback: bool = True,
    ssh_from: str | None = None,
    replan_slow_links: bool = False,
    allow_stale: bool = False,
    allow_doubtful: bool = False,
    allow_missing_permissions: bool = False,
    buy_reserved: bool = False,
    checked: bool = False,
) -> Outcome:
    """Run a plan until its receipt, in the calling thread.

    Before it buys, it refuses what the command line refuses: stale or doubtful prices and missing permissions, unless
    the `allow_` arguments permit them, and purchases of reservations and capacity blocks, unless `buy_reserved` permits
    them. `checked` skips this for a caller that has called `check_before_buying`, which also warns the buyer.

    Without `fallback` no other plan replaces it: equal nodes replace lost ones, and the run ends if nodes are
    unavailable. With `replan_slow_links` a better plan replaces it if links are measured more than 30 % below their
    profile. Without `allow_doubtful`, replacing plans buy at no doubtful price. `ssh_from` is the address, as CIDR,
    from which cloud nodes accept SSH.

    `on_start` is called once, inside the event loop, with the run's folder and a function that stops the run. Nothing
    else calls that function, so the caller must handle signals. Raises RequestError if the plan can't be run,
    CredentialsError if the caller lacks a permission; the outcome has every other failure.
    """
    from sailor_cloud.catalog.clusters import register_inventory
    from sailor_cloud.launch.replanning.search import CatalogSearch
    from sailor_cloud.launch.start import run_document
    from sailor_cloud.provision.checks.before_buying import check_before_buying
    from sailor_cloud.provision.guards import refuse_what_cannot_run
    from sailor_cloud.run.options import LaunchOptions

    check_plan(document)
    check_observer(observer)
    register_inventory(document.job)
    base, ticking = _base(base), clock_of(clock)
    decoder = _decoder(document.job, base)
    if not checked:
        refuse_what_cannot_run(document)
        check_before_buying(
            document,
            clock=ticking,
            ssh_from=ssh_from,
            allow_stale=allow_stale,
            allow_doubtful=allow_doubtful,
            allow_missing_permissions=allow_missing_permissions,
            buy_reserved=buy_reserved,
        )
        if (note := model_note(document.job, base=base)) is not None:
            observer.note(note)
    return run_document(
        document,
        decoder=decoder,
        observer=observer,
        clock=ticking,
        options=LaunchOptions(
            fallback=fallback,
            ssh_from=ssh_from,
            replan_slow_links=replan_slow_links,
            allow_doubtful=allow_doubtful,
            allow_missing_permissions=allow_missing_permissions,
        ),
        on_start=on_start,
        search=CatalogSearch(
            decoder,
            ticking,
            machine=document.inputs.machine,
            allow_doubtful=allow_doubtful,
            engine=document.engine,
        ),
        base=base,
    )


def resume(
    run: RunFolder | str,
    observer: Observer,
    *,
    base: Path | str | None = None,
    clock: Clock | None = None,
    on_start: Callable[[RunFolder, Callable[[], None]], None] | None = None,
    allow_missing_permissions: bool = False,
) -> Outcome:
    """Take over a run whose controller died, and continue as `up` does. `run` may also be its id.

    Raises RequestError if it is over or its files are not trustworthy. Raises CredentialsError if the caller lacks a
    permission that the run needs, unless `allow_missing_permissions` permits that.
    """
    from sailor_cloud import resources
    from sailor_cloud.launch.replanning.search import CatalogSearch
    from sailor_cloud.launch.start import allows_doubtful, base_of, resume_run
    from sailor_cloud.run.folder import RunFolder
    from sailor_cloud.run.options import LaunchOptions
    from sailor_cloud.run.state import folders_of

    check_observer(observer)
    run = RunFolder.open(run) if isinstance(run, str) else run
    if not isinstance(run, RunFolder):
        raise RequestError(f"a run is its id or a RunFolder, not {type(run).__name__}")
    origin = _base(base) or base_of(run)
    document, ticking = run.read_document(), clock_of(clock)
    given = {name: path for name, path in dataclasses.asdict(resources.folders()).items() if path is not None}
    own = folders_of(run) | given
    if gone := [f"--{name} {path}" for name, path in own.items() if not path.is_dir()]:
        options = " and ".join(gone)
        raise RequestError(f"run {run.run_id} began with {options}, which is no folder now; give the option again")
    with resources.data_folders(**own):
        decoder = _decoder(document.job, origin)
        return resume_run(
            run,
            decoder=decoder,
            observer=observer,
            clock=ticking,
            options=LaunchOptions(allow_missing_permissions=allow_missing_permissions),
            on_start=on_start,
            search=CatalogSearch(
                decoder,
                ticking,
                machine=document.inputs.machine,
                allow_doubtful=allows_doubtful(run),
                engine=document.engine,
            ),
        )


def model_note(job: Job, *, base: Path | str | None = None) -> str | None:
    """Return a warning about what training leaves out of a job's model, None if there is none."""
    from sailor_cloud.workload.models.decoders import dropout_note

    sizes = _decoder(job, _base(base))
    return None if sizes is None else dropout_note(job, sizes)


def _decoder(job: Job, base: Path | None) -> Decoder | None:
    """Return the model of a job, None for a command without one."""
    from sailor_cloud import workload

    return None if job.model is None else workload.job_decoder(job, base=base)


def replay(
    job: Job,
    trace: Trace,
    *,
    policies: Sequence[Policy],
    base: Path | str | None = None,
    clock: Clock | None = None,
    say: Callable[[float, str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Replayed, ...]:
    """Run a job against an availability trace in simulated time, once for each policy.

    `progress` gets, before each policy, the number of finished ones and their total.

    The first plan is the best for the devices at the start of the trace. The controller learns about later devices by
    requests. The result is empty if that plan is infeasible.
    """
    from sailor_cloud import workload
    from sailor_cloud.catalog import load
    from sailor_cloud.catalog.job_check import resource_problems
    from sailor_cloud.launch.replanning.search import CatalogSearch
    from sailor_cloud.launch.simulation.replay import CachedSearch, at_start, replay

    problems = resource_problems(job, load())
    if problems:
        raise RequestError(problems)
    decoder = workload.job_decoder(job, base=_base(base))
    search = CachedSearch(CatalogSearch(decoder, clock_of(clock), allow_doubtful=True))
    limited = at_start(job, trace)
    document = search(limited) if limited is not None else None
    if document is None or document.plan is None:
        return ()
    # The job keeps its original limits, so that a plan may grow with new devices.
    whole = dataclasses.replace(document, job=job)
    found = []
    for done, policy in enumerate(policies):
        if progress is not None:
            progress(done, len(policies))
        found.append(replay(whole, trace, decoder=decoder, search=search, policy=policy, say=say or _ignore))
    return tuple(found)


def replay_spot(
    job: Job,
    traces: Sequence[ZoneTrace],
    *,
    deadlines_s: Sequence[float] = (),
    every_s: float = 86400.0,
    base: Path | str | None = None,
    clock: Clock | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SpotReplayed, ...]:
    """Compare policies for a deadline on recorded spot availability: when to wait, when to pay for on-demand.

    The work is that of the job's best on-demand plan, the prices are those of its nodes on both markets. The
    change-over is the start-up of its slowest provider plus half a checkpoint interval. `deadlines_s` default to the
    job's deadline. The result is empty if no on-demand plan is feasible. Raises RequestError, MissingPriceError.
    """
    from sailor_cloud.catalog import load
    from sailor_cloud.errors import MissingPriceError
    from sailor_cloud.launch.simulation.spot_replay import replay_spot
    from sailor_cloud.model.offer import Market
    from sailor_cloud.planner.spot_timing import SpotTask
    from sailor_cloud.simulator import startup_s

    steps = job.training.steps
    if job.model is None or steps is None:
        raise RequestError(f"{job.name} states no model or no steps, so its work is not known; add them")
    own = job.constraints.deadline
    deadlines = list(deadlines_s) or ([] if own is None else [own])
    if not deadlines:
        raise RequestError(f"{job.name} has no deadline; add 'constraints: {{deadline: 60h}}' or --deadline 60h")
    entries = tuple(entry.model_copy(update={"markets": (Market.ON_DEMAND,)}) for entry in job.resources)
    free = job.constraints.model_copy(update={"deadline": None, "budget_usd": None, "probability": None})
    document = plan(job.model_copy(update={"resources": entries, "constraints": free}), base=base, clock=clock)
    if document.plan is None or document.prediction is None:
        return ()
    prices, offers = load(), document.inputs.offers_by_id()
    on_demand = spot = 0.0
    for node in document.plan.nodes:
        offer = offers[node.offer]
        spot_offers = prices.offers(
            provider=offer.provider,
            zones=[zone for entry in job.resources for zone in entry.zones],
            accelerators=[offer.accelerator],
            instance_types=[offer.instance_type],
            markets=[Market.SPOT],
        )
        if not spot_offers:
            raise MissingPriceError(
                f"no spot price for {offer.instance_type} in the job's zones; run 'sailor-cloud prices refresh'"
            )
        on_demand += offer.usd_per_hour
        spot += min(spot_offer.usd_per_hour for spot_offer in spot_offers)
    start = max(startup_s(offer.provider, len(document.plan.nodes)) for offer in document.inputs.offers)
    task = SpotTask(
        work_s=document.prediction.iteration_s_replay * steps,
        deadline_s=deadlines[0],
        change_over_s=start + job.checkpoint.every / 2,
        spot_usd_per_hour=spot,
        on_demand_usd_per_hour=on_demand,
    )
    nodes = len(document.plan.nodes)
    return replay_spot(task, traces, nodes=nodes, deadlines_s=deadlines, every_s=every_s, progress=progress or _ignore)
