"""Writes down what a real control plane answers: `python docs/api_examples.py` -> controlplane/api/examples.json.

Run it when a call or an answer changes; a test compares the examples with the calls and with their schemas.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "controlplane" / "api" / "examples.json"
MOST_ITEMS = 2
NEVER_SHOWN = {"session_token": "kvd_shown-once-and-never-again"}


def shortened(answer: Any) -> Any:
    """The answer with the beginning of each list, and no secret."""
    if isinstance(answer, list):
        return [shortened(item) for item in answer[:MOST_ITEMS]]
    if isinstance(answer, dict):
        return {name: NEVER_SHOWN.get(name) or shortened(value) for name, value in answer.items()}
    return answer


def recorded(folder: Path) -> dict[str, Any]:
    """The answer to one good request for each call."""
    from api_seed import Seed
    from steering_support import running_deck

    found: dict[str, Any] = {}
    with running_deck(folder) as deck:
        seed = Seed(deck)
        engines = seed.engines()
        for visit in [*engines[:-1], *seed.people(), *seed.reads(), engines[-1], seed.forget()]:
            answer = visit.send(deck)
            answer.raise_for_status()
            if "json" in answer.headers["content-type"]:
                found[visit.name] = shortened(answer.json())
    found["open_oidc_session"] = found["open_session"]
    return dict(sorted(found.items()))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]
    with tempfile.TemporaryDirectory() as made:
        EXAMPLES.write_text(json.dumps(recorded(Path(made)), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
