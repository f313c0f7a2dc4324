"""Times the layers of small GPT-2 models on one CPU thread, as the local provider's ranks run them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's customary name
from torch import Tensor, nn

from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.offer import Precision
from sailor_cloud.workload import decoder_from_config, layer_costs
from sailor_cloud.workload.features import LayerKind, layer_features
from sailor_cloud.workload.fit import Sample
from sailor_cloud.workload.measured import MeasuredLayer
from sailor_cloud.workload.models.layers import Attention

CPU_STACK = f"torch {torch.__version__}, one thread, gloo"
CPU_SOURCE = f"timed on one core of an AMD EPYC virtual machine, torch {torch.__version__}, one thread, median of 15"
# Hidden size, heads, sequence, vocabulary.
_SIZES = (
    (64, 4, 128, 256),
    (128, 4, 128, 256),
    (128, 4, 256, 256),
    (256, 4, 64, 1024),
    (256, 8, 128, 256),
    (384, 6, 128, 256),
)
_MICROBATCH_SIZES = (1, 2, 4, 8)
_WARM_UP, _TIMED = 3, 15
_FP32_BYTES = 4


class _Embedding(nn.Module):
    def __init__(self, vocabulary: int, sequence: int, hidden: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(sequence, hidden)

    def forward(self, indices: Tensor) -> Tensor:
        value: Tensor = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        return value


class _Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.parts = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))
        self.out, self.up, self.down = (
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, 4 * hidden),
            nn.Linear(4 * hidden, hidden),
        )

    def forward(self, value: Tensor) -> Tensor:
        samples, tokens, hidden = value.shape
        normed = self.first(value)
        queries, keys, values = (
            part(normed).view(samples, tokens, self.heads, -1).transpose(1, 2) for part in self.parts
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        value = value + self.out(mixed.transpose(1, 2).reshape(samples, tokens, hidden))
        wide = F.gelu(self.up(self.second(value)), approximate="tanh")
        result: Tensor = value + self.down(wide)
        return result


class _Head(nn.Module):
    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, value: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(self.norm(value)).flatten(0, 1), targets.flatten())


def time_layers() -> list[MeasuredLayer]:
    """Time every kind of layer at every size and microbatch size."""
    torch.set_num_threads(1)
    return [timed for size in _SIZES for batch in _MICROBATCH_SIZES for timed in _time_size(*size, batch)]


def samples_of(rows: Iterable[MeasuredLayer]) -> list[Sample]:
    """Return what a fit needs of rows of `time_layers`."""
    found = []
    for row in rows:
        sizes = _DECODERS[row.model, row.sequence_length]
        features = layer_features(
            sizes,
            sequence_length=row.sequence_length,
            microbatch_size=row.microbatch_size,
            tp=row.tp,
            precision=Precision.FP32,
        )
        found.append(
            Sample(
                kind=row.layer_kind,
                model=row.model,
                microbatch_size=row.microbatch_size,
                sequence_length=row.sequence_length,
                tp=row.tp,
                features=features[row.layer_kind],
                parameters=int(layer_costs(sizes, row.sequence_length, row.tp).parameters[_INDEX[row.layer_kind]]),
                forward_s=row.forward_s,
                backward_s=row.backward_s,
                update_s=row.update_s,
            )
        )
    return found


def _decoder(hidden: int, heads: int, sequence: int, vocabulary: int) -> Decoder:
    return decoder_from_config(
        {
            "model_type": "gpt2",
            "vocab_size": vocabulary,
            "n_positions": sequence,
            "n_embd": hidden,
            "n_layer": 6,
            "n_head": heads,
        },
        name=f"gpt2-h{hidden}-a{heads}-v{vocabulary}",
    )


_DECODERS = {(sizes.name, size[2]): sizes for size in _SIZES for sizes in (_decoder(*size),)}
_INDEX = {LayerKind.EMBEDDING: 0, LayerKind.BLOCK: 1, LayerKind.HEAD: -1}


def _time_size(hidden: int, heads: int, sequence: int, vocabulary: int, batch: int) -> Iterator[MeasuredLayer]:
    sizes = _decoder(hidden, heads, sequence, vocabulary)
    costs = layer_costs(sizes, sequence, 1, attention=Attention.FLASH)
    makers: dict[LayerKind, tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]] = {
        LayerKind.EMBEDDING: (
            _Embedding(vocabulary, sequence, hidden),
            lambda: (torch.randint(vocabulary, (batch, sequence)),),
        ),
        LayerKind.BLOCK: (_Block(hidden, heads), lambda: (_hidden(batch, sequence, hidden),)),
        LayerKind.HEAD: (
            _Head(vocabulary, hidden),
            lambda: (_hidden(batch, sequence, hidden), torch.randint(vocabulary, (batch, sequence))),
        ),
    }
    for kind, (module, inputs) in makers.items():
        forward_s, backward_s, update_s = _time_module(module, inputs)
        index = _INDEX[kind]
        kept = float(costs.activation_elements[index] + costs.loss_elements[index]) * batch * _FP32_BYTES
        yield MeasuredLayer(
            model=sizes.name,
            layer_kind=kind,
            microbatch_size=batch,
            sequence_length=sequence,
            tp=1,
            forward_s=forward_s,
            backward_s=backward_s,
            update_s=update_s,
            activation_bytes=round(kept),
        )


def _hidden(batch: int, sequence: int, hidden: int) -> Tensor:
    return torch.randn(batch, sequence, hidden, requires_grad=True)


def _time_module(module: nn.Module, inputs: Callable[[], tuple[Any, ...]]) -> tuple[float, float, float]:
    forward, backward = [], []
    for _ in range(_WARM_UP + _TIMED):
        given = inputs()
        started = time.perf_counter()
        result = module(*given)
        between = time.perf_counter()
        result.sum().backward()
        forward.append(between - started)
        backward.append(time.perf_counter() - between)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    update = []
    for _ in range(_WARM_UP + _TIMED):
        started = time.perf_counter()
        optimizer.step()
        update.append(time.perf_counter() - started)
    return tuple(statistics.median(values[_WARM_UP:]) for values in (forward, backward, update))  # type: ignore[return-value]
