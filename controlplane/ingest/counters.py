"""The control plane's own counters, in the text format Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

HELP = {
    "kvdeck_ingest_items_total": "Spans and metric points by what became of them.",
    "kvdeck_ingest_bytes_total": "Bytes of OTLP bodies received.",
    "kvdeck_ingest_exports_total": "OTLP exports by the status they were answered with.",
}
Labels = tuple[tuple[str, str], ...]


class Counters:
    """Counts by name and labels. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Labels]] = Counter()

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to one counter; its name must be one of HELP."""
        if name not in HELP:
            raise KeyError(name)
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += amount

    def lines(self) -> list[str]:
        """All counters as Prometheus text."""
        with self._lock:
            counts = dict(self._counts)
        lines: list[str] = []
        for name, text in HELP.items():
            samples = [(dict(labels), float(count)) for (of, labels), count in sorted(counts.items()) if of == name]
            lines += family(name, "counter", text, samples)
        return lines


def family(name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> list[str]:
    """One metric family with its samples as lines of Prometheus text."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value:.17g}" if inside else f"{name} {value:.17g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
