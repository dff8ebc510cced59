"""Identities: the shell around the ledger. One nursery each; calls, lanes, poller and epoch actor are its tasks."""

from governor.identity.call import Call, CallRequest, CallState, Head, answer_too_large
from governor.identity.identity import Identity
from governor.identity.inspect import ClaimView, IdentityView, ReadingsView, WaitingView, inspect
from governor.identity.operator import ForgottenClaim, RestartReport
from governor.identity.values import IdentityKey, IdentitySettings, IdentityStatistics, IdentityTotals

__all__ = [
    "Call",
    "CallRequest",
    "CallState",
    "ClaimView",
    "ForgottenClaim",
    "Head",
    "Identity",
    "IdentityKey",
    "IdentitySettings",
    "IdentityStatistics",
    "IdentityTotals",
    "IdentityView",
    "ReadingsView",
    "RestartReport",
    "WaitingView",
    "answer_too_large",
    "inspect",
]
