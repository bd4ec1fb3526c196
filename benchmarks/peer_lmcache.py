"""LMCache's `fs` adapter reading chunks back, beside a plain read of its files: run by `benchmarks.restore`.

Started with the python of an environment that has LMCache (0.5.6 was tried); it imports nothing of ours. Chunks have
the bytes of 256 tokens of gpt-oss-120b's full layers. Prints one JSON line: bytes a second by round, for files in the
page cache and dropped from it. LMCache compares no checksum, and reads to host memory, not to where pages are served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import torch

CHUNK_TOKENS = 256
SHAPE = (18, 2, CHUNK_TOKENS, 8, 64)  # layers, keys and values, tokens, heads, width; bfloat16


class Peer:
    """A connector made as LMCache makes it, with its own allocator, and the keys of what was stored."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, chunks: int) -> None:
        from lmcache.utils import CacheEngineKey  # type: ignore[import-not-found]
        from lmcache.v1.config import LMCacheEngineConfig  # type: ignore[import-not-found]
        from lmcache.v1.metadata import LMCacheMetadata  # type: ignore[import-not-found]
        from lmcache.v1.storage_backend.connector import CreateConnector  # type: ignore[import-not-found]
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # type: ignore[import-not-found]

        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK_TOKENS, max_local_cpu_size=2.0, remote_url=f"fs://localhost:0{folder}"
        )
        metadata = LMCacheMetadata("gpt-oss-120b", 1, 1, 0, 0, torch.bfloat16, SHAPE, chunk_size=CHUNK_TOKENS)
        self._backend = LocalCPUBackend(config, metadata, dst_device="cpu")
        self._connector = CreateConnector(config.remote_url, loop, self._backend, config, metadata)
        self._keys = [CacheEngineKey("gpt-oss-120b", 1, 0, number + 1, torch.bfloat16) for number in range(chunks)]
        self._shapes, self._dtypes = metadata.get_shapes(), metadata.get_dtypes()

    async def store(self) -> None:
        for number, key in enumerate(self._keys):
            memory = self._backend.allocate(self._shapes, self._dtypes)
            memory.tensor.fill_(number + 1)
            await self._connector.put(key, memory)  # and gives the memory back

    async def read_back(self) -> int:
        """Bytes that came; every chunk's memory is given back at once."""
        total = 0
        for number, key in enumerate(self._keys):
            memory = await self._connector.get(key)
            if memory is None or float(memory.tensor.flatten()[-1]) != float(torch.tensor(number + 1.0).bfloat16()):
                raise SystemExit(f"chunk {number} did not come back as it was stored")
            total += memory.get_size()
            memory.ref_count_down()
        return total


def plain_read(folder: Path, into: memoryview) -> int:
    total = 0
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        with open(path, "rb", buffering=0) as handle:
            while n := handle.readinto(into[total:]):
                total += n
    return total


def prepare(folder: Path, *, dropped: bool) -> None:
    for path in folder.iterdir():
        with open(path, "rb", buffering=0) as handle:
            if dropped:
                os.fsync(handle.fileno())
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                handle.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-mb", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--folder")
    a = parser.parse_args()
    loop = asyncio.new_event_loop()
    found: dict[str, list[dict[str, float]]] = {"cached": [], "dropped": []}
    with tempfile.TemporaryDirectory(dir=a.folder) as name:
        folder = Path(name)
        chunk_bytes = 2 * torch.Size(SHAPE).numel()
        chunks = max(1, round(a.total_mb * 1e6 / chunk_bytes))
        peer = Peer(folder, loop, chunks)
        _run(loop, peer.store())
        into = np.ones(chunks * (chunk_bytes + 4096), dtype=np.uint8).data
        for state, rounds in found.items():
            for number in range(a.rounds + 1):
                speeds = {}
                for what in ("plain", "restore") if number % 2 else ("restore", "plain"):
                    prepare(folder, dropped=state == "dropped")
                    start = time.perf_counter()
                    n_bytes = plain_read(folder, into) if what == "plain" else _run(loop, peer.read_back())
                    speeds[what] = n_bytes / (time.perf_counter() - start)
                if number:  # the first warms up
                    rounds.append(speeds)
    print(json.dumps(found), flush=True)
    os._exit(0)  # LMCache's threads do not end by themselves


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(work)


if __name__ == "__main__":
    main()
