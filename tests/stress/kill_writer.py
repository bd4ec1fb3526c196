"""The process that is killed: it writes and reads an engine's folder without end, and logs what has been published.

Loads everything once and forks for each round, as loading takes longer than a round. Lines in: `FOLDER LOG QUOTA SEED`;
lines out: the pid of the process to kill, then `dead`.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from engine_support import Rig, fork, prompt  # noqa: E402

from engine.clock import SystemClock  # noqa: E402
from engine.integrations.synthetic import use_one_thread  # noqa: E402

PROMPTS = 40
TOKENS = 300


def prompt_of(number: int):
    """Every second one branches off the one before, in the middle of a page: so there are splits."""
    if number % 2:
        return fork(prompt(TOKENS, number - 1), 150, TOKENS, number)
    return prompt(TOKENS, number)


def write(folder: Path, log: Path, quota: int, seed: int) -> None:
    luck = random.Random(seed)
    rig = Rig(clock=SystemClock(), data_dir=folder, gpu_bytes=256 << 10, disk_bytes=quota)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        number = luck.randrange(PROMPTS)
        tokens = prompt_of(number)
        done = rig.serve(tokens)
        assert done.wrong_bytes == 0
        path = [n.record.prefix_id for n in rig.ledger.index.match("default", tokens.tobytes()).nodes]
        rig.command("offload", prefix_ids=path, tier="disk")
        nodes = rig.ledger.index.match("default", tokens.tobytes()).nodes
        if nodes and all(h.disk or not h.n_pages for node in nodes for h in node.record.holdings()):
            os.write(out, b"%d\n" % number)
        if luck.random() < 0.1:
            rig.command("scrub", max_bytes=50_000)


def main() -> None:
    use_one_thread()
    for line in sys.stdin:
        folder, log, quota, seed = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                write(Path(folder), Path(log), int(quota), int(seed))
            finally:
                os._exit(70)  # only a failure ends here
        print(pid, flush=True)  # noqa: T201
        _, status = os.waitpid(pid, 0)
        print("dead" if os.WIFSIGNALED(status) else "failed", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
