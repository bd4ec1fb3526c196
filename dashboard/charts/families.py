"""The tree of prefix families as an icicle: width is bytes, colour is what they gave for them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import plotly.graph_objects as go

from controlplane.store.queries_families import Families, FamilyNode
from dashboard.theme import GREY, RULE, STATES, state_text
from dashboard.wording import bytes_text, count_text, plural, short_count_text, short_id

ROOT = "all"
BY_SERVED, BY_STATE = "tokens served", "state"
SCALE = "Cividis"  # made for colour-blind eyes; the number is in the hover and the label has the symbol of the state
MOST_TICKS = 5


@dataclass(slots=True)
class Cell:
    """One rectangle. `own_bytes` and `own_served` are without what is below."""

    id: str
    parent: str
    label: str
    own_bytes: int
    own_served: int
    prefixes: int
    state: str = ""
    detail: str = ""
    children: list[Cell] = field(default_factory=list)

    @property
    def all_bytes(self) -> int:
        """With everything below."""
        return self.own_bytes + sum(child.all_bytes for child in self.children)

    @property
    def all_served(self) -> int:
        """With everything below."""
        return self.own_served + sum(child.all_served for child in self.children)

    @property
    def all_prefixes(self) -> int:
        """With everything below."""
        return self.prefixes + sum(child.all_prefixes for child in self.children)


def cells(found: Families) -> Cell:
    """The tree: everything, engines (where there are several), namespaces, families, and the rest as one cell each."""
    nodes = {(node.engine_id, node.prefix_id): node for node in found.shown}
    below: dict[tuple[str, str], list[FamilyNode]] = defaultdict(list)
    tops: dict[tuple[str, str], list[FamilyNode]] = defaultdict(list)
    for node in found.shown:
        above = (node.engine_id, node.parent_id or "")
        if above in nodes:
            below[above].append(node)
        else:
            tops[node.engine_id, node.namespace].append(node)
    places = {*tops, *((rest.engine_id, rest.namespace) for rest in found.rest)}
    engines = sorted({engine for engine, _ in places})
    root = Cell(id=ROOT, parent="", label="all prefixes", own_bytes=0, own_served=0, prefixes=0)
    homes = dict.fromkeys(engines, root)
    if len(engines) > 1:
        homes = {engine: _group(root, engine, engine) for engine in engines}
    spaces = {}
    for engine, namespace in sorted(places):
        spaces[engine, namespace] = _group(homes[engine], f"{engine}/{namespace}", namespace)
    for place, roots in tops.items():
        for node in roots:
            _grow(spaces[place], node, below)
    for rest in found.rest:
        space = spaces[rest.engine_id, rest.namespace]
        label = plural(rest.prefixes, "smaller prefix", "smaller prefixes")
        space.children.append(
            Cell(f"{space.id}/rest", space.id, label, rest.held_bytes, rest.tokens_served, rest.prefixes)
        )
    return root


def _group(above: Cell, identity: str, label: str) -> Cell:
    cell = Cell(id=f"{ROOT}/{identity}", parent=above.id, label=label, own_bytes=0, own_served=0, prefixes=0)
    above.children.append(cell)
    return cell


def _grow(above: Cell, start: FamilyNode, below: dict[tuple[str, str], list[FamilyNode]]) -> None:
    """A prefix and all below it. A chain, each with one child of the same state, is one cell."""
    waiting = [(above, start)]
    while waiting:
        home, node = waiting.pop()
        chain = [node]
        children = below.get((node.engine_id, node.prefix_id), [])
        while len(children) == 1 and children[0].state == node.state:
            chain.append(children[0])
            children = below.get((children[0].engine_id, children[0].prefix_id), [])
        cell = _of_chain(home, chain)
        home.children.append(cell)
        waiting += [(cell, child) for child in children]


def _of_chain(home: Cell, chain: list[FamilyNode]) -> Cell:
    first, last = chain[0], chain[-1]
    more = f" +{len(chain) - 1}" if len(chain) > 1 else ""
    pinned = " ◉" if any(node.pinned for node in chain) else ""
    symbol = state_text(first.state)[0]
    return Cell(
        id=f"{first.engine_id}/{first.prefix_id}",
        parent=home.id,
        label=f"{symbol} {short_id(first.prefix_id, 8)}{more}{pinned}",
        own_bytes=sum(node.held_bytes for node in chain),
        own_served=sum(node.tokens_served for node in chain),
        prefixes=len(chain),
        state=first.state,
        detail=f"{state_text(first.state)}, {count_text(last.tokens)} tokens to its end"
        + (f"<br>a chain of {len(chain)} down to {short_id(last.prefix_id, 8)}" if more else "")
        + f"<br>{first.prefix_id}",
    )


def family_tree(found: Families, color_by: str = BY_SERVED) -> go.Figure:
    """The icicle. A cell is as wide as all it holds; click one to see it from there."""
    root = cells(found)
    flat = list(_walk(root))
    marker: dict[str, object] = {"line": {"width": 1, "color": RULE}}
    if color_by == BY_STATE:
        marker["colors"] = [STATES[cell.state].color if cell.state in STATES else GREY for cell in flat]
    else:
        marker |= {
            "colors": [math.log10(1 + cell.all_served) for cell in flat],
            "colorscale": SCALE,
            "cmin": 0.0,
            "cmax": math.log10(1 + root.all_served) or 1.0,
            # Below and thin: beside the tree it would take a third of a phone's width.
            "colorbar": {
                "orientation": "h",
                "thickness": 8,
                "thicknessmode": "pixels",
                "len": 1.0,
                "x": 0.0,
                "xanchor": "left",
                "y": 0.0,
                "yanchor": "top",
                "ypad": 6,
                "xpad": 0,
                **_log_ticks(flat),
            },
        }
    figure = go.Figure(
        go.Icicle(
            ids=[cell.id for cell in flat],
            parents=[cell.parent for cell in flat],
            labels=[cell.label for cell in flat],
            values=[cell.all_bytes for cell in flat],
            branchvalues="total",
            marker=marker,
            customdata=[
                [bytes_text(cell.all_bytes), count_text(cell.all_served), count_text(cell.all_prefixes), cell.detail]
                for cell in flat
            ],
            texttemplate="%{label}<br>%{customdata[0]}",
            hovertemplate="<b>%{label}</b><br>%{customdata[0]} held by %{customdata[2]} prefixes"
            "<br>%{customdata[1]} tokens served<br>%{customdata[3]}<extra></extra>",
            tiling={"orientation": "v", "pad": 1},
            pathbar={"visible": True, "thickness": 22},
            maxdepth=6,
        )
    )
    figure.update_layout(height=420, margin={"l": 4, "r": 4, "t": 26, "b": 4}, uirevision="keep")
    return figure


def _walk(cell: Cell) -> list[Cell]:
    found, waiting = [], [cell]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += one.children
    return found


def _log_ticks(flat: list[Cell]) -> dict[str, object]:
    """Short, and few enough to stand beside each other on a phone."""
    highest = math.ceil(math.log10(1 + max((cell.all_served for cell in flat), default=0)))
    powers = range(0, highest + 1, max(1, math.ceil(highest / MOST_TICKS)))
    return {"tickvals": list(powers), "ticktext": [short_count_text(10**power) if power else "0" for power in powers]}
