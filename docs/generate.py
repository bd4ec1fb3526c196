"""Writes the parts of docs/reference that come from the code: `python docs/generate.py`. A test compares them."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType

REFERENCE = Path(__file__).parent / "reference"
HEAD = "<!-- Written by docs/generate.py from the code. Change the code, then run it again. -->\n\n"


def states() -> str:
    """The state machine of a prefix, drawn and in full."""
    from engine.consistency.state import TRANSITIONS, Cause, State

    lines = ["# States of a prefix", "", "Every transition adds one to the prefix's version and is one span.", ""]
    lines += ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.FULL}: commit"]
    drawn = {(str(a), str(b)): causes for (a, b), causes in TRANSITIONS.items() if a is not State.NEW}
    for (before, after), causes in drawn.items():
        target = "[*]" if after == State.EVICTED else after
        lines.append(f"    {before} --> {target}: {', '.join(sorted(causes)[:3])}{', ...' if len(causes) > 3 else ''}")
    lines += ["```", "", "| from | to | causes |", "|---|---|---|"]
    for (before, after), causes in TRANSITIONS.items():
        lines.append(f"| {before} | {after} | {', '.join(sorted(causes))} |")
    lines += ["", f"Causes: {', '.join(Cause)}.", ""]
    return "\n".join(lines)


def command_states() -> str:
    """The state machine of a command, drawn and in full."""
    from controlplane.steering.command_states import LIVE, MEANINGS, TERMINAL, TRANSITIONS

    lines = [
        "# States of a command",
        "",
        "Every command ends in exactly one of the states at the end; none is left open.",
    ]
    lines += ["", "```mermaid", "stateDiagram-v2", f"    [*] --> {LIVE[0]}: submitted"]
    for before, edges in TRANSITIONS.items():
        lines += [f"    {before} --> {after}: {why.replace(':', ',')}" for after, why in edges.items()]
    lines += [f"    {status} --> [*]" for status in TRANSITIONS if status in TERMINAL]
    lines += ["```", "", "| state | meaning |", "|---|---|"]
    lines += [f"| {status} | {meaning} |" for status, meaning in MEANINGS.items()]
    lines += ["", "| from | to | when |", "|---|---|---|"]
    lines += [
        f"| {before} | {after} | {why} |" for before, edges in TRANSITIONS.items() for after, why in edges.items()
    ]
    return "\n".join([*lines, ""])


def errors() -> str:
    """Error codes of the engine and kinds of the control plane; the docstrings are the operator's text."""
    from controlplane.errors import ControlPlaneError
    from engine import engine as _loads_every_engine_module  # noqa: F401
    from engine.errors import EngineError

    lines = ["# Errors", "", "## Engine", "", "| code | meaning and what to do |", "|---|---|"]
    lines += [f"| `{e.code}` | {_one_line(e)} |" for e in sorted(_tree(EngineError), key=lambda e: e.code)]
    lines += ["", "## Control plane", "", 'Bodies are `{"error": {"code", "message", "hint"}}`.', ""]
    lines += ["| kind | HTTP status | meaning |", "|---|---|---|"]
    for error in sorted(_tree(ControlPlaneError), key=lambda e: (e.status, e.__name__)):
        if error.__module__ == "controlplane.errors":
            lines.append(f"| {error.__name__} | {error.status} | {_one_line(error)} |")
    return "\n".join([*lines, ""])


def validations() -> str:
    """The five validations, verdicts and reason codes."""
    from engine.schedule.plan import GAP_REASONS
    from engine.schedule.publish import DROPS, REFUSALS
    from engine.schedule.validation import REASONS, Validation, Validator, Verdict

    lines = ["# Validations", "", "Nothing is a hit until all five pass or do not apply, after recovery.", ""]
    lines += ["| validation | passes when |", "|---|---|"]
    for validation in Validation:
        lines.append(f"| `{validation}` | {_one_line(getattr(Validator, validation.value))} |")
    lines += ["", f"Verdicts: {', '.join(f'`{v}`' for v in Verdict)}.", "", "| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason}` | {text} |" for reason, text in REASONS.items()]
    lines += ["", "A request's own reason is the first of these that stood in its way, or one of:", ""]
    lines += ["| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason}` | {text} |" for reason, text in GAP_REASONS.items()]
    lines += ["", "A commit is refused with one of these, or by an admission rule cut to its beginning:", ""]
    lines += ["| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason}` | {text} |" for reason, text in REFUSALS.items()]
    lines += ["", "A checkpoint of an admitted commit is dropped with one of:", "", "| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason}` | {text} |" for reason, text in DROPS.items()]
    return "\n".join([*lines, ""])


def settings() -> str:
    """Environment variables of the control plane and fields of the engine's configuration."""
    from controlplane.settings import CLIENT_SECRET_FILE, PASSWORD_FILE, VOICE_VARIABLES, Settings
    from engine.config import EngineConfig

    lines = ["# Settings", "", "## Control plane: environment variables", "", "| variable | default |", "|---|---|"]
    required = "from KVDECK_DATA_DIR"
    for field in fields(Settings):
        default = field.default if isinstance(field.default, (str, int, float)) else required
        lines.append(f"| `KVDECK_{field.name.upper()}` | {default!r} |")
    lines += [
        "",
        f"`{PASSWORD_FILE}`: a file with the password of `KVDECK_DATABASE_URL`, which then needs none in it.",
        "",
        f"`{CLIENT_SECRET_FILE}`: for the dashboard, a file with the secret of `KVDECK_OIDC_CLIENT_ID`; see",
        "[Signing in](../howto/sign-in.md).",
        "",
        "The command line reads `KVDECK_URL` (where the control plane is) and `KVDECK_TOKEN` (who you are).",
        "",
    ]
    lines += ["## Engine host: environment variables", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| {name} | {meaning} |" for name, meaning in VOICE_VARIABLES.items()]
    way = "`KVDECK_URL` and `KVDECK_ENGINE_TOKEN`, or `KVDECK_ENGINE_TOKEN_FILE` with the name of a file that holds it"
    lines += ["", f"The engine host's way to the control plane is {way}.", ""]
    lines += ["## Engine: `EngineConfig`", "", "| field | default |", "|---|---|"]
    for field in fields(EngineConfig):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        lines.append(f"| `{field.name}` | {default!r} |")
    return "\n".join([*lines, ""])


def commands() -> str:
    """The verbs of the command line with their options."""
    import typer

    from controlplane.cli.exits import Exit
    from controlplane.cli.main import app

    lines = ["# Command line", "", f"Exit codes: {', '.join(f'{int(e)} {e.name.lower()}' for e in Exit)}.", ""]
    root = typer.main.get_command(app)
    for name, command in sorted(_leaves(root, "kvdeck")):
        lines += [f"## {name}", "", (command.help or "").strip(), ""]
        options = [p for p in command.params if p.name != "help"]
        if options:
            lines += ["| option | meaning |", "|---|---|"]
            for option in options:
                flags = ", ".join(f"`{o}`" for o in [*option.opts, *option.secondary_opts])
                meaning = " ".join((getattr(option, "help", "") or "").split())
                lines.append(f"| {flags} | {meaning} |")
            lines.append("")
    return "\n".join(lines)


def faults() -> str:
    """What can go wrong, what is promised then, and the test that shows it: docs/faults.py."""
    return str(_module("faults").page())


def telemetry() -> str:
    """Spans, attributes and metrics, out of the engine's registry: docs/telemetry.py."""
    return str(_module("telemetry").page())


def api() -> str:
    """Every call, its role and its verb: docs/api.py."""
    return str(_module("api").page())


def losses() -> str:
    """Why tokens were no hit: docs/diagnosis.py."""
    return str(_module("diagnosis").losses())


def doctor() -> str:
    """What the doctor looks for: docs/diagnosis.py."""
    return str(_module("diagnosis").doctor())


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def policies() -> str:
    """Kinds of policies, their parameters, and those that every deck has."""
    from controlplane.steering.policies.kinds import DEFAULTS, KINDS, describe

    lines = ["# Policies", "", "Standing rules: `kvdeck policy`. Those that every deck has:", ""]
    lines += ["| name | kind | runs | at the start |", "|---|---|---|---|"]
    for one in DEFAULTS:
        lines.append(f"| `{one.name}` | {one.kind} | {one.when.words} | {'paused' if one.paused else 'on'} |")
    lines += [
        "",
        "A policy runs every so many seconds, by a cron expression (five fields, Sunday is 0 and 7) in a named",
    ]
    lines += ["time zone, or on events and by hand only. It holds on all engines, a group or one engine; a kind that"]
    lines += ["chooses prefixes can be narrowed to one namespace."]
    for kind in KINDS:
        about = describe(kind)
        lines += ["", f"## {kind}", "", about["does"], ""]
        lines += ["Can be narrowed to a namespace.", ""] if about["namespace_scope"] else []
        if about["parameters"]:
            lines += ["| parameter | default | allowed | meaning |", "|---|---|---|---|"]
        for one in about["parameters"]:
            lines.append(f"| `{one['name']}` | {_shown(one['default'])} | {one['allowed']} | {one['meaning']} |")
    return "\n".join([*lines, ""])


def alert_rules() -> str:
    """The alert rules that every deck has, and the kinds of expressions."""
    from controlplane.steering.alerts.defaults import DEFAULT_RULES
    from controlplane.steering.alerts.expressions import FACTS, KINDS
    from controlplane.steering.parameters import defaults_of, knobs_of

    lines = [
        "# Alert rules",
        "",
        "What to do about each is in the [runbook](../howto/runbook.md). It fires when the value",
    ]
    lines += ["stays above the limit for so long, and is over at the second limit or below.", ""]
    lines += ["| rule | severity | value | fires above | for | over at |", "|---|---|---|---|---|---|"]
    for rule in DEFAULT_RULES:
        limits = f"{rule.limits.above:g} | {rule.limits.for_seconds} s | {rule.limits.resolve_at:g}"
        link = f"[`{rule.name}`](../howto/runbook.md#{rule.name})"
        lines.append(f"| {link} | {rule.severity} | {rule.kind}: {rule.title.lower()}, {rule.unit} | {limits} |")
    lines += ["", "## Kinds", "", "`unit`, of every kind, says what the value counts."]
    for kind, expression in KINDS.items():
        lines += ["", f"### {kind}", "", _one_line(expression), ""]
        knobs, defaults = knobs_of(expression), defaults_of(expression)
        if knobs:
            lines += ["| parameter | default | allowed | meaning |", "|---|---|---|---|"]
        for name, knob in knobs.items():
            lines.append(f"| `{name}` | {_shown(defaults[name])} | {knob.allowed} | {knob.meaning} |")
    lines += ["", "### Facts", "", "| fact | of | what |", "|---|---|---|"]
    for name, (of_engines, meaning) in FACTS.items():
        lines.append(f"| `{name}` | {'each engine' if of_engines else 'the control plane'} | {meaning} |")
    return "\n".join([*lines, ""])


def _shown(value: object) -> str:
    return f"`{json.dumps(value)}`"


def _leaves(command: object, path: str) -> list[tuple[str, object]]:
    children = getattr(command, "commands", None)
    if children is None:
        return [(path, command)]
    return [leaf for name, child in children.items() for leaf in _leaves(child, f"{path} {name}")]


def _tree(root: type) -> set[type]:
    return {root}.union(*(_tree(child) for child in root.__subclasses__()))


def _one_line(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


PAGES = {
    "api.md": api,
    "states.md": states,
    "command-states.md": command_states,
    "errors.md": errors,
    "validations.md": validations,
    "settings.md": settings,
    "commands.md": commands,
    "faults.md": faults,
    "telemetry.md": telemetry,
    "losses.md": losses,
    "doctor.md": doctor,
    "policies.md": policies,
    "alert-rules.md": alert_rules,
}


def main() -> None:
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(HEAD + page(), encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name}\n")


if __name__ == "__main__":
    main()
