"""Colours, symbols and names of everything the dashboard draws, readable on dark and on light.

Colours are the Okabe-Ito set without yellow and black: told apart with the common colour blindnesses and visible on
both backgrounds. A state never has a colour alone: each also has a symbol, a dash or a name beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLUE = "#3B8FD6"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
INDIGO = "#7F7FD5"
GREY = "#8A8F98"

# Grey of middle lightness: black lines vanish on dark, white ones on light.
RULE = "rgba(128,132,140,0.75)"
GRID = "rgba(128,132,140,0.22)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one value of a closed set looks everywhere."""

    label: str
    color: str
    symbol: str = "●"
    dash: str = "solid"
    help: str = ""


STATES = {
    "FULL": Look(label="FULL", color=GREEN, symbol="●", help="all on the GPU, native precision"),
    "COMPRESSED": Look(label="COMPRESSED", color=BLUE, symbol="◆", dash="dash", help="span objects coded, on the GPU"),
    "PARTIAL_OFFLOAD": Look(
        label="PARTIAL_OFFLOAD", color=ORANGE, symbol="◐", dash="dot", help="some object lives only below the GPU"
    ),
    "FULL_RESTORE": Look(label="FULL_RESTORE", color=PURPLE, symbol="▲", dash="dashdot", help="a restore is in flight"),
    "APPROXIMATE": Look(
        label="APPROXIMATE",
        color=SKY,
        symbol="≈",
        dash="longdashdot",
        help="on an approximate basis, for who asks for it",
    ),
    "QUARANTINED": Look(label="QUARANTINED", color=VERMILLION, symbol="✖", dash="longdash", help="damaged, not served"),
    "EVICTED": Look(label="EVICTED", color=GREY, symbol="○", dash="dot", help="gone"),
    "NEW": Look(label="NEW", color=GREY, symbol="·", help="before its first version"),
}
KINDS = {
    "compressed_kv": Look(label="compressed KV", color=BLUE, dash="solid", symbol="circle"),
    "uncompressed_tail": Look(label="uncompressed tail", color=ORANGE, dash="dash", symbol="square"),
    "swa_window": Look(label="SWA window", color=GREEN, dash="dot", symbol="diamond"),
    "indexer_state": Look(label="indexer state", color=PURPLE, dash="dashdot", symbol="triangle-up"),
    "disk_prefix": Look(label="disk prefix", color=VERMILLION, dash="longdash", symbol="x"),
    "recurrent_state": Look(label="recurrent state", color=INDIGO, dash="longdashdot", symbol="star"),
}
TIERS = {
    "gpu": Look(label="GPU", color=GREEN, dash="solid"),
    "host": Look(label="host", color=BLUE, dash="dash"),
    "disk": Look(label="disk", color=ORANGE, dash="dot"),
    "remote": Look(label="remote", color=PURPLE, dash="dashdot"),
}
ENGINE_HEALTH = {
    "live": Look(label="live", color=GREEN, symbol="●", help="it speaks and serves"),
    "idle": Look(label="idle", color=BLUE, symbol="◌", help="it speaks, but had no requests lately"),
    "stale": Look(label="stale", color=ORANGE, symbol="◔", help="no word for a while: its numbers are old"),
    "unreachable": Look(label="unreachable", color=VERMILLION, symbol="✖", help="no word for long: it may be gone"),
    "left": Look(label="left", color=GREY, symbol="○", help="it said goodbye: stopped on purpose"),
}
SYNC = {
    "in_sync": Look(label="in sync", color=GREEN, symbol="✔", help="it runs the newest revision"),
    "behind": Look(label="behind", color=ORANGE, symbol="◔", help="it has not applied the newest revision yet"),
    "refused": Look(label="refused", color=VERMILLION, symbol="✖", help="it refuses part of the revision"),
}
MODES = ("normal", "no_disk", "resident_only", "full_only", "bypass", "drain")
MODE_HELP = {
    "normal": "everything a plan allows",
    "no_disk": "skips restores from disk",
    "resident_only": "skips host restores too",
    "full_only": "no coded or approximate KV",
    "bypass": "no reuse: always right, never fast",
    "drain": "no reuse and no commits: out of service",
}
VALIDATIONS = ("compressed_complete", "tail_intact", "window_fresh", "indexer_synced", "disk_reloaded")
MARKS = {
    "desired": Look(label="desired state", color=BLUE, symbol="triangle-down"),
    "evict": Look(label="evict", color=ORANGE, symbol="x"),
    "warm": Look(label="warm", color=SKY, symbol="square"),
    "policy": Look(label="policy action", color=GREEN, symbol="diamond"),
    "quarantine": Look(label="quarantine", color=VERMILLION, symbol="cross"),
    "alert": Look(label="alert", color=PURPLE, symbol="star"),
}

CHART_CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "displayModeBar": "hover",
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "showEditInChartStudio": False,
    "modeBarButtonsToRemove": ["sendDataToCloud", "sendChartToCloud", "lasso2d", "select2d", "autoScale2d"],
}

# Drawn here: a Material icon as page icon would be fetched from a font server by the browser.
PAGE_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="24" height="24">'
    '<rect x="2" y="3" width="20" height="5" rx="1.5" fill="#009E73"/>'
    '<rect x="2" y="10" width="14" height="5" rx="1.5" fill="#3B8FD6"/>'
    '<rect x="2" y="17" width="8" height="5" rx="1.5" fill="#E69F00"/></svg>'
)

CSS = """
<style>
[data-testid="stMainBlockContainer"] {padding: 4.2rem 2rem 3rem 2rem; max-width: 1600px;}
/* Captions at 60 % are under the 4.5:1 that small text needs (WCAG 1.4.3). */
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p {color: inherit; opacity: 1;}
[data-testid="stCaptionContainer"] p {opacity: .84;}
[data-testid="stButton"] kbd, [data-testid="stFormSubmitButton"] kbd {opacity: 1; color: inherit;}
[data-testid="stMetricValue"] {font-size: 1.55rem;}
[data-testid="stAppDeployButton"] {display: none;}
.st-key-attention [data-testid="stVerticalBlock"], .st-key-attention {gap: .35rem;}
.st-key-attention [data-testid="stMarkdownContainer"], .st-key-attention [data-testid="stCaptionContainer"] {
  margin-bottom: 0;}
.st-key-attention p {margin-bottom: 0; line-height: 1.35;}
.st-key-kv_w_range button {min-height: 2.5rem;}
.kv-line {font-size: .86rem; opacity: .86; line-height: 1.5;}
.kv-line b {font-weight: 600;}
.kv-chip {display: inline-block; padding: .05rem .5rem; margin: 0 .35rem .2rem 0; border-radius: .6rem;
  border: 1px solid var(--kv-color, #8A8F98); font-size: .82rem; white-space: nowrap;}
.kv-chip i {font-style: normal; color: var(--kv-color, #8A8F98); margin-right: .3rem;}
.st-key-kv_numbers {row-gap: .6rem; column-gap: 2.2rem; flex-wrap: wrap;}
@media (max-width: 640px) {
  [data-testid="stMainBlockContainer"] {padding: 3.6rem .8rem 2rem .8rem;}
  .st-key-kv_numbers {column-gap: 1.2rem;}
  /* Two boxes beside each other: one under the other, they fill the first screen of a phone. */
  .st-key-kv_filters > div > [data-testid="stHorizontalBlock"],
  .st-key-kv_list_filters > div > [data-testid="stHorizontalBlock"] {flex-direction: row; flex-wrap: wrap; gap: .4rem;}
  .st-key-kv_filters [data-testid="stColumn"], .st-key-kv_list_filters [data-testid="stColumn"] {
    min-width: 8.5rem; flex: 1 1 45%;}
  .st-key-kv_filters [data-testid="stColumn"]:nth-child(n+3) {flex-basis: 100%;}
  .kv-chip {white-space: normal;}
  [data-testid="InputInstructions"] {display: none;} /* it would lie over what is typed */
}
.kv-empty {border: 1px dashed rgba(128,132,140,.6); border-radius: .6rem; padding: 1rem 1.2rem; font-size: .92rem;}
.kv-empty code {font-size: .88em;}
.kv-empty b {display: block; margin-bottom: .2rem;}
</style>
"""

_SERIES = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, INDIGO, SKY, GREY)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def nth_look(index: int, label: str) -> Look:
    """A look for a value of an open set (a reason, a page class): colour and dash move together."""
    return Look(label=label, color=_SERIES[index % len(_SERIES)], dash=_DASHES[index % len(_DASHES)])


def state_text(state: str) -> str:
    """A state with its symbol: the symbol carries what the colour would."""
    look = STATES.get(state)
    return f"{look.symbol} {look.label}" if look else state


def kind_look(kind: str) -> Look:
    """The look of an object kind; an unknown kind keeps its name."""
    return KINDS.get(kind, Look(label=kind, color=GREY))


def tier_look(tier: str) -> Look:
    """The look of a tier; an unknown tier keeps its name."""
    return TIERS.get(tier, Look(label=tier, color=GREY))
