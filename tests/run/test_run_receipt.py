"""The receipt of a run."""

from __future__ import annotations

import pytest

from factories.receipts import receipt
from sailor_cloud.errors import RequestError
from sailor_cloud.run.receipt import Receipt


def test_a_receipt_comes_back_as_it_was_written() -> None:
    assert Receipt.from_json(receipt().to_json()) == receipt()


def test_resources_without_a_confirmed_deletion_are_left() -> None:
    assert [found.name for found in receipt().left] == ["n1"]


def test_a_broken_receipt_is_refused_with_its_place() -> None:
    text = receipt().to_json().replace('"spent_usd": 0.01', '"spent_usd": "much"')
    with pytest.raises(RequestError, match=r"receipt.json: spent_usd: Input should be a valid number"):
        Receipt.from_json(text, origin="receipt.json")
