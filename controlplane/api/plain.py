"""What no request may hold, whatever it asks: signs and numbers that a database or JSON cannot keep.

A dependency of the whole app. Each route checks what its own fields mean; this is about what no field can hold.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from controlplane.errors import BadRequest

DEEPEST = 32
MOST_INT, LEAST_INT = (1 << 63) - 1, -(1 << 63)
_LARGE_BYTES = 64 << 10
# Bytes without which a JSON text holds no NUL, no half of a surrogate pair, no NaN and no number beyond 64 bits.
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])|NaN|Infinity|\d{19}|[eE]\+?\d{2}")
_SURROGATE = re.compile("[\ud800-\udfff]")


async def only_plain(request: Request) -> None:
    """Raises BadRequest for a path, a query or a JSON body that cannot be kept as it is."""
    if "\0" in request.scope["path"] or "%00" in request.scope["query_string"].decode("latin-1"):
        raise _refuse("the address", "holds a NUL character")
    for name, value in request.query_params.multi_items():
        check_text(f"query.{name}", value)
    if getattr(request.scope.get("route"), "body_field", None) is None or not _is_json(request):
        return
    raw = await request.body()
    if len(raw) > _LARGE_BYTES:
        await run_in_threadpool(_check_raw, raw, await _parsed(request))
    elif raw:
        _check_raw(raw, await _parsed(request))


def check_text(where: str, text: str) -> None:
    """Raises BadRequest for a text with a NUL or with half a surrogate pair, naming where it is."""
    if "\0" in text:
        raise _refuse(where, "holds a NUL character")
    if _SURROGATE.search(text):
        raise _refuse(where, "holds half a surrogate pair, which is no character")


def check_value(value: Any, *, thorough: bool = True) -> None:
    """Raises BadRequest for a JSON value that is nested too deep, or (`thorough`) holds a text or number that cannot
    be kept."""
    level: list[tuple[str, Any]] = [("body", value)]
    for _ in range(DEEPEST):
        level = [child for where, found in level for child in _children(where, found, thorough)]
        if not level:
            return
    raise _refuse("body", f"is nested deeper than {DEEPEST}")


def _children(where: str, found: Any, thorough: bool) -> list[tuple[str, Any]]:
    if isinstance(found, dict):
        if thorough:
            for name in found:
                check_text(where, name)
        return [(f"{where}.{name[:64]}", child) for name, child in found.items()]
    if isinstance(found, list):
        return [(where, child) for child in found]
    if thorough:
        _check_leaf(where, found)
    return []


def _check_leaf(where: str, found: Any) -> None:
    if isinstance(found, str):
        check_text(where, found)
    elif isinstance(found, float) and not math.isfinite(found):
        raise _refuse(where, f"is {found}, which is no number that can be kept")
    elif isinstance(found, int) and not LEAST_INT <= found <= MOST_INT:
        raise _refuse(where, "is a whole number beyond 64 bits")


def _check_raw(raw: bytes, value: Any) -> None:
    check_value(value, thorough=_SUSPECT.search(raw) is not None)


async def _parsed(request: Request) -> Any:
    """The body as the route gets it; None for one that is no JSON, which is the route's to say."""
    try:
        return await request.json()
    except RecursionError:
        raise _refuse("body", f"is nested deeper than {DEEPEST}") from None
    except ValueError:
        return None


def _is_json(request: Request) -> bool:
    return "json" in request.headers.get("content-type", "").lower()


def _refuse(where: str, what: str) -> BadRequest:
    return BadRequest("value_unfit", f"{where} {what}.", "Correct it and send it again; nothing was changed.")
