from __future__ import annotations

import pytest

from sailor_cloud.report import text
from sailor_cloud.units import (
    parse_duration_s,
    sufficient_duration_text,
    usd_difference,
    usd_difference_text,
    usd_parts,
    usd_texts,
)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, "unknown"),
        (0.0, "0.00"),
        (0.00312, "0.00312"),
        (0.000412, "0.000412"),
        (0.0000142, "0.0000142"),
        (0.4, "0.400"),
        (0.9996, "1.00"),
        (3.14159, "3.14"),
        (812.4, "812.40"),
        (12345.6, "12,345.60"),
    ],
)
def test_dollars_are_shown_to_the_cent_and_below_one_dollar_with_three_digits(amount: float | None, shown: str) -> None:
    assert text.usd(amount) == shown


@pytest.mark.parametrize(
    ("duration", "shown"),
    [
        (None, "unknown"),
        (0.4123, "0.412 s"),
        (4.1, "4.10 s"),
        (41.23, "41.2 s"),
        (99.96, "1 min 40 s"),
        (725, "12 min 5 s"),
        (27600, "7 h 40 min"),
        (3600, "1 h"),
        (273_600, "3 d 4 h"),
        (1.013e8, "3.2 years"),
    ],
)
def test_time_spans_use_two_units_at_most(duration: float | None, shown: str) -> None:
    assert text.seconds(duration) == shown


@pytest.mark.parametrize("duration", [0.41234, 4.123, 41.23, 99.96, 724.2, 3599.5, 3874.0, 86399.0, 273_601.0])
def test_a_time_span_that_suffices_is_read_back_as_no_shorter_and_hardly_longer(duration: float) -> None:
    read = parse_duration_s(sufficient_duration_text(duration))
    assert duration <= read <= 1.05 * duration


def test_whole_numbers_are_shown_as_ranges() -> None:
    assert text.ranges([3, 1, 2, 7]) == "1-3, 7"


def test_sizes_are_binary() -> None:
    assert text.size(5 * 2**30) == "5.0 GiB"
    assert text.size(3 * 2**20) == "3.0 MiB"


def test_quantities_carry_the_unit_of_their_price() -> None:
    assert text.measure(1.44712, "hour") == "1.447 h"
    assert text.measure(8.1, "1000 requests") == "8.1 x 1000 requests"
    assert text.measure(1288.4, "GB") == "1,288 GB"


@pytest.mark.parametrize(
    ("amount", "base", "shown"),
    [(81.5837, 57.1351, "+24.44"), (34.5849, 24.8351, "+9.74"), (0.03124, 0.02996, "+0.0012"), (8.004, 7.996, "+0.00")],
)
def test_a_difference_is_that_of_the_figures_shown(amount: float, base: float, shown: str) -> None:
    assert text.signed_usd_aligned(usd_difference(amount, base), amount) == shown


@pytest.mark.parametrize(
    ("amounts", "whole", "shown"),
    [
        ((3.6752, 3.6752), 7.3504, (3.67, 3.68)),
        ((19.8725,) * 4, 79.49, (19.88, 19.87, 19.87, 19.87)),
        ((0.004, 0.004, 5.001), 5.009, (0.0, 0.0, 5.01)),
        ((), 0.0, ()),
    ],
)
def test_rounded_parts_add_up_to_the_rounded_whole(
    amounts: tuple[float, ...], whole: float, shown: tuple[float, ...]
) -> None:
    assert usd_parts(amounts, whole, 2) == shown
    assert round(sum(shown), 2) == round(whole, 2)


@pytest.mark.parametrize(
    ("amounts", "shown"),
    [
        ((57.14, 0.4632), ("57.14", "0.46")),
        ((0.4632, 0.0312), ("0.463", "0.0312")),
        ((57.14, 0.0), ("57.14", "0.00")),
        ((57.14, 0.00312), ("57.14", "0.00312")),
    ],
)
def test_a_table_with_a_dollar_or_more_shows_cents(amounts: tuple[float, ...], shown: tuple[str, ...]) -> None:
    assert usd_texts(amounts) == shown


@pytest.mark.parametrize(
    ("amount", "base", "largest", "shown"),
    [
        (57.60, 57.14, 0.0, "+0.46 USD"),
        (57.14, 57.60, 0.0, "-0.46 USD"),
        (0.4632, 0.3, 0.0, "+0.163 USD"),
        (0.4632, 0.3, 81.58, "+0.16 USD"),
        (57.1413, 57.1389, 0.0, "the same cost"),
        (1357.60, 57.14, 0.0, "+1,300.46 USD"),
    ],
)
def test_a_difference_next_to_dollars_is_in_cents(amount: float, base: float, largest: float, shown: str) -> None:
    assert usd_difference_text(amount, base, largest=largest) == shown


def test_a_difference_has_the_decimals_of_the_amount_next_to_it() -> None:
    assert text.signed_usd_aligned(-7.694, 78.89) == "-7.69"
    assert text.signed_usd_aligned(0.0004, 0.0128) == "+0.0004"
    assert text.signed_usd_aligned(-109.183, 2.560) == "-109.18"
