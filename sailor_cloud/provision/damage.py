"""Damaged files of a run: what is wrong with them, and what its other files still tell."""

from __future__ import annotations

import math

from sailor_cloud.errors import RequestError, of_system
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision.bookkeeping import NODE, charge_less, charge_missing, charged_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import damage, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.progress import Damage
from sailor_cloud.run.receipt import Receipt
from sailor_cloud.run.state import Phase, fold
from sailor_cloud.units import counted, usd_text


def plan_of(folder: RunFolder) -> tuple[PlanDocument | None, tuple[Damage, ...]]:
    """Return a run's plan, or None and what is wrong with it."""
    try:
        return folder.read_document(), ()
    except RequestError as error:
        return None, (Damage(file="plan", why=str(error)),)


def missing_purchases(folder: RunFolder, ledger: Ledger) -> str:
    """Return what a run's journal lacks; empty if nothing but perhaps a last line that a crash has cut off."""
    if harm := damage(folder.journal_file, cut=False):
        return harm
    bought = {
        row.key
        for row in fold(read(folder.journal_file)).resources
        if row.resource == NODE and row.created_at is not None
    }
    beyond = sorted(set(charged_nodes(ledger)) - bought)
    return f"{folder.journal_file} lacks nodes that the ledger charges for: {', '.join(beyond)}" if beyond else ""


def journal_damage(folder: RunFolder, ledger: Ledger) -> tuple[Damage, ...]:
    """Return why a run can't be taken over for its journal; nothing for one that is torn down."""
    if fold(read(folder.journal_file)).phase is Phase.GONE or not (why := missing_purchases(folder, ledger)):
        return ()
    down = f"'sailor-cloud down {folder.run_id}' removes what it may have bought"
    return (Damage(file="journal", why=f"{why}; {down}"),)


def receipt_mismatch(folder: RunFolder, spent_usd: float) -> tuple[str, ...]:
    """Return how a finished run's ledger differs from its receipt; nothing without a receipt that ended its books."""
    if not folder.receipt_file.is_file():
        return ()
    try:
        receipt = Receipt.from_json(folder.receipt_file.read_bytes(), origin=str(folder.receipt_file))
    except OSError as error:
        return (of_system(error),)
    except RequestError as error:
        return (f"{folder.receipt_file} can't be read: {error.problems[0]}",)
    if not receipt.clean or math.isclose(receipt.spent_usd, spent_usd, rel_tol=1e-9, abs_tol=1e-9):
        return ()
    amounts = f"{usd_text(spent_usd)} USD, and {folder.receipt_file} has {usd_text(receipt.spent_usd)}"
    return (f"{folder.ledger_file} adds up to {amounts}",)


def restore_ledger(folder: RunFolder, ledger: Ledger) -> tuple[str, ...]:
    """Charge for what a ledger lacks according to the journal, and return what was wrong with it."""
    problems = ledger.damage()
    try:
        return (*problems, *charge_as_journaled(folder, ledger))
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        return (*problems, f"prices in {folder.journal_file} can't be read ({error!r}); the ledger lacks them")


def charge_as_journaled(folder: RunFolder, ledger: Ledger) -> tuple[str, ...]:
    """Charge for purchases at least what the journal says, and return what the ledger said instead.

    Raises ValueError, KeyError, TypeError or ArithmeticError for prices that can't be read.
    """
    before, state, problems = ledger.added, fold(read(folder.journal_file)), []
    charge_missing(ledger, state)
    if lacked := ledger.added - before:
        restored = "charged as the journal says, at the prices of the purchase"
        problems.append(f"{ledger.path} lacks {counted(lacked, 'line')}, {restored}")
    if less := charge_less(ledger, state):
        problems.append(
            f"{ledger.path} charges less than the journal for {', '.join(less)}; the journal's price counts"
        )
    return tuple(problems)
