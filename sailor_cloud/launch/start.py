"""Begins a run or takes one over: makes or opens its folder, takes its lock and starts the controller."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sailor_cloud import resources
from sailor_cloud.clock import Clock
from sailor_cloud.errors import RequestError, SailorError, of_system
from sailor_cloud.launch.checkpoint_place import check_checkpoint_place
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.fleet import code
from sailor_cloud.launch.fleet.command_spec import check_environment
from sailor_cloud.launch.fleet.fleet import Fleet
from sailor_cloud.launch.fleet.job_fleet import JobFleet
from sailor_cloud.launch.fleet.job_paths import settled
from sailor_cloud.launch.fleet.ssh_fleet import SshFleet
from sailor_cloud.launch.replanning.replan import Policy, Search
from sailor_cloud.launch.spend.lifetime import NO_END, life_s
from sailor_cloud.launch.telemetry.generation_log import generations, plan_mismatch, read_events, read_plan, sha256_of
from sailor_cloud.launch.telemetry.notify import notifier_from
from sailor_cloud.launch.telemetry.trackers import trackers_of
from sailor_cloud.launch.watch.price_watch import refresh_from_providers
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import DataFormat, Job
from sailor_cloud.provision import providers
from sailor_cloud.provision.checks.before_buying import check_before_taking_over, reserve
from sailor_cloud.provision.cloud_clock import CloudClock, by_cloud
from sailor_cloud.provision.damage import charge_as_journaled, missing_purchases
from sailor_cloud.provision.guards import refuse_what_cannot_run
from sailor_cloud.provision.jobs import check_scheduler
from sailor_cloud.provision.provisioner import check_supported
from sailor_cloud.provision.scopes import check_own, scopes_of
from sailor_cloud.run import budgets, elsewhere
from sailor_cloud.run.folder import RunFolder, new_run_id
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.options import LaunchOptions, Outcome
from sailor_cloud.run.progress import Observer
from sailor_cloud.run.state import OVER, Phase, fold

OnStart = Callable[[RunFolder, Callable[[], None]], None]


def check_job(job: Job, base: Path | None) -> None:
    """Check what every run needs of its job: steps, an end, variables, code, data and local nodes' packages.

    Raises RequestError for faults that no plan could fix.
    """
    if job.run is None and job.training.steps is None:
        raise RequestError("training.steps is missing; a run needs the number of steps")
    if job.constraints.budget_usd is None and job.constraints.deadline is None:
        raise RequestError(NO_END)
    check_environment(job)
    code.described(job, base or Path())
    settled(job, base or Path())
    if all(providers.on_this_machine(entry.provider) for entry in job.resources) and (missing := _missing_modules(job)):
        raise RequestError(
            f"local nodes train with this machine's Python, which lacks {' and '.join(missing)}; "
            "run pip install 'sailor-cloud[runtime]'"
        )


def _missing_modules(job: Job) -> list[str]:
    """Return the modules that our training imports and that this Python lacks."""
    if job.run is not None or job.model is None:
        return []
    needed = ["torch", "deepspeed"]
    needed += ["transformers"] if job.model.module is None else []
    needed += ["tokenizers"] if job.data.format is DataFormat.TEXT else []
    return [name for name in needed if importlib.util.find_spec(name) is None]


def run_document(
    document: PlanDocument,
    *,
    decoder: Decoder | None,
    observer: Observer,
    clock: Clock,
    options: LaunchOptions | None = None,
    on_start: OnStart | None = None,
    search: Search | None = None,
    base: Path | None = None,
) -> Outcome:
    """Carry out a feasible plan and return how it ended. Raises RequestError before any purchase.

    Without `search` lost nodes are replaced, but the plan never changes. Relative paths of the job start from `base`,
    which the run keeps for a controller that takes over.
    """
    if document.plan is None:
        raise RequestError("the plan is infeasible; there is nothing to run")
    refuse_what_cannot_run(document)
    job = document.job
    if decoder is not None:
        document.plan.check(layers=decoder.layers, global_batch_size=job.training.global_batch_size)
    check_job(job, base)
    check_scheduler(document)
    packed = code.pack(job, base or Path())
    check_supported(document)
    life_s(document)
    document = replace(document, job=settled(document.job, base or Path()))
    check_checkpoint_place(document.job, now=clock.now())
    compared: list[tuple[str, float]] = []
    clock = by_cloud(clock, scopes_of(document), lambda text, ahead_s: compared.append((text, ahead_s)))
    run_id, begun = new_run_id(document.job.name, clock=clock), clock.now()
    reserved = reserve(document, run_id, begun)
    with contextlib.ExitStack() as unbegun:
        month = f"{begun:%Y-%m}"
        if reserved.held:
            unbegun.callback(_release, document, run_id, month, observer)
        folder = RunFolder.create(run_id)
        with folder.lock():
            folder.keep_reserve()
            folder.write_document(document)
            code.store_code(packed, folder)
            chosen = options or LaunchOptions()
            origin = str((base or Path()).absolute())
            Journal.of(folder, clock).append(
                Event.RUN_CREATED,
                run=run_id,
                job=document.job.name,
                fallback=chosen.fallback,
                replan_slow_links=chosen.replan_slow_links,
                allow_doubtful=chosen.allow_doubtful,
                allow_missing_permissions=chosen.allow_missing_permissions,
                base=origin,
                plan_sha256=sha256_of(folder.plan_file),
                **elsewhere.workplace(folder),
                **_folders_in_use(),
                **(_budget(document, month) if reserved.held else {}),
            )
            # From here on the journal names the reservation, and the receipt releases it.
            unbegun.pop_all()
            for note in reserved.notes:
                observer.note(note)
            _report_clock_offset(folder, clock, observer, compared)
            return asyncio.run(_run(folder, document, decoder, observer, clock, options, on_start, search))


def _budget(document: PlanDocument, month: str) -> dict[str, Any]:
    """Return the place of a run's reservation, so that it can be released without the plan."""
    state = document.job.cloud.state
    return {"budget_month": month, "budget_state": None if state is None else state.model_dump(mode="json")}


def _release(document: PlanDocument, run_id: str, month: str, observer: Observer) -> None:
    """Release the reservation of a run that never began. An error here must not hide the original one."""
    try:
        budgets.release(document.job.cloud.state, resources.home(), run_id, month, None)
    except (OSError, SailorError) as error:
        observer.note(f"{run_id} never began, but its reservation for {month} in the budgets is not released: {error}")


def base_of(folder: RunFolder) -> Path | None:
    """Return the base folder of a run's relative paths; None for runs of older versions."""
    bases = [entry.data["base"] for entry in read(folder.journal_file) if "base" in entry.data]
    return Path(bases[0]) if bases else None


def _folders_in_use() -> dict[str, Any]:
    used = {name: str(path.absolute()) for name, path in asdict(resources.folders()).items() if path is not None}
    return {"folders": used} if used else {}


def allows_doubtful(folder: RunFolder) -> bool:
    """Whether the user allowed a run to buy at doubtful prices."""
    return _user_allowed(folder, "allow_doubtful")


def _user_allowed(folder: RunFolder, what: str) -> bool:
    return any(entry.data.get(what, False) for entry in read(folder.journal_file))


def resume_run(
    folder: RunFolder,
    *,
    decoder: Decoder | None,
    observer: Observer,
    clock: Clock,
    options: LaunchOptions | None = None,
    on_start: OnStart | None = None,
    search: Search | None = None,
) -> Outcome:
    """Take over a run whose controller died. Raises RequestError if its training has ended already."""
    with folder.lock():
        check_own(folder)
        elsewhere.refuse_copy(folder)
        if told := elsewhere.warning(folder):
            observer.note(told)
        state = fold(read(folder.journal_file))
        if state.phase in OVER:
            raise RequestError(
                f"run {folder.run_id} is {state.phase.words}; there is nothing to continue with"
                + ("" if state.phase is Phase.GONE else f"; 'sailor-cloud down {folder.run_id}' removes what is left")
            )
        document = folder.read_document()
        check_supported(document)
        check_environment(document.job)
        harm = _missing_history(folder, clock)
        why = f"{harm}, so what it has bought and spent is unknown" if harm else plan_mismatch(folder)
        if why := why or _ssh_key_fault(folder):
            down = f"'sailor-cloud down {folder.run_id}' removes it"
            raise RequestError(f"run {folder.run_id} can't be taken over: {why}; {down}")
        newest = read_plan(folder, max(generations(folder), default=1))
        allowed = (options or LaunchOptions()).allow_missing_permissions or _user_allowed(
            folder, "allow_missing_permissions"
        )
        notes = check_before_taking_over(folder, newest, now=clock.now(), expires_at=state.expires_at, allowed=allowed)
        for note in notes:
            observer.note(note)
        compared: list[tuple[str, float]] = []
        clock = by_cloud(clock, scopes_of(document), lambda text, ahead_s: compared.append((text, ahead_s)))
        Journal.of(folder, clock).append(Event.RUN_RESUMED, **_folders_in_use(), **elsewhere.workplace(folder))
        _report_clock_offset(folder, clock, observer, compared)
        try:
            harms = charge_as_journaled(folder, Ledger.of(folder, clock))
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            why = f"run {folder.run_id} can't be taken over: the prices in its journal can't be read ({error!r})"
            raise RequestError(f"{why}; 'sailor-cloud down {folder.run_id}' removes it") from error
        for harm in harms:
            observer.note(f"warning: {harm}")
        return asyncio.run(_run(folder, document, decoder, observer, clock, options, on_start, search))


def _report_clock_offset(
    folder: RunFolder, clock: Clock, observer: Observer, compared: list[tuple[str, float]]
) -> None:
    """Report and journal the offset of this machine's clock, now and whenever it is measured later."""

    def tell(text: str, ahead_s: float) -> None:
        observer.note(text)
        Journal.of(folder, clock).append(Event.CLOCK_COMPARED, ahead_s=round(ahead_s, 1))

    for text, ahead_s in compared:
        tell(text, ahead_s)
    if isinstance(clock, CloudClock):
        clock.on_change = tell


def _missing_history(folder: RunFolder, clock: Clock) -> str:
    """Return what a run's journal lacks; empty if it is complete, except for a last line cut off by a crash."""
    if harm := missing_purchases(folder, Ledger.of(folder, clock, read_only=True)):
        return harm
    known = max(generations(folder), default=0)
    numbers = (event.get("generation") for event in read_events(folder))
    trained = max((number for number in numbers if isinstance(number, int)), default=0)
    return f"{folder.journal_file} lacks generation {trained}, which has trained" if trained > known else ""


def _ssh_key_fault(folder: RunFolder) -> str:
    """Return an error text if a run's SSH key is missing or damaged, so that its nodes are unreachable."""
    import asyncssh

    if folder.read_document().job.cloud.inventory is not None:
        # Agents of a scheduler's job use other channels.
        return ""
    if all(row.created_at is None for row in fold(read(folder.journal_file)).live):
        return ""
    try:
        asyncssh.read_private_key(folder.ssh_key_file)
    except (OSError, ValueError) as error:
        why = of_system(error) if isinstance(error, OSError) else f"{folder.ssh_key_file} can't be read: {error}"
        return f"{why}, so its nodes can't be logged in to"
    return ""


async def _run(
    folder: RunFolder,
    document: PlanDocument,
    decoder: Decoder | None,
    observer: Observer,
    clock: Clock,
    options: LaunchOptions | None,
    on_start: OnStart | None,
    search: Search | None,
) -> Outcome:
    entries = read(folder.journal_file)
    state = fold(entries)
    started_at = state.created_at or clock.now()
    # A controller that takes over keeps the user's original choices.
    options = replace(
        options or LaunchOptions(),
        fallback=all(entry.data.get("fallback", True) for entry in entries),
        replan_slow_links=any(entry.data.get("replan_slow_links", False) for entry in entries),
        allow_doubtful=allows_doubtful(folder),
    )
    context = RunContext(
        folder=folder,
        job_document=document,
        document=read_plan(folder, max(generations(folder), default=1)),
        decoder=decoder,
        clock=clock,
        observer=observer,
        options=options,
        fleet=_fleet(folder, document, clock, options, observer),
        search=search,
        policy=Policy.BEST if search is not None and options.fallback else Policy.NEVER,
        notifier=notifier_from(),
        trackers=trackers_of(document, run=folder.run_id, folder=str(folder.logs_dir), say=observer.note),
        refresh=refresh_from_providers,
        started_at=started_at,
        expires_at=state.expires_at or started_at + timedelta(seconds=life_s(document)),
    )
    if isinstance(context.fleet, JobFleet):
        # A cluster's node reads Python and torch over a shared file system.
        context.options = replace(options, agent_timeout_s=max(options.agent_timeout_s, 300.0))
    context.prices.read()
    controller = Controller(context)
    if on_start is not None:
        on_start(folder, controller.request_stop)
    return await controller.run()


def _fleet(
    folder: RunFolder, document: PlanDocument, clock: Clock, options: LaunchOptions, observer: Observer
) -> Fleet:
    inventory = document.job.cloud.inventory
    scheduler = providers.of(document.home.provider).scheduler
    if scheduler is None or inventory is None:
        return SshFleet(folder, clock, options)
    return JobFleet(folder, clock, scheduler, inventory, say=observer.note)
