"""Breaks stale locks of a run's Terraform states, for callers that have ensured that no Terraform is left."""

from __future__ import annotations

import re
from collections.abc import Callable

from sailor_cloud.provision.terraform.driver import TerraformCommandError, TerraformDriver

# States on disk and in S3 are locked under a UUID, those in Cloud Storage under the generation of the lock's object
# (developer.hashicorp.com/terraform/language/backend/gcs, internal/backend/remote-state/gcs/client.go).
_LOCK_ID = re.compile(r"^\s*ID:\s+([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+)\s*$", re.M)


def lock_id(failure: TerraformCommandError) -> str | None:
    """Return the id of the lock that stopped Terraform, or None if something else did."""
    if not failure.state_locked:
        return None
    found = next((match for fault in failure.faults if (match := _LOCK_ID.search(fault.detail))), None)
    return found.group(1) if found else None


def without_stale_lock(driver: TerraformDriver, work: Callable[[bool], None]) -> Callable[[bool], None]:
    """Return the same work, which breaks a lock that blocks it and then runs once more."""

    def attempt(adopting: bool) -> None:
        try:
            work(adopting)
        except TerraformCommandError as failure:
            held = lock_id(failure)
            if held is None:
                raise
            driver.force_unlock(held)
            work(adopting)

    return attempt
