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
from engine.memory.checksum import PageSums, page_sums, tensor_sum
from engine.memory.codec import CodecMeta

FORMAT = "kvdeck-object-1"
HEADER_LIMIT_BYTES = 1 << 20
_DTYPES = {"U8": np.uint8, "U64": np.uint64, "I32": np.int32}


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
    def digest(self) -> int:
        """64 bits over all of it: a whole file under the right name may yet be another one."""
        return xxhash.xxh3_64_intdigest(json.dumps(asdict(self), sort_keys=True).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    header: ObjectHeader
    pages: torch.Tensor  # uint8 [n, slot_bytes], on the host
    sums: PageSums
    tokens: npt.NDArray[np.int32]


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
    metadata = {"format": FORMAT, "object": json.dumps(asdict(header), sort_keys=True)}
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
    metadata, entries, start = parse_header(raw.data, len(raw), name)
    arrays = {}
    for tensor, dtype in (("tokens", "I32"), ("page_sums", "U64"), ("pages", "U8")):
        first, last = entries[tensor]["data_offsets"]
        data = raw[start + first : start + last]
        if tensor != "pages" and tensor_sum(data.data) != metadata[f"sum.{tensor}"]:
            raise CorruptObject(f"{name}: the checksum of its tensor {tensor!r} does not match")
        arrays[tensor] = data.view(_DTYPES[dtype]).reshape(entries[tensor]["shape"])
    header = _object_header(metadata, name)
    if len(arrays["pages"]) != header.n_pages or len(arrays["page_sums"]) != header.n_pages:
        raise CorruptObject(f"{name}: it holds {len(arrays['pages'])} pages, its header says {header.n_pages}")
    pages, sums = torch.from_numpy(arrays["pages"]), arrays["page_sums"]
    bad = np.flatnonzero(page_sums(pages) != sums)
    if len(bad):
        raise CorruptObject(f"{name}: page {int(bad[0])} of {len(sums)} does not match its checksum")
    return StoredObject(header=header, pages=pages, sums=sums, tokens=arrays["tokens"])


def decode_identity(
    metadata: Mapping[str, str], entries: Mapping[str, Any], data: bytes, name: str
) -> tuple[ObjectHeader, npt.NDArray[np.int32]]:
    """Header and tokens only, for adoption at start: the pages are proven when they are restored."""
    if tensor_sum(data) != metadata["sum.tokens"]:
        raise CorruptObject(f"{name}: the checksum of its tensor 'tokens' does not match")
    return _object_header(metadata, name), np.frombuffer(data, dtype=np.int32)


def parse_header(raw: memoryview | bytes, size: int, name: str) -> tuple[dict[str, str], dict[str, Any], int]:
    """(metadata, tensor entries, offset of the first tensor) of a file of `size` bytes whose head is `raw`."""
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
