"""The receipt of a run with one node gone and one left."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from sailor_cloud.model.document import CostKind
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.receipt import Comparison, KeptResource, Receipt, ReceiptResource

NOW = datetime(2026, 11, 21, 5, 0, 0, 123456, tzinfo=UTC)


def resource(name: str, *, gone: bool) -> ReceiptResource:
    return ReceiptResource(
        provider="local",
        region="local",
        zone="local-a",
        type="node",
        name=name,
        created_at=NOW - timedelta(minutes=3),
        gone_at=NOW if gone else None,
        confirmed_by="sweep by tag" if gone else "",
    )


def receipt() -> Receipt:
    return Receipt(
        run_id="tiny-20261121-045700-a1b2",
        job="tiny",
        outcome="completed",
        written_at=NOW,
        resources=(resource("n0", gone=True), resource("n1", gone=False)),
        kept=(KeptResource(type="bucket", name="b", usd_per_month=0.2, delete_command="gcloud storage rm -r gs://b"),),
        lines=(
            LedgerLine(
                kind=CostKind.COMPUTE,
                key="node/n0",
                what="n0",
                quantity=0.05,
                unit="h",
                usd_per_unit=0.2,
                usd=0.01,
                price_source="example",
                price_as_of=date(2026, 11, 1),
                open=False,
            ),
        ),
        spent_usd=0.01,
        budget_usd=None,
        comparisons=(Comparison(what="total", unit="USD", estimate=0.02, actual=0.01),),
        problems=("terraform apply failed with status 1",),
    )
