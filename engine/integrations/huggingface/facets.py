"""What a cache layer of transformers keeps, one facet a kind of state: how it is measured, taken out and put back.

A layer class is a tuple of facets (layers.py). Rows are two-dimensional, [rows, width], rows along tokens or entries:
what heads and batch there were is remembered in the facet, measured once on a small run of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from engine.errors import StateMismatch
from engine.memory.layout import torch_dtype
from engine.memory.state import Tensors
from engine.model.objects import SegmentKey
from engine.model.spec import Compressed, Field, Full, Indexed, Part, Recurrent, Sliding


class Piece(NamedTuple):
    """One tensor of a layer: where it belongs in a `SegmentKey`, and its rows [rows, width]."""

    part: str
    field: str
    section: str
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows one layer is filled from."""

    layer: int
    tensors: Tensors
    device: torch.device

    def __call__(self, part: str, field: str, section: str) -> torch.Tensor:
        """Raises `StateMismatch` when they are not there: absent is not empty."""
        key = SegmentKey(self.layer, part, field, section)
        if key not in self.tensors:
            raise StateMismatch(f"{key}: the state has no such tensor, so the model's cache cannot be filled")
        return self.tensors[key].to(self.device)


class Facet(Protocol):
    """One kind of state of one layer. `layer` is a cache layer of transformers holding one sequence."""

    @property
    def part(self) -> Part: ...

    def entries(self, layer: Any, start: int, end: int) -> Iterator[Piece]:
        """Span objects of tokens [start, end); views."""

    def boundary(self, layer: Any, position: int) -> Iterator[Piece]:
        """Boundary objects of a layer that has seen exactly `position` tokens; copies."""

    def fill(self, layer: Any, position: int, rows: Rows) -> None:
        """Make a new layer as it is after exactly `position` tokens."""

    def fill_for_replay(self, layer: Any, position: int, rows: Rows) -> None:
        """The same without boundary objects: what they held is zeros, to be forgotten as the replay goes on."""


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, dim] or [1, tokens, dim] to [tokens, width]. Raises `StateMismatch` for more sequences."""
    if tensor.shape[0] != 1:
        raise StateMismatch(f"the cache holds {tensor.shape[0]} sequences; a prefix is one")
    return tensor[0].transpose(0, 1).flatten(1) if tensor.ndim == 4 else tensor[0]


def dtype_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads and width of one [1, heads, tokens, dim] tensor (heads 0: [1, tokens, dim])."""

    heads: int
    dim: int
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Shape:
        return cls(tensor.shape[1] if tensor.ndim == 4 else 0, tensor.shape[-1], dtype_of(tensor))

    def field(self, name: str) -> Field:
        return Field(name=name, dtype=self.dtype, width=max(1, self.heads) * self.dim)

    def tensor(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows back to the layer's own shape, contiguous as the model would have made it."""
        if not self.heads:
            return rows.unsqueeze(0).contiguous()
        return rows.view(len(rows), self.heads, self.dim).transpose(0, 1).unsqueeze(0).contiguous()

    def zeros(self, rows: int, device: torch.device) -> torch.Tensor:
        width, dtype = max(1, self.heads) * self.dim, torch_dtype(self.dtype)
        return self.tensor(torch.zeros((rows, width), dtype=dtype, device=device))


@dataclass(frozen=True, slots=True)
class KeyValueHistory:
    """`keys` and `values` of every token (DynamicLayer). In MLA models they are one latent and one rotary key."""

    keys: Shape
    values: Shape
    latent: bool

    @classmethod
    def measure(cls, layer: Any, latent: bool) -> KeyValueHistory | None:
        """None for a layer that is never written because it reads another layer's keys."""
        return None if layer.keys is None else cls(Shape.of(layer.keys), Shape.of(layer.values), latent)

    @property
    def part(self) -> Full:
        return Full(fields=(self.keys.field("keys"), self.values.field("values")), lossy_allowed=not self.latent)

    def entries(self, layer: Any, start: int, end: int) -> Iterator[Piece]:
        _same_length("keys", layer.keys, -2, end)
        yield Piece("full", "keys", "entries", rows_of(layer.keys[..., start:end, :]))
        yield Piece("full", "values", "entries", rows_of(layer.values[..., start:end, :]))

    def boundary(self, layer: Any, position: int) -> Iterator[Piece]:
        return iter(())

    def fill(self, layer: Any, position: int, rows: Rows) -> None:
        keys = self.keys.tensor(rows("full", "keys", "entries")[:position])
        values = self.values.tensor(rows("full", "values", "entries")[:position])
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values

    fill_for_replay = fill


@dataclass(frozen=True, slots=True)
class KeyValueWindow:
    """The last W - 1 tokens of `keys` and `values` (DynamicSlidingWindowLayer)."""

    window: int
    keys: Shape
    values: Shape

    @classmethod
    def measure(cls, layer: Any, latent: bool) -> KeyValueWindow | None:
        return None if layer.keys is None else cls(layer.sliding_window, Shape.of(layer.keys), Shape.of(layer.values))

    @property
    def part(self) -> Sliding:
        return Sliding(window=self.window, fields=(self.keys.field("keys"), self.values.field("values")))

    def entries(self, layer: Any, start: int, end: int) -> Iterator[Piece]:
        return iter(())

    def boundary(self, layer: Any, position: int) -> Iterator[Piece]:
        _window_is_at(layer, position)
        yield Piece("sliding", "keys", "window", rows_of(layer.keys).clone())
        yield Piece("sliding", "values", "window", rows_of(layer.values).clone())

    def fill(self, layer: Any, position: int, rows: Rows) -> None:
        keys = self.keys.tensor(rows("sliding", "keys", "window"))
        self._put(layer, position, keys, self.values.tensor(rows("sliding", "values", "window")))

    def fill_for_replay(self, layer: Any, position: int, rows: Rows) -> None:
        n = min(self.window - 1, position)
        self._put(layer, position, self.keys.zeros(n, rows.device), self.values.zeros(n, rows.device))

    def _put(self, layer: Any, position: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        layer.cumulative_length = position
        _window_is_at(layer, position)


@dataclass(frozen=True, slots=True)
class LatentWindow:
    """A window whose keys are its values (DeepSeek-V4 CSA and HCA layers): kept once, shared again when filled."""

    window: int
    latent: Shape

    @classmethod
    def measure(cls, layer: Any, latent: bool) -> LatentWindow:
        return cls(layer.sliding_window, Shape.of(layer.keys))

    @property
    def part(self) -> Sliding:
        return Sliding(window=self.window, fields=(self.latent.field("latent"),))

    def entries(self, layer: Any, start: int, end: int) -> Iterator[Piece]:
        return iter(())

    def boundary(self, layer: Any, position: int) -> Iterator[Piece]:
        _window_is_at(layer, position)
        if layer.values is not layer.keys:
            raise StateMismatch(f"{type(layer).__name__}: values are not the keys; only their sharing is mapped")
        yield Piece("sliding", "latent", "window", rows_of(layer.keys).clone())

    def fill(self, layer: Any, position: int, rows: Rows) -> None:
        self._put(layer, position, self.latent.tensor(rows("sliding", "latent", "window")))

    def fill_for_replay(self, layer: Any, position: int, rows: Rows) -> None:
        self._put(layer, position, self.latent.zeros(min(self.window - 1, position), rows.device))

    def _put(self, layer: Any, position: int, keys: torch.Tensor) -> None:
        layer.lazy_initialization(keys, keys)
        layer.keys = layer.values = keys
        layer.cumulative_length = position
        _window_is_at(layer, position)


@dataclass(frozen=True, slots=True)
class IndexerKeys:
    """One key a token for the sparse-attention indexer (DynamicIndexedLayer)."""

    keys: Shape

    @classmethod
    def measure(cls, layer: Any, latent: bool) -> IndexerKeys | None:
        """None for a layer that uses another layer's indexer."""
        if not layer.is_indexer_initialized:
            return None
        if layer.indexer_position_ids is not None or layer.indexer_keys.ndim != 3:
            raise StateMismatch(
                f"{type(layer).__name__} keeps indexer positions or keys of {layer.indexer_keys.ndim} dimensions, "
                "which kvdeck does not map"
            )
        return cls(Shape.of(layer.indexer_keys))

    @property
    def part(self) -> Indexed:
        return Indexed(fields=(self.keys.field("keys"),))

    def entries(self, layer: Any, start: int, end: int) -> Iterator[Piece]:
        _same_length("indexer_keys", layer.indexer_keys, 1, end)
        yield Piece("indexed", "keys", "entries", rows_of(layer.indexer_keys[:, start:end]))

    def boundary(self, layer: Any, position: int) -> Iterator[Piece]:
        return iter(())

    def fill(self, layer: Any, position: int, rows: Rows) -> None:
        keys = self.keys.tensor(rows("indexed", "keys", "entries")[:position])
        layer.lazy_initialization_indexer(keys)
        layer.indexer_keys = keys

    fill_for_replay = fill


@dataclass(frozen=True, slots=True)
class Compressor:
    """Entries of a DeepSeek-V4 compressor with what is not yet an entry: buffers, and for CSA the overlap.

    `name` is "compressor" (the KV itself) or "indexer" (its keys). The overlap is needed at every boundary, aligned to
    the ratio or not: the next entry reads the projections of the tokens of the newest one.
    """

    name: str
    ratio: int
    entry: Shape
    buffer: Shape
    overlap: Shape | None

    @classmethod
    def measure(cls, layer: Any, name: str) -> Compressor:
        overlap = Shape.of(layer.overlap_kv[name]) if hasattr(layer, "overlap_kv") else None
        entry, buffer = Shape.of(layer.compressed_kv[name]), Shape.of(layer.buffer_kv[name])
        return cls(name, layer.compress_rate, entry, buffer, overlap)

    @property
    def part_name(self) -> str:
        return "compressed" if self.name == "compressor" else "indexed"

    @property
    def part(self) -> Compressed | Indexed:
        make = Compressed if self.name == "compressor" else Indexed
        overlaps = () if self.overlap is None else (self.overlap.field("kv"), self.overlap.field("gate"))
        return make(
            ratio=self.ratio,
            fields=(self.entry.field("entries"),),
            buffers=(self.buffer.field("kv"), self.buffer.field("gate")),
            overlaps=overlaps,
        )

    def entries(self, layer: Any, start: int, end: int) -> Iterator[Piece]:
        held = layer.compressed_kv[self.name]
        _same_length(self.name, held, 1, end // self.ratio)
        yield Piece(self.part_name, "entries", "entries", rows_of(held[:, start // self.ratio : end // self.ratio]))

    def boundary(self, layer: Any, position: int) -> Iterator[Piece]:
        if layer.entry_count[self.name] != position // self.ratio:
            raise StateMismatch(f"{self.name} has {layer.entry_count[self.name]} entries at token {position}")
        for field, held in (("kv", layer.buffer_kv), ("gate", layer.buffer_gate)):
            _same_length(f"buffer_{field}", held[self.name], 1, position % self.ratio)
            yield Piece(self.part_name, field, "buffer", rows_of(held[self.name]).clone())
        if self.overlap is not None and position >= self.ratio:
            for field, held in (("kv", layer.overlap_kv), ("gate", layer.overlap_gate)):
                yield Piece(self.part_name, field, "overlap", rows_of(held[self.name]).clone())

    def fill(self, layer: Any, position: int, rows: Rows) -> None:
        self._fill_entries(layer, position, rows)
        layer.buffer_kv[self.name] = self.buffer.tensor(rows(self.part_name, "kv", "buffer"))
        layer.buffer_gate[self.name] = self.buffer.tensor(rows(self.part_name, "gate", "buffer"))
        if self.overlap is not None and position >= self.ratio:
            layer.overlap_kv[self.name] = self.overlap.tensor(rows(self.part_name, "kv", "overlap"))
            layer.overlap_gate[self.name] = self.overlap.tensor(rows(self.part_name, "gate", "overlap"))

    def fill_for_replay(self, layer: Any, position: int, rows: Rows) -> None:
        """At a page boundary, where no entry is half built."""
        self._fill_entries(layer, position, rows)
        layer.buffer_kv[self.name] = self.buffer.zeros(0, rows.device)
        layer.buffer_gate[self.name] = self.buffer.zeros(0, rows.device)
        if self.overlap is not None and position >= self.ratio:
            layer.overlap_kv[self.name] = self.overlap.zeros(self.ratio, rows.device)
            layer.overlap_gate[self.name] = self.overlap.zeros(self.ratio, rows.device)

    def _fill_entries(self, layer: Any, position: int, rows: Rows) -> None:
        count = position // self.ratio
        layer.compressed_kv[self.name] = self.entry.tensor(rows(self.part_name, "entries", "entries")[:count])
        layer.entry_count[self.name] = count


@dataclass(frozen=True, slots=True)
class LinearState:
    """Convolution and recurrent states of linear attention: one row that stands for everything before a position."""

    convs: tuple[tuple[int, tuple[int, ...], str], ...]  # (state index, shape, dtype)
    states: tuple[tuple[int, tuple[int, ...], str], ...]

    @classmethod
    def measure(cls, layer: Any, latent: bool) -> LinearState:
        return cls(_measured(layer.conv_states), _measured(layer.recurrent_states))

    @property
    def part(self) -> Recurrent:
        return Recurrent(fields=tuple(field for _, field, _ in self._tensors()))

    def _tensors(self) -> Iterator[tuple[int, Field, tuple[int, ...]]]:
        for name, group in (("conv", self.convs), ("state", self.states)):
            for index, shape, dtype in group:
                yield index, Field(name=f"{name}{index}", dtype=dtype, width=_product(shape)), shape

    def entries(self, layer: Any, start: int, end: int) -> Iterator[Piece]:
        return iter(())

    def boundary(self, layer: Any, position: int) -> Iterator[Piece]:
        for index, field, _ in self._tensors():
            held = layer.conv_states if field.name.startswith("conv") else layer.recurrent_states
            if held[index] is None or not layer.has_previous_state[index]:
                raise StateMismatch(f"{type(layer).__name__}: {field.name} was never written")
            yield Piece("recurrent", field.name, "state", held[index].reshape(1, -1).clone())

    def fill(self, layer: Any, position: int, rows: Rows) -> None:
        for index, field, shape in self._tensors():
            value = rows("recurrent", field.name, "state").view(1, *shape).clone()
            if field.name.startswith("conv"):
                layer.lazy_initialization(conv_states=value, state_idx=index, conv_kernel_size=shape[-1])
                layer.conv_states[index].copy_(value)
            else:
                layer.lazy_initialization(recurrent_states=value, state_idx=index)
                layer.recurrent_states[index].copy_(value)
            layer.has_previous_state[index] = True

    def fill_for_replay(self, layer: Any, position: int, rows: Rows) -> None:
        raise StateMismatch("a recurrent state cannot be rebuilt from the last tokens")


def _measured(states: dict[int, torch.Tensor | None]) -> tuple[tuple[int, tuple[int, ...], str], ...]:
    held = ((index, tensor) for index, tensor in states.items() if tensor is not None)
    return tuple((index, tuple(tensor.shape[1:]), dtype_of(tensor)) for index, tensor in held)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _same_length(name: str, tensor: torch.Tensor, dim: int, wanted: int) -> None:
    if tensor.shape[dim] != wanted:
        raise StateMismatch(f"{name} has {tensor.shape[dim]} rows where the position wants {wanted}")


def _window_is_at(layer: Any, position: int) -> None:
    """A window is what it is by position, not by length: a full ring has the same length everywhere."""
    rows = min(layer.sliding_window - 1, position)
    if layer.cumulative_length != position or layer.keys.shape[-2] != rows:
        raise StateMismatch(
            f"{type(layer).__name__} stands at token {layer.cumulative_length} with {layer.keys.shape[-2]} rows; "
            f"a window at {position} has {rows}"
        )
