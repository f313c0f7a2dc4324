"""A layer's backward pass in two halves computes what the whole one does, each product once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sailor_runtime.training.pipeline.split_backward import input_gradient

Layer = Callable[[Tensor, list[nn.Parameter]], Tensor]


class _Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.rand(6, 6, dtype=torch.float64, generator=generator)) for _ in range(2)]


def halves(layer: Layer, own: list[nn.Parameter], repeats: int = 1) -> tuple[list[int], Tensor]:
    """Run both halves; return the products of each, and the gradient of the input."""
    value = torch.ones(3, 6, dtype=torch.float64, requires_grad=True)
    output = layer(value, own)
    with _Products() as first:
        found, left = input_gradient(output, value, torch.ones_like(output), repeats)
    with _Products() as second:
        if left is not None:
            left.run(repeats)
    assert found is not None
    return [first.count, second.count], found


def whole(layer: Layer) -> tuple[list[Tensor | None], Tensor | None]:
    own, value = parameters(), torch.ones(3, 6, dtype=torch.float64, requires_grad=True)
    layer(value, own).sum().backward()
    return [each.grad for each in own], value.grad


def assert_equal(layer: Layer, own: list[nn.Parameter], found: Tensor) -> None:
    gradients, of_value = whole(layer)
    torch.testing.assert_close(found, of_value, atol=1e-13, rtol=0)
    for mine, theirs in zip([each.grad for each in own], gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-13, rtol=0)


def residual(value: Tensor, own: list[nn.Parameter]) -> Tensor:
    return value + nn.functional.linear(nn.functional.gelu(nn.functional.linear(value, own[0])), own[1])


def test_each_half_computes_its_products_alone():
    own = parameters()
    counts, found = halves(residual, own)
    assert counts == [2, 2]
    assert_equal(residual, own, found)


def test_a_device_that_emulates_a_slower_one_repeats_both_halves():
    own = parameters()
    counts, found = halves(residual, own, repeats=3)
    assert counts == [6, 6]
    assert_equal(residual, own, found)


def test_gradients_add_up_over_microbatches():
    own = parameters()
    halves(residual, own)
    halves(residual, own)
    gradients, _ = whole(residual)
    torch.testing.assert_close(own[0].grad, 2.0 * gradients[0], atol=1e-12, rtol=0)


def test_operations_on_a_parameter_belong_to_the_second_half():
    def scaled(value: Tensor, own: list[nn.Parameter]) -> Tensor:
        return nn.functional.linear(value, own[0] @ own[1])

    own = parameters()
    counts, found = halves(scaled, own)
    assert counts == [1, 3]
    assert_equal(scaled, own, found)


def test_a_weight_of_several_products_gets_the_gradients_of_all_in_the_second_half():
    def thrice(value: Tensor, own: list[nn.Parameter]) -> Tensor:
        return nn.functional.linear(nn.functional.linear(value, own[0]), own[0]) + nn.functional.linear(value, own[0])

    own = parameters()[:1]
    counts, found = halves(thrice, own)
    assert counts == [3, 3]
    assert_equal(thrice, [*own, parameters()[1]], found)


def test_a_pass_stays_whole_if_two_operations_share_a_parameter_directly():
    def scaled_twice(value: Tensor, own: list[nn.Parameter]) -> Tensor:
        return nn.functional.linear((value.sum() + value.mean() * own[0]) * own[0], own[1])

    own = parameters()
    counts, found = halves(scaled_twice, own)
    assert counts == [2, 0]
    assert_equal(scaled_twice, own, found)


def test_frozen_weights_leave_nothing_to_do():
    own = parameters()
    for each in own:
        each.requires_grad_(False)
    counts, _ = halves(residual, own)
    assert counts == [2, 0]
