"""Everything the engine says to the outside, as data: the only list of spans, attributes, links and instruments.

The code that emits reads units and meanings from here; `docs/reference/telemetry.md` is written from here; tests run
every span kind and compare both ways.
"""

from engine.telemetry.registry.instruments import INSTRUMENTS
from engine.telemetry.registry.spans import ATTRIBUTES, RESOURCE, SPANS
from engine.telemetry.registry.words import (
    SCHEMA_URL,
    SCOPE_NAME,
    SCOPE_VERSION,
    Attribute,
    Instrument,
    InstrumentKind,
    Label,
    LinkKind,
    SpanKind,
    Stability,
)

__all__ = [
    "ATTRIBUTES",
    "INSTRUMENTS",
    "RESOURCE",
    "SCHEMA_URL",
    "SCOPE_NAME",
    "SCOPE_VERSION",
    "SPANS",
    "Attribute",
    "Instrument",
    "InstrumentKind",
    "Label",
    "LinkKind",
    "SpanKind",
    "Stability",
]
