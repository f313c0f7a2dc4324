"""The planner at the newest prices, for a run that re-plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sailor_cloud import catalog, network, planner, resources, workload
from sailor_cloud.catalog import Catalog
from sailor_cloud.catalog.capacity import capacity_offers
from sailor_cloud.clock import Clock
from sailor_cloud.launch.replanning.replan import Rates
from sailor_cloud.launch.telemetry.preflight import PROBE_BYTES
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import Pick, PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.offer import Offer
from sailor_cloud.network import Network
from sailor_cloud.planner.evaluate.migration import migration_cost
from sailor_cloud.planner.purchase import purchase
from sailor_cloud.provision.providers import on_this_machine
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.simulator import Scenario, engine_named
from sailor_cloud.simulator.bill import bucket_place
from sailor_cloud.simulator.engines import SAILOR
from sailor_cloud.simulator.resimulate import simulate_document
from sailor_cloud.workload import ComputeProfiles


@dataclass(slots=True)
class CatalogSearch:
    """See `replan.Search`. Data are read at first use; prices again after each refresh.

    `machine`: the one whose cores local nodes share. `engine` names the training program of the run.
    """

    decoder: Decoder | None
    clock: Clock
    machine: LocalMachine | None = None
    allow_doubtful: bool = False
    engine: str = SAILOR.name
    _catalog: Catalog | None = None
    _read_from: Path | None = None
    _rest: tuple[Network, ComputeProfiles] | None = field(default=None)

    def __call__(self, job: Job, choose: Pick | None = None) -> PlanDocument:
        links, profiles = self._data()
        return planner.search(
            job,
            catalog=self._newest_catalog(),
            network=links,
            profiles=profiles,
            clock=self.clock,
            decoder=self.decoder,
            engine=engine_named(self.engine),
            options=planner.SearchOptions(decide=choose is not None, choose=choose),
        )

    def purchase(self, job: Job, refused: Callable[[Offer], bool]) -> PlanDocument:
        return purchase(job, catalog=self._newest_catalog(), clock=self.clock, refused=refused)

    def offers(self, job: Job) -> tuple[Offer, ...]:
        prices = self._newest_catalog()
        apart = (
            offer
            for entry in job.resources
            for zone in entry.zones
            for name in entry.accelerators
            for offer in capacity_offers(job, entry, zone, name, prices)
        )
        return (
            *apart,
            *(
                offer
                for entry in job.resources
                for offer in prices.offers(
                    provider=entry.provider,
                    zones=entry.zones,
                    accelerators=entry.accelerators,
                    markets=entry.markets,
                    instance_types=entry.instance_types,
                )
            ),
        )

    def update_link_speeds(self, rates: Rates) -> None:
        links, profiles = self._data()
        self._rest = links.as_measured(rates, probe_bytes=PROBE_BYTES), profiles

    def predict(self, document: PlanDocument) -> PlanDocument:
        assert self.decoder is not None, "only a plan for a model has links to be slow"
        links, profiles = self._data()
        return simulate_document(
            document,
            catalog=self._newest_catalog(),
            network=links,
            profiles=profiles,
            decoder=self.decoder,
            as_of=self.clock.now(),
        ).document

    def migration_cost(self, document: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        """Return the result of `planner.evaluate.migration`, with checkpoints at the running plan's place."""
        assert document.plan is not None
        assert self.decoder is not None, "a command moves its own state"
        links, profiles = self._data()
        scenario = Scenario(
            job=document.job,
            decoder=self.decoder,
            offers=document.inputs.offers_by_id(),
            catalog=self._newest_catalog(),
            network=links,
            profiles=profiles,
            as_of=self.clock.now(),
        )
        offers = [placed.offer for placed in placed_nodes(current)]
        bucket = bucket_place(offers, current.job.checkpoint.to, links.first_zone)
        zone = current.home.zone if bucket is None else bucket[2]
        on_the_spot = on_this_machine(current.home.provider)
        move = migration_cost(document.plan, scenario, store_zone=None if on_the_spot else zone)
        return move.seconds, move.usd

    def _data(self) -> tuple[Network, ComputeProfiles]:
        if self._rest is None:
            self._rest = network.load(), replace(workload.profiles.load(), machine=self.machine)
        return self._rest

    def _newest_catalog(self) -> Catalog:
        newest = resources.refreshed_prices()
        if self._catalog is None or newest != self._read_from:
            prices = catalog.load()
            self._catalog = prices if self.allow_doubtful else prices.without_doubtful()
            self._read_from = newest
        return self._catalog
