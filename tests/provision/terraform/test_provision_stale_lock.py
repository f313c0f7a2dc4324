"""Locks of states whose holder is gone, told and broken by what each backend calls them."""

from __future__ import annotations

import pytest

from sailor_cloud.provision.terraform.driver import Diagnostic, TerraformCommandError
from sailor_cloud.provision.terraform.state_locks import lock_id, without_stale_lock

LOCKED = "Error acquiring the state lock"
INFO = """{why}
Lock Info:
  ID:        {held}
  Path:      {path}
  Operation: OperationTypeApply
  Who:       somebody@gone
  Version:   1.11.4
  Created:   2026-11-21 05:13:13.123456789 +0000 UTC
  Info:
"""
GCS = INFO.format(
    why='Error message: writing "gs://states/sailor-cloud/r/gcp-us-central1/default.tflock" failed: googleapi: Error '
    "412: At least one of the pre-conditions you specified did not hold., conditionNotMet",
    held="1732166003417392",
    path="gs://states/sailor-cloud/r/gcp-us-central1/default.tflock",
)
S3 = INFO.format(
    why="Error message: operation error S3: PutObject, https response error StatusCode: 412, RequestID: r, HostID: , "
    "api error PreconditionFailed: At least one of the pre-conditions you specified did not hold",
    held="9db590f1-b6fe-c5f2-2678-8804f089deba",
    path="states/sailor-cloud/r/aws-us-east-1.tfstate",
)


def failure(detail: str, summary: str = LOCKED) -> TerraformCommandError:
    return TerraformCommandError("terraform failed", (Diagnostic(summary=summary, detail=detail, address=""),))


class Driver:
    """Stands in for the driver of a root whose state is locked until the lock of the right name is broken."""

    def __init__(self, detail: str) -> None:
        self.detail, self.broken, self.done = detail, [], 0  # type: ignore[var-annotated]

    def work(self, adopting: bool) -> None:
        if not self.broken:
            raise failure(self.detail)
        self.done += 1

    def force_unlock(self, held: str) -> None:
        self.broken.append(held)


@pytest.mark.parametrize(
    ("detail", "held"),
    [(GCS, "1732166003417392"), (S3, "9db590f1-b6fe-c5f2-2678-8804f089deba")],
    ids=["generation of an object in Cloud Storage", "UUID in S3"],
)
def test_a_lock_is_broken_under_the_name_that_its_backend_gives_it(detail: str, held: str) -> None:
    assert lock_id(failure(detail)) == held
    driver = Driver(detail)
    without_stale_lock(driver, driver.work)(False)  # type: ignore[arg-type]
    assert (driver.broken, driver.done) == ([held], 1)


def test_only_locks_are_broken() -> None:
    assert lock_id(failure(GCS, summary="Error creating Instance")) is None
    other = failure("no lock told", summary=LOCKED)
    assert lock_id(other) is None

    def refused(adopting: bool) -> None:
        raise other

    with pytest.raises(TerraformCommandError) as raised:
        without_stale_lock(Driver(""), refused)(False)  # type: ignore[arg-type]
    assert raised.value is other
