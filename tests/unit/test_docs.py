"""The reference says what the code does: generated pages are current, and nothing the code speaks is left out."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = [
    "api.md",
    "states.md",
    "command-states.md",
    "errors.md",
    "validations.md",
    "settings.md",
    "commands.md",
    "faults.md",
    "telemetry.md",
    "losses.md",
    "doctor.md",
    "policies.md",
    "alert-rules.md",
]


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_what_the_code_says_now(name: str) -> None:
    found = generator()
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == found.HEAD + found.PAGES[name](), "run: .venv/bin/python docs/generate.py"


def test_the_store_knows_the_states_of_the_engine() -> None:
    from controlplane.store.query_types import STATES
    from engine.consistency.state import State

    assert set(STATES) == {str(state) for state in State} - {"NEW"}


def test_links_between_the_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_example_of_committing_state_runs_as_it_is_written() -> None:
    page = (ROOT / "docs" / "howto" / "commit-state.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(code, "commit-state.md", "exec"), {})


def test_every_reason_a_request_can_be_given_is_explained() -> None:
    from engine.schedule.plan import GAP_REASONS
    from engine.schedule.validation import REASONS

    source = "".join(
        (ROOT / "engine" / "schedule" / f"{name}.py").read_text() for name in ("serve", "plan", "recovery")
    )
    given = set(re.findall(r'(?:reason or|reason =|failure =|Weighed\(None,|return) "([a-z_]+)"', source))
    given -= {"native", "not_reached"}  # a codec; a step of a restore that another step ended
    assert len(given) > 8
    assert given <= GAP_REASONS.keys() | REASONS.keys()


def test_every_reason_a_commit_can_be_refused_with_is_explained() -> None:
    from engine.schedule.publish import DROPS, REFUSALS

    consistency, schedule = ("admission", "namespaces"), ("publish", "draft", "lineage")
    names = (*(f"consistency/{n}" for n in consistency), *(f"schedule/{n}" for n in schedule), "engine", "refusals")
    source = "".join((ROOT / "engine" / f"{name}.py").read_text() for name in names)
    given = set(re.findall(r'(?:refuse\(|"refused", |return |LINEAGE = )"([a-z_]+)"', source))
    rules = set(re.findall(r'Admitted\(pages, "([a-z_]+)"', source))
    assert len(rules) == 2
    assert given - (DROPS.keys() - rules) | rules == REFUSALS.keys()
    dropped = set(re.findall(r'count_dropped\("([a-z_]+)"', source)) | rules
    (body,) = re.findall(r"def _no_place_for(.*?)\n    def ", source, re.S)
    assert dropped | set(re.findall(r'return "([a-z_]+)"', body)) == DROPS.keys()


def test_every_default_alert_rule_has_its_section_in_the_runbook() -> None:
    from controlplane.steering.alerts.defaults import DEFAULT_RULES

    runbook = (ROOT / "docs" / "howto" / "runbook.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", runbook, re.M) == [rule.name for rule in DEFAULT_RULES]
    for part in re.split(r"^## .*$", runbook, flags=re.M)[1:]:
        assert part.count("```sh") == 2
        assert "**Over when:**" in part
