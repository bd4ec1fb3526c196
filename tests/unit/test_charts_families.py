"""The tree of families, the slabs and the fleet, by what they draw."""

import datetime as dt

import pytest

from controlplane.store.queries import EngineView
from controlplane.store.queries_families import Families, FamilyNode, Rest
from dashboard.charts import families, fleet, slabs
from dashboard.readings import EngineNow

NOW = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
GIB = 1 << 30


def node(name: str, parent: str | None = None, **more) -> FamilyNode:
    known = {
        "engine_id": "gpu-a", "namespace": "tenant-a", "state": "FULL", "pinned": False, "tokens": 64,
        "held_bytes": 100, "tokens_served": 10, "requests_served": 1,
    }  # fmt: skip
    return FamilyNode(prefix_id=name, parent_id=parent, **{**known, **more})


def flat(found: Families) -> dict[str, families.Cell]:
    return {cell.id: cell for cell in families._walk(families.cells(found))}


def test_a_cell_is_as_wide_as_all_it_holds():
    found = Families(shown=[node("a"), node("b", "a"), node("c", "a", held_bytes=300)], rest=[])
    cells = flat(found)
    assert cells["gpu-a/a"].own_bytes == 100
    assert cells["gpu-a/a"].all_bytes == 500
    figure = families.family_tree(found)
    assert dict(zip(figure.data[0].ids, figure.data[0]["values"], strict=True))["all"] == 500
    assert figure.data[0].branchvalues == "total"


def test_a_chain_of_one_child_each_is_one_cell_that_says_how_many():
    cells = flat(Families(shown=[node("a"), node("b", "a"), node("c", "b", state="COMPRESSED")], rest=[]))
    assert cells["gpu-a/a"].prefixes == 2
    assert cells["gpu-a/a"].label == "● a +1"
    assert cells["gpu-a/c"].parent == "gpu-a/a"  # another state is another cell


def test_a_chain_of_thousands_is_drawn_without_recursion():
    chain = [node("0")] + [node(str(i), str(i - 1), state="FULL" if i % 2 else "COMPRESSED") for i in range(1, 700)]
    assert len(flat(Families(shown=chain, rest=[]))) > 690


def test_what_is_not_shown_is_one_cell_a_namespace_and_nothing_is_lost():
    found = Families(shown=[node("a")], rest=[Rest("gpu-a", "tenant-a", 7, 50, 5), Rest("gpu-b", "evals", 2, 20, 0)])
    cells = flat(found)
    assert cells["all"].all_bytes == 170
    assert cells["all"].all_prefixes == 10
    assert cells["all/gpu-a/tenant-a/rest"].label == "7 smaller prefixes"
    assert cells["all/gpu-b"].label == "gpu-b"


def test_a_parent_that_is_not_known_makes_a_root():
    assert flat(Families(shown=[node("b", "gone")], rest=[]))["gpu-a/b"].parent == "all/gpu-a/tenant-a"


def test_a_state_has_a_symbol_in_the_label_beside_its_colour():
    found = Families(shown=[node("a", state="QUARANTINED"), node("b", pinned=True)], rest=[])
    figure = families.family_tree(found, families.BY_STATE)
    labels = set(figure.data[0].labels)
    assert {"✖ a", "● b ◉"} <= labels


def test_the_colour_bar_is_short_ticks_in_a_thin_bar_below_the_tree():
    found = Families(shown=[node("a", tokens_served=10**12), node("b", tokens_served=3)], rest=[])
    bar = families.family_tree(found).data[0].marker.colorbar
    assert list(bar.ticktext) == ["0", "1k", "1M", "1G", "1T"]
    assert list(bar.tickvals) == [0, 3, 6, 9, 12]
    assert (bar.orientation, bar.thickness) == ("h", 8)
    few = Families(shown=[node("a", tokens_served=90)], rest=[])
    assert list(families.family_tree(few).data[0].marker.colorbar.ticktext) == ["0", "10", "100"]


CLASSES = {
    "history": {"slot_bytes": 4, "slabs": 2, "used_slots": 6, "slots": 8},
    "window": {"slot_bytes": 2, "slabs": 1, "used_slots": 4, "slots": 4},
}


def test_slabs_are_used_and_free_bytes_by_class():
    used, free = slabs.slab_map(CLASSES).data
    assert dict(zip(used.y, used.x, strict=True)) == {"window": 8, "history": 24}
    assert dict(zip(free.y, free.x, strict=True)) == {"window": 0, "history": 8}
    assert free.marker.pattern.shape == "/"


def test_a_class_is_not_served_with_no_free_slot_and_no_room_for_a_slab():
    assert slabs.unserved_classes(CLASSES, free_bytes=8 + 8) == []  # 8 free inside slabs, 8 for one more of window's
    assert slabs.unserved_classes(CLASSES, free_bytes=8 + 7) == ["window"]


def engine(number: int, **more) -> EngineNow:
    known = {
        "boot_id": "b", "model": "m", "fingerprint": "f", "page_tokens": 64, "labels": {}, "registered_at": NOW,
        "last_seen_at": NOW, "last_seen_seconds": 0.0, "health": "live", "observed_revision": 3, "desired_revision": 3,
        "sync": "in_sync", "observed": {"mode": "normal"}, "stats": {}, "snapshot_wanted": False, "open_gaps": 0,
        "group": "chat" if number % 2 else "batch",
    }  # fmt: skip
    view = EngineView(id=f"gpu-{number:03}", **{**known, **more})
    return EngineNow(view=view, requests_lately=1, prompt_tokens_lately=100, usable_tokens_lately=number)


def test_every_engine_of_a_hundred_has_a_cell_of_its_own():
    figure = fleet.fleet_map([engine(number, health="stale" if number % 9 == 0 else "live") for number in range(100)])
    places = [place for trace in figure.data for place in zip(trace.x, trace.y, strict=True)]
    assert len(set(places)) == 100
    assert {trace.name for trace in figure.data} == {"● live: 88", "◔ stale: 12"}
    assert list(figure.layout.yaxis.ticktext) == ["batch", "chat"]


@pytest.mark.parametrize("by", [fleet.BY_HEALTH, fleet.BY_SYNC, fleet.BY_MODE])
def test_a_cells_symbol_says_what_its_colour_says(by):
    odd = engine(1, health="unreachable", sync="refused", observed={"mode": "bypass"})
    figure = fleet.fleet_map([engine(2), odd], by)
    assert len({trace.text[0] for trace in figure.data}) == len({trace.marker.color for trace in figure.data}) == 2


def test_hit_rates_stand_lowest_first():
    figure = fleet.hit_rates([engine(30), engine(10), engine(20)])
    assert list(figure.data[0].y) == [0.1, 0.2, 0.3]


def test_tiers_of_many_engines_do_not_hide_each_other():
    figure = fleet.tier_fill_of(
        [engine(number) for number in range(50)], lambda _, tier: 0.5 if tier == "gpu" else None
    )
    assert len(figure.data) == 1
    assert len(set(figure.data[0].x)) == 50
