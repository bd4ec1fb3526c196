"""Slabs: what each page class holds of the GPU arena, used and free, and what no longer fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from dashboard.charts.base import LEGEND
from dashboard.theme import GRID, RULE, Look, nth_look
from dashboard.wording import bytes_text, percent_text

FREE = Look(label="free inside slabs", color="rgba(128,132,140,0.35)", symbol="/")


def slab_map(classes: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """A bar a page class, as long as its slabs are large: used slots, then slots that are free inside them.

    `classes` is an engine's `stats["classes"]`: class -> slot_bytes, slabs, used_slots, slots.
    """
    names = sorted(classes, key=lambda name: _size(classes[name], "slots"))
    used = [_size(classes[name], "used_slots") for name in names]
    free = [_size(classes[name], "slots") - size for name, size in zip(names, used, strict=True)]
    about = [
        [
            bytes_text(classes[name].get("slot_bytes")),
            f"{int(classes[name].get('slabs') or 0):,}",
            f"{int(classes[name].get('used_slots') or 0):,}",
            f"{int(classes[name].get('slots') or 0):,}",
        ]
        for name in names
    ]
    hover = "%{customdata[2]} of %{customdata[3]} slots of %{customdata[0]} in %{customdata[1]} slabs"
    figure = go.Figure(
        [
            go.Bar(
                y=names,
                x=used,
                name="used",
                orientation="h",
                marker={"color": [nth_look(place, name).color for place, name in enumerate(names)]},
                text=[bytes_text(size) for size in used],
                textposition="auto",
                customdata=about,
                hovertemplate=hover + "<extra>used</extra>",
            ),
            go.Bar(
                y=names,
                x=free,
                name=FREE.label,
                orientation="h",
                marker={
                    "color": FREE.color,
                    "pattern": {"shape": "/", "fillmode": "overlay", "fgcolor": RULE, "size": 7, "solidity": 0.2},
                },
                text=[
                    percent_text(part / (part + size) if part + size else None, 0)
                    for size, part in zip(used, free, strict=True)
                ],
                textposition="auto",
                customdata=about,
                hovertemplate=hover + "<extra>free inside slabs</extra>",
            ),
        ]
    )
    figure.update_layout(
        barmode="stack",
        height=90 + 40 * max(1, len(names)),
        margin={"l": 8, "r": 28, "t": 30, "b": 8},
        legend={**LEGEND, "traceorder": "normal"},
    )
    largest = max((a + b for a, b in zip(used, free, strict=True)), default=0.0)
    step = 1.0
    while largest / step > 5:
        step *= 2
    ticks = [step * place for place in range(int(largest // step) + 2)]
    figure.update_xaxes(
        gridcolor=GRID, tickvals=ticks, ticktext=[bytes_text(tick).replace(".0 ", " ") for tick in ticks]
    )
    figure.update_yaxes(automargin=True)
    return figure


def unserved_classes(classes: Mapping[str, Mapping[str, Any]], free_bytes: float) -> list[str]:
    """Classes a new page of which would not fit without evicting: no free slot, and no room for a slab more.

    Largest slot first. `free_bytes`: the arena's, outside of slots that hold something.
    """
    full = []
    for name, row in classes.items():
        slabs = int(row.get("slabs") or 0)
        free_slots = int(row.get("slots") or 0) - int(row.get("used_slots") or 0)
        slab_bytes = _size(row, "slots") / slabs if slabs else float(row.get("slot_bytes") or 0)
        inside = sum(_size(other, "slots") - _size(other, "used_slots") for other in classes.values())
        if free_slots <= 0 and free_bytes - inside < slab_bytes:
            full.append(name)
    return sorted(full, key=lambda name: -float(classes[name].get("slot_bytes") or 0))


def _size(row: Mapping[str, Any], slots: str) -> float:
    return float(row.get(slots) or 0) * float(row.get("slot_bytes") or 0)
