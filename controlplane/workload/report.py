"""What a run of requests amounted to: counts while it runs, one dict and one table at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PHASES = ("acquire", "load", "verify", "prefill", "commit", "release")


@dataclass(slots=True, kw_only=True)
class Report:
    """Sums over the requests so far. Tokens and bytes are counts, `seconds` holds time by phase."""

    requests: int = 0
    committed: int = 0
    prompt_tokens: int = 0
    lcp_tokens: int = 0
    usable_tokens: int = 0
    replay_tokens: int = 0
    verified_bytes: int = 0
    lossy_bytes: int = 0
    wrong_bytes: int = 0
    first_wrong: str = ""
    loads: int = 0
    wall_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    hit_tokens_by_state: Counter[str] = field(default_factory=Counter)
    hit_tokens_by_tier: Counter[str] = field(default_factory=Counter)
    hit_requests_by_tier: Counter[str] = field(default_factory=Counter)
    gap_requests: Counter[str] = field(default_factory=Counter)
    gap_tokens: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def acquired(self, prompt_tokens: int, lease: Any) -> None:
        """Count what one lease found. `lease` is an engine lease; a gap is the lcp that was not usable."""
        why = lease.explanation
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.lcp_tokens += lease.lcp_tokens
        self.usable_tokens += lease.usable_tokens
        self.replay_tokens += lease.replay_tokens
        self.outcomes[str(why.outcome)] += 1
        if lease.usable_tokens:
            self.hit_tokens_by_state[_name(why.state)] += lease.usable_tokens
            self.hit_tokens_by_tier[_name(why.tier)] += lease.usable_tokens
            self.hit_requests_by_tier[_name(why.tier)] += 1
        if lease.lcp_tokens > lease.usable_tokens:
            self.gap_requests[_name(why.reason)] += 1
            self.gap_tokens[_name(why.reason)] += lease.lcp_tokens - lease.usable_tokens

    def verified(self, bytes_checked: int, wrong_bytes: int, lossy_bytes: int, first_wrong: str) -> None:
        self.verified_bytes += bytes_checked
        self.wrong_bytes += wrong_bytes
        self.lossy_bytes += lossy_bytes
        self.first_wrong = self.first_wrong or first_wrong

    def ratio(self, tokens: int) -> float:
        """`tokens` over all prompt tokens; 0 before the first request."""
        return tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_dict(self, engine: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Everything, for `--json`; `engine` is what `engine_facts` read from the engine at the end."""
        net = self.usable_tokens - self.replay_tokens
        body: dict[str, Any] = {
            "requests": self.requests,
            "committed": self.committed,
            "tokens": {
                "prompt": self.prompt_tokens,
                "lcp": self.lcp_tokens,
                "usable": self.usable_tokens,
                "replay": self.replay_tokens,
            },
            "hit_ratio": {
                "lcp": self.ratio(self.lcp_tokens),
                "usable": self.ratio(self.usable_tokens),
                "net_of_replay": self.ratio(net),
                "usable_of_lcp": self.usable_tokens / self.lcp_tokens if self.lcp_tokens else None,
            },
            "outcomes": dict(self.outcomes),
            "hits": {
                "tokens_by_state": dict(self.hit_tokens_by_state),
                "tokens_by_tier": dict(self.hit_tokens_by_tier),
                "requests_by_tier": dict(self.hit_requests_by_tier),
            },
            "gaps": {r: {"requests": n, "tokens": self.gap_tokens[r]} for r, n in self.gap_requests.most_common()},
            "refused_commits": dict(self.refusals),
            "errors": dict(self.errors),
            "loads": self.loads,
            "verified_bytes": self.verified_bytes,
            "lossy_bytes": self.lossy_bytes,
            "wrong_bytes": self.wrong_bytes,
            "first_wrong": self.first_wrong or None,
            "wall_s": round(self.wall_s, 3),
            "requests_per_s": round(self.requests / self.wall_s, 1) if self.wall_s else None,
            "seconds": {phase: round(self.seconds[phase], 3) for phase in PHASES},
        }
        return body | ({"engine": dict(engine)} if engine is not None else {})


def _name(value: object) -> str:
    return "none" if value is None else str(value)


def rows_of(report: Report, engine: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The report as (group, what, value) rows of text, in the order people read them."""
    yield "requests", "served", f"{report.requests:,} in {report.wall_s:,.1f} s ({_rate(report):,.0f}/s)"
    yield from (("requests", name, f"{count:,}") for name, count in report.outcomes.most_common())
    yield "hit rate", "of", f"{report.prompt_tokens:,} prompt tokens"
    yield "hit rate", "longest common prefix", _share(report, report.lcp_tokens)
    yield "hit rate", "usable", _share(report, report.usable_tokens)
    yield "hit rate", "net of replay", _share(report, report.usable_tokens - report.replay_tokens)
    for title, counts in (("by state", report.hit_tokens_by_state), ("by tier", report.hit_tokens_by_tier)):
        yield from (("usable tokens " + title, name, _share(report, n)) for name, n in counts.most_common())
    for kind, tokens in engine.get("hit_tokens_by_kind", {}).items():
        yield "usable tokens by object", kind, _share(report, tokens)
    for reason, requests in report.gap_requests.most_common():
        yield "not usable because", reason, f"{requests:,} requests, {report.gap_tokens[reason]:,} tokens"
    yield from (("commits refused", reason, f"{count:,}") for reason, count in report.refusals.most_common())
    yield from (("errors", code, f"{count:,}") for code, count in report.errors.most_common())
    yield from _engine_rows(engine)
    yield "bytes", "verified", f"{report.verified_bytes:,}"
    if report.lossy_bytes:
        yield "bytes", "equal to the codec's round trip", f"{report.lossy_bytes:,}"
    yield "bytes", "wrong", f"{report.wrong_bytes:,}"


def _engine_rows(engine: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, tier in engine.get("tiers", {}).items():
        yield "tiers", name, f"{tier['live_bytes']:,} of {tier['total_bytes']:,} bytes in use"
    for name, count in engine.get("recoveries", {}).items():
        yield "recoveries", name, f"{count:,}"
    for name, count in engine.get("evictions", {}).items():
        yield "evictions", name, f"{count:,}"
    for name, count in engine.get("bytes_moved", {}).items():
        yield "bytes moved", name, f"{count:,}"
    for name, ratio in engine.get("fragmentation", {}).items():
        yield "fragmentation", name, f"{ratio:.1%}"
    yield from (("VIOLATIONS", str(at), text) for at, text in enumerate(engine.get("violations", []), start=1))


def _share(report: Report, tokens: int) -> str:
    return f"{report.ratio(tokens):6.2%}  {tokens:,} tokens"


def _rate(report: Report) -> float:
    return report.requests / report.wall_s if report.wall_s else 0.0
