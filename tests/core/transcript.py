"""A small language in which the story of a ledger is told, and what the ledger does after each line of it.

Lines that begin in the first column are told to the ledger; the indented lines after them are what came of it: what
a reading did, then the whole state in one line. `#` begins a comment. Numbers given to `wait` are seconds; the settle
time is one.

    ledger slots=2 [rule=plain|ensemble|decoupled] [on_fall=restart|seen|hold]     a new ledger, and no claims
    resize 1                    slots are taken away or added
    configured plain|ensemble|decoupled     what the model's configuration says now
    wait 2                      time passes
    open a                      a credit is taken
    dispatch a [boot=B1]        the first byte leaves, on a connection to the process B1
    delivered a                 the last byte left
    send a [boot=B1]            the three together
    leave a                     its caller leaves
    lost a                      its connection is gone
    answered a [counts=0..1]    its answer arrives, and says what it adds to the counter; as a success does by default
    release a                   an operator takes responsibility for one claim
    restart model=3,0 ...       and for all: a forced restart, with a reading
    read model=3,0 [process=9,0] [boot=B1] [versions=1,2] [life=7,7]       a reading, asked for and taken at once
    ask first                   a reading is asked for, and named
    take first model=3,0 ...    it arrives
    ask whether                 is a reading wanted before the next delivery?
    ask poller                  is it there?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.claims import ClaimState, IllegalTransitionError
from governor.core.counting import ENSEMBLE, PLAIN, Counts, Reading
from governor.core.evidence import OnFall
from governor.core.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.core.evidence import Ticket, Verdict

_INDENT = "    "
_RULES = {"plain": PLAIN, "ensemble": ENSEMBLE, "decoupled": PLAIN}


class ScriptError(Exception):
    """A line that the language does not have."""


class Script:
    """Runs a story. One instance runs one; `run` returns it with what comes of it now."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._ledger: Ledger | None = None
        self._most = 1
        self._ids: dict[str, int] = {}
        self._tickets: dict[str, Ticket] = {}
        self._options: dict[str, str] = {}

    def run(self, text: str) -> str:
        """Returns the story with the ledger's part of it told anew.

        Raises:
            ScriptError: a line cannot be understood.
            AssertionError: the ledger did what it must never do.
        """
        told: list[str] = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith(_INDENT):
                continue
            told.append(line)
            words = line.split("#", maxsplit=1)[0].split()
            if not words:
                continue
            try:
                told += [_INDENT + said for said in self._tell(words[0], words[1:])]
            except ScriptError as error:
                raise ScriptError(f"line {number}, {line!r}: {error}") from None
        return "\n".join(told) + "\n"

    def _tell(self, command: str, words: list[str]) -> list[str]:
        self._options = dict(word.split("=", maxsplit=1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        silent = _SILENT.get(command)
        told = _TOLD.get(command)
        said: list[str] = []
        if silent is not None:
            said = silent(self, *plain)
        elif told is not None:
            said = [*told(self, *plain), self._state()]
        else:
            raise ScriptError(f"there is no {command}, but {', '.join([*_SILENT, *_TOLD])}")
        if self._options:
            raise ScriptError(f"{command} takes no {', '.join(self._options)}")
        self._check()
        return said

    def _check(self) -> None:
        """What holds after every line, whatever the story."""
        if self._ledger is not None:
            snapshot = self._ledger.snapshot()
            assert snapshot.free + sum(snapshot.states.values()) == snapshot.slots, "credits are conserved (E1)"
            assert all(claim.state is not ClaimState.ENDED for claim in self._ledger.claims.values())

    def _of(self, name: str) -> int:
        if name not in self._ids or self._ids[name] not in self.ledger.claims:
            raise ScriptError(f"there is no claim {name}")
        return self._ids[name]

    @property
    def ledger(self) -> Ledger:
        """The ledger of the story as far as it was told."""
        if self._ledger is None:
            raise ScriptError("a story begins with its ledger")
        return self._ledger

    # Lines after which nothing is said

    def _new_ledger(self) -> list[str]:
        rule = self._options.pop("rule", "plain")
        self._most = _RULES[rule].most
        self._ids, self._tickets = {}, {}
        self._ledger = Ledger(
            slots=int(self._options.pop("slots")),
            rule=_RULES[rule],
            provable=rule != "decoupled",
            settle_s=1.0,
            on_fall=OnFall(self._options.pop("on_fall", "seen")),
        )
        return []

    def _wait(self, seconds: str) -> list[str]:
        self._now_s += float(seconds)
        return []

    def _ask(self, what: str) -> list[str]:
        if what == "whether":
            return ["wanted" if self.ledger.wants_baseline(self._now_s) else "not wanted"]
        if what == "poller":
            return ["polls" if self.ledger.wants_evidence else "nothing to poll for"]
        self._tickets[what] = self.ledger.begin_reading(self._now_s)
        return []

    # Lines after which the state is told

    def _resize(self, slots: str) -> list[str]:
        self.ledger.slots = int(slots)
        return []

    def _configured(self, kind: str) -> list[str]:
        self._most = max(self._most, _RULES[kind].most)
        self.ledger.count_by(_RULES[kind], provable=kind != "decoupled")
        return []

    def _open(self, name: str) -> list[str]:
        if name in self._ids:
            raise ScriptError(f"{name} was told of before")
        try:
            self._ids[name] = self.ledger.open(self._now_s)
        except ValueError as error:
            return [f"refused, {error}"]
        return []

    def _dispatch(self, name: str) -> list[str]:
        self.ledger.dispatch(self._of(name), self._options.pop("boot", None))
        return []

    def _delivered(self, name: str) -> list[str]:
        self.ledger.delivered(self._of(name), self._now_s)
        return []

    def _send(self, name: str) -> list[str]:
        return [*self._open(name), *self._dispatch(name), *self._delivered(name)]

    def _leave(self, name: str) -> list[str]:
        self.ledger.caller_left(self._of(name))
        return []

    def _lost(self, name: str) -> list[str]:
        claim_id = self._of(name)
        ended = self.ledger.lost(claim_id)
        assert ended == (claim_id not in self.ledger.claims), "`lost` tells whether the claim ended (E3)"
        return ["never delivered"] if ended else []

    def _answered(self, name: str) -> list[str]:
        counts = self._options.pop("counts", str(self._most))
        least, _, most = counts.partition("..")
        self.ledger.answered(self._of(name), self._now_s, least=int(least), most=int(most or least))
        return []

    def _release(self, name: str) -> list[str]:
        try:
            self.ledger.release(self._of(name), self._now_s)
        except IllegalTransitionError as error:
            return [f"refused, {error}"]
        return []

    def _read(self) -> list[str]:
        return self._apply(self.ledger.begin_reading(self._now_s))

    def _take(self, name: str) -> list[str]:
        if name not in self._tickets:
            raise ScriptError(f"nobody asked for {name}")
        return self._apply(self._tickets.pop(name))

    def _apply(self, ticket: Ticket) -> list[str]:
        broken = {claim.id for claim in self.ledger.claims.values() if claim.state.is_broken}
        contested = self.ledger.totals.contested
        verdict = self.ledger.apply(ticket, self._reading(), self._now_s)
        assert verdict.contested == self.ledger.contested
        told = self._tell_verdict(verdict, broken)
        if self.ledger.totals.contested > contested and not verdict.contested:
            told.append("CONTESTED, and nothing of ours runs: this is the clean baseline")
        return told

    def _restart(self) -> list[str]:
        broken = {claim.id for claim in self.ledger.claims.values() if claim.state.is_broken}
        verdict, released = self.ledger.restart(self.ledger.begin_reading(self._now_s), self._reading(), self._now_s)
        assert set(released) <= broken, "an operator ends no open claim (E11)"
        names = {claim_id: name for name, claim_id in self._ids.items()}
        return [*self._tell_verdict(verdict, broken), *(f"released {names[claim_id]}" for claim_id in released)]

    def _tell_verdict(self, verdict: Verdict, broken: set[int]) -> list[str]:
        assert {claim_id for claim_id, _ in verdict.ended} <= broken, "a reading ends no open claim (E6)"
        names = {claim_id: name for name, claim_id in self._ids.items()}
        return [
            "; ".join(
                [
                    verdict.life.value,
                    *(f"ended {names[claim_id]} by {proof.value}" for claim_id, proof in verdict.ended),
                    *(f"quarantined {names[claim_id]}" for claim_id in verdict.quarantined),
                    *(["CONTESTED"] if verdict.contested else []),
                ]
            )
        ]

    def _reading(self) -> Reading:
        process, versions = self._options.pop("process", ""), self._options.pop("versions", "")
        return Reading(
            model=Counts(*_numbers(self._options.pop("model"))),
            versions=frozenset(versions.split(",")) if versions else frozenset(),
            life=_numbers(self._options.pop("life", "")),
            process=Counts(*_numbers(process)) if process else None,
            boot=self._options.pop("boot", None),
        )

    def _state(self) -> str:
        snapshot, claims = self.ledger.snapshot(), self.ledger.claims
        epoch = f"epoch {snapshot.epoch}" + (f", {snapshot.boot}" if snapshot.boot is not None else "")
        counters = [
            f"model {snapshot.model_high} of {snapshot.model_bound}" if snapshot.has_baseline else "no baseline"
        ]
        if snapshot.process_bound is not None:
            counters.append(f"process {snapshot.process_high} of {snapshot.process_bound}")
        held = [f"{name}={claims[claim_id].state.value}" for name, claim_id in self._ids.items() if claim_id in claims]
        return f"{epoch}: {', '.join(counters)} | free {snapshot.free} | {' '.join(held) or 'no claims'}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()


_SILENT: dict[str, Callable[..., list[str]]] = {
    "ledger": Script._new_ledger,
    "wait": Script._wait,
    "ask": Script._ask,
}

_TOLD: dict[str, Callable[..., list[str]]] = {
    "resize": Script._resize,
    "configured": Script._configured,
    "open": Script._open,
    "dispatch": Script._dispatch,
    "delivered": Script._delivered,
    "send": Script._send,
    "leave": Script._leave,
    "lost": Script._lost,
    "answered": Script._answered,
    "release": Script._release,
    "restart": Script._restart,
    "read": Script._read,
    "take": Script._take,
}
