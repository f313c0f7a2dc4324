from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rich.console import Console

from factories.documents import NOW, PRICED
from sailor_cloud.model.document import CostKind
from sailor_cloud.report.run.receipt_text import print_receipt
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.receipt import AskedPlace, Comparison, KeptResource, Receipt, ReceiptResource

NODE = ReceiptResource(
    provider="local",
    region="local",
    zone="local-a",
    type="node",
    name="n0",
    created_at=NOW,
    gone_at=NOW + timedelta(minutes=2),
    confirmed_by="sweep by tag",
)
RECEIPT = Receipt(
    run_id="tiny-1",
    job="tiny",
    outcome="completed",
    written_at=NOW,
    resources=(NODE,),
    kept=(),
    lines=(
        LedgerLine(
            kind=CostKind.COMPUTE,
            key="n0",
            what="node n0",
            quantity=0.0333,
            unit="h",
            usd_per_unit=0.12,
            usd=0.004,
            price_source="example",
            price_as_of=PRICED,
            open=False,
        ),
    ),
    spent_usd=0.004,
    budget_usd=0.05,
    comparisons=(
        Comparison(what="iteration, as planned", unit="s", estimate=0.5, actual=0.6),
        Comparison(what="iteration, as calibrated", unit="s", estimate=None, actual=0.6),
        Comparison(what="whole run", unit="USD", estimate=0.005, actual=0.004),
    ),
    problems=(),
)


def shown(receipt: Receipt) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as capture:
        print_receipt(receipt, console)
    return " ".join(capture.get().split())


def test_a_receipt_shows_when_each_resource_came_and_went() -> None:
    assert "node n0 local-a 2026-11-20 12:00:00 2026-11-20 12:02:00 sweep by tag" in shown(RECEIPT)
    assert "the only resource is gone, confirmed by an independent sweep" in shown(RECEIPT)


def test_estimates_are_shown_next_to_actual_values() -> None:
    assert "iteration, as planned 0.500 s 0.600 s +20 %" in shown(RECEIPT)
    assert "iteration, as calibrated - 0.600 s -" in shown(RECEIPT)
    assert "whole run 0.00500 USD 0.00400 USD -20 %" in shown(RECEIPT)
    assert "total of 0.0500 USD budget 0.00400" in shown(RECEIPT)


def test_a_resource_that_is_still_there_is_never_called_gone() -> None:
    text = shown(replace(RECEIPT, resources=(replace(NODE, gone_at=None, found=True),)))
    assert "STILL THERE" in text
    assert "1 resource still there: n0; run 'sailor-cloud down tiny-1'" in text
    assert "gone, confirmed" not in text


def test_an_unconfirmed_resource_is_neither_there_nor_gone() -> None:
    text = shown(replace(RECEIPT, resources=(replace(NODE, gone_at=None),)))
    assert "NOT CONFIRMED" in text
    assert "not confirmed as gone: n0; run 'sailor-cloud down tiny-1' again" in text
    assert "gone, confirmed" not in text


def test_each_place_stands_there_with_what_it_was_asked_for_and_when() -> None:
    answered = [
        AskedPlace(provider="aws", place="aws region us-east-1", kind=kind, asked_at=NOW)
        for kind in ("aws_instance", "aws_eip")
    ]
    text = shown(replace(RECEIPT, asked=tuple(answered)))
    assert "aws region us-east-1 was asked at 2026-11-20 12:00:00 for aws_instance, aws_eip: answered" in text
    assert "the only resource is gone" in text
    silent = replace(answered[0], place="aws region us-west-2", problem="no route to host")
    nowhere = AskedPlace(provider="", place="", kind="", asked_at=None, problem="the journal is lost")
    receipt = replace(RECEIPT, asked=(*answered, silent, nowhere))
    assert not receipt.clean
    text = shown(receipt)
    assert "us-west-2 was asked at 2026-11-20 12:00:00 for aws_instance: no answer: no route to host" in text
    assert "not asked: the journal is lost" in text
    assert "not confirmed as gone: aws region us-west-2, unknown places" in text
    assert "again with --project or --region, or delete its folder if it bought nothing" in " ".join(text.split())
    assert "again once they answer" in " ".join(shown(replace(RECEIPT, asked=(silent,))).split())
    assert "gone, confirmed" not in text


def test_kept_resources_are_listed_with_price_and_delete_command() -> None:
    bucket = KeptResource(type="bucket", name="b", usd_per_month=1.5, delete_command="gcloud storage rm -r gs://b")
    text = shown(replace(RECEIPT, kept=(bucket,)))
    assert "bucket b kept, 1.50 USD/month gcloud storage rm -r gs://b" in text
    assert text.rstrip().endswith("confirmed by an independent sweep; 1 kept on purpose")


def test_a_block_that_nobody_can_cancel_is_not_kept_on_purpose() -> None:
    ends = datetime(2026, 12, 2, tzinfo=UTC)
    block = KeptResource(type="block", name="cr-1", usd_per_month=0.0, delete_command="", ends_at=ends)
    text = shown(replace(RECEIPT, kept=(block,)))
    assert text.rstrip().endswith("confirmed by an independent sweep; 1 paid for until its end")
    text = shown(replace(RECEIPT, resources=(), kept=(block, block)))
    assert text.rstrip().endswith("2 paid for until their ends; an independent sweep has found nothing else")


def test_a_run_that_made_nothing_does_not_speak_of_resources_that_are_gone() -> None:
    text = shown(replace(RECEIPT, resources=(), lines=(), outcome="failed"))
    assert "nothing was made, so there was nothing to remove" in text
    assert shown(replace(RECEIPT, resources=())).rstrip().endswith("an independent sweep has found nothing")
    assert "confirmed by" not in text
    assert "gone, confirmed" not in text


def test_control_characters_of_a_damaged_journal_reach_no_terminal() -> None:
    row = replace(NODE, name="n0\x1b[2J\x07", gone_at=None)
    text = shown(replace(RECEIPT, resources=(row,), problems=("\x1b]0;owned\x07",)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "n0\\x1b[2J" in text
