"""Freezing and restoring: states as tuples, equal when nothing that can still happen tells them apart.

Only the order of the clock's times matters to the ledger here (the settle time is one tick), so times are frozen as
ranks. Numbers that only grow (the epoch's, the readings') are frozen as what they are compared with.
"""

from __future__ import annotations

import dataclasses
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from governor.core.claims import Claim
from governor.core.epoch import Epoch
from governor.core.evidence import Ticket
from governor.core.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.core.ledger import Ledger

Frozen = tuple[Any, ...]

_CLAIM_FIELDS = [f.name for f in dataclasses.fields(Claim) if f.name not in ("opened_at_s", "delivered_at_s")]
_claim_values = attrgetter(*_CLAIM_FIELDS)


def freeze_ledger(ledger: Ledger, rank: Callable[[float], int]) -> Frozen:
    """A ledger as a tuple, without what only people read (totals, the time a claim was opened)."""
    epoch, recent = ledger._epoch, ledger._recent
    return (
        tuple(
            (_claim_values(claim), None if claim.delivered_at_s is None else rank(claim.delivered_at_s))
            for claim in ledger.claims.values()
        ),
        ledger.contested,
        ledger._rule,
        ledger._provable,
        recent.doubtful,
        tuple((rank(at), most) for at, most in recent._answers),
        epoch.boot,
        epoch.versions,
        epoch.marks,
        (epoch.model.bound, epoch.model.high) if epoch.model else None,
        (epoch.process.bound, epoch.process.high) if epoch.process else None,
    )


def restore_ledger(ledger: Ledger, frozen: Frozen, *, opened: int) -> None:
    """Makes `ledger` what was frozen; `opened` is the number of claims it ever opened."""
    claims, ledger.contested, ledger._rule, ledger._provable, doubtful, answers, boot, versions, marks, model, process = (
        frozen
    )
    ledger.claims.clear()
    for values, delivered_at_s in claims:
        claim = Claim(values[0], 0.0)
        for name, value in zip(_CLAIM_FIELDS, values, strict=True):
            setattr(claim, name, value)
        claim.delivered_at_s = delivered_at_s
        ledger.claims[claim.id] = claim
    recent = ledger._recent
    recent.doubtful = doubtful
    recent._answers.clear()
    recent._answers.extend(answers)
    ledger._epoch = Epoch(
        number=0,
        boot=boot,
        versions=versions,
        marks=marks,
        model=Witness(*model) if model else None,
        process=Witness(*process) if process else None,
    )
    ledger._ids = count(opened + 1)


def freeze_ticket(ledger: Ledger, ticket: Ticket, rank: Callable[[float], int]) -> Frozen:
    """A ticket as a tuple: whether it still stands, and when it was begun."""
    return (ticket.epoch == ledger._epoch.number, rank(ticket.begun_at_s))


def restore_ticket(frozen: Frozen) -> Ticket:
    """The ticket in a ledger restored by `restore_ledger`."""
    stands, begun_at_s = frozen
    return Ticket(0 if stands else -1, begun_at_s)
