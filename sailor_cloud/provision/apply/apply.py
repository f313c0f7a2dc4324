"""Applies one Terraform root: temporary failures are retried, existing resources are adopted, refusals are reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.apply.adopt import adopt
from sailor_cloud.provision.apply.changes import Change, node_at
from sailor_cloud.provision.apply.session import Watch, Work
from sailor_cloud.provision.bookkeeping import NODE, node_intent, resource_intent
from sailor_cloud.provision.errors.causes import Cause, Fault, classify, error_of, gravest
from sailor_cloud.provision.rendering.planned_roots import forget
from sailor_cloud.provision.rendering.preview import Prices
from sailor_cloud.provision.rendering.root import Root, WantedRoot
from sailor_cloud.provision.terraform.driver import TerraformCommandError, TerraformDriver
from sailor_cloud.provision.terraform.state_locks import without_stale_lock
from sailor_cloud.run.journal import Event
from sailor_cloud.run.state import fold

logger = logging.getLogger(__name__)

_SLOW_TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The cloud did not give what was asked for; `worst` is the fault that decides what to do."""

    worst: Fault
    reasons: dict[str, str]


def apply_root(
    work: Work,
    wanted: WantedRoot,
    *,
    running: frozenset[str],
    again: bool,
    prices: Prices | None = None,
    on_network: Callable[[], None] = lambda: None,
) -> Refusal | None:
    """Create what a root lacks and delete what it should not have; repeated, it goes on where it stopped.

    `running` are nodes that must neither be replaced nor deleted. `again`: the root may have been applied before, so
    what its state does not know of is looked for first. `prices` are told of what is about to be created, and
    `on_network` is called once a network that other roots use exists. Raises CredentialsError, TerraformCommandError,
    ProvisionError.
    """
    root = wanted.write(work.folder)
    driver, watch = work.open(root, wanted.nodes, prices, on_network)
    driver.init()

    def once(adopting: bool) -> None:
        changes = _planned(driver, watch)
        adoptable = providers.of(wanted.provider).adoptable(wanted) if adopting else None
        if adoptable is not None and any(change.action == "create" for change in changes):
            with adopt(work, wanted, adoptable, driver):
                _carry_out(work, driver, watch, running, _planned(driver, watch))
        else:
            _carry_out(work, driver, watch, running, changes)

    worst, failure = _with_patience(work, wanted.provider, without_stale_lock(driver, once), adopting=again)
    if failure is None or worst is None:
        return None
    reasons = {name: fault.text for fault in _faults(wanted.provider, failure) if (name := node_at(fault.address))}
    if not reasons:
        reasons = {placed.node.id: worst.text for placed in wanted.nodes if placed.node.id not in running}
    return Refusal(worst=worst, reasons=reasons)


def shrink(work: Work, wanted: WantedRoot, victims: frozenset[str], *, shared: bool) -> None:
    """Delete some nodes of a root, which may be all that it has; `shared`: others stand in this root's network."""
    root = wanted.in_folder(work.folder)
    if victims >= {placed.node.id for placed in wanted.nodes}:
        remove_root(work, root, only_compute=shared)
        return
    driver, watch = work.open(wanted.write(work.folder, without=victims), wanted.nodes)
    driver.init()

    def once(adopting: bool) -> None:
        _planned(driver, watch)
        driver.apply()

    attempt = without_stale_lock(driver, once)
    _raise_refusal(*_with_patience(work, wanted.provider, attempt, adopting=False))


def remove_root(work: Work, root: Root, *, only_compute: bool) -> None:
    """Destroy a root that the plan does not need any more, or only its nodes."""
    driver, _ = work.open(root, ())
    driver.init()

    def once(adopting: bool) -> None:
        driver.destroy(target=providers.of(root.provider).machines if only_compute else None)

    attempt = without_stale_lock(driver, once)
    _raise_refusal(*_with_patience(work, root.provider, attempt, adopting=False))
    if not only_compute:
        forget(root)


def _with_patience(
    work: Work, provider: Provider, once: Callable[[bool], None], *, adopting: bool
) -> tuple[Fault | None, TerraformCommandError | None]:
    """Do something until it succeeds; return the fault and the failure where the cloud refuses it for good."""
    failed = 0
    while True:
        try:
            once(adopting)
            return None, None
        except TerraformCommandError as failure:
            failed += 1
            if not failure.faults:
                raise
            worst = gravest(_faults(provider, failure))
            match worst.cause:
                case Cause.CREDENTIALS | Cause.POLICY:
                    raise error_of(worst) from failure
                case Cause.QUOTA | Cause.STOCKOUT | Cause.NOT_SOLD:
                    return worst, failure
                case Cause.OTHER:
                    raise
                case Cause.EXISTS if adopting and failed > 1:
                    raise
                # What waits for a machine has waited for minutes each time.
                case Cause.SLOW if failed >= _SLOW_TRIES:
                    raise
            if worst.cause is Cause.THROTTLED:
                work.slow_down(provider)
            adopting = adopting or worst.cause is Cause.EXISTS
            pause_s = work.backoff.pause_s(failed)
            if pause_s is None:
                raise
            if worst.cause is not Cause.EXISTS:
                logger.info("%s; trying again in %.0f s", worst.text, pause_s)
                work.pause(pause_s)


def _raise_refusal(worst: Fault | None, failure: TerraformCommandError | None) -> None:
    if worst is not None:
        raise error_of(worst) from failure


def _faults(provider: Provider, failure: TerraformCommandError) -> list[Fault]:
    return [classify(provider, fault) for fault in failure.faults]


def _planned(driver: TerraformDriver, watch: Watch) -> tuple[Change, ...]:
    watch.changes.clear()
    driver.plan()
    # Terraform walks its graph in parallel, so it tells changes in another order each time.
    order = {placed.node.id: placed.index for placed in watch.nodes}
    return tuple(sorted(watch.changes, key=lambda change: (order.get(change.node, -1), change.address)))


def _carry_out(
    work: Work, driver: TerraformDriver, watch: Watch, running: frozenset[str], changes: tuple[Change, ...]
) -> None:
    """Apply the plan that was just made: tell it, journal it, do it."""
    spoiled = sorted({change.node for change in changes if change.action in ("replace", "delete")} & running)
    if spoiled:
        raise ProvisionError(
            f"Terraform would replace or delete nodes that run and belong to the plan: {', '.join(spoiled)}; nothing "
            f"was changed in {watch.root.path}; 'sailor-cloud down {work.folder.run_id}' removes the run"
        )
    _intend(work, watch, changes)
    if not any(change.type == providers.of(watch.root.provider).network for change in changes):
        watch.on_network()
    driver.apply()
    work.interrupt.check()


def _intend(work: Work, watch: Watch, changes: tuple[Change, ...]) -> None:
    # What was asked for before and may exist is not asked for a second time.
    asked = {(row.resource, row.key) for row in fold(work.journal.entries()).live if row.created_at is None}
    drafts = []
    for change in changes:
        placed = watch.placed(change.node)
        price = watch.prices.of(change.type, change.key) if change.action != "delete" else None
        work.tell(change.planned(watch.root, price))
        if change.action in ("create", "replace"):
            intent = node_intent(placed) if placed else resource_intent(watch.root, change.type, change.address)
            drafts.append(intent)
    work.journal.append_all([draft for draft in drafts if (draft.resource, draft.key) not in asked])


def confirm_gone(work: Work, names: frozenset[str], alive: frozenset[str], *, confirmed_by: str) -> None:
    """Close the books of nodes that were deleted again and that the cloud lists no longer."""
    for name in sorted(names - alive):
        work.ledger.close_item(f"{NODE}/{name}", at=work.clock.now())
        work.journal.append(Event.GONE, resource=NODE, key=name, confirmed_by=confirmed_by)
