"""Planted faults. Each is a change of a few words in the core, with the world in which the model check finds it.

A mutant that no world finds shows a rule that nothing holds.
"""

from __future__ import annotations

import inspect
import textwrap
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

from governor.core import claims, counting, epoch, ledger, witness
from governor.core.claims import TRANSITIONS, ClaimEvent, ClaimState
from tests.core.model import world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType, ModuleType


@dataclass(frozen=True)
class Patch:
    """A function of a module's class, and the words in it that are exchanged."""

    module: ModuleType
    owner: str
    function: str
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Puts the changed function in place for a while."""
        owner = getattr(self.module, self.owner)
        source = textwrap.dedent(inspect.getsource(_function(owner, self.function)))
        assert source.count(self.old) == 1, f"{self.owner}.{self.function} has no single {self.old!r} any more"
        namespace: dict[str, FunctionType] = {}
        code = compile(
            "from __future__ import annotations\n" + source.replace(self.old, self.new), self.function, "exec"
        )
        exec(code, vars(self.module), namespace)  # the planted fault itself
        changed = namespace[self.function]
        with mock.patch.object(owner, self.function, changed):
            yield


def _function(owner: type, name: str) -> FunctionType:
    member = inspect.getattr_static(owner, name)
    function: FunctionType = getattr(member, "fget", None) or member
    return function


@dataclass(frozen=True)
class Mutant:
    """A planted fault.

    Attributes:
        world: the name of the world that finds it.
        patches: the changed functions.
        transitions: moves that the table is given in addition.
    """

    world: str
    patches: tuple[Patch, ...]
    transitions: dict[ClaimState, ClaimEvent] = field(default_factory=dict)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Plants the fault for a while."""
        with ExitStack() as stack:
            for state, event in self.transitions.items():
                stack.enter_context(mock.patch.dict(TRANSITIONS[state], {event: ClaimState.ENDED}))
            for patch in self.patches:
                stack.enter_context(patch.applied())
            # The world's table of events holds the functions themselves.
            sample = {"sample": world.World.sample}
            stack.enter_context(mock.patch.dict(world._EVENTS, sample))
            yield


def _in_ledger(function: str, old: str, new: str) -> Patch:
    return Patch(ledger, "Ledger", function, old, new)


def _in_witness(function: str, old: str, new: str) -> Patch:
    return Patch(witness, "Witness", function, old, new)


OPEN_CLAIMS_END = {ClaimState.RUNNING: ClaimEvent.PROCESS_ENDED, ClaimState.TIMED_OUT: ClaimEvent.PROCESS_ENDED}

MUTANTS: dict[str, Mutant] = {
    # The seed's own faults
    "a fall ends open claims too": Mutant(
        "a restart, every process known",
        (_in_ledger("_end_with_process", "in self._broken() if", "in self._outstanding() if"),),
        OPEN_CLAIMS_END,
    ),
    "the same fall is processed again and again": Mutant(
        "a restart, no process known",
        (
            Patch(
                epoch,
                "Epoch",
                "observe",
                "bound=value + by_model, high=value)",
                "bound=value + by_model, high=value + 1)",
            ),
        ),
    ),
    "what broke in the new process ends with the restart": Mutant(
        "a restart, no process known", (_in_ledger("_is_given_up", "claim.seen or (", "True or ("),)
    ),
    "the first version only": Mutant(
        "live: two versions",
        (Patch(world, "World", "sample", "sum(backend.counts.values())", "next(iter(backend.counts.values()))"),),
    ),
    # The bound
    "quiet one too early": Mutant("three calls", (_in_witness("quiet", "value > self.bound", "value >= self.bound"),)),
    "quiet when the counter moved at all": Mutant(
        "three calls", (_in_witness("quiet", "value > self.bound - most", "value > self.bound - 2 * most"),)
    ),
    "contested already at the bound": Mutant(
        "three calls", (_in_witness("contested", "value > self.bound", "value >= self.bound"),)
    ),
    "overshoot ignored": Mutant("a foreign caller", (_in_witness("contested", "value > self.bound", "False"),)),
    "quiet proofs while contested": Mutant(
        "a foreign caller",
        (
            _in_ledger(
                "_prove_quiet", "if self.contested and (self._outstanding()", "if False and (self._outstanding()"
            ),
        ),
    ),
    "a bound from a reading right after an answer": Mutant(
        "three calls",
        (_in_ledger("_observe", "unsettled = self._unsettled.since(ticket)", "unsettled = 0"),),
    ),
    "what was answered while the reading was under way is forgotten": Mutant(
        "three calls",
        (
            Patch(
                epoch,
                "Unsettled",
                "since",
                "return sum(most - ticket.settled.get(boot, 0) for boot, most in self._let_go.items())",
                "return sum(most for _, most, _ in self._recent)",
            ),
        ),
    ),
    "what was delivered while the reading was under way is forgotten": Mutant(
        "three calls", (_in_ledger("_observe", "self._outstanding()", "self._delivered_before(ticket)"),)
    ),
    "a delivery does not raise the bound": Mutant(
        "three calls", (_in_ledger("dispatch", "witness.may_count(self._rule.most)", "pass"),)
    ),
    "what was never delivered stays in the bound": Mutant(
        "live: nothing goes wrong but connections",
        (_in_ledger("lost", "self._take_back(claim, self._rule.most)", "pass"),),
    ),
    "a broken call is taken for one that was never delivered": Mutant(
        "three calls", (_in_ledger("lost", "if not claim.delivered:", "if claim.delivered:"),)
    ),
    "elements counted instead of ends (inference_count)": Mutant(
        "three calls",
        (
            Patch(
                counting,
                "CountRule",
                "measure",
                "self.success_weight * counts.success + counts.fail",
                "2 * counts.fail",
            ),
        ),
    ),
    # Errors, ensembles, decoupled models
    "an error counted as exactly one": Mutant("live: errors", (_in_ledger("answered", "least < most", "False"),)),
    "an error counted as none": Mutant(
        "errors that count or not",
        (_in_ledger("answered", "most = min(most, self._rule.most)", "most = min(least, self._rule.most)"),),
    ),
    "an ensemble's end proven by half of it": Mutant(
        "an ensemble", (_in_ledger("_prove_quiet", "witness.quiet(value, self._rule.most)", "witness.quiet(value, 3)"),)
    ),
    "the second step of a failure forgotten": Mutant(
        "an ensemble", (_in_ledger("_prove_quiet", "self._unsettled.add(", "(lambda *_: None)("),)
    ),
    "a decoupled model's counter believed": Mutant(
        "a decoupled model", (_in_ledger("_counted_by", "claim.countable and ", ""),)
    ),
    "old bounds under a new rule": Mutant(
        "a model that turns out to be an ensemble",
        (_in_ledger("count_by", "self._epoch = Epoch(number=self._epoch.number + 1, boot=self._epoch.boot)", "pass"),),
    ),
    # Readings
    "a stale ticket accepted": Mutant(
        "two readings at a time", (_in_ledger("apply", "ticket.after != self._readings", "False"),)
    ),
    "a reading of one moment taken for two": Mutant(
        "statistics and metrics of different moments",
        (
            _in_ledger(
                "_prove_quiet",
                """for claim in proven:
                self._unsettled.add(now_s, self._rule.most, claim.boot)
            self._unsettled.doubtful |= bool(proven) and value < witness.bound
            ended += self._end(proven, ClaimEvent.QUIET)""",
                """ended += self._end(proven, ClaimEvent.QUIET)
            self._observe(ticket, reading)""",
            ),
        ),
    ),
    "delivered later than the reading was asked for, and seen all the same": Mutant(
        "a restart, no process known",
        (Patch(claims, "Claim", "delivered_before", "self.delivered_at_s < moment_s", "True"),),
    ),
    # Lives
    "metrics believed for a call that no reload has touched": Mutant(
        "a first warm-up while the load is under way",
        (
            _in_ledger("_counted_by", "claim.crossed if by_process", "True if by_process"),
            _in_ledger("_values", "if self._crossed and process", "if process"),
        ),
    ),
    "a dead process's last answer awaited for ever": Mutant(
        "live: a restart, every process known",
        (_in_ledger("_begin_epoch", "self._unsettled.process_ended(old.boot)", "pass"),),
    ),
    "the new process's first answer taken for the dead one's": Mutant(
        "a restart, every process known",
        (
            _in_ledger(
                "_begin_epoch", "self._unsettled.process_ended(old.boot)", "self._unsettled.process_ended(reading.boot)"
            ),
        ),
    ),
    "a dead process's open call awaited for ever": Mutant(
        "live: a restart, every process known",
        (_in_ledger("_end_with_process", "if claim.may_count:", "if False:"),),
    ),
    "a reload taken for a restart": Mutant(
        "a reload, every process known",
        (_in_ledger("_is_known_dead", "claim.boot != reading.boot and", "life is Life.RELOAD and"),),
    ),
    "a process's own counter not looked at": Mutant(
        "statistics and metrics of different moments",
        (Patch(epoch, "Epoch", "_process_went_on", "return not", "return False and not"),),
    ),
    "a restart seen by its counter alone": Mutant(
        "a restart, every process known", (Patch(epoch, "Epoch", "life_of", "return Life.RESTART", "pass"),)
    ),
    "a version that goes taken for a restart": Mutant(
        "versions come and go",
        (Patch(epoch, "Epoch", "life_of", "if reading.versions != self.versions:", "if False:"),),
    ),
    "open claims left out of the new life": Mutant(
        "a restart, every process known",
        (_in_ledger("_begin_epoch", "claim.replaced |= claim.resident", "claim.replaced |= True"),),
    ),
    "in the old load as soon as delivered": Mutant(
        "a reload within the settle time", (_in_ledger("_mark_seen", "claim.delivered_at_s <= settled_s", "True"),)
    ),
    "calls of an old load left in the bound": Mutant(
        "a reload, every process known",
        (_in_ledger("_observe", "in outstanding if not claim.replaced", "in outstanding"),),
    ),
    "calls of an old load ended by the new one's counter": Mutant(
        "a reload, every process known",
        (_in_ledger("_counted_by", "else not claim.replaced", "else True"),),
    ),
    "an unexplained fall leaves the old process's name": Mutant(
        "one call, processes now known and now not",
        (_in_ledger("_begin_epoch", "None if life is Life.UNKNOWN_FALL else old.boot", "old.boot"),),
    ),
    "a process proven dead ends nothing that breaks later": Mutant(
        "live: a restart, every process known",
        (
            _in_ledger(
                "apply",
                "self._end_with_process(life, ticket, reading)",
                "[] if life is Life.SAME else self._end_with_process(life, ticket, reading)",
            ),
        ),
    ),
    "the new process's witness keeps the old one's bound": Mutant(
        "a restart, every process known",
        (
            _in_ledger(
                "_begin_epoch",
                "self._observe(ticket, reading)",
                "self._epoch.model = old.model or self._observe(ticket, reading)",
            ),
        ),
    ),
    "metrics that showed nothing yet not looked at": Mutant(
        "a reload, metrics of earlier moments",
        (
            Patch(
                epoch,
                "Epoch",
                "_process_went_on",
                "reading.process is None:",
                "reading.process is None or not self.process.high:",
            ),
        ),
    ),
    "a load's warm-up taken for the ends of calls": Mutant(
        "a model that warms up, reloads and metrics", (_in_ledger("_values", " and not self._warms_up", ""),)
    ),
    "a reading that does not tell its process believed": Mutant(
        "a restart, processes now known and now not",
        (_in_ledger("_mark_seen", "reading.boot != self._epoch.boot", "False"),),
    ),
    "a process gone by an unexplained fall forgotten": Mutant(
        "a restart, no process known",
        (_in_ledger("_is_given_up", "return claim.seen or", "return claim.state.is_broken and claim.seen or"),),
    ),
    # An operator
    "a released claim is as good as counted": Mutant(
        "an operator releases what is over",
        (_in_ledger("release", "self._unsettled.add(now_s, self._rule.most, claim.boot)", "pass"),),
    ),
    "an operator's release takes back what may still count": Mutant(
        "an operator releases what is over",
        (
            _in_ledger(
                "release",
                "self._unsettled.add(now_s, self._rule.most, claim.boot)",
                "self._take_back(claim, self._rule.most)",
            ),
        ),
    ),
}
