"""The pages on why requests miss and on what the doctor looks for, out of the code: called by docs/generate.py."""

from __future__ import annotations


def losses() -> str:
    """Causes of lost tokens: meaning, advice, and the engine's reasons that lead to each."""
    from controlplane.insight.whymiss import ADVICE, MEANINGS
    from engine.schedule.losses import LOSS_OF_GAP, LOSS_OF_REFUSAL

    lines = [
        "# Why tokens were no hit",
        "",
        "Of every prompt, usable tokens and the tokens of these causes are all there are. They are attributes of the",
        "span `kvcache.acquire` (`kvcache.lost.<cause>`), the counter `kvcache.lost`, rows by minute, and what",
        "`kvdeck explain` shows ([how to read it](../howto/why-a-miss.md)).",
        "",
        "| cause | meaning | what to do | reasons that lead to it |",
        "|---|---|---|---|",
    ]
    for cause, meaning in MEANINGS.items():
        reasons = [reason for table in (LOSS_OF_GAP, LOSS_OF_REFUSAL) for reason, to in table.items() if to == cause]
        named = ", ".join(f"`{reason}`" for reason in dict.fromkeys(reasons))
        lines.append(f"| `{cause}` | {meaning} | {ADVICE[cause]} | {named} |")
    lines += [
        "",
        "A restore that fails has the code of its device or tier as its reason, and the cause `restore_failed`.",
        "",
    ]
    return "\n".join(lines)


def doctor() -> str:
    """The doctor's rules, and its checks of an installation."""
    from controlplane.insight.doctor import RULES
    from controlplane.insight.installation import CHECKS

    lines = ["# What `kvdeck doctor` looks for", "", "| rule | severity | finds | what to do |", "|---|---|---|---|"]
    lines += [f"| `{r.name}` | {r.severity.word} | {r.looks_for} | {r.advice} |" for r in RULES]
    lines += ["", "## Without a deck", "", "| check | passes when |", "|---|---|"]
    lines += [f"| `{name}` | {(check.__doc__ or '').strip()} |" for name, check in CHECKS.items()]
    return "\n".join([*lines, ""])
