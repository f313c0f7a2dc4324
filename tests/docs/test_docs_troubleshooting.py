"""Produces every message of the troubleshooting table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from factories.commands import ROOT
from factories.messages import PRODUCERS
from factories.run_messages import RUN_PRODUCERS
from sailor_cloud import errors
from sailor_cloud.errors import SailorError

TABLE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^\| `([^|]+?)` \|", TABLE, re.MULTILINE)
DESIGN = (ROOT / "docs" / "design.md").read_text()
ALL = PRODUCERS | RUN_PRODUCERS
# A row for each kind of error; those of prices are also errors of data, those of clouds of provisioning.
KINDS = {
    "RequestError": "'gpt5' is not a preset",
    "MissingPriceError": "no egress price from",
    "StalePriceError": "of the plan's 2 offers have stale prices",
    "DoubtfulPriceError": "of the plan's 2 offers have doubtful prices",
    "ProfileMissingError": "has neither a compute profile nor a datasheet rate for bf16",
    "TerraformError": "terraform init failed with status 1",
    "StockoutError": "gcp has no capacity now",
    "NotSoldError": "gcp does not sell this type in this zone",
    "QuotaError": "the quota NVIDIA_A100_GPUS of 8 in us-central1 does not allow the plan",
    "CredentialsError": "no AWS credentials",
    "MissingPackageError": "the Python module boto3 is not installed",
    "LaunchError": "did not answer within",
}


def test_every_message_of_the_table_has_a_producer_and_no_other() -> None:
    assert len(MESSAGES) == len(set(MESSAGES))
    assert set(MESSAGES) == set(ALL)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_appears_as_the_table_quotes_it(message: str, tmp_path: Path) -> None:
    assert message in ALL[message](tmp_path).text


def test_every_kind_of_error_that_the_design_names_is_defined_and_has_a_row() -> None:
    listed = DESIGN.partition("## Errors")[2].partition("\n## ")[0]
    names = set(re.findall(r"\b[A-Z]\w+Error\b", listed)) - {"SailorError"}
    assert names == {name for name, kind in vars(errors).items() if _is_expected(kind)} - {"SailorError"}
    assert names == set(KINDS) | {"DataError", "ProvisionError"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_shows_what_an_error_of_its_kind_says(kind: str, tmp_path: Path) -> None:
    failure = ALL[KINDS[kind]](tmp_path)
    assert kind in {ancestor.__name__ for ancestor in type(failure.error).__mro__}


def _is_expected(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, SailorError)
