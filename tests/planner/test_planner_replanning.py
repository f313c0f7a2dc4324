"""How a run that lost nodes, or can have new ones, goes on best."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from factories.brute_force import every_plan
from factories.planning import AS_OF, data, example, make_space, plan, quota, tiny_job
from sailor_cloud import workload
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.offer import Market as OfferMarket
from sailor_cloud.model.offer import Provider
from sailor_cloud.planner.moving import moving
from sailor_cloud.planner.replanning import Market, Rest, Running, replan
from sailor_cloud.simulator import evaluate, startup_s, teardown_s

STARTUP_S, TEARDOWN_S = startup_s(Provider.LOCAL), teardown_s(Provider.LOCAL)


def market(job: Job, quotas: tuple = ()) -> Market:
    prices, links, times = data()
    return Market(
        catalog=prices.with_quotas(quotas),
        network=links,
        profiles=times,
        decoder=workload.decoder(job.model),
        as_of=AS_OF,
    )


def every_way(job: Job, kept: dict[str, int], rest: Rest) -> list[tuple[float, float]]:
    """Seconds and USD of every plan that keeps what is left of both, made without the planner."""
    training = job.training.model_copy(update={"steps": rest.steps})
    scenario = make_space(job.model_copy(update={"training": training})).scenario
    found = []
    for candidate in every_plan(scenario):
        evaluation = evaluate(candidate, scenario)
        if not evaluation.fits:
            continue
        offers = Counter(node.offer for node in candidate.nodes)
        starts = STARTUP_S if any(count > kept.get(offer, 0) for offer, count in offers.items()) else 0.0
        rate = sum(scenario.offers[offer].usd_per_hour * count for offer, count in offers.items())
        egress = sum(link.bytes_per_iteration * link.usd_per_gb / 1e9 for link in evaluation.links)
        seconds = evaluation.prediction.duration_s - STARTUP_S - TEARDOWN_S + starts
        usd = rate * (seconds + TEARDOWN_S) / 3600 + rest.steps * egress
        if (rest.seconds is None or seconds <= rest.seconds) and (rest.usd is None or usd <= rest.usd):
            found.append((seconds, usd))
    return found


@pytest.mark.parametrize("number", range(20))
def test_the_best_way_is_that_of_brute_force(number: int) -> None:
    dice = random.Random(number)
    zones = dice.choice((("local-a",), ("local-a", "local-b")))
    goal = dice.choice(("minimize-time", "minimize-cost", "maximize-throughput"))
    wanted = dice.choice(({"CPU-fast": 1, "CPU-slow": 1}, {"CPU-fast": 2}) if len(zones) == 1 else ({"CPU-fast": 1},))
    job = tiny_job(blocks=2, batch=3, hidden=64, zones=zones, accelerators=wanted, goal=goal)
    most = Counter({offer: wanted[o.accelerator] for offer, o in make_space(job).scenario.offers.items()})
    kept = {offer: dice.randint(0, count) for offer, count in most.items()}
    available = {offer: count - kept[offer] for offer, count in most.items()}
    rest = Rest(
        steps=dice.choice((5, 300, 3000)),
        usd=dice.choice((None, 0.02)),
        seconds=dice.choice((None, None, 60.0)),
    )
    expected = every_way(job, kept, rest)
    ways = replan(job, Running(kept=kept), available, rest, market(job))
    assert bool(ways) == bool(expected)
    if ways:
        by = 1 if job.goal is Goal.MINIMIZE_COST else 0
        assert (ways[0].seconds, ways[0].usd)[by] == pytest.approx(min(row[by] for row in expected), rel=1e-9)


def test_few_steps_are_finished_on_what_runs_and_many_on_new_nodes() -> None:
    job = tiny_job(blocks=4, batch=8, hidden=64, zones=("local-a",), accelerators={"CPU-fast": 2}, goal="minimize-time")
    (offer,) = make_space(job).scenario.offers
    ways = {
        steps: replan(job, Running(kept={offer: 1}), {offer: 1}, Rest(steps=steps), market(job))[0]
        for steps in (1, 9000)
    }
    assert (ways[1].label, ways[1].startup_s, dict(ways[1].bought)) == ("go on with what is left", 0.0, {})
    assert (ways[9000].label, ways[9000].startup_s, dict(ways[9000].bought)) == ("re-plan", STARTUP_S, {offer: 1})
    assert dict(ways[9000].kept) == {offer: 1}


def test_the_last_plan_with_new_nodes_stands_beside_the_others() -> None:
    job = tiny_job(blocks=2, batch=4, zones=("local-a",), accelerators={"CPU-fast": 2}, goal="minimize-time")
    ran = plan(job).plan
    offers = Counter(node.offer for node in ran.nodes)
    ways = replan(job, Running(kept={}, plan=ran), offers, Rest(steps=1000), market(job))
    replaced = [way for way in ways if way.label == "replace"]
    assert [way.plan for way in replaced] == [ran]
    assert dict(replaced[0].bought) == dict(offers)
    gone = replan(job, Running(kept={}, plan=ran), {}, Rest(steps=1000), market(job))
    assert gone == ()


def test_nothing_that_fits_is_an_empty_answer() -> None:
    job = tiny_job(zones=("local-a",), accelerators={"CPU-fast": 1})
    (offer,) = make_space(job).scenario.offers
    assert replan(job, Running(kept={offer: 1}), {}, Rest(steps=10**6, seconds=1.0), market(job)) == ()


def a100s(blocks: int = 4) -> tuple[Job, str, str]:
    """A job that needs an A100 for every two blocks, and offers of single ones on the spot market of two regions."""
    job = example(
        "gcp-a100-v100.yaml",
        goal="minimize-time",
        constraints={},
        training__steps=1000,
        training__sequence_length=64,
        training__global_batch_size=2,
        model={
            "vocab_size": 64,
            "max_position_embeddings": 64,
            "model_type": "gpt2",
            "hidden_size": 8192,
            "num_hidden_layers": blocks,
            "num_attention_heads": 4,
        },
    )
    near, far = (
        next(
            offer.id
            for offer in data()[0].offers(
                zones=[zone], accelerators=["A100-40"], markets=[OfferMarket.SPOT], instance_types=["a2-highgpu-1g"]
            )
        )
        for zone in ("us-central1-a", "europe-west4-a")
    )
    return job, near, far


def test_state_is_moved_from_the_bucket_and_paid_for_between_regions() -> None:
    job, near, far = a100s()
    (here,) = replan(job, Running(kept={near: 2}, store_zone="us-central1-a"), {}, Rest(steps=1), market(job))[:1]
    (there,) = replan(job, Running(kept={far: 2}, store_zone="us-central1-a"), {}, Rest(steps=1), market(job))[:1]
    # Four blocks of 12 hidden^2 parameters are nearly all there is.
    assert here.moving.nbytes == pytest.approx(12 * 4 * 12 * 8192**2, rel=1e-2)
    assert here.moving.usd == 0.0 < there.moving.usd
    assert 0.0 < here.moving.seconds < there.moving.seconds
    links = data()[1]
    per_gb = sum(price.usd_per_gb for price in links.egress("us-central1-a", "europe-west4-a"))
    assert there.moving.usd == pytest.approx(there.moving.nbytes / 1e9 * per_gb, rel=1e-6)
    assert there.seconds > there.moving.seconds


def test_a_folder_on_the_spot_takes_no_network() -> None:
    job = tiny_job(zones=("local-a",), accelerators={"CPU-fast": 1})
    space = make_space(job)
    state = moving(plan(job).plan, space.scenario, store_zone=None)
    assert (state.seconds, state.usd) == (0.0, 0.0)
    table = space.table(0, 1, 1, recompute=False)
    assert state.nbytes == 12 * float(table.parameters(0, table.layers))


def test_where_the_state_lies_decides_between_regions() -> None:
    job, near, far = a100s(blocks=2)
    for store, best in (("us-central1-a", near), ("europe-west4-a", far)):
        ways = replan(job, Running(kept={}, store_zone=store), {near: 1, far: 1}, Rest(steps=1), market(job))
        assert set(ways[0].bought) == {best}


def test_new_nodes_keep_the_quota_and_those_that_run_are_not_asked() -> None:
    job, near, _ = a100s()
    limit = quota("SPOT", 1, {"A100-40": OfferMarket.SPOT}, provider=Provider.GCP, region="us-central1")
    assert replan(job, Running(kept={}), {near: 2}, Rest(steps=1), market(job, (limit,))) == ()
    (kept, *_) = replan(job, Running(kept={near: 2}), {near: 2}, Rest(steps=1), market(job, (limit,)))
    assert dict(kept.kept) == {near: 2}
