"""The cost of ended runs as rows of FOCUS 1.0, the FinOps Foundation's format for bills (focus.finops.org)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sailor_cloud.catalog import providers as catalog_providers
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.provider import Provider, names
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.receipt import Receipt

VERSION = "1.0"
_SERVICES = {
    CostKind.DISK: ("Storage", "Disks"),
    CostKind.ADDRESS: ("Networking", "Addresses and gateways"),
    CostKind.EGRESS: ("Networking", "Data transfer"),
    CostKind.CHECKPOINT: ("Storage", "Object storage"),
}
_COMPUTE = ("Compute", "Virtual machines")
# Mandatory columns of the standard that don't apply to a run.
_EMPTY = (
    "BillingAccountName",
    "ChargeClass",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "RegionName",
    "SubAccountName",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledRun:
    """An ended run with its owner and project."""

    receipt: Receipt
    started_at: datetime
    owner: str | None
    project: str | None


def focus_csv(runs: Iterable[BilledRun]) -> str:
    """Return a row per line of the ledgers.

    Costs are the ledger's, at list price. A line's period is that of its run, and its billing period the month in which
    the run began. focus-validator 1.0.0 expects InvoiceIssuer, Provider, Publisher and ResourceID, where the standard
    has InvoiceIssuerName, ProviderName, PublisherName and ResourceId: both are written. It also expects ChargeType.
    """
    rows = [_row(run, line) for run in runs for line in run.receipt.lines]
    if not rows:
        return ""
    target = io.StringIO()
    writer = csv.DictWriter(target, fieldnames=sorted(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def _row(run: BilledRun, line: LedgerLine) -> dict[str, str]:
    start = run.started_at.astimezone(UTC)
    begin = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    category, service = _SERVICES.get(line.kind, _COMPUTE)
    resource = next((one for one in run.receipt.resources if line.key in (one.name, f"{one.type}/{one.name}")), None)
    providers = sorted({one.provider for one in run.receipt.resources})
    provider = resource.provider if resource is not None else providers[0] if providers else "unknown"
    publisher = _publisher(provider)
    account = run.project or provider
    tags = {"run": run.receipt.run_id, "job": run.receipt.job, "owner": run.owner}
    usd = f"{line.usd:.9f}"
    return dict.fromkeys(_EMPTY, "") | {
        "AvailabilityZone": resource.zone if resource is not None else "",
        "BilledCost": usd,
        "BillingAccountId": account,
        "BillingCurrency": "USD",
        "BillingPeriodEnd": _time(end),
        "BillingPeriodStart": _time(begin),
        "ChargeCategory": "Usage",
        "ChargeDescription": line.what,
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _time(run.receipt.written_at),
        "ChargePeriodStart": _time(start),
        "ChargeType": "Usage",
        "ConsumedQuantity": f"{line.quantity:.9f}",
        "ConsumedUnit": line.unit,
        "ContractedCost": usd,
        "ContractedUnitPrice": f"{line.usd_per_unit:.9f}",
        "EffectiveCost": usd,
        "InvoiceIssuer": publisher,
        "InvoiceIssuerName": publisher,
        "ListCost": usd,
        "ListUnitPrice": f"{line.usd_per_unit:.9f}",
        "PricingCategory": "Standard",
        "PricingQuantity": f"{line.quantity:.9f}",
        "PricingUnit": line.unit,
        "Provider": publisher,
        "ProviderName": publisher,
        "Publisher": publisher,
        "PublisherName": publisher,
        "RegionId": resource.region if resource is not None else "",
        "ResourceID": line.key,
        "ResourceId": line.key,
        "ResourceName": resource.name if resource is not None else "",
        "ResourceType": resource.type if resource is not None else line.kind.value,
        "ServiceCategory": category,
        "ServiceName": service,
        "SkuId": line.part or service,
        "SkuPriceId": line.part or service,
        "SubAccountId": run.project or "",
        "Tags": json.dumps({name: value for name, value in tags.items() if value}, sort_keys=True),
    }


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _publisher(provider: str) -> str:
    known = catalog_providers.of(Provider(provider)).publisher if provider in names() else ""
    return known or provider
