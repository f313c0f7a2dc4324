"""Ends a run: the caller removes its resources, the ledger is closed, and the receipt records the result."""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.errors import SailorError, of_system
from sailor_cloud.launch.results import Fetch
from sailor_cloud.launch.spend import gateways, usage
from sailor_cloud.launch.spend.bill_parts import bill_parts
from sailor_cloud.launch.spend.charges import charge_all
from sailor_cloud.launch.spend.prices import UsagePrices, prices_of
from sailor_cloud.launch.telemetry.generation_log import (
    RecordedGeneration,
    events_damage,
    journaled_calibration_s,
    last_monitor,
    plan_mismatch,
    recorded_generations,
)
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import StateBackend
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.cleanup.teardown import TeardownResult, destroy
from sailor_cloud.provision.damage import receipt_mismatch, restore_ledger
from sailor_cloud.provision.live_resources import Scopes
from sailor_cloud.provision.scopes import NOWHERE
from sailor_cloud.provision.terraform.progress import Listener
from sailor_cloud.run import budgets, history
from sailor_cloud.run.appended import kept_lines
from sailor_cloud.run.folder import RunFolder, start_time_of
from sailor_cloud.run.journal import Entry, Event, read
from sailor_cloud.run.ledger import Ledger, LedgerLine
from sailor_cloud.run.options import Ending
from sailor_cloud.run.receipt import Comparison, Receipt

logger = logging.getLogger(__name__)


def tear_down(
    folder: RunFolder,
    document: PlanDocument | None,
    *,
    clock: Clock,
    ending: Ending,
    on_progress: Listener | None = None,
    say: Callable[[str], None] = lambda text: None,
    also: Scopes = NOWHERE,
) -> Receipt:
    """Remove all resources of a run, close its ledger, and write and return its receipt. Safe to repeat.

    Results of a completed training are first fetched from the run's bucket; without a plan, they stay there.
    """
    prices, altered = prices_of(folder), _altered(folder, clock)
    fetch = Fetch(folder=folder, document=document, clock=clock, prices=prices, say=say) if document else None
    before_data = fetch if ending is Ending.COMPLETED else None
    destroyed = destroy(folder, clock=clock, on_progress=on_progress, before_data=before_data, also=also)
    return close_books(folder, document, destroyed, clock=clock, prices=prices, ending=ending, altered=altered)


def _altered(folder: RunFolder, clock: Clock) -> bool:
    """Return whether the ledger differs from an earlier receipt before this teardown charges anything."""
    try:
        return bool(receipt_mismatch(folder, Ledger.of(folder, clock, read_only=True).spent_usd()))
    except OSError:
        return True


def close_books(
    folder: RunFolder,
    document: PlanDocument | None,
    destroyed: TeardownResult,
    *,
    clock: Clock,
    prices: UsagePrices,
    ending: Ending,
    altered: bool = False,
) -> Receipt:
    """Charge what the run has used, and write and return the receipt of a run whose resources were removed.

    Errors of reading and writing become problems of the receipt. `altered`: an earlier receipt had another sum, which
    is a problem unless the journal and the events restore it.
    """
    problems = [*destroyed.problems]
    ledger, entries, now = Ledger.of(folder, clock, or_keep=True), read(folder.journal_file), clock.now()
    recorded: tuple[RecordedGeneration, ...] = ()
    problems += (why for why in restore_ledger(folder, ledger) if why not in problems)
    with _as_problem(problems, "the ledger lacks what was used"):
        recorded = recorded_generations(folder)
        problems += events_damage(folder, recorded)
        gateways.charge_gateways(ledger, entries, prices)
        if document is not None:
            used = usage.charges(document, recorded, prices, until=usage.bucket_end(entries, now))
            charge_all(ledger, used, at=now)
    with _as_problem(problems, "the plan is not compared with the journal"):
        if document is not None and (why := plan_mismatch(folder)):
            problems.append(f"{why}; its budget and its figures may be wrong")
    if document is None:
        problems.append("without the plan, traffic and storage that were used are not in the ledger")
    lines, spent_usd = ledger.lines(now), ledger.spent_usd(now)
    if altered:
        problems += receipt_mismatch(folder, spent_usd)
    comparisons: tuple[Comparison, ...] = ()
    with _as_problem(problems, "estimates are not compared"):
        comparisons = _comparisons(folder, document, recorded, lines, spent_usd) if document is not None else ()
    receipt = Receipt(
        run_id=folder.run_id,
        job=document.job.name if document is not None else _job_named(folder, entries),
        outcome=ending.value,
        written_at=now,
        resources=destroyed.resources,
        kept=destroyed.kept,
        lines=lines,
        spent_usd=spent_usd,
        budget_usd=document.constraints.budget_usd if document is not None else None,
        comparisons=comparisons,
        problems=tuple(problems),
        asked=destroyed.asked,
    )
    with _as_problem(problems, f"{folder.receipt_file} is not written"):
        folder.write_text(folder.receipt_file.name, receipt.to_json())
    if document is not None:
        with _as_problem(problems, "the run is not in 'sailor-cloud history'"):
            history.record_run(folder, _past_run(folder, document, recorded, receipt))
    held = _reservation(folder, document, entries)
    if held is not None and receipt.clean:
        month, raw = held
        with _as_problem(problems, f"the reservation for {month} in the budgets is not released"):
            state = None if raw is None else StateBackend.model_validate(raw)
            budgets.release(state, folder.path.parent.parent, folder.run_id, month, spent_usd)
    unwritten = [path.name for path in (folder.journal_file, folder.ledger_file) if kept_lines(path)]
    if unwritten:
        problems.append(f"{' and '.join(unwritten)} could not be written to; this receipt holds what they lack")
    return replace(receipt, problems=tuple(problems))


def _reservation(
    folder: RunFolder, document: PlanDocument | None, entries: Sequence[Entry]
) -> tuple[str, Mapping[str, Any] | None] | None:
    """Return the month and the bucket of a run's reservation; without the journal's first entry, as id and plan say."""
    created = next((entry.data for entry in entries if entry.event is Event.RUN_CREATED), None)
    if created is not None:
        return (str(created["budget_month"]), created.get("budget_state")) if "budget_month" in created else None
    begun = start_time_of(folder.run_id)
    state = document.job.cloud.state if document is not None else None
    return None if begun is None else (f"{begun:%Y-%m}", None if state is None else state.model_dump(mode="json"))


@contextlib.contextmanager
def _as_problem(problems: list[str], what: str) -> Iterator[None]:
    """Turn damaged files and failed writes into problems of the receipt."""
    try:
        yield
    except (OSError, sqlite3.Error, SailorError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        logger.debug("closing the books", exc_info=True)
        why = of_system(error) if isinstance(error, OSError) else str(error) or type(error).__name__
        problems.append(f"{what}: {why}")


def _job_named(folder: RunFolder, entries: Sequence[Entry]) -> str:
    """Return the job's name without the plan: from the journal, else from the run's own name."""
    named = (str(entry.data["job"]) for entry in entries if "job" in entry.data)
    return next(named, "-".join(folder.run_id.split("-")[:-3]))


def _past_run(
    folder: RunFolder, document: PlanDocument, recorded: tuple[RecordedGeneration, ...], receipt: Receipt
) -> history.PastRun:
    entries = read(folder.journal_file)
    monitor = last_monitor(recorded, document)
    prediction = recorded[-1].document.prediction if recorded else document.prediction
    return history.PastRun(
        run_id=folder.run_id,
        job=document.job.name,
        outcome=receipt.outcome,
        started_at=entries[0].ts if entries else receipt.written_at,
        ended_at=receipt.written_at,
        steps=max((leg.monitor.reached_step for leg in recorded), default=0),
        steps_planned=document.job.training.steps,
        generations=len(recorded),
        nodes=sum(row.type == NODE for row in receipt.resources),
        planned_iteration_s=prediction.iteration_s_replay if prediction else None,
        measured_iteration_s=monitor.measured_iteration_s,
        planned_usd=document.cost.total_usd if document.cost else None,
        spent_usd=receipt.spent_usd,
        budget_usd=receipt.budget_usd,
        clean=receipt.clean,
        owner=document.job.cloud.owner,
        project=document.job.cloud.gcp.project if document.job.cloud.gcp is not None else None,
    )


def _comparisons(
    folder: RunFolder,
    document: PlanDocument,
    recorded: tuple[RecordedGeneration, ...],
    lines: tuple[LedgerLine, ...],
    spent_usd: float,
) -> tuple[Comparison, ...]:
    """Return every estimate next to its actual value; iteration times are those of the newest generation.

    For an unfinished run, the estimates cover only the steps done.
    """
    # Without a number of steps or a rate, the plan's bill covers one hour, which is no estimate of a run.
    cost = document.cost if document.cost is not None and document.cost.total_usd is not None else None
    prediction = recorded[-1].document.prediction if recorded else document.prediction
    measured = last_monitor(recorded, document).measured_iteration_s
    has_trained = any(leg.monitor.steps_done for leg in recorded)
    share = _share_done(document, recorded)
    so_far = "" if share == 1.0 else f", for {100 * share:.0f} % of the steps"
    parts = bill_parts(cost, lines, share)
    return (
        Comparison(
            what="iteration, as planned",
            unit="s",
            estimate=prediction.iteration_s_replay if prediction else None,
            actual=measured,
        ),
        Comparison(
            what="iteration, as calibrated", unit="s", estimate=journaled_calibration_s(folder), actual=measured
        ),
        Comparison(
            what=f"training time{so_far}",
            unit="s",
            estimate=_scaled(_training_s(document), share),
            actual=math.fsum(leg.monitor.trained_s for leg in recorded) if has_trained else None,
        ),
        *parts,
        Comparison(
            what=f"whole run{so_far}",
            unit="USD",
            estimate=math.fsum(part.estimate or 0.0 for part in parts) if cost else None,
            actual=spent_usd,
        ),
    )


def _share_done(document: PlanDocument, recorded: tuple[RecordedGeneration, ...]) -> float:
    """Return the share of the job's steps that was reached; 1 if their number is unknown."""
    steps = document.job.training.steps
    return min(1.0, max((leg.monitor.reached_step for leg in recorded), default=0) / steps) if steps else 1.0


def _scaled(estimate: float | None, share: float) -> float | None:
    return None if estimate is None else estimate * share


def _training_s(document: PlanDocument) -> float | None:
    steps = document.job.training.steps
    if document.prediction is None or steps is None:
        return None
    return document.prediction.iteration_s_replay * steps
