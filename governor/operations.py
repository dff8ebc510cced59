"""What an operator can do to a running governor: forced restart, release of one claim, drain, reload (A7, E11).

Each act is checked, done and audited here, whoever asks for it: a route, a signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import trio

from governor.audit import AuditLog
from governor.errors import (
    BackendUnavailableError,
    DrainingError,
    GovernorError,
    OperationInProgressError,
    UnknownIdentityError,
)
from governor.reload import ReloadNeedsRestartError, ReloadNotPossibleError, plan_reload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from governor.audit import Actor
    from governor.config import Config
    from governor.errors import JsonValue
    from governor.identity import ForgottenClaim, Identity, IdentityKey, RestartReport
    from governor.reload import ReloadPlan
    from governor.service import Governor


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartOrder:
    """A forced restart as it was asked for.

    Attributes:
        reason: why, for the audit log.
        keys: the identities; None for all.
        drain_ms: hand out no credits and wait so long at the most for the held ones to come back by themselves.
        expected_epochs: by identity, the epoch that the operator has seen.
    """

    reason: str
    keys: Sequence[IdentityKey] | None = None
    drain_ms: int = 0
    expected_epochs: Mapping[IdentityKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestartResult:
    """What became of one identity.

    Attributes:
        key: which.
        previous_epoch: the one that it was in.
        outcome: what was done, or why nothing was.
    """

    key: IdentityKey
    previous_epoch: int
    outcome: RestartReport | GovernorError


class ConfigSource(Protocol):
    """Where the configuration comes from, and who owns the identities in it (D8)."""

    async def load(self) -> Config:
        """The configuration as it stands now. Raises ConfigError with every mistake."""

    def own(self, identities: Iterable[tuple[str, str]]) -> None:
        """Takes further identities (URL, Triton's model) for this process. Raises GovernorError and takes none."""


Done: TypeAlias = "Callable[[RestartResult], None]"


class Operations:
    """The operator's acts on one governor.

    Args:
        governor: the governor.
        source: where its configuration comes from; None if it was not made from a file.

    Attributes:
        audit: what was done, by whom and why.
    """

    def __init__(self, governor: Governor, source: ConfigSource | None = None) -> None:
        self._governor = governor
        self._source = source
        self._reloading = False
        self._busy: set[IdentityKey] = set()
        self.audit = AuditLog(governor.now_ms, governor.config.server.audit_file)

    async def restart(self, order: RestartOrder, actor: Actor) -> list[RestartResult]:
        """Forces a restart of the named identities, each on its own: one that is refused keeps none back.

        Raises:
            UnknownIdentityError: one of the named does not exist; nothing was done.
        """
        governor = self._governor
        keys = list(governor.identities) if order.keys is None else list(dict.fromkeys(order.keys))
        target = "all" if order.keys is None else ", ".join(map(str, keys))
        asked: dict[str, JsonValue] = {
            "drainMs": order.drain_ms,
            "expectedEpochs": {str(key): epoch for key, epoch in order.expected_epochs.items()},
        }
        with self.audit.act(actor, "restart", target=target, reason=order.reason, **asked) as entry:
            identities = [self.identity(key) for key in keys]
            results: list[RestartResult] = []
            try:
                async with trio.open_nursery() as nursery:
                    for identity in identities:
                        nursery.start_soon(self._restart, identity, order, results.append)
            finally:
                entry.report = _told(results)
            failed = [result.outcome for result in results if isinstance(result.outcome, GovernorError)]
            if failed and len(failed) == len(results):
                entry.result, entry.code, entry.error = "refused", failed[0].code, failed[0].message
            return sorted(results, key=lambda result: result.key)

    async def _restart(self, identity: Identity, order: RestartOrder, done: Done) -> None:
        tell = partial(RestartResult, identity.key, identity.statistics().ledger.epoch)
        if identity.key in self._busy:
            done(tell(OperationInProgressError(f"A restart of {identity.key}")))
            return
        self._busy.add(identity.key)
        try:
            done(tell(await self._forget(identity, order)))
        except GovernorError as refused:
            done(tell(refused))
        finally:
            self._busy.discard(identity.key)

    async def _forget(self, identity: Identity, order: RestartOrder) -> RestartReport:
        expected_epoch = order.expected_epochs.get(identity.key)
        self._check_reachable(identity)
        identity.operator.check_epoch(expected_epoch)
        if not order.drain_ms:
            return await identity.operator.restart(expected_epoch)
        async with identity.handing_out_nothing(order.drain_ms / 1000):
            return await identity.operator.restart(expected_epoch)

    def release(
        self, key: IdentityKey, claim_id: int, *, reason: str, actor: Actor, expected_epoch: int | None = None
    ) -> ForgottenClaim:
        """Releases one broken claim without proof.

        Raises:
            UnknownIdentityError, UnknownClaimError: there is no such thing.
            ClaimOpenError: its connection lives; its own answer or break decides.
            EpochChangedError: this is not the epoch that the operator has seen.
        """
        target = f"{key} claim {claim_id}"
        asked: dict[str, JsonValue] = {"expectedEpoch": expected_epoch}
        with self.audit.act(actor, "release", target=target, reason=reason, **asked) as entry:
            identity = self.identity(key)
            claim = identity.operator.release(claim_id, reason=reason, expected_epoch=expected_epoch)
            entry.report = {"state": claim.state.value, "ageMs": int(claim.age_s * 1000)}
            return claim

    def drain(self, reason: str | None, actor: Actor) -> bool:
        """Lets in no new session, prompt or call until `undrain`; what was accepted goes on.

        Returns:
            Whether it was open before.
        """
        return self._set_entrance(closed=True, act="drain", reason=reason, actor=actor)

    def undrain(self, reason: str | None, actor: Actor) -> bool:
        """Lets new work in again.

        Returns:
            Whether it was closed before.

        Raises:
            DrainingError: the governor stops; there is no way back from that.
        """
        return self._set_entrance(closed=False, act="undrain", reason=reason, actor=actor)

    def _set_entrance(self, *, closed: bool, act: str, reason: str | None, actor: Actor) -> bool:
        governor = self._governor
        with self.audit.act(actor, act, target="governor", reason=reason) as entry:
            if governor.draining:
                raise DrainingError
            changed = governor.entrance.closed != closed
            governor.entrance.closed = closed
            if changed:
                governor.recent.note("drained" if closed else "undrained", reason=reason)
            entry.report = {"changed": changed}
            return changed

    async def reload(self, reason: str | None, actor: Actor, *, dry_run: bool = False) -> ReloadPlan:
        """Reads the configuration again and puts it in force, whole or not at all.

        Args:
            reason: why.
            actor: who.
            dry_run: only tells what would be done.

        Raises:
            ReloadNotPossibleError: the governor was not made from a file.
            DrainingError: the governor stops.
            OperationInProgressError: another reload is under way.
            ConfigError: the configuration cannot work; every mistake is named.
            ReloadNeedsRestartError: it changes what cannot change live.
            GovernorError: another process governs an identity that would be added.
        """
        asked: dict[str, JsonValue] = {"dryRun": dry_run}
        with self.audit.act(actor, "reload", target="configuration", reason=reason, **asked) as entry:
            source, governor = self._source, self._governor
            if source is None:
                raise ReloadNotPossibleError
            if self._reloading:
                raise OperationInProgressError("A reload of the configuration")
            self._reloading = True
            try:
                config = await source.load()
            finally:
                self._reloading = False
            # From here on there is no checkpoint: what is compared is what is replaced.
            if governor.draining:
                raise DrainingError
            backends = {name: backend.config for name, backend in governor.backends.items()}
            plan = plan_reload(governor.config, config, backends=backends, identities=governor.identities)
            if plan.needs_restart:
                raise ReloadNeedsRestartError([*plan.needs_restart])
            entry.report = plan.told()
            if not dry_run:
                source.own((config.backend(backend).url, model) for backend, model in plan.identities_added)
                governor.reconfigure(config)
                governor.recent.note("reloaded", changes=[change.key for change in plan.changes])
            return plan

    def identity(self, key: IdentityKey) -> Identity:
        """The identity of this key.

        Raises:
            UnknownIdentityError: there is none.
        """
        identity = self._governor.identities.get(key)
        if identity is None:
            raise UnknownIdentityError(str(key))
        return identity

    def _check_reachable(self, identity: Identity) -> None:
        status = self._governor.backends[identity.key.backend].status
        if not status.reachable:
            raise BackendUnavailableError(
                f"A forced restart of {identity.key} needs a fresh baseline, and its backend cannot be reached:"
                f" {status.problem}"
            )


def _told(results: Sequence[RestartResult]) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {}
    for result in results:
        outcome = result.outcome
        if isinstance(outcome, GovernorError):
            told[str(result.key)] = {"code": outcome.code, "error": outcome.message}
        else:
            told[str(result.key)] = {
                "previousEpoch": result.previous_epoch,
                "epoch": outcome.epoch,
                "proven": outcome.proven,
                "forgotten": [claim.id for claim in outcome.forgotten],
                "openClaims": outcome.open_claims,
            }
    return told
