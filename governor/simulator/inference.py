"""What an inference is made of: its request, what comes back, and what a model does in between."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from governor.errors import JsonValue
    from governor.simulator.config import ModelConfig
    from governor.simulator.tensors import Tensor


@dataclass
class Request:
    """One inference that became a request."""

    id: str
    inputs: dict[str, Tensor]
    parameters: dict[str, JsonValue] = field(default_factory=dict)
    timeout_s: float | None = None
    torn: str | None = None
    """Set where the inputs can be seen to be torn only in execution: the error sentence."""

    @property
    def batch_size(self) -> int:
        """The batch dimension of its inputs; only of use for a model that batches."""
        return next((tensor.shape[0] for tensor in self.inputs.values() if tensor.shape), 1)


@dataclass(frozen=True)
class Response:
    """One response of a model: outputs, or an error of the model's own making."""

    outputs: tuple[Tensor, ...] = ()
    error: str | None = None
    blames_caller: bool = False
    """The error's code is INVALID_ARG: HTTP 400 rather than 500."""
    parameters: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """An inference that ended without a response of its model."""

    status: int
    message: str
    reason: str
    """The `reason` label of the failure metric: BACKEND, REJECTED, CANCELED or OTHER."""


class Inference:
    """A request on its way through a model.

    Whoever submitted it gets, synchronously: `on_response` for each response, then `on_end` once, with the
    failure if there was one. A killed process calls neither.
    """

    def __init__(
        self,
        request: Request,
        *,
        on_response: Callable[[Response], None],
        on_end: Callable[[Failure | None], None],
    ) -> None:
        self.request = request
        self.queued_at = 0.0
        self.responses = 0
        self.ended = False
        self._on_response = on_response
        self._on_end = on_end
        self._client_gone = False

    def respond(self, response: Response) -> None:
        """Hand out one response."""
        self.responses += 1
        self._on_response(response)

    def end(self, failure: Failure | None = None) -> None:
        """Hand out the end; a second end is a programming error of the simulation."""
        assert not self.ended, "an inference ends once"
        self.ended = True
        self._on_end(failure)

    def client_left(self) -> None:
        """Note that nobody waits for it any more. The work goes on."""
        self._client_gone = True

    @property
    def is_cancelled(self) -> bool:
        """What the model sees of that: nothing before its first response was sent."""
        return self._client_gone and self.responses > 0


@dataclass(frozen=True)
class Sleep:
    """The model computes for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Send:
    """The model sends one response to the inference at `index` of its batch."""

    index: int
    response: Response


@dataclass(frozen=True)
class Detach:
    """The model returns from execute() now; a thread of its own goes on with these steps."""

    steps: Iterator[Step]


@dataclass(frozen=True)
class Die:
    """The model's process dies."""


Step = Sleep | Send | Detach | Die


class ModelRaisedError(Exception):
    """A model raised in execute(): every inference of its batch fails."""


class WorkRecorder(Protocol):
    """Where a model logs what it really executes."""

    def start(self, model: str, request_id: str) -> str:
        """Log a start; returns the execution's id."""

    def end(self, model: str, execution: str) -> None:
        """Log an end."""


class Twin(Protocol):
    """The simulated twin of a model: what it does with one batch, as steps that the simulation times."""

    def execute(self, batch: Sequence[Inference]) -> Iterator[Step]:
        """Yield what it does; a `ModelRaisedError` is the model raising."""


@dataclass(frozen=True)
class Source:
    """One model of the repository, as its files are now.

    Attributes:
        config: its config.pbtxt.
        make_twin: makes what its model.py does.
        versions: its version folders.
        revision: changes whenever its model.py does.
    """

    config: ModelConfig
    make_twin: Callable[[ModelConfig, WorkRecorder], Twin]
    versions: tuple[int, ...] = (1,)
    revision: int = 0

    def changed(self) -> Source:
        """The same model with another model.py."""
        return replace(self, revision=self.revision + 1)
