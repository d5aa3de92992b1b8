"""A checkpoint's tensors by name, read from its files one at a time."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import CheckpointError
from unmask.model.files import DTYPES, read_header


class FileTensors(Mapping[str, Tensor]):
    """The tensors of safetensors files, read at each access, floating-point ones as `dtype` (None: as they are).

    Files are read and not mapped into memory, so that what was read does not count as memory in use.
    """

    def __init__(self, files: list[Path], dtype: torch.dtype | None = None) -> None:
        self.files, self.dtype = files, dtype
        self._entries = {entry.name: (file, entry) for file in files for entry in read_header(file)}

    def __getitem__(self, name: str) -> Tensor:
        file, entry = self._entries[name]
        kind = DTYPES.get(entry.dtype)
        if kind is None:
            raise CheckpointError(f"{file}: {name} holds {entry.dtype}; allowed: {', '.join(DTYPES)}")
        raw = torch.empty(entry.stop - entry.start, dtype=torch.uint8)
        with file.open("rb") as f:
            f.seek(entry.start)
            if f.readinto(raw.numpy()) != len(raw):  # type: ignore[arg-type]
                raise CheckpointError(f"{file} is damaged: {name} is cut short; fetch it again")
        tensor = raw.view(kind).view(entry.shape)
        return tensor if self.dtype is None else tensor.to(self.dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return self._entries[name][1].shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class ModelTensors(Mapping[str, Tensor]):
    """The same of a transformers model in memory."""

    def __init__(self, model: Any) -> None:
        self._state = model.state_dict()

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._state[name]
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._state[name].shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)
