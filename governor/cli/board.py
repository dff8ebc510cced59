"""Rows of identities, out of the operator's state or, without an admin token, out of the metrics. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from governor.client import IdentityState
    from governor.errors import JsonValue

STATES: Final = ("running", "timed_out", "reconciling", "awaiting_baseline", "quarantined")
_SAMPLE: Final = re.compile(r"^(vig_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Row:
    """One identity.

    Attributes:
        identity: its backend and model.
        slots, free: its slot credits.
        states: claims by state.
        waiting: calls that wait for a credit.
        pending: prompts of the sessions whose next prompt goes here; None where nobody says.
        notes: what an operator should know.
    """

    identity: str
    slots: int
    free: int
    states: dict[str, int]
    waiting: int
    pending: int | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, JsonValue]:
        """In the spelling of the operator's routes."""
        return {
            "identity": self.identity,
            "slots": self.slots,
            "free": self.free,
            "states": {**self.states},
            "waiting": self.waiting,
            "pendingPrompts": self.pending,
            "notes": [*self.notes],
        }


def row_of(state: IdentityState) -> Row:
    """The row of an identity as the operator's route tells it."""
    notes = []
    if not state.usable:
        notes.append(state.problem or "cannot be used")
    if not state.hands_out_credits:
        notes.append("hands out no credits while a forced restart waits")
    if state.contested:
        notes.append("somebody else calls the model")
    if state.reading_error is not None:
        notes.append(f"counters cannot be read: {state.reading_error}")
    if state.released_unproven:
        notes.append(f"{state.released_unproven} released without proof")
    states = {name: state.states.get(name, 0) for name in STATES}
    return Row(state.id, state.slots, state.free, states, state.waiting, state.pending_prompts, tuple(notes))


def rows_of(metrics: str) -> list[Row]:
    """The rows of all identities out of the server's metrics."""
    found: dict[str, dict[str, int]] = {}
    for name, labels, value in _SAMPLE.findall(metrics):
        label = {key: _unescaped(text) for key, text in _LABEL.findall(labels)}
        if "backend" in label and "model" in label:
            numbers = found.setdefault(f"{label['backend']}:{label['model']}", {})
            numbers[f"{name}/{label['state']}" if "state" in label else name] = _whole(value)
    return [_row(identity, numbers) for identity, numbers in sorted(found.items()) if "vig_slots" in numbers]


def value_of(metrics: str, name: str) -> int:
    """The value of a metric without labels; 0 if there is none."""
    return next((_whole(value) for found, _, value in _SAMPLE.findall(metrics) if found == name), 0)


def _row(identity: str, numbers: dict[str, int]) -> Row:
    states = {state: numbers.get(f"vig_claims/{state}", 0) for state in STATES}
    notes = []
    if numbers.get("vig_contested"):
        notes.append("somebody else calls the model")
    if unproven := numbers.get("vig_released_unproven_total"):
        notes.append(f"{unproven} released without proof")
    waiting, slots, free = numbers.get("vig_waiting_calls", 0), numbers["vig_slots"], numbers.get("vig_free_slots", 0)
    return Row(identity, slots, free, states, waiting, None, tuple(notes))


def _whole(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return 0


def _unescaped(text: str) -> str:
    return text.replace(r"\"", '"').replace(r"\n", "\n").replace(r"\\", "\\")
