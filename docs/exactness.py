"""Runs every cell and writes docs/reference/exactness.md: `python docs/exactness.py`. A test compares the two."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from exactness import BOUNDARIES, NEW_TOKENS, PAGE_TOKENS, REASONS, ROUTES, Cell, every_cell, run_cell  # noqa: E402
from huggingface_support import MODELS  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "exactness.md"
HEAD = "<!-- Written by docs/exactness.py, which runs every cell. Change the code, then run it again. -->\n\n"
PREFACE = f"""# Exactness

Is an answer from reused state the answer that the model gives without reuse? Each cell below is one run of a tiny model
with random weights (`tests/huggingface_support.py`): an earlier request leaves state at a boundary, the state goes a
route, and the next request is served from it. Compared are the logits of every call of the model behind the hit, which
are one or two chunks of several tokens and {NEW_TOKENS} steps of a token, and the greedy tokens.

**bit-equal, n tokens** means: the hit was exactly n tokens long, the model ran over no tokens but those behind it (and
those replayed), the state came by that route, and no bit of any logit differs.

The oracle is an uninterrupted run of the same chunks on one cache object of transformers. A run of the whole prompt at
once is none: kernels sum in another order for another number of rows, so its last bits differ without any cache, and a
sparse model's top-k may then choose other entries. Chunks end at every page of {PAGE_TOKENS} tokens, at the end of the
prompt but its last token, and where an earlier run ended; generated tokens are a chunk each.
"""


def page(cells: Mapping[tuple[str, str, str], Cell]) -> str:
    lines: list[str] = []
    for route in ROUTES.values():
        lines += ["", f"## {route.title[0].upper()}{route.title[1:]}", ""]
        lines += [f"| boundary | {' | '.join(MODELS)} |", "|---" * (1 + len(MODELS)) + "|"]
        for boundary in BOUNDARIES.values():
            texts = [cells[model, boundary.name, route.name].text for model in MODELS]
            lines.append(f"| {boundary.title} | {' | '.join(texts)} |")
    lines += ["", "## What was refused, and why", "", "| reason | where | what it means |", "|---|---|---|"]
    for reason, meaning in REASONS.items():
        where = sorted({_where(cell) for cell in cells.values() if cell.reason == reason})
        lines.append(f"| `{reason}` | {'; '.join(where)} | {meaning} |")
    return PREFACE + "\n".join([*lines, ""])


def _where(cell: Cell) -> str:
    if cell.reason == "shorter_than_a_page":
        return "every model and route"
    if cell.reason == "nothing_to_code":
        return f"{cell.model}, {ROUTES[cell.route].title}"
    return f"{cell.model}, {BOUNDARIES[cell.boundary].title}"


def main() -> None:
    text = page({cell: run_cell(*cell) for cell in every_cell()})
    PAGE.write_text(HEAD + text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
