"""What an account may buy limits every search."""

from __future__ import annotations

from collections import Counter

import numpy as np

from factories.cloud_plans import GCP_OFFERS
from factories.planning import example, make_space, plan, quota, tiny_job
from factories.reserved import gcp_entry, reserved_offer
from sailor_cloud.catalog.account.quotas import Counted
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.planner.enumeration.exhaustive import small_layouts
from sailor_cloud.planner.seeds.mixed import mix
from sailor_cloud.planner.space.apportioning import apportioned
from sailor_cloud.planner.space.draft import nodes_of
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.planner.space.quotas import keeps_quotas, quota_arrays, used

GCP = {"provider": Provider("gcp"), "region": "us-central1"}


def bought(document: PlanDocument) -> Counter[tuple[str, str]]:
    """Devices by accelerator and market."""
    offers = {offer.id: offer for offer in document.inputs.offers}
    found: Counter[tuple[str, str]] = Counter()
    for node in document.plan.nodes:
        found[offers[node.offer].accelerator, offers[node.offer].market.value] += node.devices
    return found


def two_markets(**changes: object) -> Job:
    """A model that needs three devices, which one zone sells one by one on both markets."""
    return example(
        "gcp-a100-v100.yaml",
        resources__0__accelerators={"A100-40": 3},
        resources__0__zones=["us-central1-a"],
        resources__0__instance_types=["a2-highgpu-1g"],
        training__global_batch_size=3,
        training__sequence_length=64,
        model={
            "vocab_size": 64,
            "max_position_embeddings": 64,
            "model_type": "gpt2",
            "hidden_size": 8192,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
        },
        **changes,
    )


def test_capacity_counts_as_its_cloud_counts_it_and_what_the_account_has_already_not_again():
    limits = {market: quota("Q", 8, {"A100-40": market}, **GCP) for market in (None, Market.ON_DEMAND, Market.SPOT)}
    held = gcp_entry("held", "reservation", id="mine")
    for entry, counting in (
        (held, set()),
        (gcp_entry("flex", "flex-start"), {None, Market.SPOT}),
        (held.model_copy(update={"id": None}), {None, Market.ON_DEMAND}),
    ):
        offer = reserved_offer(entry, like=GCP_OFFERS[0])
        assert {market for market, limit in limits.items() if limit.units(offer)} == counting


def test_zones_of_a_region_share_a_quota():
    job = tiny_job(blocks=2, batch=6, accelerators={"CPU-fast": 2})
    free = plan(job)
    assert bought(free) == {("CPU-fast", "on-demand"): 4}
    two = plan(job, quotas=(quota("FAST", 2, {"CPU-fast": None}),))
    assert bought(two) == {("CPU-fast", "on-demand"): 2}
    assert free.objective.value > two.objective.value


def test_use_is_subtracted_from_the_limit():
    job = tiny_job(blocks=2, batch=6, accelerators={"CPU-fast": 2})
    document = plan(job, quotas=(quota("FAST", 4, {"CPU-fast": None}, used=3),))
    assert bought(document) == {("CPU-fast", "on-demand"): 1}


def test_a_quota_of_one_market_leaves_the_other_and_both_are_mixed():
    job = two_markets()
    spot = quota("PREEMPTIBLE", 2, {"A100-40": Market.SPOT}, **GCP)
    assert bought(plan(job)) == {("A100-40", "spot"): 3}
    assert bought(plan(job, quotas=(spot,))) == {("A100-40", "spot"): 2, ("A100-40", "on-demand"): 1}


def test_a_quota_that_counts_vcpus_counts_those_of_whole_nodes():
    job = two_markets()
    enough, short = (quota("VCPUS", left, {"A100-40": None}, counts=Counted.VCPUS, **GCP) for left in (36, 35))
    assert bought(plan(job, quotas=(enough,))) == {("A100-40", "spot"): 3}
    assert plan(job, quotas=(short,)).plan is None


def test_a_quota_of_another_region_or_accelerator_limits_nothing():
    job = two_markets()
    elsewhere = quota("ELSEWHERE", 0, {"A100-40": None}, provider=Provider("gcp"), region="europe-west4")
    other = quota("OTHER", 0, {"V100-16": None}, **GCP)
    assert make_space(job, (elsewhere, other)).candidates == make_space(job).candidates


def test_a_quota_that_is_too_small_is_reported_in_figures():
    wanted = {"A100-40": 16}
    job = example(
        "gcp-a100-v100.yaml", resources__0__accelerators=wanted, resources__0__instance_types=["a2-megagpu-16g"]
    )
    space = make_space(job, (quota("NVIDIA_A100_GPUS", 12, {"A100-40": Market.ON_DEMAND}, used=4, **GCP),))
    told = {row.what: row.why for row in space.candidates.rejected}
    assert told["a2-megagpu-16g (A100-40, on-demand) in us-central1"] == (
        "quota 8 < 16 devices of a node: NVIDIA_A100_GPUS of us-central1 (read on 2026-11-21, 4 of 12 in use)"
    )
    assert {pool.offer.market for pool in space.pools} == {Market.SPOT}


def test_every_layout_keeps_the_quotas_and_none_that_does_is_lost():
    job = tiny_job(blocks=1, batch=3, accelerators={"CPU-fast": 1, "CPU-slow": 1})
    limits = (quota("FAST", 1, {"CPU-fast": None}), quota("ALL", 2, {"CPU-fast": None, "CPU-slow": None}))
    limited, free = make_space(job, limits), make_space(job)
    kept = [
        layout
        for layout in small_layouts(free)
        if sum(count for pool, count in nodes_of(layout).items() if free.pools[pool].accelerator.name == "CPU-fast")
        <= 1
        and nodes_of(layout).total() <= 2
    ]
    assert list(small_layouts(limited)) == kept
    assert len(kept) < len(small_layouts(free))


def test_the_arrays_say_the_same_as_the_function():
    job = two_markets()
    limits = (
        quota("SPOT", 2, {"A100-40": Market.SPOT}, **GCP),
        quota("CPU", 30, {"A100-40": None}, counts=Counted.VCPUS, **GCP),
    )
    space = make_space(job, limits)
    arrays = quota_arrays(space.candidates)
    seen = set()
    for layout in small_layouts(make_space(job)):
        nodes = nodes_of(layout)
        counts = np.array([nodes[pool] for pool in range(len(space.pools))])
        kept = bool((arrays.units @ counts <= arrays.left).all())
        assert keeps_quotas(space.candidates, nodes) == kept
        seen.add(kept)
    assert seen == {True, False}
    assert arrays.row_units.shape == (2, 1)


def test_a_large_search_keeps_quotas_that_zones_share():
    left = 8
    job = example("gcp-a100-v100.yaml", resources__0__accelerators={"A100-40": 16}, resources__0__markets=["spot"])
    limits = (quota("PREEMPTIBLE_NVIDIA_A100_GPUS", left, {"A100-40": Market.SPOT}, **GCP),)
    space = make_space(job, limits)
    target = target_of(job)
    drafts = mix(space, target, keep=4).drafts
    assert drafts
    for draft in drafts:
        assert keeps_quotas(space.candidates, nodes_of(tuple(part.slots for part in draft.pipelines)))
    taken = nodes_of(tuple(part.slots for part in drafts[0].pipelines))
    assert used(limits[0], space.candidates, taken) == left
    for part in apportioned(space):
        assert sum(row.devices for row in part.candidates.rows) <= left
