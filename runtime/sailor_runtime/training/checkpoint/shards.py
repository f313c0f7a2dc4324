"""Local parts of larger tensors, as torch.distributed.checkpoint reads and writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


class ShardedEntry(torch.Tensor):
    """Local parts, each a box at some offsets, of a tensor of shape `whole`.

    Parts may have any size and number, so plans of any shape fit. torch looks for tensors, finds the parts through the
    methods with double underscores, and compares `size()` with the saved shape; the tensor itself is empty.
    """

    whole: torch.Size
    parts: dict[torch.Size, Tensor]

    @staticmethod
    def __new__(cls, whole: tuple[int, ...]) -> ShardedEntry:
        entry = torch.Tensor._make_subclass(cls, torch.empty(0))
        entry.whole, entry.parts = torch.Size(whole), {}
        return entry

    def hold(self, part: Tensor, offsets: tuple[int, ...]) -> None:
        self.parts[torch.Size(offsets)] = part.detach()

    def size(self, dim: int | None = None) -> Any:
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, name: str, value: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk, properties=TensorProperties.create_from_tensor(part), size=self.whole
                ),
            )
            for (offsets, part), chunk in zip(self.parts.items(), self.__create_chunk_list__(), strict=True)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets=offsets, sizes=part.size()) for offsets, part in self.parts.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.parts[index.offset]
