"""A loss that leaves its course is found, and one that only jumps is not."""

from __future__ import annotations

import math

import pytest

from sailor_runtime.training.observe.divergence import HALF_LIFE, LossTrend


def _course(losses: list[float], most_rise: float | None = 2.0) -> LossTrend:
    course = LossTrend(most_rise=most_rise)
    for loss in losses:
        course.add(loss)
    return course


FALLING = [8.0 - step / 40 for step in range(200)]


def test_a_falling_loss_is_not_diverging():
    assert not _course(FALLING).diverged


@pytest.mark.parametrize("spike", [10.0, 30.0])
def test_one_bad_batch_is_no_divergence(spike):
    assert not _course([*FALLING, spike, *FALLING[-20:]]).diverged


def test_a_loss_that_rises_and_stays_is_divergence_within_a_few_half_lives():
    course = _course(FALLING)
    steps = 0
    while not course.diverged:
        course.add(9.0)
        steps += 1
    assert steps <= 2 * HALF_LIFE
    assert course.lowest < 4.0 < course.mean


def test_a_loss_that_rises_from_the_first_step_is_found_too():
    assert _course([5.5 + 0.2 * step for step in range(100)]).diverged


def test_a_loss_half_way_to_divergence_is_doubtful_and_one_that_comes_back_is_not():
    rising = [*FALLING, *[9.0] * 8]
    assert _course(rising).doubtful
    assert not _course(rising).diverged
    assert not _course([*rising, *[3.0] * 100]).doubtful
    assert not _course(FALLING).doubtful
    assert not _course(rising, most_rise=None).doubtful


def test_a_loss_near_zero_may_double():
    assert not _course([0.01] * 50 + [0.5] * 100).diverged


def test_without_a_limit_nothing_is_divergence():
    assert not _course([1.0, *[100.0] * 100], most_rise=None).diverged


def test_losses_that_are_not_finite_are_left_to_others():
    assert not _course([*FALLING, math.inf, math.nan]).diverged


def test_the_loss_trend_continues_after_a_checkpoint():
    whole, first = _course([*FALLING, *[9.0] * 10]), _course(FALLING)
    second = LossTrend(most_rise=2.0)
    second.restore(first.notes())
    for _ in range(10):
        second.add(9.0)
    assert (second.mean, second.lowest, second.steps) == (whole.mean, whole.lowest, whole.steps)
    empty = LossTrend(most_rise=2.0)
    empty.restore(LossTrend(most_rise=2.0).notes())
    assert empty.steps == 0
