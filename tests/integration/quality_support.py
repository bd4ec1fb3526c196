"""Judges of lossy codecs, and what the tests of codecs do with a prefix and ask of it."""

from __future__ import annotations

import torch
from engine_support import prompt

from engine.model.objects import ObjectKind
from engine.schedule.quality import Quality

KV = ObjectKind.COMPRESSED_KV
POSITIONS, VOCABULARY = 4, 24


class ReadOut:
    """A model reduced to its last step: fixed random projections of everything that was loaded, as logits."""

    def __init__(self):
        self.calls = []

    def judge(self, native, coded, tokens):
        self.calls.append((native, coded, tokens))
        right, wrong = self.logits(native), self.logits(coded)
        p, q = (torch.log_softmax(x, dim=1) for x in (right, wrong))
        kl = float((p.exp() * (p - q)).sum(1).mean())
        return Quality(logit_error=(right - wrong).abs().max(), kl=kl, positions=POSITIONS)

    def logits(self, state):
        luck = torch.Generator().manual_seed(7)
        found = torch.zeros(POSITIONS, VOCABULARY, dtype=torch.float64)
        for key in sorted(state.entries):
            values = state.entries[key].double().reshape(-1)
            weights = torch.randn(len(values), POSITIONS * VOCABULARY, generator=luck, dtype=torch.float64)
            found += (values @ weights).view(POSITIONS, VOCABULARY) / len(values) ** 0.5
        return found


class Fixed:
    """Says what it is told, and keeps what it was asked."""

    def __init__(self, logit_error=0.5, kl=0.01):
        self.quality = Quality(logit_error=logit_error, kl=kl, positions=1)
        self.calls = 0

    def judge(self, native, coded, tokens):
        self.calls += 1
        return self.quality


class Broken:
    def judge(self, native, coded, tokens):
        raise ValueError(f"the prompt was {tokens}")


def two_prefixes(rig, pages=(3, 2), tail=5):
    """Ids of a parent and its child, the tokens of the child with a tail, checkpoints at both ends."""
    tokens = prompt(sum(pages) * rig.page + tail)
    rig.commit(tokens, [pages[0] * rig.page, len(tokens)])
    parent, child = sorted(rig.ids, key=lambda key: rig.node(key).record.first_page)
    return parent, child, tokens


def compress(rig, prefix_id, codec="int8"):
    """The refusal's reason, or empty."""
    done = rig.command("compress", prefix_ids=[prefix_id], codec=codec).outcome
    return done["refused"][0]["reason"] if done["refused"] else ""


def meta_of(rig, prefix_id):
    holding = rig.node(prefix_id).record.spans[KV]
    return (holding.gpu or holding.host or holding.disk).meta


def judged(rig):
    return rig.engine._quality.tally.judged


WIDE = [("small-deepseek-v4", True), ("small-deepseek-v3.2", True)]
NARROW = [("small-llama", False), ("small-gpt-oss", False), ("small-qwen3-next", False)]
