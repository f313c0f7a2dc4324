"""The artifact's formulas as the planner's benchmark states them, on a small made-up artifact."""

from __future__ import annotations

import copy
import math
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path

import numpy as np
import pytest

from factories.sailor_artifact import BLOCKS, HIDDEN, LAYERS, TOKENS, block_seconds, write_artifact

FOLDER = Path(__file__).parents[2] / "benchmarks" / "planner"
ZONES = ("us-central1-a", "us-central1-b")
FAR = "us-west1-b"


@pytest.fixture(scope="module", autouse=True)
def benchmark_on_the_path():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    from sailor_formulas import Artifact

    folder = write_artifact(tmp_path_factory.mktemp("artifact"), gpus={"A100-40": 4.0, "V100-16": 1.0})
    found = Artifact(folder, "OPT-350", 64)
    for layers in found.sizes.values():
        for layer in layers.values():
            layer["act_output_floats"] = HIDDEN * TOKENS
    return found


def one_kind(gpu, tp, zones, cuts, size):
    from sailor_formulas import Place
    from sailor_places import as_plan

    return as_plan(size, cuts, [[Place(gpu, zone, tp) for zone in zones] for _ in cuts[1:]])


def test_one_stage_takes_its_microbatches_and_its_sum(artifact):
    plan = one_kind("A100-40", 1, (ZONES[0],) * 2, (0, LAYERS), 2)
    score = artifact.score(plan)
    times = artifact.layer_times("A100-40", 2, 1)
    place = plan["pipeline_list"][0]["tmp_per_stage"][0][0]
    assert place == [[["A100-40", 4, ZONES[0]]], 1]
    compute = times[:, :2].sum()
    assert compute > BLOCKS * sum(block_seconds(2, 1, 4.0)) * (1 - 1e-9)
    nbytes = artifact.stage_bytes(0, LAYERS, 1)
    assert nbytes > 5e8
    x = math.log2(5e8 / 2 / 1e6)
    rate = (-0.01 * x * x + 0.3 * x + 2.0) * 1e9
    assert score.iteration_s > 16 * compute + times[0, 2] + 2 * (5e8 / 2) / rate
    assert score.egress_usd == 0.0
    assert score.devices == {("A100-40", ZONES[0]): 2}


def test_the_slowest_hop_counts_in_time_and_every_hop_in_money(artifact):
    near = artifact.score(one_kind("A100-40", 1, (ZONES[0],) * 4, (0, LAYERS), 1))
    spread = artifact.score(one_kind("A100-40", 1, (ZONES[0], ZONES[0], ZONES[1], ZONES[1]), (0, LAYERS), 1))
    price = artifact.egress_usd_per_byte(*ZONES)
    nbytes = artifact.stage_bytes(0, LAYERS, 1)
    assert spread.iteration_s == pytest.approx(near.iteration_s)
    assert spread.egress_usd == pytest.approx(2 * price * nbytes * 2 * 3 / 4)


def test_a_cut_costs_an_activation_and_twice_the_last_stages_gradient(artifact):
    from sailor_formulas import Place

    cut = 10
    score = artifact.score(one_kind("A100-40", 2, (ZONES[0],), (0, cut, LAYERS), 1))
    place = Place("A100-40", ZONES[0], 2)
    sent = float(artifact.transfer_s(HIDDEN * TOKENS * 4.0, place, place))
    times = artifact.layer_times("A100-40", 1, 2)[:, :2].sum(axis=1)
    first, last = times[:cut].sum() + sent, times[cut:].sum() + 2 * sent
    update = artifact.layer_times("A100-40", 1, 2)[0, 2]
    assert score.iteration_s == pytest.approx(63 * max(first, last) + first + last + update)


def test_a_stage_that_does_not_fit_is_a_problem(artifact):
    score = artifact.score(one_kind("V100-16", 1, (ZONES[0],), (0, LAYERS), 4))
    used = artifact.stage_memory_bytes(1, 0, LAYERS, 4, 1)
    assert (used > artifact.memory_bytes("V100-16")) == bool(score.problems)


@pytest.mark.parametrize(
    ("devices", "limits"),
    [
        ({("A100-40", ZONES[0]): 3, ("V100-16", ZONES[0]): 4}, {}),
        ({("A100-40", ZONES[0]): 2, ("A100-40", ZONES[1]): 2}, {}),
        ({("A100-40", ZONES[0]): 4, ("V100-16", ZONES[1]): 4}, {"budget": 0.1}),
        ({("A100-40", ZONES[0]): 4, ("V100-16", ZONES[0]): 4}, {"least_rate": 0.05}),
    ],
)
def test_no_plan_beats_the_bound_and_the_answer_keeps_to_what_there_is(artifact, devices, limits):
    from sailor_cases import Case
    from sailor_even import answer, parts
    from sailor_links import Links
    from sailor_places import Kind, Placer

    from sailor_cloud.planner.even.engine import GAP, solve

    case = Case(name="small", devices=devices, sailor=None, **limits)
    outcome, problems = answer(artifact, case, gap=GAP, most_nodes=1000)
    apart = solve(parts(Links(artifact), case))
    assert apart.found[0].value == pytest.approx(outcome.found[0].value, rel=2e-3)
    assert apart.bound <= outcome.found[0].value * (1 + 1e-9)
    assert outcome.found
    score = outcome.found[0].placed.score
    assert score.problems == ()
    assert all(count <= devices[place] for place, count in score.devices.items())
    assert outcome.bound <= outcome.found[0].value
    # All pipelines of one stage or of two, wherever they stand.
    links, gpus, zones = Links(artifact), problems[-1].gpus, problems[-1].zones
    checked = 0
    for size, replicas in product(problems[-1].sizes(), range(1, 4)):
        kinds = [Kind(gpu, tp) for gpu in gpus for tp in (1, 2, 4) if artifact.known(gpu, size, tp)]
        chains = [([kind], (0, LAYERS)) for kind in kinds]
        chains += [([a, b], (0, cut, LAYERS)) for a in kinds for b in kinds for cut in (6, 13, 20)]
        for stages, cut in chains:
            placer = Placer(links, devices, stages, size, cut)
            for ways in combinations_with_replacement(list(product(zones, repeat=len(stages))), replicas):
                if any(count > devices.get(place, 0) for place, count in all_used(placer, ways).items()):
                    continue
                other = artifact.score(placer.plan(tuple((1, way) for way in ways)))
                slow = case.least_rate is not None and other.iteration_s > 1 / case.least_rate
                if not other.problems and not slow and other.usd <= (case.budget or math.inf):
                    checked += 1
                    assert (other.usd if case.cheapest else other.iteration_s) >= outcome.bound * (1 - 1e-9)
    assert checked > 20


@pytest.mark.parametrize(
    ("devices", "limits"),
    [
        ({("A100-40", ZONES[0]): 3, ("V100-16", ZONES[0]): 4}, {}),
        ({("A100-40", ZONES[0]): 2, ("V100-16", ZONES[1]): 3}, {"budget": 0.1}),
        ({("A100-40", ZONES[0]): 2, ("A100-40", ZONES[1]): 1, ("V100-16", ZONES[1]): 3}, {"least_rate": 0.05}),
        ({("A100-40", ZONES[0]): 2, ("A100-40", ZONES[1]): 1, ("V100-16", ZONES[1]): 3}, {}),
        ({("A100-40", ZONES[0]): 2, ("A100-40", FAR): 3}, {}),
        ({("A100-40", ZONES[0]): 2, ("V100-16", FAR): 3}, {}),
    ],
)
def test_no_plan_whose_replicas_differ_beats_the_wider_bound(artifact, devices, limits):
    from sailor_cases import Case
    from sailor_even import SailorEven
    from sailor_links import Links
    from sailor_mixed import differing

    artifact = with_slow_links_between_regions(artifact)
    case = Case(name="small", devices=devices, sailor=None, **limits)
    values = []
    for _, _, score in random_plans(artifact, devices, 3000):
        slow = case.least_rate is not None and score.iteration_s > 1 / case.least_rate
        if not slow and score.usd <= (case.budget or math.inf):
            values.append(score.usd if case.cheapest else score.iteration_s)
    assert len(values) > 100
    for known in (math.inf, min(values)):
        answer = differing(SailorEven(Links(artifact), case), gap=1e-9, known=known, cuts=[])
        assert answer.bound <= min(values) * (1 + 1e-9)
        for found in answer.found:
            assert found.value < known
            assert answer.bound <= found.value
            assert all(count <= devices[place] for place, count in found.placed.score.devices.items())


@pytest.mark.parametrize(
    "devices",
    [
        {("A100-40", ZONES[0]): 3, ("V100-16", ZONES[0]): 2, ("A100-40", ZONES[1]): 2, ("V100-16", ZONES[1]): 3},
        {("A100-40", ZONES[0]): 4, ("A100-40", FAR): 3},
        {("A100-40", ZONES[0]): 2, ("V100-16", ZONES[1]): 4, ("A100-40", FAR): 2},
    ],
)
def test_no_plan_costs_less_than_its_cheapest_pipeline_says_by_where_pipelines_stand(artifact, devices):
    from sailor_cases import Case
    from sailor_even import SailorEven
    from sailor_links import Links
    from sailor_mixed import SailorMixed
    from sailor_traffic import Where

    seen = Counter()
    gpus = sorted({gpu for gpu, _ in devices})
    for size, rows, score in random_plans(artifact, devices, 500):
        replicas, where = len(rows[0]), standing(rows, {zone for _, zone in devices})
        if where is Where.ANY and {zone for _, zone in devices} - {place.zone for row in rows for place in row}:
            continue
        seen[where] += 1
        for weights in product((1, 4), repeat=len(gpus)):
            case = Case(name="small", devices=devices, sailor=None, budget=score.usd * (1 + 1e-9))
            worth = min(sum(weights[gpus.index(p.gpu)] * p.tp for p in places) for places in zip(*rows, strict=True))
            for least_rate in (None, (1 - 1e-9) / score.iteration_s):
                limited = replace(case, least_rate=least_rate)
                even = SailorEven(Links(artifact), limited, where)
                mixed = SailorMixed(even, within_s=score.iteration_s * (1 + 1e-9))
                use = np.array([[worth, 1] if even.far else [worth]])
                found = mixed.worth_priced(size, replicas, use, np.array(weights))
                assert found.longest_s[0] >= score.iteration_s
                value = score.iteration_s if least_rate is None else score.usd
                assert found.slope[0] * score.iteration_s + found.offset[0] <= value * (1 + 1e-9)
    assert min(seen[where] for where in (Where.INSIDE, Where.SPLIT, Where.PARTLY)) > 5


def test_all_pipelines_but_the_first_take_no_longer_by_zone_and_one_of_them_is_worth_no_more_than_their_mean(artifact):
    from sailor_cases import Case
    from sailor_even import SailorEven
    from sailor_links import Links
    from sailor_zoned import SailorZoned

    from sailor_cloud.planner.even.priced import Priced

    artifact = with_slow_links(artifact, lambda src, dst: dst == ZONES[1])
    devices = {("A100-40", ZONES[0]): 3, ("A100-40", ZONES[1]): 4, ("V100-16", ZONES[0]): 5, ("V100-16", ZONES[1]): 4}
    zoned = SailorZoned(SailorEven(Links(artifact), Case(name="small", devices=devices, sailor=None)))
    looked_at = above_the_mean_of_all = 0
    for size, cut, rows, score in random_cuts(artifact, devices, 2000, stages=5):
        replicas = len(rows[0])
        places = [place for _, place in zoned.kinds(size)]
        pipelines = [[places.index(place) for place in pipeline] for pipeline in zip(*rows, strict=True)]
        microbatches = -(-artifact.batch // (size * replicas))
        for kinds in pipelines[min(1, replicas - 1) :]:
            looked_at += 1
            assert alone_s(zoned, size, replicas, kinds, cut, microbatches) <= score.iteration_s * (1 + 1e-9)
        use = zoned.costs(size, None).use
        each = np.array([use[kinds].sum(axis=0) for kinds in pipelines[min(1, replicas - 1) :]])
        least = (each @ zoned.prices.T).min(axis=0)
        for price, worth in zip(zoned.prices[::50], least[::50], strict=True):
            assert worth <= Priced(zoned, price).most(replicas)[0]
        above_the_mean_of_all += int((least > zoned.prices @ zoned.devices // replicas).sum())
    assert looked_at > 300
    assert above_the_mean_of_all > 0


def alone_s(problem, size, replicas, kinds, cut, microbatches):
    """Return the seconds of a plan by one of its pipelines alone, as the search over even batches counts them."""
    costs, sync = problem.costs(size, replicas), problem.sync_s(size, replicas)
    stages = len(kinds)
    busy, way = [], 0.0
    for s, kind in enumerate(kinds):
        compute = costs.compute_s[stages - 1 - s, kind, cut[s], cut[s + 1]]
        after = before = 0.0
        if s + 1 < stages:
            after = costs.after_s[kind, kinds[s + 1], cut[s + 1]] * (costs.first_after[stages - 1] if s == 0 else 1.0)
        if s > 0:
            before = costs.before_s[kinds[s - 1], kind, cut[s]] * (costs.last_before if s + 1 == stages else 1.0)
        busy.append(compute + after + before)
        way += busy[-1]
    spans = list(zip(kinds, cut[:-1], cut[1:], strict=True))
    update, last = (max(float(table[span]) for span in spans) for table in (costs.update_s, sync))
    return (microbatches - 1) * max(busy) + way + update + last


def standing(rows, zones):
    """Return where the pipelines of a plan stand; areas are regions where there are several."""
    from sailor_traffic import Where

    several = len({zone[:-2] for zone in zones}) > 1
    areas = [[place.zone[:-2] if several else place.zone for place in row] for row in rows]
    if len({area for row in areas for area in row}) == 1:
        return Where.ANY
    if all(len(set(places)) == 1 for places in zip(*areas, strict=True)):
        return Where.INSIDE
    return Where.SPLIT if all(len(set(row)) > 1 for row in areas) else Where.PARTLY


def random_plans(artifact, devices, count):
    """Yield plans that fit, with their microbatch sizes and rows of places."""
    for size, _, rows, score in random_cuts(artifact, devices, count, stages=3):
        yield size, rows, score


def random_cuts(artifact, devices, count, *, stages):
    """Yield plans of so many stages at most that fit, with their microbatch sizes, cuts and rows of places."""
    from sailor_formulas import Place
    from sailor_places import as_plan

    draw = random.Random(0)
    for _ in range(count):
        number, replicas, size = draw.randrange(1, stages + 1), draw.randrange(1, 4), draw.choice((1, 2, 4))
        left, rows = dict(devices), [[] for _ in range(number)]
        for row in (row for row in rows for _ in range(replicas)):
            able = [(place, tp) for place, number in left.items() for tp in (1, 2) if number >= tp]
            if able:
                (gpu, zone), tp = draw.choice(able)
                left[gpu, zone] -= tp
                row.append(Place(gpu, zone, tp))
        if all(len(row) == replicas for row in rows):
            cut = (0, *sorted(draw.sample(range(1, LAYERS), number - 1)), LAYERS)
            score = artifact.score(as_plan(size, cut, rows))
            if not score.problems:
                yield size, cut, rows, score


def with_slow_links_between_regions(artifact):
    return with_slow_links(artifact, lambda src, dst: (src == FAR) != (dst == FAR))


def with_slow_links(artifact, which):
    """Return the artifact with a tenth of the bandwidth from one zone to another where `which` says so."""
    slow = copy.deepcopy(artifact)
    for src, dst in product((*ZONES, FAR), repeat=2):
        if which(src, dst):
            for pairs in slow._curves[src].values():
                for ends in pairs.values():
                    curves = {
                        gpu: {count: [[0.1 * part for part in curve], most] for count, (curve, most) in each.items()}
                        for gpu, each in ends[dst].items()
                    }
                    ends[dst] = curves
    return slow


def all_used(placer, ways):
    return sum((placer.used(way) for way in ways), Counter())


@pytest.mark.parametrize("seed", range(12))
def test_the_places_of_a_chain_are_the_best_there_are(artifact, seed):
    from sailor_assign import Assignment, Wanted
    from sailor_links import Links
    from sailor_places import Kind, Placer

    draw = random.Random(seed)
    devices = {(gpu, zone): draw.randrange(1, 7) for gpu in ("A100-40", "V100-16") for zone in ZONES}
    stages = [Kind(draw.choice(("A100-40", "V100-16")), draw.choice((1, 2))) for _ in range(draw.randrange(1, 4))]
    cut = (0, *sorted(draw.sample(range(1, LAYERS), len(stages) - 1)), LAYERS)
    placer, replicas = Placer(Links(artifact), devices, stages, 1, cut), draw.randrange(1, 4)
    rated = []
    for ways in product(product(ZONES, repeat=len(stages)), repeat=replicas):
        if all(count <= devices.get(place, 0) for place, count in all_used(placer, ways).items()):
            rated.append(placer.rate(tuple((1, way) for way in ways)))
            score = artifact.score(placer.plan(rated[-1].runs))
            assert (score.iteration_s, score.usd) == pytest.approx((rated[-1].seconds, rated[-1].usd))
    budget = draw.choice([math.inf, *(each.usd for each in rated[:1])])
    for cheapest in (False, True):
        wanted = Wanted(longest_s=math.inf, budget=budget, cheapest=cheapest, below=math.inf)
        found, bound = Assignment(placer, replicas, 0.0).best(wanted, closely=True)
        kept = [wanted.value(each) for each in rated if wanted.keeps(each)]
        assert (found is None) == (not kept)
        if kept:
            assert bound <= min(kept) * (1 + 1e-6)
            assert wanted.value(found) == pytest.approx(min(kept), rel=2e-3)


def test_the_benchmark_is_skipped_without_the_artifact(tmp_path):
    command = [sys.executable, str(FOLDER / "even_batches.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SKIPPED")
