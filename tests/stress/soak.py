"""A long run of everything at once: requests under leases, commands, changing caps, restarts, and every fault there is.

`make stress`, or `python tests/stress/soak.py --requests 200000`. The work stops at every pause: the engine must be
clean then, no page, file or lease may be left over, and memory must not grow. Every byte that is served is compared.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from engine_support import Rig, fork, poison_freed_slots, prompt  # noqa: E402

from engine import preset  # noqa: E402
from engine.clock import SystemClock  # noqa: E402
from engine.errors import CorruptObject, EngineError, LeaseExpired, OutOfMemory, StalePointer  # noqa: E402
from engine.integrations.synthetic import SyntheticModel, use_one_thread  # noqa: E402
from engine.memory.codec import LOSSY  # noqa: E402
from engine.memory.faults import At, Fault, Faults, What  # noqa: E402
from engine.schedule.queues import QueueFull  # noqa: E402

SLAB = 32 << 10
WORKERS = 4
PROMPTS = 60
REFUSED = (LeaseExpired, StalePointer, CorruptObject, OutOfMemory)
"""What a load may raise instead of a byte that could be wrong."""
GROWTH_RATIO = 0.05
GROWTH_BYTES = 8 << 20
"""Memory is flat when the last quarter's median is above the second quarter's by no more than the larger of these."""


def _often(what: What, chance: float, *places: At, seconds: float = 0.0) -> list[Fault]:
    return [Fault(what=what, at=at, chance=chance, times=None, seconds=seconds) for at in places]


PLAN = (
    *_often(What.SHORT, 0.02, At.READ, At.WRITE),
    *_often(What.IO_ERROR, 0.003, At.OPEN, At.READ, At.WRITE, At.SYNC, At.RENAME, At.SYNC_FOLDER, At.UNLINK),
    *_often(What.NO_SPACE, 0.001, At.OPEN, At.WRITE, At.SYNC, At.RENAME, At.SYNC_FOLDER),
    *_often(What.NO_FILES, 0.001, At.OPEN),
    *_often(What.BIT_FLIP, 0.001, At.READ, At.WRITE),
    *_often(What.BIT_FLIP, 0.0002, At.GPU_READ, At.GPU_WRITE, At.HOST_READ, At.HOST_WRITE),
    *_often(What.TRUNCATE, 0.0005, At.READ, At.WRITE),
    *_often(What.MISSING, 0.0003, At.OPEN),
    *_often(What.FOREIGN, 0.0003, At.OPEN),
    *_often(What.SLOW, 0.001, At.READ, At.SYNC, seconds=0.002),
    *_often(What.HANG, 0.0001, At.READ, At.WRITE, At.UNLINK),
    *_often(What.OUT_OF_MEMORY, 0.0003, At.READ, At.GPU_TAKE, At.GPU_READ, At.GPU_WRITE, At.HOST_TAKE, At.HOST_WRITE),
    *_often(What.DEATH, 0.001, At.WORKER),
    *_often(What.JUMP, 0.0001, At.WALL_CLOCK, seconds=-3600.0),
    *_often(What.JUMP, 0.00001, At.MONOTONIC_CLOCK, seconds=30.0),
)


@dataclass
class Report:
    """What a run did and found."""

    requests: int = 0
    hits: int = 0
    verified_bytes: int = 0
    wrong: list[str] = field(default_factory=list)
    refused_loads: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    pauses: int = 0
    restarts: int = 0
    adopted: int = 0
    quarantined: int = 0
    rss_bytes: list[int] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def quarters(self) -> tuple[float, float]:
        """Median memory of the second quarter and of the last."""
        n = max(1, len(self.rss_bytes) // 4)
        return statistics.median(self.rss_bytes[n : 2 * n] or self.rss_bytes), statistics.median(self.rss_bytes[-n:])

    @property
    def flat(self) -> bool:
        before, after = self.quarters()
        return after - before <= max(GROWTH_BYTES, GROWTH_RATIO * before)

    def summary(self) -> str:
        before, after = (figure / (1 << 20) for figure in self.quarters())
        rate = self.requests / max(self.seconds, 1e-9)
        lines = [
            f"{self.requests:,} requests in {self.seconds:,.0f} s ({rate:,.0f} a second), {self.hits:,} hits",
            f"{self.verified_bytes / 1e9:,.2f} GB compared, {len(self.wrong)} wrong answers",
            f"loads refused: {_list(self.refused_loads)}",
            f"commits: {_list(self.commits)}",
            f"commands: {_list(self.commands)}",
            f"{sum(self.fired.values()):,} faults: {_list(self.fired)}",
            f"{self.pauses} pauses, {self.restarts} restarts with {self.adopted:,} prefixes adopted, "
            f"{self.quarantined:,} objects found damaged",
            f"{len(self.violations)} violations, pages, files or leases left over",
            f"memory: {before:,.1f} MiB in the second quarter, {after:,.1f} MiB in the last "
            f"(allowed: {max(GROWTH_BYTES / (1 << 20), GROWTH_RATIO * before):,.1f} more): "
            f"{'flat' if self.flat else 'GROWING'}",
        ]
        return "\n".join([*lines, *self.wrong[:5], *self.violations[:10]])


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.most_common()) or "none"


class Remembering(SyntheticModel):
    """The same few hundred states are asked for again and again: each is computed once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._states = lru_cache(256)(self._prefill)
        self._truths = lru_cache(256)(self._truth)

    def prefill(self, tokens, start_tokens, checkpoints=()):
        return self._states(tokens.tobytes(), start_tokens, tuple(checkpoints))

    def truth(self, tokens, boundary, replay=0):
        return self._truths(tokens[:boundary].tobytes(), boundary, replay)

    def _prefill(self, tokens: bytes, start_tokens: int, checkpoints: tuple[int, ...]):
        return super().prefill(np.frombuffer(tokens, dtype=np.int32).copy(), start_tokens, checkpoints)

    def _truth(self, tokens: bytes, boundary: int, replay: int):
        return super().truth(np.frombuffer(tokens, dtype=np.int32).copy(), boundary, replay)


class Soak:
    """Rounds of work by several threads, with a pause and an inspection after each."""

    def __init__(self, folder: Path, *, seed: int = 0, faults: Faults | None = None) -> None:
        self.folder = folder
        self.report = Report()
        self.faults = faults or Faults(*PLAN, seed=seed)
        self.luck = random.Random(seed)
        self.failures: list[BaseException] = []
        self.lock = threading.Lock()
        self.faults.disarm()
        spec = preset("small-deepseek-v4")
        self.model, self.judge = Remembering(spec), Remembering(spec, codec=LOSSY)
        self.rig = self.open()
        trunk = prompt(5 * self.rig.page)
        self.prompts = [fork(trunk, 30 * i % 190, 200 + 37 * i % 220, i) for i in range(PROMPTS)]

    def open(self) -> Rig:
        rig = Rig(
            clock=SystemClock(), data_dir=self.folder, faults=self.faults, gpu_bytes=18 * SLAB, host_bytes=8 * SLAB,
            disk_bytes=1 << 20, slab_bytes=SLAB, lease_s=0.5, queue_bound=4, restore_timeout_s=0.5, persist_s=2.0,
            ring_capacity=8192,
        )  # fmt: skip
        rig.log.spans = _Nothing()  # every span is made, and none is kept: that would be growth of ours
        self.report.adopted += rig.engine.adoption.prefixes
        return rig

    def run(self, requests: int, *, pause_every: int, restart_every: int, progress=lambda _: None) -> Report:
        started = time.perf_counter()
        while self.report.requests < requests and not self.failures:
            self.round(min(pause_every, requests - self.report.requests))
            self.inspect()
            if self.report.pauses % restart_every == 0:
                self.restart()
            self.report.rss_bytes.append(_rss_bytes())
            self.report.seconds = time.perf_counter() - started
            progress(self.report)
        self.rig.engine.close()
        self.report.fired = Counter({f"{what}@{at}": n for (what, at), n in self.faults.fired.items()})
        if self.failures:
            raise self.failures[0]
        return self.report

    # -- work ---------------------------------------------------------------------------------------------------------

    def round(self, requests: int) -> None:
        self.faults.arm()
        over = threading.Event()
        share = [requests // WORKERS + (i < requests % WORKERS) for i in range(WORKERS)]
        workers = [threading.Thread(target=self.guard, args=(self.serve, self.dice(), n)) for n in share]
        steering = threading.Thread(target=self.guard, args=(self.steer, self.dice(), over))
        for thread in (*workers, steering):
            thread.start()
        for thread in workers:
            thread.join()
        over.set()
        self.faults.disarm()
        steering.join()

    def dice(self) -> random.Random:
        return random.Random(self.luck.random())

    def guard(self, work, *arguments) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # the main thread raises it
            self.failures.append(error)

    def serve(self, luck: random.Random, n: int) -> None:
        held = []
        for _ in range(n):
            if self.failures:
                break
            tokens = self.prompts[min(int(luck.expovariate(0.06)), len(self.prompts) - 1)]
            namespace = luck.choice(("default", "default", "other"))
            if luck.random() < 0.1:  # a lease beside the request's own, read later
                held.append((self.rig.engine.acquire(tokens, namespace=namespace, deadline_s=0.05), tokens))
            self.request(tokens, namespace, luck)
            while held and luck.random() < 0.5:
                lease, of = held.pop(0)
                with lease:
                    self.load(lease, of)
            with self.lock:
                self.report.requests += 1
        for lease, _ in held:
            lease.release()

    def request(self, tokens, namespace: str, luck: random.Random) -> None:
        engine, page = self.rig.engine, self.rig.page
        with engine.acquire(tokens, namespace=namespace, deadline_s=luck.choice((0.0, 0.02, 0.2))) as lease:
            start = lease.resume_tokens // page * page if self.load(lease, tokens) else 0
            at = sorted({b for b in lease.checkpoint_hints if start <= b <= len(tokens)} | {len(tokens)})
            done = engine.commit(tokens, self.model.prefill(tokens, start, at), lease=lease)
            with self.lock:
                self.report.commits[done.outcome if done.outcome == "admitted" else done.reason] += 1

    def load(self, lease, tokens) -> bool:
        """Compare what a lease serves with the truth; whether it served anything."""
        if not lease.usable_tokens:
            return False
        try:
            found = self.judge.verify(lease.load(), tokens[: lease.usable_tokens])
        except REFUSED as error:
            with self.lock:
                self.report.refused_loads[error.code] += 1
            return False
        with self.lock:
            self.report.hits += 1
            self.report.verified_bytes += found.bytes_checked
            if not found.ok:
                self.report.wrong.append(found.first_wrong)
        return True

    def steer(self, luck: random.Random, over: threading.Event) -> None:
        engine = self.rig.engine
        while not over.wait(0.01) and not self.failures:
            ids = [row["prefix.id"] for row in engine.snapshot()]
            some = luck.sample(ids, min(len(ids), 4))
            kind, arguments = luck.choice(
                (
                    ("evict", {"prefix_ids": some[:1], "descendants": True}),
                    ("compress", {"prefix_ids": some, "codec": luck.choice(("int8", "fp8", "lossless"))}),
                    ("offload", {"prefix_ids": some, "tier": "host"}),
                    ("offload", {"prefix_ids": some, "tier": "disk"}),
                    ("warm", {"prefix_ids": some}),
                    ("pin", {"prefix_ids": some[:1], "ttl_s": 0.05}),
                    ("compact", {}),
                    ("scrub", {"max_bytes": 200_000, "bytes_per_s": 20_000_000}),
                )
            )
            actor = luck.choice(("policy:soak", "test"))
            self.report.commands[f"{kind} {self.rig.command(kind, actor=actor, **arguments).status}"] += 1
            if luck.random() < 0.1:
                self.reconfigure(luck)
            engine.tick()
            if luck.random() < 0.05:
                self.faults.release()

    def reconfigure(self, luck: random.Random) -> None:
        caps = {
            "cap_prefixes": luck.choice((None, None, 20, 60)),
            "cap_gpu_bytes": luck.choice((None, None, 12 * SLAB)),
            "cap_host_bytes": luck.choice((None, None, 4 * SLAB)),
            "cap_disk_bytes": luck.choice((None, None, 300_000)),
            "mode": luck.choice(("normal", "normal", "normal", "no_disk", "resident_only", "full_only")),
            "checkpoint_every_tokens": luck.choice((0, 0, 128)),
        }
        self.rig.engine.reconfigure({k: v for k, v in caps.items() if v is not None}, revision=1)
        self.report.commands["reconfigure"] += 1

    # -- pauses -------------------------------------------------------------------------------------------------------

    def inspect(self) -> None:
        """Nothing is under way: all must be in its place."""
        engine, tiers = self.rig.engine, self.rig.ledger.tiers
        while tiers.stuck_calls:
            time.sleep(0.001)
        for queue in engine._queues.all():
            while True:
                with suppress(QueueFull):
                    queue.submit(lambda: None).result()
                    break
        self._wait_for_breaker()
        engine.tick()
        self.rig.command("scrub", max_bytes=1 << 40, bytes_per_s=1 << 40)  # finds what was damaged and not yet met
        found = engine.check()
        nodes = self.rig.ledger.nodes.values()
        found += [f"prefix {n.record.prefix_id} is busy or leased" for n in nodes if n.record.busy or n.record.leases]
        found += [f"{engine.stats()['leases']} leases are left"] if engine.stats()["leases"] else []
        on_disk = {path.name: path.stat().st_size for path in (self.folder / "objects").iterdir()}
        if sum(on_disk.values()) != tiers.disk.used_bytes or tiers.disk.leaving_bytes:
            found.append(f"{sum(on_disk.values())} bytes on disk, {tiers.disk.used_bytes} in the books")
        if on_disk.keys() != tiers.disk.files.keys():
            found.append(f"files left over: {sorted(on_disk.keys() ^ tiers.disk.files.keys())[:3]}")
        self.report.violations += [f"pause {self.report.pauses}: {line}" for line in found]
        self.report.pauses += 1

    def _wait_for_breaker(self) -> None:
        """Until the disk may be asked again: what could not be deleted has to go before files are counted."""
        io = self.rig.ledger.tiers.io["disk"]
        while io.breaker.state == "open":
            time.sleep(0.05)

    def restart(self) -> None:
        self.report.quarantined += len(self.rig.ledger.damages)
        self.rig.engine.close()
        self.rig = self.open()
        self.report.restarts += 1


class _Nothing(list):
    def append(self, _: object) -> None:
        pass


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class _Patch:
    setattr = staticmethod(setattr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--pause-every", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    use_one_thread()
    poison_freed_slots(_Patch)

    seen = 0

    def progress(report: Report) -> None:
        nonlocal seen
        for line in report.violations[seen:]:
            print(line, flush=True)  # noqa: T201
        seen = len(report.violations)
        if report.pauses % 5 == 0:
            mib = report.rss_bytes[-1] / (1 << 20)
            line = f"{report.requests:>9,} requests  {report.seconds:6.0f} s  {mib:7.1f} MiB  {len(report.wrong)} wrong"
            print(f"{line}  {len(report.violations)} violations", flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory(prefix="kvdeck-soak-") as folder:
        soak = Soak(Path(folder), seed=chosen.seed)
        report = soak.run(chosen.requests, pause_every=chosen.pause_every, restart_every=10, progress=progress)
    print(report.summary())  # noqa: T201
    return 1 if report.wrong or report.violations or not report.flat else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineError as error:
        sys.exit(f"{error.code}: {error}")
