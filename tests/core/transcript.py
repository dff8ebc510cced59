"""A small language in which the story of a ledger is told, and what the ledger has to say after each line of it.

A line that begins in the first column is told to the ledger; the indented lines after it are what came of it: each
claim that changed, then the whole state in one line. `#` begins a comment. The lines there are:

    slots N [ensemble] [decoupled] [on_fall=restart|seen|hold] [settle=1s]      the ledger of the story
    identity NAME slots N [...]     one of several ledgers; `on NAME` turns to another
    resize N                        the operator takes slots away or adds some
    model plain|ensemble [decoupled]    what the model's configuration says now
    time +1s                        time passes
    open A...                       a credit is taken
    dispatch A [boot=P1]            the first byte leaves, on a connection to the process P1
    delivered A...                  the last byte left
    send A... [boot=P1]             the three together
    left A                          its caller leaves
    lost A                          its connection is gone
    answered A counted|uncounted|maybe      the answer says that it counts, that it does not, or neither
    release A                       an operator takes responsibility
    ask [T]                         a reading is asked for
    read [T] S=1 [F=0] [boot=P1] [process=1,0] [versions=1,2] [life=4,4]    it arrives; asked for just now without `ask`
    unreadable [T]                  it never does

Counts may be sums (`S=3+4`): one summand for each version.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from governor.core.claims import ClaimState, IllegalTransitionError
from governor.core.counting import ENSEMBLE, PLAIN, Counts, Reading
from governor.core.evidence import OnFall
from governor.core.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from governor.core.claims import Claim
    from governor.core.evidence import Ticket

_INDENT = "    "


class StoryError(Exception):
    """A line that the language does not have."""


def retell(text: str) -> str:
    """The same story with what comes of it now.

    Raises:
        StoryError: a line cannot be understood.
        AssertionError: the ledger did what it must never do.
    """
    story = Story()
    told: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(" "):
            continue
        told.append(line)
        spoken = line.split("#", maxsplit=1)[0].split()
        if not spoken:
            continue
        try:
            told += [_INDENT + said for said in story.tell(spoken)]
        except StoryError as error:
            raise StoryError(f"line {number}, {line!r}: {error}") from None
    return "\n".join(told) + "\n"


class _Words:
    """The words of one line after its first; `done` complains of those that nobody asked for."""

    def __init__(self, words: list[str]) -> None:
        self._options = dict(word.split("=", maxsplit=1) for word in words if "=" in word)
        self._plain = [word for word in words if "=" not in word]

    def next(self, expected: str, *among: str) -> str:
        """The next plain word."""
        if not self._plain or (among and self._plain[0] not in among):
            raise StoryError(f"expected {expected}")
        return self._plain.pop(0)

    def flag(self, word: str) -> bool:
        """Whether the word is there."""
        if word not in self._plain:
            return False
        self._plain.remove(word)
        return True

    def rest(self, expected: str) -> list[str]:
        """All plain words that are left, at least one."""
        first = self.next(expected)
        words, self._plain = [first, *self._plain], []
        return words

    def optional(self) -> str:
        """The next plain word, or nothing."""
        return self._plain.pop(0) if self._plain else ""

    def option(self, name: str) -> str | None:
        """The value of an option; None where it is not given."""
        return self._options.pop(name, None)

    def done(self) -> None:
        """Nothing may be left."""
        if left := [*self._plain, *self._options]:
            raise StoryError(f"cannot understand {' '.join(left)}")


@dataclass(eq=False)
class _Identity:
    """One ledger, and what the story calls its claims and readings."""

    ledger: Ledger
    ids: dict[str, int] = field(default_factory=dict)
    tickets: dict[str, Ticket] = field(default_factory=dict)

    def claims(self) -> dict[str, Claim]:
        """The claims there are, by name."""
        ledger = self.ledger
        return {name: ledger.claims[claim_id] for name, claim_id in self.ids.items() if claim_id in ledger.claims}


class Story:
    """Ledgers and the time, changed by `tell` alone."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._identities: dict[str, _Identity] = {}
        self._name = ""

    def tell(self, words: list[str]) -> list[str]:
        """One line. Returns what came of it: claims that changed, then the state."""
        command = _COMMANDS.get(words[0])
        if command is None:
            raise StoryError(f"no such line; there are {', '.join(_COMMANDS)}")
        rest = _Words(words[1:])
        said = command(self, rest)
        rest.done()
        self._check()
        return [*said, self._state()]

    @property
    def _told_of(self) -> _Identity:
        identity = self._identities.get(self._name)
        if identity is None:
            raise StoryError("a story begins with `slots N` or `identity NAME slots N`")
        return identity

    @property
    def _ledger(self) -> Ledger:
        return self._told_of.ledger

    def _id(self, name: str) -> int:
        claim_id = self._told_of.ids.get(name)
        if claim_id is None or claim_id not in self._ledger.claims:
            raise StoryError(f"no claim {name}")
        return claim_id

    def _check(self) -> None:
        """What holds after every line, whatever the story."""
        for identity in self._identities.values():
            snapshot = identity.ledger.snapshot()
            assert snapshot.free + sum(snapshot.states.values()) == snapshot.slots, "credits are conserved (E1)"
            assert all(claim.state is not ClaimState.ENDED for claim in identity.claims().values())

    # What there is

    def _slots(self, words: _Words) -> list[str]:
        slots = _whole(words.next("a number of slots"))
        on_fall = words.option("on_fall")
        settle = words.option("settle")
        ledger = Ledger(
            slots=slots,
            rule=ENSEMBLE if words.flag("ensemble") else PLAIN,
            provable=not words.flag("decoupled"),
            settle_s=1.0 if settle is None else _seconds(settle),
            on_fall=OnFall.SEEN if on_fall is None else OnFall(on_fall),
        )
        self._identities[self._name] = _Identity(ledger)
        return []

    def _identity(self, words: _Words) -> list[str]:
        self._name = words.next("a name")
        words.next("slots", "slots")
        return self._slots(words)

    def _on(self, words: _Words) -> list[str]:
        self._name = words.next("the name of an identity", *self._identities)
        return []

    def _resize(self, words: _Words) -> list[str]:
        self._ledger.slots = _whole(words.next("a number of slots"))
        return []

    def _model(self, words: _Words) -> list[str]:
        kind = words.next("plain or ensemble", "plain", "ensemble")
        self._ledger.count_by(ENSEMBLE if kind == "ensemble" else PLAIN, provable=not words.flag("decoupled"))
        return []

    def _time(self, words: _Words) -> list[str]:
        self._now_s += _seconds(words.next("a time").removeprefix("+"))
        return []

    # Calls

    def _open(self, words: _Words) -> list[str]:
        return self._open_all(words.rest("a name"))

    def _open_all(self, names: list[str]) -> list[str]:
        before = self._states()
        for name in names:
            if name in self._told_of.ids:
                raise StoryError(f"{name} was opened before")
            try:
                self._told_of.ids[name] = self._ledger.open(self._now_s)
            except ValueError as error:
                return [*self._changes(before, {}), f"{name}: refused, {error}"]
        return self._changes(before, {})

    def _dispatch(self, words: _Words) -> list[str]:
        self._ledger.dispatch(self._id(words.next("a name")), words.option("boot"))
        return []

    def _delivered(self, words: _Words) -> list[str]:
        for name in words.rest("a name"):
            self._ledger.delivered(self._id(name), self._now_s)
        return []

    def _send(self, words: _Words) -> list[str]:
        boot = words.option("boot")
        names = words.rest("a name")
        said = self._open_all(names)
        for name in names:
            self._ledger.dispatch(self._id(name), boot)
            self._ledger.delivered(self._id(name), self._now_s)
        return said

    def _left(self, words: _Words) -> list[str]:
        before = self._states()
        self._ledger.caller_left(self._id(words.next("a name")))
        return self._changes(before, {})

    def _lost(self, words: _Words) -> list[str]:
        before = self._states()
        claim_id = self._id(words.next("a name"))
        ended = self._ledger.lost(claim_id)
        assert ended == (claim_id not in self._ledger.claims), "`lost` tells whether the claim ended"
        return self._changes(before, {claim_id: "undelivered"})

    def _answered(self, words: _Words) -> list[str]:
        before = self._states()
        claim_id = self._id(words.next("a name"))
        says = words.next("counted, uncounted or maybe", "counted", "uncounted", "maybe")
        most = self._told_of.ledger._rule.most
        least, most = {"counted": (most, most), "uncounted": (0, 0), "maybe": (0, most)}[says]
        self._ledger.answered(claim_id, self._now_s, least=least, most=most)
        return self._changes(before, {claim_id: "answered"})

    def _release(self, words: _Words) -> list[str]:
        before = self._states()
        claim_id = self._id(words.next("a name"))
        try:
            self._ledger.release(claim_id)
        except IllegalTransitionError as error:
            return [f"refused, {error}"]
        return self._changes(before, {claim_id: "released"})

    # Readings

    def _ask(self, words: _Words) -> list[str]:
        self._told_of.tickets[words.optional()] = self._ledger.begin_reading(self._now_s)
        return []

    def _read(self, words: _Words) -> list[str]:
        before = self._states()
        was_broken = {claim.id for claim in self._ledger.claims.values() if claim.state.is_broken}
        ticket = self._ticket(words.optional())
        verdict = self._ledger.apply(ticket, _reading(words))
        assert {claim_id for claim_id, _ in verdict.ended} <= was_broken, "a reading never ends an open claim (E6)"
        assert verdict.contested == self._ledger.contested
        said = self._changes(before, {claim_id: proof.value for claim_id, proof in verdict.ended})
        return [verdict.life.value, *said]

    def _unreadable(self, words: _Words) -> list[str]:
        self._ticket(words.optional())
        return []

    def _ticket(self, name: str) -> Ticket:
        ticket = self._told_of.tickets.pop(name, None)
        if ticket is not None:
            return ticket
        if name:
            raise StoryError(f"no reading {name} was asked for")
        return self._ledger.begin_reading(self._now_s)

    # What is said

    def _states(self) -> dict[str, ClaimState]:
        return {name: claim.state for name, claim in self._told_of.claims().items()}

    def _changes(self, before: Mapping[str, ClaimState], proofs: Mapping[int, str]) -> list[str]:
        after, said = self._states(), []
        for name, claim_id in self._told_of.ids.items():
            old, new = before.get(name), after.get(name)
            if old is new:
                continue
            was = old.value if old is not None else "free"
            became = new.value if new is not None else f"free, {proofs[claim_id]}"
            said.append(f"{name}: {was} -> {became}")
        return said

    def _state(self) -> str:
        ledger = self._ledger
        parts = [f"{self._name} t={self._now_s:g}s".strip(), f"free {ledger.free}/{ledger.slots}"]
        parts += [f"{name} {_describe(claim)}" for name, claim in self._told_of.claims().items()]
        parts.append(_epoch(ledger))
        if ledger.contested:
            parts.append("contested")
        if ledger.wants_evidence:
            parts.append("polls")
        # Of a copy: the question makes the ledger look at the time.
        if copy.deepcopy(ledger).wants_baseline(self._now_s):
            parts.append("reads before a delivery")
        if ledger.totals.released_unproven:
            parts.append(f"released unproven {ledger.totals.released_unproven}")
        return " | ".join(parts)


def _describe(claim: Claim) -> str:
    sent = "delivered" if claim.delivered else "dispatched" if claim.dispatched else "not sent"
    marks = [
        word
        for word, holds in {
            claim.boot or "": claim.boot is not None,
            "seen": claim.seen and not claim.resident,
            "resident": claim.resident,
            "replaced": claim.replaced,
            "gone": claim.gone,
            "uncountable": not claim.countable,
        }.items()
        if holds
    ]
    return f"{claim.state.value} ({', '.join([sent, *marks])})"


def _epoch(ledger: Ledger) -> str:
    seen = ledger.snapshot()
    said = f"epoch {seen.epoch}" + (f" of {seen.boot}" if seen.boot is not None else "")
    if not seen.has_baseline:
        return f"{said}: no baseline"
    said += f": high {seen.model_high}, bound {seen.model_bound}"
    if seen.process_bound is not None:
        said += f"; process high {seen.process_high}, bound {seen.process_bound}"
    return said


def _reading(words: _Words) -> Reading:
    process = words.option("process")
    success, fail = (_whole(number) for number in process.split(",")) if process else (0, 0)
    return Reading(
        model=Counts(_whole(words.option("S") or "0"), _whole(words.option("F") or "0")),
        versions=frozenset((words.option("versions") or "1").split(",")),
        life=tuple(_whole(number) for number in (words.option("life") or "").split(",") if number),
        process=Counts(success, fail) if process else None,
        boot=words.option("boot"),
    )


def _whole(text: str) -> int:
    try:
        return sum(int(summand) for summand in text.split("+"))
    except ValueError:
        raise StoryError(f"expected a number, not {text}") from None


def _seconds(text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise StoryError(f"expected a time, not {text}") from None


_COMMANDS: dict[str, Callable[[Story, _Words], list[str]]] = {
    "slots": Story._slots,
    "identity": Story._identity,
    "on": Story._on,
    "resize": Story._resize,
    "model": Story._model,
    "time": Story._time,
    "open": Story._open,
    "dispatch": Story._dispatch,
    "delivered": Story._delivered,
    "send": Story._send,
    "left": Story._left,
    "lost": Story._lost,
    "answered": Story._answered,
    "release": Story._release,
    "ask": Story._ask,
    "read": Story._read,
    "unreadable": Story._unreadable,
}
