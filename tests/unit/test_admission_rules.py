"""The rules of admission, eviction and shares as plain values: no engine, no clock, the same for a simulation."""

from __future__ import annotations

import pytest

from engine import EngineConfig
from engine.consistency.admission import AdmitAll, FirstPages, Offer, SecondTouch, admission_rule
from engine.consistency.eviction import (
    Candidate,
    CostAware,
    OldestFirst,
    PrefillFlops,
    eviction_rule,
)
from engine.consistency.namespaces import NamespaceBooks, NamespaceCap, Shares, parse_namespace_caps
from engine.consistency.orders import LeastRecentlyUsed
from engine.errors import ConfigError


def offer(keys, held=0, request=1):
    def asked():
        assert keys is not None, "this rule has no use for keys"
        return keys

    return Offer(held + len(keys or ()), held, request, asked)


# -- admission --------------------------------------------------------------------------------------------------------


def test_all_admits_all_and_asks_for_no_digest():
    assert AdmitAll().offer(Offer(7, 3, 1, lambda: pytest.fail("asked"))) == (7, "")


def test_first_pages_cuts_a_prompt_and_never_what_is_held_already():
    rule = FirstPages(4)
    assert rule.offer(Offer(9, 0, 1, list)) == (4, "past_first_pages")
    assert rule.offer(Offer(9, 6, 1, list)) == (6, "past_first_pages")
    assert rule.offer(Offer(3, 0, 1, list)) == (3, "")
    assert (rule.name, rule.foresee(Offer(9, 0, 1, list)).pages) == ("first_pages:4", 4)


def test_second_touch_admits_what_another_request_brought_before_and_nothing_past_it():
    rule = SecondTouch(100)
    assert rule.offer(offer([1, 2, 3], request=1)) == (0, "second_touch")
    assert rule.offer(offer([1, 2, 3, 4, 5], request=2)) == (3, "second_touch")
    assert rule.offer(offer([4, 5], held=3, request=3)) == (5, "")


def test_a_prompt_and_its_own_answer_are_one_touch():
    rule = SecondTouch(100)
    rule.offer(offer([1, 2], request=1))
    assert rule.offer(offer([1, 2, 3], request=1)) == (0, "second_touch")
    assert rule.offer(offer([1, 2, 3], request=2)) == (3, "")


def test_to_foresee_is_not_to_touch():
    rule = SecondTouch(100)
    assert rule.foresee(offer([1, 2], request=-1)).pages == 0
    assert rule.foresee(offer([1, 2], request=-1)).pages == 0
    rule.offer(offer([1], request=1))
    assert rule.foresee(offer([1, 2], request=-1)) == (1, "second_touch")


def test_the_ghost_list_is_bounded_and_forgets_tails_before_heads():
    rule = SecondTouch(3)
    rule.offer(offer([1, 2, 3, 4, 5], request=1))
    assert len(rule) == 3
    assert rule.foresee(offer([1, 2, 3, 4, 5], request=2)).pages == 3
    rule.resize(1)
    assert (len(rule), rule.foresee(offer([1, 2, 3], request=2)).pages) == (1, 1)


@pytest.mark.parametrize("text", ["", "some", "first_pages", "first_pages:", "first_pages:0", "first_pages:-1"])
def test_a_rule_that_there_is_not_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="admission_rule is"):
        admission_rule(text, 10)
    with pytest.raises(ConfigError, match="admission_rule is"):
        EngineConfig(admission_rule=text)


# -- eviction ---------------------------------------------------------------------------------------------------------


def test_lru_takes_the_oldest_of_those_it_is_shown():
    assert OldestFirst().choose([Candidate(5, 0, 64, 1), Candidate(2, 0, 64, 1), Candidate(9, 0, 64, 1)]) == 1


def test_cost_aware_keeps_what_saves_more_flops_a_byte():
    rule = CostAware(flops=PrefillFlops(a_token=10.0))
    # A window of fixed size makes short prefixes dear by the byte.
    found = [Candidate(1, 0, 6400, 2000), Candidate(2, 0, 64, 1000), Candidate(9, 0, 640, 1100)]
    assert rule.choose(found) == 1
    assert CostAware(flops=PrefillFlops(a_token=10.0), alpha=0.0).choose(found) == 0


def test_cost_aware_gives_deep_pages_what_their_attention_costs():
    flops = PrefillFlops(a_token=1.0, a_pair=0.5)
    assert flops.of(0, 4) == 4 + 0.5 * 8
    assert flops.of(4, 8) == 4 + 0.5 * 24
    deep, shallow, young = Candidate(1, 6400, 6464, 100), Candidate(2, 0, 64, 100), Candidate(9, 64, 128, 100)
    assert CostAware(flops=flops).choose([deep, shallow, young]) == 1


def test_of_equal_scores_the_oldest_leaves_and_old_age_wins_in_the_end():
    rule = CostAware(flops=PrefillFlops(a_token=1.0))
    assert rule.choose([Candidate(3, 0, 64, 10), Candidate(1, 64, 128, 10), Candidate(2, 0, 64, 10)]) == 1
    assert rule.choose([Candidate(1, 0, 64, 10)]) == 0


def test_an_eviction_that_there_is_not_is_refused_by_name():
    with pytest.raises(ConfigError, match="eviction is 'fifo'; known: lru, cost_aware"):
        eviction_rule("fifo", PrefillFlops(a_token=1.0))
    with pytest.raises(ConfigError, match="eviction is"):
        EngineConfig(eviction="fifo")


# -- lanes ------------------------------------------------------------------------------------------------------------


def lanes():
    order = LeastRecentlyUsed(lambda key: key[0])
    for key in ("a1", "b1", "c1", "a2", "b2", "c2"):
        order.touch(key)
    return order


def test_lanes_are_asked_alone_or_together_and_splitting_them_keeps_the_order():
    order = lanes()
    before = list(order.oldest(lambda key: True))
    order.separate(["a", "b"])
    assert list(order.oldest(lambda key: True)) == before
    assert list(order.oldest(lambda key: True, lane="b")) == ["b1", "b2"]
    assert list(order.oldest(lambda key: True, lane="")) == ["c1", "c2"]
    order.touch("b1")
    assert list(order.oldest(lambda key: True)) == ["a1", "c1", "a2", "b2", "c2", "b1"]
    assert order.touched("b1") > order.touched("c2")
    order.separate([])
    assert list(order.oldest(lambda key: True)) == ["a1", "c1", "a2", "b2", "c2", "b1"]
    assert (len(order), "b1" in order, order.lanes) == (6, True, ("",))


# -- shares -----------------------------------------------------------------------------------------------------------


def shares(**guaranteed):
    return Shares({name: NamespaceCap(guaranteed_bytes=n) for name, n in guaranteed.items()})


@pytest.mark.parametrize(
    ("held", "owner", "n_bytes", "wanting", "may"),
    [
        ({"a": 50, "b": 10}, "a", 10, "b", True),  # over its guarantee
        ({"a": 45, "b": 10}, "a", 10, "b", True),  # it would fall under, but nobody else is above
        ({"a": 45, "b": 31}, "a", 10, "b", False),  # the one that wants is above its own
        ({"a": 45, "c": 1}, "a", 10, "b", False),  # somebody without any guarantee holds something
        ({"a": 45, "b": 31}, "a", 10, "a", True),  # its own
        ({"a": 45, "b": 31, "c": 5}, "c", 5, "b", True),  # nothing is guaranteed to it
    ],
)
def test_who_may_give_room_to_whom(held, owner, n_bytes, wanting, may):
    rule = shares(a=40, b=30)
    above = rule.above(held, sum(held.values()))
    assert rule.may_give(owner, n_bytes, wanting, held, above) is may


def test_a_maximum_counts_what_is_on_its_way():
    books = NamespaceBooks(Shares({"a": NamespaceCap(max_bytes=100, max_prefixes=2)}))
    books.add_bytes("a", 70)
    books.add_prefixes("a", 2)
    short = books.shortfall("a", 1, 50)
    assert (short.prefixes, short.gpu_bytes) == (1, 20)
    assert books.shortfall("b", 9, 999).none
    assert books.shares.refusal("a", 1, 101) == "over_namespace_cap"
    assert books.shares.refusal("a", 2, 100) == ""


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"a": {"guaranteed_bytes": 60}, "b": {"guaranteed_bytes": 50}}, "guarantee 110 bytes in all"),
        ({"a": {"guaranteed_bytes": 5, "max_bytes": 4}}, "'a': guaranteed_bytes 5 is more than max_bytes 4"),
        ({"a": {"max_bytes": 0}}, "max_bytes is 0"),
        ({"a": {"max_bytes": True}}, "max_bytes is True"),
        ({"a": {"max": 1}}, "unknown keys: max"),
        ({"a": {}}, "sets nothing"),
        ({"a": 5}, "'a': 5"),
        ({"": {"max_bytes": 1}}, "it must be a namespace"),
        ([], "must map names"),
        ({str(i): {"max_bytes": 1} for i in range(257)}, "at most 256"),
    ],
)
def test_caps_that_cannot_be_kept_are_refused_by_name(document, said):
    with pytest.raises(ConfigError, match=said):
        parse_namespace_caps(document, 100)


def test_a_configuration_takes_caps_as_plain_dicts_and_checks_them_against_its_tier():
    config = EngineConfig(namespace_caps={"a": {"max_prefixes": 3}})
    assert config.namespace_caps == {"a": NamespaceCap(max_prefixes=3)}
    with pytest.raises(ConfigError, match="guarantee"):
        EngineConfig(gpu_bytes=1000, namespace_caps={"a": {"guaranteed_bytes": 1001}})
    with pytest.raises(ConfigError, match="guarantee"):
        EngineConfig(cap_gpu_bytes=900, namespace_caps={"a": {"guaranteed_bytes": 1000}})
    with pytest.raises(ConfigError, match="pin_budget_ratio"):
        EngineConfig(pin_budget_ratio=0.0)
