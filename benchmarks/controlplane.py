"""What the control plane can take: ingest, a fleet of engines, commands, and the pages on millions of versions.

    python -m benchmarks.controlplane [--on sqlite,postgres] [--parts ingest,fleet,pages] [--versions 5000000]

Each part starts on a database of its own. Postgres is a throwaway server with the durability it has by default, on the
same machine; ingest is one process, from the body as an exporter sends it to the commit. The fleet is in this process,
the control plane in its own, whose CPU time counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.deck import fleet, ingest, pages
from benchmarks.deck.databases import OPENERS
from benchmarks.harness import machine, print_table, told

PARTS = {"ingest": ingest.rows, "fleet": fleet.rows, "pages": pages.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default=",".join(OPENERS), help="databases, comma-separated")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts, comma-separated")
    parser.add_argument("--transitions", type=int, default=200_000, help="ingest: how many in all")
    parser.add_argument("--engines", type=int, default=100, help="fleet: how many, one heartbeat a second each")
    parser.add_argument("--seconds", type=float, default=20, help="fleet: how long its CPU is watched")
    parser.add_argument("--commands", type=int, default=200, help="fleet: round trips, one after another")
    parser.add_argument("--versions", type=int, default=5_000_000, help="pages: rows of history")
    parser.add_argument("--rounds", type=int, default=7, help="pages: how often each is read")
    parser.add_argument("--folder", type=Path, help="where the databases lie; 3 GB for five million versions")
    a = parser.parse_args()
    lines: list[list[object]] = []
    for part in a.parts.split(","):
        for kind in a.on.split(","):
            if part not in PARTS or kind not in OPENERS:
                raise SystemExit(f"no part {part!r} on {kind!r}; parts: {', '.join(PARTS)}; on: {', '.join(OPENERS)}")
            with OPENERS[kind](a.folder) as url:
                lines += told(PARTS[part](a, kind, url))
    columns = [("what", str), ("target", str), ("measured", str)]
    print_table(f"control plane; {machine()}", columns, lines)


if __name__ == "__main__":
    main()
