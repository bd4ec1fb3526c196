"""OTLP/HTTP bodies: from bytes as sent to protobuf messages, and attributes to plain values."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from controlplane.errors import BadRequest, TooLarge

Value = str | bool | int | float
Attributes = dict[str, Value]


class Message(Protocol):
    """What every protobuf message can do."""

    def ParseFromString(self, serialized: bytes, /) -> int: ...


M = TypeVar("M", bound=Message)


def decode(kind: type[M], body: bytes, *, encoding: str, max_inflated_bytes: int) -> M:
    """The message a body holds. Raises BadRequest with the reason, TooLarge when it inflates over the bound."""
    plain = _inflate(body, max_inflated_bytes) if encoding == "gzip" else body
    if encoding not in ("gzip", "identity", ""):
        raise BadRequest("otlp_encoding", f"Content-Encoding {encoding!r} is not understood.", "Send gzip or nothing.")
    message = kind()
    try:
        message.ParseFromString(plain)
    except DecodeError as error:
        raise BadRequest(
            "otlp_protobuf",
            f"The body of {len(plain)} bytes is not an OTLP protobuf message ({error}).",
            "Export with OTLP over HTTP in protobuf, not JSON.",
        ) from error
    return message


def _inflate(body: bytes, max_inflated_bytes: int) -> bytes:
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(body, max_inflated_bytes)
    except zlib.error as error:
        raise BadRequest("otlp_gzip", f"The body is not gzip ({error}).", "Check Content-Encoding.") from error
    if inflater.unconsumed_tail:
        raise TooLarge(
            "otlp_inflated",
            f"The body of {len(body)} bytes inflates to more than {max_inflated_bytes} bytes.",
            "Export smaller batches, or raise KVDECK_INGEST_MAX_BYTES.",
        )
    if not inflater.eof:
        raise BadRequest("otlp_gzip", "The gzip body is cut off.", "Send it again.")
    return plain


def attributes_of(pairs: Iterable[KeyValue]) -> Attributes:
    """Scalar attributes by name; arrays and maps, which the wire contract does not use, are left out."""
    found: Attributes = {}
    for pair in pairs:
        value = pair.value
        kind = value.WhichOneof("value")
        if kind == "string_value":  # asked in the order of how many there are: twenty a span, thousands of spans
            found[pair.key] = value.string_value
        elif kind == "int_value":
            found[pair.key] = value.int_value
        elif kind == "bool_value":
            found[pair.key] = value.bool_value
        elif kind == "double_value":
            found[pair.key] = value.double_value
    return found
