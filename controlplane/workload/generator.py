"""An endless workload that looks like a serving fleet's: shared system prompts, growing chats, agent loops."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from controlplane.errors import BadRequest
from controlplane.workload.request import Request, Tokens

VOCABULARY = 128_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one kind of session behaves. Ranges are (least, most), in tokens or seconds."""

    name: str
    system_tokens: tuple[int, int]
    turn_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    think_s: tuple[float, float]
    end_ratio: float  # chance that a turn is the last
    retry_ratio: float  # chance that a turn starts again from the one before: a branch in the tree


CHAT = Style(
    name="chat",
    system_tokens=(512, 2048),
    turn_tokens=(32, 400),
    output_tokens=(32, 320),
    think_s=(2.0, 12.0),
    end_ratio=0.15,
    retry_ratio=0.08,
)
AGENT = Style(
    name="agent",
    system_tokens=(1536, 3072),
    turn_tokens=(64, 700),
    output_tokens=(16, 128),
    think_s=(0.3, 1.5),
    end_ratio=0.06,
    retry_ratio=0.12,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig:
    """What is generated. Raises `BadRequest` for values that no workload can have."""

    seed: int = 0
    rate_per_s: float = 8.0
    namespaces: tuple[str, ...] = ("assistant", "support", "coding")
    prompts_per_namespace: int = 6
    agent_ratio: float = 0.3
    zipf_exponent: float = 1.1
    max_prompt_tokens: int = 8192

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise _refuse("rate_per_s", self.rate_per_s, "more than 0")
        if not self.namespaces or self.prompts_per_namespace < 1:
            raise _refuse("namespaces", self.namespaces, "at least one, each with at least one prompt")
        if not 0 <= self.agent_ratio <= 1:
            raise _refuse("agent_ratio", self.agent_ratio, "from 0 to 1")
        least = AGENT.system_tokens[1] + AGENT.turn_tokens[1]
        if self.max_prompt_tokens < least:
            raise _refuse("max_prompt_tokens", self.max_prompt_tokens, f"at least {least}, a first turn")


@dataclass(slots=True)
class _Session:
    name: str
    namespace: str
    style: Style
    history: Tokens
    before: Tokens  # the history one turn earlier: where a retry starts


@dataclass(order=True, slots=True)
class _Waiting:
    ready_s: float
    order: int
    session: _Session = field(compare=False)


class Generator:
    """Requests for ever, in order of time, at `rate_per_s` on average; the same seed gives the same requests.

    Sessions think between turns. A due session goes first, the one that waited longest; a new one starts when none
    is due, so the rate stays what was asked for. Popularity of namespaces and system prompts follows Zipf's law.
    """

    def __init__(self, config: GeneratorConfig | None = None) -> None:
        self.config = config or GeneratorConfig()

    def __iter__(self) -> Iterator[Request]:
        rng = np.random.default_rng(self.config.seed)
        prompts = self._system_prompts(rng)
        waiting: list[_Waiting] = []
        now_s = 0.0
        for order in itertools.count():
            now_s += float(rng.exponential(1 / self.config.rate_per_s))
            if waiting and waiting[0].ready_s <= now_s:
                session = heapq.heappop(waiting).session
            else:
                session = self._start(rng, prompts, order)
            request = self._turn(rng, session, now_s)
            yield request
            if self._goes_on(rng, session):
                think_s = float(rng.uniform(*session.style.think_s))
                heapq.heappush(waiting, _Waiting(now_s + think_s, order, session))

    def _system_prompts(self, rng: np.random.Generator) -> dict[tuple[str, str, int], Tokens]:
        return {
            (namespace, style.name, rank): _text(rng, style.system_tokens)
            for namespace in self.config.namespaces
            for style in (CHAT, AGENT)
            for rank in range(self.config.prompts_per_namespace)
        }

    def _start(self, rng: np.random.Generator, prompts: dict[tuple[str, str, int], Tokens], order: int) -> _Session:
        namespace = self.config.namespaces[_zipf(rng, len(self.config.namespaces), self.config.zipf_exponent)]
        style = AGENT if rng.random() < self.config.agent_ratio else CHAT
        rank = _zipf(rng, self.config.prompts_per_namespace, self.config.zipf_exponent)
        system = prompts[namespace, style.name, rank]
        return _Session(f"{style.name}-{order}", namespace, style, system, system)

    def _turn(self, rng: np.random.Generator, session: _Session, now_s: float) -> Request:
        if rng.random() < session.style.retry_ratio:
            session.history = session.before
        prompt = np.concatenate([session.history, _text(rng, session.style.turn_tokens)])
        request = Request(
            at_s=now_s,
            namespace=session.namespace,
            session=session.name,
            prompt=prompt,
            output=_text(rng, session.style.output_tokens),
        )
        session.before, session.history = session.history, request.tokens
        return request

    def _goes_on(self, rng: np.random.Generator, session: _Session) -> bool:
        ends = rng.random() < session.style.end_ratio
        return not ends and len(session.history) + session.style.turn_tokens[1] <= self.config.max_prompt_tokens


def _refuse(name: str, value: object, allowed: str) -> BadRequest:
    return BadRequest("workload_invalid", f"{name} is {value!r}.", f"Allowed: {allowed}.")


def _zipf(rng: np.random.Generator, count: int, exponent: float) -> int:
    weights = 1.0 / np.arange(1, count + 1) ** exponent
    return int(rng.choice(count, p=weights / weights.sum()))


def _text(rng: np.random.Generator, length: tuple[int, int]) -> Tokens:
    return rng.integers(0, VOCABULARY, int(rng.integers(length[0], length[1] + 1)), dtype=np.int32)
