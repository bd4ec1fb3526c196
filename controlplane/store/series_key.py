"""The key of one series: its attributes as one text, `k=v,k=v`, sorted by name."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

# All that a value may hold unescaped: everything but the three signs the text itself uses.
_PLAIN = "".join(chr(code) for code in range(32, 127) if chr(code) not in ",=%")


def series_key(attributes: Mapping[str, object]) -> str:
    """The canonical text of the attributes; "" when there are none."""
    return ",".join(f"{name}={quote(str(attributes[name]), safe=_PLAIN)}" for name in sorted(attributes))


def series_attributes(key: str) -> dict[str, str]:
    """The attributes a key was made of."""
    pairs = (part.split("=", 1) for part in key.split(",") if part)
    return {name: unquote(value) for name, value in pairs}
