"""How a simulated Triton is told to misbehave, request by request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from governor.simulator.answers import JSON, Answer, json_answer
from governor.simulator.requests import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.errors import JsonValue
    from governor.simulator.routes import Endpoint, Route

HUGE_BYTES: Final = 10 * 1024 * 1024


@dataclass(frozen=True)
class Delay:
    """Answer `seconds` later than otherwise; the request is taken in, and executes, at once."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Take the request in and never answer. `executes`: whether its work runs and counts all the same."""

    executes: bool = False


@dataclass(frozen=True)
class ResetBeforeBody:
    """Reset the connection as soon as the request's head is there: it never becomes a request."""


@dataclass(frozen=True)
class ResetAfterBody:
    """Reset the connection once the whole body is there: the work runs and counts, nobody is told."""


@dataclass(frozen=True)
class ResetMidAnswer:
    """Reset the connection within the answer: after `body_bytes` of its body, or `events` of its stream."""

    body_bytes: int = 1
    events: int = 1


@dataclass(frozen=True)
class Replace:
    """Answer with what `make` makes of the right answer."""

    make: Callable[[Answer], Answer]


@dataclass(frozen=True)
class EndlessBody:
    """Begin the right answer and never end its body: `piece` again and again, every `every_s` seconds."""

    piece: bytes = b" "
    every_s: float = 0.01


Action = Delay | Hang | ResetBeforeBody | ResetAfterBody | ResetMidAnswer | Replace | EndlessBody


@dataclass
class Fault:
    """One misbehaviour and the requests it applies to.

    Attributes:
        action: what happens.
        endpoint: only for this kind of request; None: for all.
        model: only for this model; None: for all.
        times: for how many requests; None: until it is removed.
        used: how many requests it has applied to.
    """

    action: Action
    endpoint: Endpoint | None = None
    model: str | None = None
    times: int | None = 1
    used: int = 0

    def applies_to(self, route: Route) -> bool:
        """Whether the next request for `route` gets it."""
        return (
            (self.times is None or self.used < self.times)
            and self.endpoint in {None, route.endpoint}
            and self.model in {None, route.model}
        )


@dataclass
class Faults:
    """The misbehaviours that are on, oldest first."""

    active: list[Fault] = field(default_factory=list)

    def add(
        self,
        action: Action,
        *,
        endpoint: Endpoint | None = None,
        model: str | None = None,
        times: int | None = 1,
    ) -> Fault:
        """Switch a misbehaviour on for the next `times` requests it applies to."""
        fault = Fault(action, endpoint, model, times)
        self.active.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Switch one off; nothing happens where it is off already."""
        if fault in self.active:
            self.active.remove(fault)

    def clear(self) -> None:
        """Switch all of them off."""
        self.active.clear()

    def take(self, route: Route) -> tuple[float, Action | None]:
        """What happens to the request that has just come: seconds of delay, and the first other action."""
        delay_s = 0.0
        chosen: Action | None = None
        for fault in self.active:
            if not fault.applies_to(route) or (chosen is not None and not isinstance(fault.action, Delay)):
                continue
            fault.used += 1
            if isinstance(fault.action, Delay):
                delay_s += fault.action.seconds
            else:
                chosen = fault.action
        self.active = [fault for fault in self.active if fault.times is None or fault.used < fault.times]
        return delay_s, chosen


# -- wrong counts: what to put into Replace ------------------------------------------------------------------


def counts_plus(offset: int) -> Replace:
    """Statistics whose success counts are off by `offset`; it may be negative."""

    def wrong(count: JsonValue) -> JsonValue:
        return count + offset if isinstance(count, int) else count

    return _with_counts(wrong)


def counts_as(value: JsonValue) -> Replace:
    """Statistics whose success counts are `value`: -1, 2.5, "7", None, ..."""
    return _with_counts(lambda _count: value)


def without_models() -> Replace:
    """Statistics that know no model at all."""
    return Replace(lambda _right: json_answer({"model_stats": []}))


def body_of(body: bytes, content_type: str = JSON, status: int = 200) -> Replace:
    """Any other answer: no JSON, the wrong shape, an error."""
    return Replace(lambda _right: Answer(status, body, content_type))


def huge_body() -> Replace:
    """An answer whose body is ten MiB of white space in front of the right one."""
    return Replace(lambda right: Answer(right.status, b" " * HUGE_BYTES + right.body, right.content_type))


def _with_counts(change: Callable[[JsonValue], JsonValue]) -> Replace:
    def make(right: Answer) -> Answer:
        told = parse_json(right.body)
        assert isinstance(told, dict), "only statistics have counts"
        models = told.get("model_stats")
        for entry in models if isinstance(models, list) else []:
            assert isinstance(entry, dict), "as this simulation makes it"
            statistics = entry["inference_stats"]
            assert isinstance(statistics, dict), "as this simulation makes it"
            success = statistics["success"]
            assert isinstance(success, dict), "as this simulation makes it"
            success["count"] = change(success["count"])
        return json_answer(told, right.status)

    return Replace(make)
