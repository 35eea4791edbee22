"""The GGUF container: a header of typed values, then tensors in one of ggml's formats.

The header is read here because a vocabulary takes the `gguf` package's own reader seconds.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, dequantize

from proto.errors import InvalidModel

SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file, its tensors still on disk."""

    metadata: Mapping[str, Any]
    """Values by key: int, float, bool, str, or a list of one of these."""
    tensors: Mapping[str, "StoredTensor"]

    @classmethod
    def open(cls, path: Path) -> "GGUFFile":
        """Read the header. Raises InvalidModel if the file is no GGUF or cut short."""
        try:
            if path.stat().st_size == 0:  # which cannot be mapped
                raise InvalidModel(f"{path} is cut short: it is empty")
            data = np.memmap(path, mode="c")  # copy on write: torch wants memory it could write to
        except OSError as error:
            raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error
        header = Header(data.data)
        try:
            if header.take("4s") != b"GGUF":
                raise InvalidModel(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
            if (version := header.take("I")) not in (2, 3):
                raise InvalidModel(f"{path} is GGUF version {version}, expected 2 or 3")
            num_tensors, num_values = header.take("Q"), header.take("Q")
            metadata = {header.string(): header.value() for _ in range(num_values)}
            infos = [header.tensor() for _ in range(num_tensors)]
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise InvalidModel(
                f"{path} is cut short or broken near byte {header.at}: {error}"
            ) from error
        alignment = metadata.get("general.alignment", 32) or 1
        begin = -(-header.at // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in infos:
            stored = StoredTensor(shape, kind, data[begin + offset :])
            if len(stored.data) < stored.size_bytes:
                raise InvalidModel(
                    f"{path} is cut short: tensor {name} needs {stored.size_bytes} bytes, "
                    f"{len(stored.data)} are left"
                )
            tensors[name] = stored
        return cls(metadata, tensors)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in the file."""

    shape: tuple[int, ...]
    """Rows first, as torch has it."""
    kind: GGMLQuantizationType
    data: "np.ndarray[Any, np.dtype[np.uint8]]"
    """The file from the tensor's first byte on."""

    @property
    def size_bytes(self) -> int:
        values, size_bytes = GGML_QUANT_SIZES[self.kind]
        return math.prod(self.shape) // values * size_bytes

    def load(self) -> torch.Tensor:
        """The tensor in float32."""
        data = self.data[: self.size_bytes]
        if own := DEQUANTIZE.get(self.kind):
            return own(torch.from_numpy(data)).view(self.shape)
        values, size_bytes = GGML_QUANT_SIZES[self.kind]
        rows = data.reshape(-1, self.shape[-1] // values * size_bytes)
        try:
            return torch.from_numpy(np.array(dequantize(rows, self.kind))).view(self.shape)
        except NotImplementedError:
            raise InvalidModel(f"tensors of kind {self.kind.name} cannot be read") from None


class Header:
    """A cursor over the bytes of a header."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    def take(self, kind: str) -> Any:
        """One little-endian value of a `struct` format."""
        layout = struct.Struct("<" + kind)
        (value,) = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return value

    def string(self) -> str:
        """UTF-8 after its length."""
        (size_bytes,) = LENGTH.unpack_from(self._data, self.at)
        begin = self.at + LENGTH.size
        self.at = begin + size_bytes
        if self.at > len(self._data):
            raise ValueError(f"a string of {size_bytes} bytes")
        return str(self._data[begin : self.at], "utf-8")

    def value(self) -> Any:
        """A value after its type."""
        return self._value_of(GGUFValueType(self.take("I")))

    def tensor(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        """Name, shape (rows first), kind and offset in the data of a tensor."""
        name = self.string()
        shape = [self.take("Q") for _ in range(self.take("I"))]
        return name, (*reversed(shape),), GGMLQuantizationType(self.take("I")), self.take("Q")

    def _value_of(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is GGUFValueType.ARRAY:
            item, count = GGUFValueType(self.take("I")), self.take("Q")
            if item not in SCALARS:
                return [self._value_of(item) for _ in range(count)]
            layout = struct.Struct(f"<{count}{SCALARS[item]}")
            values = layout.unpack_from(self._data, self.at)
            self.at += layout.size
            return [*values]
        return self.take(SCALARS[kind])


LENGTH = struct.Struct("<Q")


def from_f32(data: torch.Tensor) -> torch.Tensor:
    return data.view(torch.float32).clone()


def from_f16(data: torch.Tensor) -> torch.Tensor:
    return data.view(torch.float16).float()


def from_bf16(data: torch.Tensor) -> torch.Tensor:
    return data.view(torch.bfloat16).float()


def from_q8_0(data: torch.Tensor) -> torch.Tensor:
    """Blocks of a scale and 32 signed bytes."""
    blocks = data.view(-1, 34)
    return blocks[:, 2:].contiguous().view(torch.int8).float() * halves(blocks[:, :2])


def from_q4_0(data: torch.Tensor) -> torch.Tensor:
    """Blocks of a scale and 32 nibbles that stand for -8..7."""
    blocks = data.view(-1, 18)
    return (nibbles(blocks[:, 2:]) - 8.0) * halves(blocks[:, :2])


def from_q4_1(data: torch.Tensor) -> torch.Tensor:
    """Blocks of a scale, a minimum and 32 nibbles."""
    blocks = data.view(-1, 20)
    return torch.addcmul(halves(blocks[:, 2:4]), nibbles(blocks[:, 4:]), halves(blocks[:, :2]))


def halves(data: torch.Tensor) -> torch.Tensor:
    """float16 pairs of bytes, [blocks, 2], as float32, [blocks, 1]."""
    return data.contiguous().view(torch.float16).float()


def nibbles(data: torch.Tensor) -> torch.Tensor:
    """[blocks, 16] bytes as [blocks, 32]: the low halves, then the high ones."""
    return torch.cat((data & 15, data >> 4), dim=1).float()


DEQUANTIZE: Mapping[GGMLQuantizationType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLQuantizationType.F32: from_f32,
    GGMLQuantizationType.F16: from_f16,
    GGMLQuantizationType.BF16: from_bf16,
    GGMLQuantizationType.Q8_0: from_q8_0,
    GGMLQuantizationType.Q4_0: from_q4_0,
    GGMLQuantizationType.Q4_1: from_q4_1,
}
"""The common kinds, whole tensors at a time; the `gguf` package has the others."""
