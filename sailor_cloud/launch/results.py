"""Copies the trained model from the run's bucket before the bucket is deleted: checked, journaled, paid for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from sailor_cloud import resources
from sailor_cloud.catalog.providers import of as sold_by
from sailor_cloud.clock import Clock
from sailor_cloud.errors import SailorError
from sailor_cloud.launch.spend import usage
from sailor_cloud.launch.spend.charges import total_usd
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.telemetry.generation_log import recorded_generations
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.provision import providers
from sailor_cloud.provision.cleanup.leftovers import kept_bucket
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.units import GB, usd_text

# An unreachable bucket delays the end of a run by at most this time.
_PATIENCE_S = 60.0
# The required free disk space, as a multiple of the copy's size.
_SPARE = 1.05
# Any place outside the clouds: traffic to it crosses the internet.
_HERE = "local-a"


class ResultsKeptError(Exception):
    """The results stay in the bucket; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetches the results of a finished training. If it can't, the bucket is kept and `say` reports why.

    The journal names the bucket only once everything is on this disk; only then may it be deleted. A crash before
    leaves the bucket; after a crash afterwards, the next teardown deletes it.
    """

    folder: RunFolder
    document: PlanDocument
    clock: Clock
    prices: UsagePrices
    say: Callable[[str], None]

    def __call__(self) -> None:
        bucket = kept_bucket(self.folder.run_id, read(self.folder.journal_file))
        if bucket is None:
            return
        home = self.document.home
        url = f"{sold_by(home.provider).bucket_scheme}://{bucket.name}"
        try:
            step = self._copied(f"{url}/checkpoints", home)
            Journal.of(self.folder, self.clock).append(Event.RESULTS_FETCHED, bucket=bucket.name, checkpoint=step)
        except (ResultsKeptError, SailorError, OSError) as error:
            self.say(f"the results stay in {url}: {error}")
            return
        what = "the trained model" if self.document.job.run is None else "the command's newest checkpoint"
        self.say(f"{what} is in {self.folder.checkpoints_dir / step}; its bucket is deleted")

    def _copied(self, url: str, home: Offer) -> str:
        """Copy the newest checkpoint and return its name. Raises ResultsKeptError."""
        command = [
            sys.executable,
            "-m",
            "sailor_runtime.training.checkpoint.fetch"
            if self.document.job.run is None
            else "sailor_runtime.command.fetch",
            url,
            str(self.folder.checkpoints_dir),
        ]
        with subprocess.Popen(
            command,
            env=_environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A Ctrl-C that ends the run must not end the copy of its results.
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            answer = ""
            try:
                if line:
                    self._pay(int(json.loads(line)["bytes"]), home)
                    answer = "copy\n"
            finally:
                _, stderr = process.communicate(answer)
        if process.returncode != 0 or not line:
            raise ResultsKeptError(
                stderr.strip().splitlines()[-1] if stderr.strip() else f"copying ended as {process.returncode}"
            )
        return str(json.loads(line)["checkpoint"])

    def _pay(self, size: int, home: Offer) -> None:
        """Charge for traffic out of a cloud. Raises ResultsKeptError, or DataError for prices."""
        free = shutil.disk_usage(self.folder.path).free
        if size * _SPARE > free:
            raise ResultsKeptError(
                f"they have {size / GB:.2f} GB, and {free / GB:.2f} GB are free in {self.folder.path}"
            )
        price = self.prices.between(home.zone, _HERE)[0]
        usd, budget = price.usd_per_gb * size / GB, self.document.constraints.budget_usd
        ledger, now = Ledger.of(self.folder, self.clock), self.clock.now()
        used = usage.charges(self.document, recorded_generations(self.folder), self.prices, until=now)
        spent = ledger.spent_usd(now) + total_usd(used)
        if budget is not None and spent + usd > budget:
            left = usd_text(budget - spent)
            raise ResultsKeptError(f"copying {size / GB:.2f} GB costs {usd_text(usd)} USD, and {left} USD are left")
        before = sum(line.key.startswith("results") for line in ledger.lines(now))
        ledger.charge(
            f"results {before + 1}",
            kind=CostKind.EGRESS,
            what=f"results from {home.region} to this machine",
            part="results",
            quantity=size / GB,
            unit="GB",
            usd_per_unit=price.usd_per_gb,
            price_source=price.source,
            price_as_of=price.as_of_to,
            at=now,
        )


def _environment(home: Offer) -> dict[str, str]:
    """Return the caller's environment plus what programs need to reach the bucket."""
    path = os.pathsep.join([str(resources.runtime_root()), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = {**os.environ, "PYTHONPATH": path, "SAILOR_STORE_PATIENCE_S": str(_PATIENCE_S)}
    return {**found, **providers.of(home.provider).store_environment(home.region)}
