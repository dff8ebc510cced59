"""One model on one Triton server, as its identity uses it: lanes, readings, facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.triton.boot import BootStamp
from governor.triton.lane import Lane
from governor.triton.metadata import fetch_model, fetch_server
from governor.triton.reader import StatisticsReader
from governor.triton.transport import Origin

if TYPE_CHECKING:
    from governor.config import BackendConfig
    from governor.core.counting import Reading
    from governor.triton.metadata import ModelFacts, ServerFacts

_FACTS_TIMEOUT_MS = 5_000


class TritonModel:
    """Fills `governor.identity.port.ModelPort` for a real server."""

    def __init__(self, backend: BackendConfig, model: str) -> None:
        self._backend = backend
        self._model = model
        self._server: ServerFacts | None = None
        self._tls = Origin.parse(str(backend.url)).tls
        self._stamp = BootStamp(model, backend.evidence.boot_identity)
        self._reader = StatisticsReader(
            backend.url,
            backend.metrics_url,
            model,
            timeout_ms=backend.evidence.poll_timeout_ms,
            stamp=self._stamp,
        )

    @property
    def tells_departures(self) -> bool:
        """Over TLS only what was read and decrypted tells: nobody reads while a request stands."""
        return not self._tls

    def make_lane(self) -> Lane:
        """A new lane, stamped with the boot identity of whatever process its connections lead to."""
        return Lane(self._backend.url, stamp=self._stamp)

    async def read(self) -> Reading:
        """One reading: statistics, the process's metrics where configured, boot identity."""
        return (await self._reader.read()).evidence()

    async def fetch_facts(self) -> ModelFacts:
        """The model's configuration (E12), and on the way the server's version."""
        lane = Lane(self._backend.url)
        try:
            self._server = await fetch_server(lane, timeout_ms=_FACTS_TIMEOUT_MS)
            return await fetch_model(lane, self._model, timeout_ms=_FACTS_TIMEOUT_MS)
        finally:
            lane.close()

    @property
    def server_version(self) -> str | None:
        """The server's version, once it was asked."""
        return self._server.version if self._server is not None else None

    def close_idle(self) -> None:
        """Closes the readings' connections."""
        self._reader.close_idle()
