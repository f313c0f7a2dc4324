from __future__ import annotations

from typing import Any

import pytest

from sailor_cloud.launch.telemetry.monitor import UNSETTLED_STEPS, Monitor, Saved, SentBytes


def step(number: int, *, iteration_s: float = 0.5, generation: int = 1) -> dict[str, Any]:
    return {"event": "step", "generation": generation, "step": number, "loss": 5.0 / number, "iteration_s": iteration_s}


def test_measured_time_is_the_median_once_the_pace_has_settled() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=100)
    slow_start = [9.0] * UNSETTLED_STEPS
    for number, seconds in enumerate([*slow_start, 0.4, 0.5, 0.6], start=1):
        monitor.apply("n0", step(number, iteration_s=seconds))
    assert monitor.measured_iteration_s == 0.5
    assert monitor.tokens_per_s == 200
    assert (monitor.step, monitor.first_loss, monitor.loss) == (UNSETTLED_STEPS + 3, 5.0, 1.0)


def test_a_loss_that_is_not_a_number_is_known_until_the_next_step() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=0)
    monitor.apply("n0", {**step(1), "loss": None, "loss_is_nan": True})
    assert (monitor.loss, monitor.loss_is_nan) == (None, True)
    monitor.apply("n0", step(2))
    assert (monitor.loss, monitor.loss_is_nan) == (2.5, False)


def test_tokens_per_second_are_those_of_an_iteration_however_many_were_trained_on_before() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=100)
    for number in range(1, UNSETTLED_STEPS + 4):
        monitor.apply("n0", {**step(number), "tokens": 100 * number})
    assert monitor.tokens_per_s == 200


def test_a_command_reports_the_tokens_since_its_last_line() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=0)
    for number in range(1, UNSETTLED_STEPS + 4):
        monitor.apply("n0", {**step(number), "tokens_since_last": 400, "iterations": 4})
    assert monitor.tokens_per_s == 200


@pytest.mark.parametrize(("last_s", "measured_s"), [(0.6, 0.2), (0.02, None)])
def test_the_pace_of_lines_that_come_in_bursts_is_their_mean_and_unknown_within_one_burst(
    last_s: float, measured_s: float | None
) -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=0)
    for number, seconds in enumerate([9.0, *[0.0] * (UNSETTLED_STEPS + 1), last_s], start=1):
        monitor.apply("n0", {**step(number, iteration_s=seconds), "iterations": 1})
    assert monitor.measured_iteration_s == (None if measured_s is None else pytest.approx(measured_s))


def test_events_of_an_earlier_generation_are_ignored() -> None:
    monitor = Monitor(generation=2, tokens_per_iteration=100)
    monitor.apply("n0", step(7, generation=1))
    monitor.apply("n0", {"event": "stopped", "generation": 1, "reason": "failed"})
    assert monitor.step == 0
    assert monitor.stopped == {}


def test_a_dead_rank_is_kept_with_its_signal_and_last_lines() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=100)
    monitor.apply("n1", {"event": "rank_dead", "generation": 1, "rank": 3, "signal": "SIGKILL", "tail": "last words"})
    (failure,) = monitor.failures
    assert (failure.node, failure.rank, failure.how, failure.tail) == (
        "n1",
        3,
        "ended with signal SIGKILL",
        "last words",
    )


def test_nothing_is_measured_before_the_first_settled_step() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=100)
    monitor.apply("n0", step(1))
    assert monitor.measured_iteration_s is None
    assert monitor.tokens_per_s is None


def test_the_parts_of_the_last_iteration_are_kept_if_the_runtime_reports_them() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=10)
    monitor.apply("n0", step(1, iteration_s=0.5))
    assert monitor.parts == {}
    parts = {"compute": 0.25, "transfer": 0.0, "bubble": 0.125, "sync": 0.125}
    monitor.apply("n0", {**step(2, iteration_s=0.5), **{f"{name}_s": value for name, value in parts.items()}})
    assert monitor.parts == parts


@pytest.mark.parametrize(("numbers", "unseen"), [((6, 7, 8, 9), 0), ((6, 9), 2), ((8, 9), 2), ((6, 7), 2), ((), 4)])
def test_steps_without_an_event_are_counted_wherever_they_are(numbers: tuple[int, ...], unseen: int) -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=100)
    for number in numbers:
        monitor.apply("n0", step(number))
    monitor.journaled = (Saved(step=5, begins=True), Saved(step=9))
    assert monitor.steps_unseen == unseen
    # A rank counts bytes of steps without an event, too.
    assert monitor.steps_metered(SentBytes(node="n0", step=8, by_node={})) == 3


def test_a_command_need_not_report_each_step() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=0)
    for number, iterations in ((50, 1), (60, 10)):
        monitor.apply("n0", {**step(number), "iterations": iterations})
    monitor.journaled = (Saved(step=0, begins=True), Saved(step=63))
    assert monitor.steps_unseen == 3


def test_a_command_may_count_tokens_as_steps() -> None:
    monitor = Monitor(generation=1, tokens_per_iteration=0)
    for number, seconds in ((10**12, 9.0), (2 * 10**12, 1e-11), (3 * 10**12, 3e-11)):
        monitor.apply("n0", {**step(number, iteration_s=seconds), "iterations": 1 if seconds > 1 else 10**12})
    assert monitor.steps_done == 2 * 10**12 + 1
    assert monitor.trained_s == pytest.approx(49.0)
    assert monitor.measured_iteration_s == pytest.approx(2e-11)
