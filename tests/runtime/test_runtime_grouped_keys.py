"""Tests for keys and values that several heads share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sailor_runtime.training.model import attention  # noqa: E402

SAMPLES, HEADS, GROUPS, TOKENS, SIZE = 2, 8, 2, 16, 4
MODULE = SimpleNamespace(num_key_value_groups=HEADS // GROUPS, is_causal=True)


class OnGpu(torch.Tensor):  # type: ignore[misc]
    """A tensor that says it is on a GPU; a build of torch without CUDA has no kernel that shares keys."""

    device = torch.device("cuda")


def tensors(dtype: Any = torch.float64) -> list[Any]:
    torch.manual_seed(1)
    return [
        torch.randn(SAMPLES, heads, TOKENS, SIZE, dtype=dtype, requires_grad=True) for heads in (HEADS, GROUPS, GROUPS)
    ]


def key_heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The heads of the keys that torch's kernels get from here on."""
    seen: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def recorded(query: Any, key: Any, value: Any, **rest: Any) -> Any:
        assert key.shape == value.shape
        seen.append(key.shape[1])
        return kernel(query, key, value, **rest)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    return seen


def mixed(given: list[Any]) -> Any:
    return attention._fused(MODULE, *given, None, scaling=0.5)[0]


def test_keys_are_copied_where_no_fused_kernel_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors()
    shared = mixed(given)
    gradients = torch.autograd.grad(shared.square().sum(), given)
    seen = key_heads(monkeypatch)
    monkeypatch.setattr(attention, "_shares_keys", lambda *of: False)
    copied = mixed(given)
    torch.testing.assert_close(copied, shared, rtol=1e-12, atol=1e-12)
    for found, expected in zip(torch.autograd.grad(copied.square().sum(), given), gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert seen == [HEADS]


def test_torch_is_asked_whether_a_kernel_shares_them() -> None:
    assert attention._shares_keys(*tensors())
    assert not attention._shares_keys(*(value.detach().as_subclass(OnGpu) for value in tensors(torch.float16)))


def test_a_cpu_computes_what_transformers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    given = tensors(torch.float32)
    expected = sdpa_attention_forward(MODULE, *given, None, scaling=0.5)[0]
    seen = key_heads(monkeypatch)
    assert torch.equal(mixed(given), expected)
    assert seen == [GROUPS]


def test_keys_under_a_mask_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = key_heads(monkeypatch)
    monkeypatch.setattr(attention, "_shares_keys", lambda *of: False)
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    found = attention._fused(MODULE, *tensors(), mask, scaling=0.5)[0]
    torch.testing.assert_close(found, mixed(tensors()))
    assert seen == [HEADS, HEADS]
