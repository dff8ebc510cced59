"""The simulated twins of the demo models and of the models the contract tests use."""

from __future__ import annotations

import abc
import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Final

from governor.simulator.inference import (
    Detach,
    Die,
    Inference,
    ModelRaisedError,
    Response,
    Send,
    Sleep,
    Step,
    WorkRecorder,
)
from governor.simulator.tensors import Tensor
from governor.simulator.workload.storytelling import Storyteller
from governor.simulator.workload.textinput import BadInputError, seconds_asked, text_of, tokens_asked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.simulator.config import ModelConfig


def _number(inference: Inference, name: str) -> int:
    element = inference.request.inputs[name].elements[0]
    assert isinstance(element, int), "the configuration makes it a number"
    return element


class SleepTwin:
    """DELAY_MS and X in, Y = X out, for a whole batch at once.

    X = -1: an error response. X = -2: an error response that blames the caller. X = -99: execute() raises.
    X = -77: the model's process dies.
    """

    def __init__(self, config: ModelConfig, log: WorkRecorder) -> None:
        self._name = config.name
        self._log = log

    def execute(self, batch: Sequence[Inference]) -> Iterator[Step]:
        """Compute as long as the slowest of the batch asks for, then answer all of them."""
        executions = [self._log.start(self._name, inference.request.id) for inference in batch]
        yield Sleep(max(_number(inference, "DELAY_MS") for inference in batch) / 1000)
        for execution in executions:
            self._log.end(self._name, execution)
        wanted = [inference.request.inputs["X"] for inference in batch]
        if any(-77 in x.elements for x in wanted):
            yield Die()
        if any(-99 in x.elements for x in wanted):
            raise ModelRaisedError("RuntimeError: execute raised")
        for index, x in enumerate(wanted):
            yield Send(index, self._response(x))

    @staticmethod
    def _response(x: Tensor) -> Response:
        if -1 in x.elements:
            return Response(error="model says no")
        if -2 in x.elements:
            return Response(error="model says you are wrong", blames_caller=True)
        return Response((Tensor("Y", x.datatype, x.shape, x.elements),))


class StreamTwin:
    """Decoupled: N responses Y = 0, 1, ..., DELAY_MS before each, whatever becomes of the client.

    N = -1: an error response. N = 0: none at all.
    """

    def __init__(self, config: ModelConfig, log: WorkRecorder) -> None:
        self._name = config.name
        self._log = log

    def execute(self, batch: Sequence[Inference]) -> Iterator[Step]:
        """Send everything before returning."""
        for index, inference in enumerate(batch):
            yield from self._send(index, inference)

    def _send(self, index: int, inference: Inference) -> Iterator[Step]:
        count, delay_s = _number(inference, "N"), _number(inference, "DELAY_MS") / 1000
        execution = self._log.start(self._name, inference.request.id)
        if count == -1:
            yield Sleep(delay_s)
            yield Send(index, Response(error="stream says no"))
        for sent in range(count):
            yield Sleep(delay_s)
            yield Send(index, Response((Tensor("Y", "INT32", (1,), (sent,)),)))
        self._log.end(self._name, execution)


class LateTwin(StreamTwin):
    """The same, but a thread sends while the call has returned: it is counted before it has worked."""

    def execute(self, batch: Sequence[Inference]) -> Iterator[Step]:
        """Leave the work to a thread, at once."""
        yield Detach(self._thread(batch))

    def _thread(self, batch: Sequence[Inference]) -> Iterator[Step]:
        for index, inference in enumerate(batch):
            yield from self._send(index, inference)


class TextTwin(abc.ABC):
    """What the demo's text models have in common: a text in, a text out, and a sentence for bad input."""

    def __init__(self, config: ModelConfig, log: WorkRecorder) -> None:
        self._config = config
        self._log = log

    def execute(self, batch: Sequence[Inference]) -> Iterator[Step]:
        """Work on the texts one after the other."""
        for index, inference in enumerate(batch):
            execution = self._log.start(self._config.name, inference.request.id)
            try:
                text = text_of(inference.request.inputs["text_input"].elements)
                yield from self.work(index, inference, text)
            except BadInputError as refused:
                yield Send(index, Response(error=str(refused), blames_caller=True))
            self._log.end(self._config.name, execution)

    @abc.abstractmethod
    def work(self, index: int, inference: Inference, text: str, /) -> Iterator[Step]:
        """Yield the steps that work on one text."""


class SlowTwin(TextTwin):
    """Computes for as many seconds as the first number in the text says."""

    def work(self, index: int, _inference: Inference, text: str, /) -> Iterator[Step]:
        """Compute, then say for how long."""
        seconds = seconds_asked(text)
        yield Sleep(seconds)
        yield Send(index, Response((Tensor.of_text("text_output", f"computed for {seconds:.3f} s"),)))


class StorytellerTwin(TextTwin):
    """Continues a text token by token, and stops at the next token when its request was cancelled."""

    def work(self, index: int, inference: Inference, text: str, /) -> Iterator[Step]:
        """Tell the story."""
        limit = inference.request.inputs.get("max_tokens")
        delay_s = float(self._config.parameters["token_delay_ms"]) / 1000
        for token in _storyteller().tokens(text, tokens_asked(limit.elements if limit else None)):
            yield Sleep(delay_s)
            if inference.is_cancelled:
                return
            yield Send(index, Response((Tensor.of_text("text_output", token),)))


@cache
def _storyteller() -> Storyteller:
    return Storyteller.of_book()


class SentimentTwin(TextTwin):
    """Scores a text with a short list of words; the real model uses VADER's lexicon of 7,500."""

    def work(self, index: int, _inference: Inference, text: str, /) -> Iterator[Step]:
        """Answer with the scores as JSON."""
        answer = json.dumps(sentiment_of(text))
        yield Send(index, Response((Tensor.of_text("text_output", answer),)))


_WORDS: Final = {
    **dict.fromkeys(("love", "loved", "wonderful", "excellent", "best", "great", "happy", "brilliant"), 3.0),
    **dict.fromkeys(("good", "nice", "like", "enjoy", "enjoyed", "thanks", "beautiful", "fine", "fun"), 2.0),
    **dict.fromkeys(("bad", "sad", "slow", "wrong", "poor", "sorry", "boring", "lost", "angry"), -2.0),
    **dict.fromkeys(("hate", "hated", "terrible", "awful", "worst", "horrible", "disaster", "kill"), -3.0),
}
_NORMAL: Final = 15.0


def sentiment_of(text: str) -> dict[str, str | float]:
    """A rough score in the shape of VADER's: `label`, `neg`, `neu`, `pos`, and `compound` from -1 to 1."""
    words = re.findall(r"[^\W\d_]+", text.lower()) or [""]
    valences = [_WORDS.get(word, 0.0) for word in words]
    total = sum(valences)
    compound = total / math.sqrt(total * total + _NORMAL)
    label = "positive" if compound >= 0.05 else "negative" if compound <= -0.05 else "neutral"
    neg = round(sum(valence < 0 for valence in valences) / len(words), 3)
    pos = round(sum(valence > 0 for valence in valences) / len(words), 3)
    neu = round(1 - neg - pos, 3)
    return {"label": label, "neg": neg, "neu": neu, "pos": pos, "compound": round(compound, 4)}
