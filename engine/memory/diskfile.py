"""The format of one stored object on disk: a safetensors file that can prove itself.

Tensors: `pages` uint8 [n, slot_bytes], `page_sums` uint64 [n], `tokens` int32 [all tokens from the start to the
object's end]. The header's metadata carries what the object is, a checksum of every tensor, and a checksum of itself.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from engine.errors import CorruptObject
from engine.memory.checksum import PageSums, proven, tensor_sum
from engine.memory.codec import CodecMeta

FORMAT = "kvdeck-object-1"
HEADER_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHeader:
    """What a stored object is: compared in full before a byte of it is used."""

    fingerprint: str
    namespace: str
    kind: str
    prefix_id: str  # of the prefix that ends at `boundary`
    boundary: int  # tokens
    first_page: int  # span objects: pages [first_page, first_page + n_pages); boundary objects: the page they follow
    n_pages: int
    page_class: str
    content_version: int
    built_from: int  # content version of the KV it was built from (Holding)
    codec: CodecMeta
    written_ns: int
    odd_pages: tuple[int, ...] = ()  # of its prefix (NewState.odd_pages)

    @property
    def text(self) -> str:
        """As a file has it."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def digest(self) -> int:
        """64 bits over all of it: a whole file under the right name may yet be another one."""
        return digest_of(self.text)

    @property
    def stem(self) -> str:
        """How the name of its file begins."""
        return f"{self.prefix_id}-{self.kind}-{self.boundary}-{self.written_ns:x}-"

    def check_name(self, name: str) -> None:
        """A file can be whole and yet the wrong one, when somebody renamed or restored files: the books go by name."""
        if not name.startswith(self.stem):
            raise CorruptObject(f"{name}: it holds another object, {self.stem.removesuffix('-')}")


@dataclass(eq=False, slots=True)
class DiskFile:
    """A published file. `live_pages` counts pages that some prefix still refers to; at 0 the file goes.

    `damage` is what was found wrong with it, in words.
    """

    name: str
    file_bytes: int
    n_pages: int
    live_pages: int
    generation: int = 0
    damage: str = ""
    header_digest: int | None = None  # of the header it was written or found with; None: nobody has seen it yet

    def check(self, header: ObjectHeader, digest: int) -> None:
        """Raises `CorruptObject` when what was read under its name is another object, or another writing of it."""
        header.check_name(self.name)
        if self.header_digest not in (None, digest):
            raise CorruptObject(f"{self.name}: it is whole, and is not the object that was written under its name")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    header: ObjectHeader
    digest: int  # of the header
    pages: torch.Tensor  # uint8 [n, slot_bytes], on the host
    sums: PageSums
    tokens: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a file says it is, and of which tokens."""

    header: ObjectHeader
    digest: int  # of the header
    tokens: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A file without its pages, which are [n_pages, page_bytes] from `pages_offset` on."""

    header: ObjectHeader
    digest: int  # of the header
    tokens: npt.NDArray[np.int32]
    sums: PageSums
    page_bytes: int
    pages_offset: int


ParsedHeader = tuple[dict[str, str], dict[str, Any], int]
"""Metadata, tensor entries and the offset of the first tensor."""


def encode(
    header: ObjectHeader, pages: torch.Tensor, sums: PageSums, tokens: npt.NDArray[np.int32]
) -> list[bytes | memoryview]:
    """The file as buffers to write in order."""
    body: dict[str, npt.NDArray[Any]] = {
        "tokens": np.ascontiguousarray(tokens, dtype=np.int32),
        "page_sums": np.ascontiguousarray(sums),
        "pages": pages.contiguous().numpy(),
    }
    names = {"tokens": "I32", "page_sums": "U64", "pages": "U8"}
    metadata = {"format": FORMAT, "object": header.text}
    entries: dict[str, Any] = {}
    offset = 0
    for name, array in body.items():
        metadata[f"sum.{name}"] = tensor_sum(array.data.cast("B") if array.size else b"")
        entries[name] = {
            "dtype": names[name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    metadata["sum.header"] = _header_sum(metadata, entries)
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # tensors start aligned
    return [struct.pack("<Q", len(text)), text, *(a.data.cast("B") for a in body.values() if a.size)]


def decode(raw: npt.NDArray[np.uint8], name: str) -> StoredObject:
    """Parse and prove a whole file. Raises `CorruptObject` naming the file and what does not hold.

    Pages are proven by the checksums they were given when their bytes were first on the host, which are proven
    themselves; the tensor's own checksum in the header says the same, and is there for other readers.
    """
    head = decode_head(raw, parse_header(raw.data, len(raw), name), name)
    pages = torch.from_numpy(raw[head.pages_offset :][: head.header.n_pages * head.page_bytes])
    pages = pages.view(head.header.n_pages, head.page_bytes)
    proven(name, pages, head.sums)
    return StoredObject(header=head.header, digest=head.digest, pages=pages, sums=head.sums, tokens=head.tokens)


def decode_head(raw: npt.NDArray[np.uint8], parsed: ParsedHeader, name: str) -> Head:
    """Prove everything but the pages. `raw` is the file from its start on, at least `head_bytes` of it."""
    metadata, entries, start = parsed
    found = {}
    for tensor in ("tokens", "page_sums"):
        first, last = entries[tensor]["data_offsets"]
        found[tensor] = raw[start + first : start + last]
        if tensor_sum(found[tensor].data) != metadata[f"sum.{tensor}"]:
            raise CorruptObject(f"{name}: the checksum of its tensor {tensor!r} does not match")
    tokens, sums = found["tokens"].view(np.int32), found["page_sums"].view(np.uint64)
    header = _object_header(metadata, name)
    n_pages, page_bytes = entries["pages"]["shape"]
    if not n_pages == len(sums) == header.n_pages:
        raise CorruptObject(f"{name}: it holds {n_pages} pages, its header says {header.n_pages}")
    return Head(
        header=header, digest=digest_of(metadata["object"]), tokens=tokens, sums=sums, page_bytes=page_bytes,
        pages_offset=start + entries["pages"]["data_offsets"][0],
    )  # fmt: skip


def head_bytes(parsed: ParsedHeader) -> int:
    """So much of a file must be read to prove everything but its pages."""
    _, entries, start = parsed
    return start + max(int(entries[name]["data_offsets"][1]) for name in ("tokens", "page_sums"))


def digest_of(text: str) -> int:
    """Of a header as a file has it."""
    return xxhash.xxh3_64_intdigest(text.encode())


def decode_identity(metadata: Mapping[str, str], entries: Mapping[str, Any], data: bytes, name: str) -> Identity:
    """Header and tokens only, for adoption at start: the pages are proven when they are restored."""
    if tensor_sum(data) != metadata["sum.tokens"]:
        raise CorruptObject(f"{name}: the checksum of its tensor 'tokens' does not match")
    header, tokens = _object_header(metadata, name), np.frombuffer(data, dtype=np.int32)
    return Identity(header=header, digest=digest_of(metadata["object"]), tokens=tokens)


def parse_header(raw: memoryview | bytes, size: int, name: str) -> ParsedHeader:
    """Of a file of `size` bytes whose head is `raw`."""
    if size < 8:
        raise CorruptObject(f"{name}: {size} bytes are no object file")
    (length,) = struct.unpack("<Q", bytes(raw[:8]))
    if length > HEADER_LIMIT_BYTES or 8 + length > size:
        raise CorruptObject(f"{name}: its header claims {length:,} bytes, the file has {size:,}")
    try:
        text = bytes(raw[8 : 8 + length])
        if not text.rstrip(b" ").endswith(b"}"):
            raise CorruptObject(f"{name}: its header is padded by something that was never written")
        parsed = json.loads(text)
        metadata = parsed.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise CorruptObject(f"{name}: its format is {metadata['format']!r}, this version reads {FORMAT!r}")
        if metadata.pop("sum.header") != _header_sum(metadata, parsed):
            raise CorruptObject(f"{name}: the checksum of its header does not match")
        end = max(entry["data_offsets"][1] for entry in parsed.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptObject(f"{name}: its header cannot be read ({type(error).__name__})") from error
    if 8 + length + end != size:
        raise CorruptObject(f"{name}: {size:,} bytes where the header gives {8 + length + end:,}: truncated or torn")
    return metadata, parsed, 8 + length


def _header_sum(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> str:
    body = json.dumps([sorted(metadata.items()), entries], sort_keys=True, separators=(",", ":"))
    return tensor_sum(body.encode())


def _object_header(metadata: Mapping[str, str], name: str) -> ObjectHeader:
    try:
        fields = json.loads(metadata["object"])
        odd_pages = tuple(fields.pop("odd_pages", ()))
        return ObjectHeader(**{**fields, "codec": CodecMeta(**fields["codec"])}, odd_pages=odd_pages)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptObject(f"{name}: its description cannot be read ({error})") from error
