"""Eight threads and every command at once: it ends, the books balance, and not one byte was wrong."""

from __future__ import annotations

import random
import sys
import threading
import time

import pytest
from engine_support import Rig, fork, prompt

from engine.clock import SystemClock
from engine.errors import EngineError, LeaseExpired, StalePointer

WORKERS, REQUESTS = 8, 350


class Traffic:
    """Workers that serve branching prompts, and one that steers; the first failure stops all."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.failures: list[BaseException] = []
        self.done = threading.Event()
        self.served = self.hits = self.checked = 0
        self.lock = threading.Lock()
        trunk = prompt(5 * rig.page)
        self.prompts = [fork(trunk, 30 * i % 190, 200 + 37 * i % 220, i) for i in range(40)]

    def run(self, *beside) -> None:
        """Serve everything; `beside` runs as long as that takes."""
        workers = [threading.Thread(target=self.guard, args=(self.serve, i)) for i in range(WORKERS)]
        others = [threading.Thread(target=self.guard, args=(work, 99)) for work in (self.steer, *beside)]
        for thread in (*workers, *others):
            thread.start()
        for thread in workers:
            thread.join()
        self.done.set()
        for thread in others:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def check(self, _):
        """The books, over and over, for as long as the others work."""
        while not self.done.is_set() and not self.failures:
            found = self.rig.engine.check()
            assert not found, found
            self.checked += 1

    def guard(self, work, seed):
        try:
            work(random.Random(seed))
        except BaseException as error:  # the main thread raises it
            self.failures.append(error)

    def serve(self, luck):
        for _ in range(REQUESTS):
            if self.failures:
                return
            tokens = self.prompts[min(int(luck.expovariate(0.1)), len(self.prompts) - 1)]
            self.request(tokens, luck.choice(("default", "other")), luck)
            with self.lock:
                self.served += 1

    def request(self, tokens, namespace, luck):
        engine, model = self.rig.engine, self.rig.model
        with engine.acquire(tokens, namespace=namespace, deadline_s=luck.choice((0.0, 0.05, 1.0))) as lease:
            start = lease.resume_tokens // self.rig.page * self.rig.page
            if lease.usable_tokens:
                try:
                    found = self.rig.lossy.verify(lease.load(), tokens[: lease.usable_tokens])
                except (LeaseExpired, StalePointer):
                    start = 0
                else:
                    engine.report_verification(found.bytes_checked, found.wrong_bytes)
                    assert found.ok, found.first_wrong
                    self.hits += 1
            at = sorted({b for b in lease.checkpoint_hints if start <= b <= len(tokens)} | {len(tokens)})
            engine.commit(tokens, model.prefill(tokens, start, at), lease=lease)

    def steer(self, luck):
        while not self.done.is_set() and not self.failures:
            ids = self.rig.ids
            some = luck.sample(ids, min(len(ids), 4))
            kind, arguments = luck.choice(
                (
                    ("evict", {"prefix_ids": some[:1], "descendants": True}),
                    ("compress", {"prefix_ids": some, "codec": luck.choice(("int8", "lossless"))}),
                    ("offload", {"prefix_ids": some, "tier": luck.choice(("host", "disk"))}),
                    ("warm", {"prefix_ids": some}),
                    ("pin", {"prefix_ids": some[:1], "ttl_s": 0.05}),
                    ("compact", {}),
                    ("scrub", {"max_bytes": 100_000}),
                )
            )
            self.rig.command(kind, **arguments)
            self.rig.engine.tick()


@pytest.fixture(autouse=True)
def switch_often():
    """Threads change places a hundred times more often than usual: races show that otherwise need luck."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr("engine.index.radix.STRETCH_NODES", 3)  # paths here have few prefixes


@pytest.fixture
def real_time(make_rig, tmp_path):
    def make(name, **config):
        settings = {
            "gpu_bytes": 24 * (32 << 10),
            "host_bytes": 10 * (32 << 10),
            "disk_bytes": 1 << 20,
            "lease_s": 0.05,
            "queue_bound": 4,
            **config,
        }
        return make_rig(name, clock=SystemClock(), data_dir=tmp_path, **settings)

    return make


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["small-deepseek-v4", "small-gemma-3"])
def test_traffic_and_steering_at_once_serve_no_wrong_byte(real_time, name):
    rig = real_time(name)
    traffic = Traffic(rig)
    traffic.run()
    rig.engine._queues.close()  # late restores end here
    assert traffic.served == WORKERS * REQUESTS
    assert traffic.hits
    stats = rig.engine.stats()
    assert stats["wrong_bytes"] == 0
    assert stats["verified_bytes"] > 0
    assert "FULL_RESTORE" not in stats["prefixes"]
    assert [n.record.prefix_id for n in rig.ledger.nodes.values() if n.record.busy or n.record.leases] == []
    rig.assert_clean()


@pytest.mark.timeout(300)
def test_the_books_balance_at_any_moment_of_traffic_and_steering(real_time):
    rig = real_time("small-deepseek-v4")
    traffic = Traffic(rig)
    traffic.run(traffic.check)
    assert traffic.served == WORKERS * REQUESTS
    assert traffic.checked > 50
    counts = rig.engine.counters()
    assert counts.recoveries
    assert counts.evictions


@pytest.mark.timeout(120)
def test_every_span_of_many_threads_is_counted_and_arrives(real_time):
    rig = real_time("small-deepseek-v4", ring_capacity=1 << 20)
    Traffic(rig).run()
    rig.engine._queues.close()
    rig.engine.flush_telemetry()
    tally = rig.engine.spans_recorded()
    by_name: dict[str, int] = {}
    for span in rig.log.spans:
        by_name[span.name] = by_name.get(span.name, 0) + 1
    assert tally.by_name == by_name
    assert tally.recorded == len(rig.log.spans)
    assert rig.engine.counters().transitions == by_name["kvcache.transition"]


@pytest.mark.timeout(60)
def test_closing_in_the_middle_of_traffic_ends_and_leaves_a_folder_that_serves(real_time, make_rig, tmp_path):
    rig = real_time("small-deepseek-v4", lease_s=60)
    traffic = Traffic(rig)
    closed = threading.Event()

    def serve(luck):
        while not closed.is_set():
            try:
                traffic.request(luck.choice(traffic.prompts), "default", luck)
            except EngineError:
                assert rig.engine._closed
                return

    threads = [threading.Thread(target=traffic.guard, args=(serve, i)) for i in range(4)]
    for thread in threads:
        thread.start()
    while rig.engine.counters().requests < 100 and not traffic.failures:
        time.sleep(0.01)
    rig.engine.close()
    for thread in threads:
        thread.join(30)
    closed.set()
    assert traffic.failures == []
    again = real_time("small-deepseek-v4")
    for tokens in traffic.prompts:
        assert again.look(tokens).wrong_bytes == 0
    again.assert_clean()
