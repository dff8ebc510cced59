"""Identities: the shell around the ledger. One nursery each; calls, lanes, poller and epoch actor are its tasks."""

from governor.identity.call import Call, CallRequest, CallState, Head, answer_too_large
from governor.identity.identity import Identity, IdentityKey, IdentitySettings, IdentityStatistics, IdentityTotals
from governor.identity.operator import ForgottenClaim, RestartReport

__all__ = [
    "Call",
    "CallRequest",
    "CallState",
    "ForgottenClaim",
    "Head",
    "Identity",
    "IdentityKey",
    "IdentitySettings",
    "IdentityStatistics",
    "IdentityTotals",
    "RestartReport",
    "answer_too_large",
]
