"""The replay of one pipeline, and how far the closed form is from it."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor_cloud.model.plan import microbatches_per_round
from sailor_cloud.simulator import Engine, Transfers, busy_s, fill_s, pipeline_s
from sailor_cloud.simulator.timing import schedule_ends as counted
from sailor_cloud.simulator.timing.closed_form import filled_s, interleaved_s
from sailor_cloud.simulator.timing.replay import (
    Operation,
    PipelineTimes,
    interleaved_held,
    interleaved_steps,
    replay,
    stage_steps,
    zero_bubble_steps,
)
from sailor_cloud.simulator.timing.schedule_ends import schedule_ends
from sailor_runtime.training.pipeline.schedule import Kind, passes

NAMES = {
    "ForwardPass": Operation.FORWARD,
    "BackwardPass": Operation.BACKWARD,
    "RecvActivation": Operation.RECEIVE_ACTIVATION,
    "SendActivation": Operation.SEND_ACTIVATION,
    "RecvGrad": Operation.RECEIVE_GRADIENT,
    "SendGrad": Operation.SEND_GRADIENT,
}


def times(
    forward: list[float], backward: list[float], cuts: list[float], microbatches: int, back: list[float] | None = None
) -> PipelineTimes:
    return PipelineTimes(
        forward_s=tuple(forward),
        backward_s=tuple(backward),
        activation_s=tuple(cuts),
        gradient_s=tuple(back if back is not None else cuts),
        microbatches=microbatches,
    )


def test_stages_work_in_the_order_of_the_schedule_that_the_runtime_drives() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deepspeed.runtime.pipe.schedule import TrainSchedule
    for stages in range(1, 7):
        for microbatches in range(1, 9):
            for stage in range(stages):
                theirs = [
                    NAMES[type(command).__name__]
                    for commands in TrainSchedule(microbatches, stages, stage)
                    for command in commands
                    if type(command).__name__ in NAMES
                ]
                assert [what for what, _ in stage_steps(stages, stage, microbatches)] == theirs


PASSES = {
    Operation.FORWARD: Kind.FORWARD,
    Operation.BACKWARD: Kind.INPUT,
    Operation.WEIGHT_GRADIENTS: Kind.WEIGHTS,
}


def test_stages_of_a_zero_bubble_schedule_compute_in_the_order_in_which_the_runtime_does() -> None:
    for stages in range(2, 7):
        for microbatches in range(1, 9):
            for stage in range(stages):
                # The passes of the first stage stay whole.
                kinds = PASSES if stage else {**PASSES, Operation.BACKWARD: Kind.BACKWARD}
                steps = zero_bubble_steps(stages, stage, microbatches)
                ours = [(kinds[what], number) for what, number in steps if what in kinds]
                assert ours == [each[:2] for each in passes("zero-bubble", microbatches, stages, stage)]


def test_stages_of_an_interleaved_schedule_compute_in_the_order_in_which_the_runtime_does() -> None:
    kinds = {Operation.FORWARD: Kind.FORWARD, Operation.BACKWARD: Kind.BACKWARD}
    for stages, chunks, microbatches in itertools.product(range(2, 6), range(2, 5), range(2, 16)):
        per_round = microbatches_per_round(microbatches, stages)
        for stage in range(stages if per_round else 0):
            steps = interleaved_steps(stages, stage, microbatches, chunks, per_round)
            ours = [(kinds[what], number, chunk) for what, number, chunk in steps if what in kinds]
            assert ours == list(passes("interleaved", microbatches, stages, stage, chunks))


@pytest.mark.parametrize(("stages", "microbatches", "per_round"), [(3, 64, 4), (3, 5, 5), (5, 49, 7), (4, 64, 4)])
def test_interleaving_needs_no_multiple_of_the_stages(stages: int, microbatches: int, per_round: int) -> None:
    assert microbatches_per_round(microbatches, stages) == per_round
    usual = times([1.0] * 2 * stages, [2.0] * 2 * stages, [0.0] * (2 * stages - 1), microbatches)
    done = replay(dataclasses.replace(usual, chunks=2, per_round=per_round), Transfers.OVERLAPPED)
    # The bubble is that of rounds of as many as there are stages.
    assert max(done.end_s) == pytest.approx(6.0 * microbatches + 3.0 * (stages - 1))


def test_microbatches_that_no_round_divides_are_not_interleaved() -> None:
    assert microbatches_per_round(13, 4) is None
    assert microbatches_per_round(3, 4) is None


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 2), (4, 3), (3, 5)])
@pytest.mark.parametrize("lots", [1, 2, 5])
def test_an_interleaved_schedule_leaves_of_the_bubble_what_its_paper_says(stages: int, chunks: int, lots: int) -> None:
    """Even stages: the bubble is (S - 1) / (M v) of what a stage computes. Source: Narayanan et al., SC'21, 2.2."""
    virtual_stages, microbatches = stages * chunks, lots * stages
    usual = times([1.0] * virtual_stages, [2.0] * virtual_stages, [0.0] * (virtual_stages - 1), microbatches)
    interleaved = dataclasses.replace(usual, chunks=chunks)
    done = replay(interleaved, Transfers.OVERLAPPED)
    computes = microbatches * chunks * 3.0
    assert done.compute_s == (computes,) * stages
    assert max(done.end_s) / computes - 1.0 == pytest.approx((stages - 1) / (microbatches * chunks))
    each = np.full((chunks, stages), 3.0)
    assert interleaved_s(each, np.zeros(virtual_stages - 1), microbatches) == pytest.approx(max(done.end_s))


def test_tensors_come_back_from_the_last_stage_to_the_first_by_hand() -> None:
    """Two stages of two ranges, two microbatches, forward 1, backward 1, every transfer 1.

    Stage 0: F0 [0,1], F1 [1,2], F0' [4,5], F1' [5,6]; stage 1: F0 [2,3], F1 [3,4], F0' [6,7], B0' [7,8], F1' [8,9],
    B1' [9,10]. Stage 0: B0' [9,10], B1' [11,12]; stage 1: B0 [11,12], B1 [13,14]; stage 0: B0 [13,14], B1 [15,16].
    """
    done = replay(dataclasses.replace(times([1.0] * 4, [1.0] * 4, [1.0] * 3, 2), chunks=2), Transfers.OVERLAPPED)
    assert done.end_s == (16.0, 14.0)
    assert done.last_backward_start_s == (15.0, 13.0, 11.0, 9.0)


def test_long_interleaved_schedules_are_counted_from_shorter_ones() -> None:
    interleaved = dataclasses.replace(times([1.0, 1.5] * 3, [2.0] * 6, [0.1] * 5, 1686), chunks=2)
    done, ends = replay(interleaved, Transfers.OVERLAPPED), schedule_ends(interleaved, Transfers.OVERLAPPED)
    assert ends.end_s == pytest.approx(done.end_s)
    assert ends.transfer_s == pytest.approx(done.transfer_s)


def test_a_stage_holds_the_microbatches_that_its_passes_leave() -> None:
    # Stage 0 of two: a round of both microbatches through both ranges, and one forward pass ahead of the backward ones.
    assert max(interleaved_held(2, 0, 8, 2, 2), key=sum) == (3, 2)
    assert max(sum(held) for held in interleaved_held(4, 0, 16, 2, 4)) == 4 + 2 * 3 + 1
    assert max(sum(held) for held in interleaved_held(4, 3, 16, 2, 4)) == 4 + 1


@pytest.mark.parametrize("stages", [2, 4, 6])
@pytest.mark.parametrize("microbatches", [6, 8, 20])
def test_a_zero_bubble_schedule_leaves_of_the_bubble_what_its_paper_says(stages: int, microbatches: int) -> None:
    """Even stages, three equal parts of a microbatch: a bubble of (S - 1)(F + B - W). Source: ICLR'24, table 2."""
    usual = times([1.0] * stages, [2.0] * stages, [0.0] * (stages - 1), microbatches)
    halved = dataclasses.replace(usual, weights_s=(1.0,) * stages)
    took = max(replay(halved, Transfers.OVERLAPPED).end_s)
    assert took == pytest.approx(microbatches * 3.0 + (stages - 1) * (1.0 + 1.0 - 1.0))
    before = max(replay(usual, Transfers.OVERLAPPED).end_s)
    assert before - took == pytest.approx(filled_s(np.array(halved.weights_s), microbatches))
    assert max(schedule_ends(halved, Transfers.OVERLAPPED).end_s) == pytest.approx(took)


@pytest.mark.parametrize("transfers", Transfers)
def test_one_stage_takes_its_compute_and_nothing_else(transfers: Transfers) -> None:
    done = replay(times([2.0], [3.0], [], 4), transfers)
    assert done.end_s == (20.0,)
    assert done.transfer_s == (0.0,)


@pytest.mark.parametrize("transfers", Transfers)
def test_even_stages_without_transfers_take_microbatches_plus_stages_minus_one(transfers: Transfers) -> None:
    done = replay(times([1.0] * 4, [2.0] * 4, [0.0] * 3, 8), transfers)
    assert max(done.end_s) == pytest.approx((8 + 4 - 1) * 3.0)


def test_one_microbatch_goes_through_and_back() -> None:
    for transfers in Transfers:
        done = replay(times([1.0, 2.0], [3.0, 4.0], [0.5], 1, back=[0.25]), transfers)
        assert done.end_s[0] == pytest.approx(1 + 0.5 + 2 + 4 + 0.25 + 3)


def test_two_stages_by_hand() -> None:
    """Blocking, two microbatches, forward 1, backward 1, every transfer 1.

    Stage 0: F0 [0,1], sends [1,2], F1 [2,3]; stage 1: F0 [2,3], B0 [3,4]. They meet for gradient 0 [4,5] and then for
    activation 1 [5,6]; B0 of stage 0 [6,7]; stage 1: F1 [6,7], B1 [7,8]; gradient 1 [8,9]; B1 of stage 0 [9,10].
    """
    done = replay(times([1.0, 1.0], [1.0, 1.0], [1.0], 2), Transfers.BLOCKING)
    assert done.end_s == (10.0, 9.0)
    assert done.transfer_s == (4.0, 4.0)


def test_overlapped_transfers_hide_behind_compute() -> None:
    slow = times([1.0] * 3, [2.0] * 3, [0.2] * 2, 16)
    totals = {kind: max(replay(slow, kind).end_s) for kind in Transfers}
    assert totals[Transfers.OVERLAPPED] < totals[Transfers.RECEIVER] < totals[Transfers.BLOCKING]
    # Three stages hand three microbatches round: (3 * 3 + 4 * 0.2) / 3 seconds each, since no more are in flight.
    assert totals[Transfers.OVERLAPPED] == pytest.approx(16 * (3 * 3.0 + 4 * 0.2) / 3 + (9.8 - 9.8 / 3))


def test_waiting_for_an_overlapped_tensor_is_transfer_for_its_own_time_and_bubble_otherwise() -> None:
    """One microbatch: stage 1 waits 1 for the forward pass and 0.5 for the tensor; stage 0 waits 2 + 4 and 0.25."""
    done = replay(times([1.0, 2.0], [3.0, 4.0], [0.5], 1, back=[0.25]), Transfers.OVERLAPPED)
    assert done.transfer_s == pytest.approx((0.25, 0.5))
    beside = times([1.0] * 2, [2.0] * 2, [0.2], 64)
    exposed = [replay(beside, kind).transfer_s[1] for kind in (Transfers.OVERLAPPED, Transfers.RECEIVER)]
    assert exposed[0] < 0.51 * exposed[1]


def test_spans_of_a_stage_follow_one_another_and_hold_every_operation() -> None:
    done = replay(times([1.0, 2.0], [2.0, 1.0], [0.5], 5), Transfers.BLOCKING, spans=True)
    for stage in range(2):
        spans = [span for span in done.spans if span.stage == stage]
        assert len(spans) == 4 * 5
        for before, after in itertools.pairwise(spans):
            assert after.start_s >= before.end_s - 1e-12
        assert spans[-1].end_s == done.end_s[stage]


seconds = st.floats(0.05, 2.0)


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineTimes:
    """Stages up to 40 times as slow as others; a tensor takes no longer than the compute beside it."""
    stages = draw(st.integers(1, 8))
    forward = draw(st.lists(seconds, min_size=stages, max_size=stages))
    backward = [2.0 * value * draw(st.floats(0.8, 1.2)) for value in forward]
    compute = [there + back for there, back in zip(forward, backward, strict=True)]
    cuts = [draw(st.floats(0.0, 1.0)) * min(pair) for pair in itertools.pairwise(compute)]
    back = [value * draw(st.floats(0.8, 1.25)) for value in cuts]
    return times(forward, backward, cuts, draw(st.integers(1, 40)), back)


def closed_form_s(pipeline: PipelineTimes, transfers: Transfers) -> tuple[float, float]:
    """The closed form of a pipeline, and its fill."""
    compute = np.array(pipeline.forward_s) + np.array(pipeline.backward_s)
    cuts = np.array(pipeline.activation_s) + np.array(pipeline.gradient_s)
    engine = Engine(transfers=transfers)
    return float(pipeline_s(compute, cuts, pipeline.microbatches, engine=engine)), float(fill_s(compute, cuts))


@settings(max_examples=200, deadline=None)
@given(pipeline=pipelines(), transfers=st.sampled_from(Transfers))
def test_the_closed_form_stays_within_its_bound_of_the_replay(pipeline: PipelineTimes, transfers: Transfers) -> None:
    closed, fill = closed_form_s(pipeline, transfers)
    replayed = max(replay(pipeline, transfers).end_s)
    assert replayed <= closed * 1.12
    assert closed - replayed <= 1.25 * fill


@pytest.mark.parametrize("transfers", Transfers)
def test_the_closed_form_is_hardly_ever_below_the_replay(transfers: Transfers) -> None:
    random = Random(5)
    ratios = []
    for _ in range(400):
        stages = random.randint(1, 8)
        forward = [random.uniform(0.2, 1.5) for _ in range(stages)]
        cuts = [random.uniform(0.0, 1.0) * 3 * min(pair) for pair in itertools.pairwise(forward)]
        pipeline = times(forward, [2 * value for value in forward], cuts, random.randint(1, 40))
        closed, _ = closed_form_s(pipeline, transfers)
        ratios.append(max(replay(pipeline, transfers).end_s) / closed)
    assert np.quantile(ratios, 0.99) <= 1.01
    assert np.quantile(ratios, 0.5) >= 0.95


@settings(max_examples=100, deadline=None)
@given(pipeline=pipelines(), transfers=st.sampled_from(Transfers))
def test_no_replay_is_faster_than_its_busiest_stage_or_one_microbatch(
    pipeline: PipelineTimes, transfers: Transfers
) -> None:
    done = replay(pipeline, transfers)
    assert max(done.end_s) >= max(done.compute_s) - 1e-9
    through = sum(pipeline.forward_s) + sum(pipeline.backward_s) + sum(pipeline.activation_s) + sum(pipeline.gradient_s)
    assert max(done.end_s) >= through - 1e-9


def test_the_closed_form_judges_many_plans_at_once() -> None:
    random = np.random.default_rng(1)
    compute, cuts = random.uniform(0.1, 1.0, (7, 5, 4)), random.uniform(0.0, 0.2, (7, 5, 3))
    counts = random.integers(1, 30, (7, 5))
    for transfers in Transfers:
        engine = Engine(transfers=transfers)
        together = pipeline_s(compute, cuts, counts, engine=engine)
        alone = pipeline_s(compute[3, 2], cuts[3, 2], counts[3, 2], engine=engine)
        assert together.shape == (7, 5)
        assert together[3, 2] == pytest.approx(float(alone))


@pytest.mark.parametrize("transfers", Transfers)
def test_a_pipeline_is_busy_as_long_alone_as_among_others(transfers: Transfers) -> None:
    random = np.random.default_rng(3)
    engine = Engine(transfers=transfers)
    for stages in range(1, 9):
        compute, cuts = random.random((20, stages)), random.random((20, stages - 1))
        together = busy_s(compute, cuts, engine=engine)
        alone = [busy_s(*each, engine=engine) for each in zip(compute, cuts, strict=True)]
        assert (together == np.array(alone)).all()


SECONDS = st.one_of(st.sampled_from([0.5, 1.0, 2.0]), st.floats(0.01, 2.0))


def drawn(data: st.DataObject, stages: int, microbatches: int) -> PipelineTimes:
    forward, backward, there, back = (
        [data.draw(SECONDS) for _ in range(count)] for count in (stages, stages, stages - 1, stages - 1)
    )
    return times(forward, backward, there, microbatches, back=back)


def assert_ends_are_those_of_the_replay(these: PipelineTimes, transfers: Transfers) -> None:
    done, found = replay(these, transfers), schedule_ends(these, transfers)
    assert found.end_s == pytest.approx(done.end_s, rel=1e-9)
    assert found.last_backward_start_s == pytest.approx(done.last_backward_start_s, rel=1e-9)
    assert found.transfer_s == pytest.approx(done.transfer_s, rel=1e-6, abs=1e-9)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 8), st.integers(1, 70), st.sampled_from(list(Transfers)))
def test_ends_of_stages_are_those_of_the_replay(
    data: st.DataObject, stages: int, microbatches: int, transfers: Transfers
) -> None:
    assert_ends_are_those_of_the_replay(drawn(data, stages, microbatches), transfers)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data(), st.integers(2, 6), st.integers(600, 900))
def test_rounds_that_are_counted_take_as_long_as_if_they_were_run(
    data: st.DataObject, stages: int, microbatches: int
) -> None:
    assert_ends_are_those_of_the_replay(drawn(data, stages, microbatches), Transfers.OVERLAPPED)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data(), st.integers(2, 6))
def test_rounds_that_do_not_repeat_soon_are_a_power_of_a_matrix(data: st.DataObject, stages: int) -> None:
    these = drawn(data, stages, 300)
    schedule_ends.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted, "_RUN", 4)
        patch.setattr(counted, "_repeats", lambda one, other: False)
        found = schedule_ends(these, Transfers.OVERLAPPED)
    schedule_ends.cache_clear()
    assert found.end_s == pytest.approx(replay(these, Transfers.OVERLAPPED).end_s, rel=1e-9)


def test_ten_million_microbatches_take_as_long_as_the_busiest_stage() -> None:
    busy = 0.5 * (1.0 + 1e-6)
    these = times([0.5, busy, 0.5], [1.0, 1.0, 1.0], [0.0, 0.0], 10**7)
    assert max(schedule_ends(these, Transfers.OVERLAPPED).end_s) == pytest.approx(10**7 * (busy + 1.0), rel=2e-7)


@pytest.mark.parametrize("transfers", [Transfers.RECEIVER, Transfers.BLOCKING])
def test_long_schedules_in_which_stages_wait_for_tensors_stay_periodic(transfers: Transfers) -> None:
    assert_ends_are_those_of_the_replay(times([0.5, 0.6, 0.5], [1.0, 1.1, 0.9], [0.1, 0.2], 2600), transfers)
