"""How the cost of a request grows: long prompts, deep chains, wide trees, many namespaces.

    python -m benchmarks.growth [--rounds 200]

Books only (materialise=False), spans on. Of each kind of tree one small and one large: what a request costs should grow
with the pages it brings, and hardly with what is there already. Medians over `--rounds` requests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np

from benchmarks.bookkeeping import CountingProcessor
from benchmarks.harness import machine, print_table
from engine import CacheEngine, EngineConfig, preset

SPEC = "bench-full-swa"
PAGE = 64
Asked = tuple[float, float]
"""Seconds of one acquire and of one commit."""


@contextmanager
def an_engine() -> Iterator[CacheEngine]:
    config = EngineConfig(gpu_bytes=1 << 40, slab_bytes=1 << 22, materialise=False, codec="none", ring_capacity=1 << 18)
    with CacheEngine(preset(SPEC), config, span_processors=[CountingProcessor()]) as engine:
        yield engine


def tokens(pages: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 30, pages * PAGE).astype(np.int32)


def ask(engine: CacheEngine, prompt: np.ndarray, namespace: str = "default") -> Asked:
    start = time.perf_counter()
    lease = engine.acquire(prompt, namespace=namespace)
    acquired = time.perf_counter()
    engine.commit(prompt, None, lease=lease, checkpoints=lease.checkpoint_hints)
    done = time.perf_counter()
    lease.release()
    return acquired - start, done - acquired


def long_prompts(pages: int, rounds: int) -> Iterator[Asked]:
    """Fresh prompts of `pages` pages into an empty tree."""
    with an_engine() as engine:
        for seed in range(min(rounds, 40)):
            yield ask(engine, tokens(pages, seed))


def long_hits(pages: int, rounds: int) -> Iterator[Asked]:
    """A long shared prefix with four pages of one's own behind it."""
    with an_engine() as engine:
        shared = tokens(pages, 0)
        for seed in range(2):
            ask(engine, np.concatenate([shared, tokens(4, 1 + seed)]))
        for seed in range(rounds):
            yield ask(engine, np.concatenate([shared, tokens(4, 100 + seed)]))


def deep_chains(depth: int, rounds: int) -> Iterator[Asked]:
    """A conversation of `depth` turns of a page: a chain of as many prefixes, asked at its end."""
    with an_engine() as engine:
        everything = tokens(depth + rounds, 0)
        step = max(1, depth // 64)
        for turns in range(step, depth + 1, step):  # many turns a commit, a checkpoint each: the same chain, sooner
            marks = [t * PAGE for t in range(turns - step + 1, turns + 1)]
            engine.commit(everything[: turns * PAGE], None, checkpoints=marks)
        for number in range(rounds):
            yield ask(engine, everything[: (depth + number + 1) * PAGE])


def long_prefixes(pages: int, rounds: int) -> Iterator[Asked]:
    """What a chain is to be as cheap as: one prefix of `pages` pages, continued by a page."""
    with an_engine() as engine:
        shared = tokens(pages, 0)
        ask(engine, shared)
        for seed in range(rounds):
            yield ask(engine, np.concatenate([shared, tokens(1, 100 + seed)]))


def wide_trees(children: int, rounds: int) -> Iterator[Asked]:
    """`children` siblings behind one page."""
    with an_engine() as engine:
        head = tokens(1, 0)
        for seed in range(children):
            engine.commit(np.concatenate([head, tokens(1, 1 + seed)]), None)
        for number in range(rounds):
            yield ask(engine, np.concatenate([head, tokens(2, 10_000_000 + number)]))


def many_namespaces(count: int, rounds: int) -> Iterator[Asked]:
    """The same prompt in `count` namespaces."""
    with an_engine() as engine:
        prompt = tokens(2, 0)
        for number in range(count):
            engine.commit(prompt, None, namespace=f"tenant-{number}")
        for number in range(rounds):
            yield ask(engine, tokens(4, 1 + number), f"tenant-{number % count}")


KINDS: list[tuple[str, Callable[[int, int], Iterator[Asked]], int, int, Callable[[int], int]]] = [
    ("fresh prompt of n pages", long_prompts, 128, 2048, lambda n: n),
    ("n shared pages, 4 new", long_hits, 128, 2048, lambda _: 4),
    ("chain of n prefixes, 1 new page", deep_chains, 128, 10_000, lambda _: 1),
    ("one prefix of n pages, 1 new page", long_prefixes, 128, 10_000, lambda _: 1),
    ("n siblings, 2 new pages", wide_trees, 1_000, 100_000, lambda _: 2),
    ("n namespaces, 4 new pages", many_namespaces, 10, 10_000, lambda _: 4),
]
"""Name, requests, a small and a large n, and the new pages a request brings."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    a = parser.parse_args()
    rows = []
    for name, run, small, large, new_pages in KINDS:
        medians = []
        for n in (small, large):
            asked = list(run(n, a.rounds))
            medians.append([median(x) * 1e6 for x in zip(*asked, strict=True)])
            grown = None if n == small else sum(medians[1]) / sum(medians[0])
            more = None if n == small else large / small
            rows.append([name, n, *medians[-1], sum(medians[-1]) / new_pages(n), more, grown])
    columns = [
        ("request", str), ("n", _count), ("acquire us", _count), ("commit us", _count), ("us a new page", _tenths),
        ("n grew x", _count), ("cost grew x", _tenths),
    ]  # fmt: skip
    print_table(f"growth of a request's cost, {SPEC}, spans on; {machine()}", columns, rows)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _tenths(value: float) -> str:
    return f"{value:,.1f}"


if __name__ == "__main__":
    main()
