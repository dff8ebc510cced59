"""The models a simulated Triton can serve: the demo's, and a laboratory's for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from governor.simulator.config import Batcher, EnsembleStep, ModelConfig, TensorSpec
from governor.simulator.inference import Source
from governor.simulator.twins import LateTwin, SentimentTwin, SleepTwin, SlowTwin, StorytellerTwin, StreamTwin

_TEXT_IN: Final = TensorSpec("text_input", "BYTES")
_TEXT_OUT: Final = (TensorSpec("text_output", "BYTES"),)
_SLEEP_IN: Final = (TensorSpec("DELAY_MS", "INT32"), TensorSpec("X", "INT32"))
_STREAM_IN: Final = (TensorSpec("DELAY_MS", "INT32"), TensorSpec("N", "INT32"))
_Y: Final = (TensorSpec("Y", "INT32"),)


def demo_models() -> tuple[Source, ...]:
    """`sentiment`, `storyteller` and `slow`, configured as the real ones."""
    sentiment = ModelConfig("sentiment", (_TEXT_IN,), _TEXT_OUT, instances=2)
    storyteller = ModelConfig(
        "storyteller",
        (_TEXT_IN, TensorSpec("max_tokens", "INT32", optional=True)),
        _TEXT_OUT,
        decoupled=True,
        instances=2,
        parameters={"token_delay_ms": "30"},
    )
    slow = ModelConfig("slow", (_TEXT_IN,), _TEXT_OUT, instances=4)
    return (Source(sentiment, SentimentTwin), Source(storyteller, StorytellerTwin), Source(slow, SlowTwin))


def lab_models() -> tuple[Source, ...]:
    """Models that show what a Triton counts: one for each kind of scheduling and each way to end."""
    nobatch = ModelConfig("nobatch", _SLEEP_IN, _Y)
    sleep = replace(nobatch, name="sleep", max_batch_size=8)
    delayed = Batcher(max_queue_delay_s=0.1, timeout_s=30.0, allow_timeout_override=True)
    narrow = Batcher(timeout_s=0.4, allow_timeout_override=True, max_queue_size=2)
    same = {"DELAY_MS": "DELAY_MS", "X": "X"}
    stream = ModelConfig("stream", _STREAM_IN, _Y, decoupled=True)
    return (
        Source(nobatch, SleepTwin),
        Source(replace(nobatch, name="mortal"), SleepTwin),
        Source(sleep, SleepTwin),
        Source(replace(sleep, name="sleep_db", batcher=delayed), SleepTwin),
        Source(replace(sleep, name="sleep_q", max_batch_size=1, batcher=narrow), SleepTwin),
        Source(replace(sleep, name="multi", all_versions=True), SleepTwin, versions=(1, 2)),
        Source(replace(nobatch, name="cached", response_cache=True), SleepTwin),
        Source(replace(nobatch, name="warm", warmup_count=3), SleepTwin),
        Source(replace(sleep, name="ens", ensemble=(EnsembleStep("sleep", same, {"Y": "Y"}),)), SleepTwin),
        Source(stream, StreamTwin),
        Source(replace(stream, name="late"), LateTwin),
    )


def models_named(names: list[str]) -> tuple[Source, ...]:
    """The models of both collections that have these names; all of them where none is named.

    Raises:
        ValueError: a name is unknown; the message lists the known ones.
    """
    known = {source.config.name: source for source in (*demo_models(), *lab_models())}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no simulated model {', '.join(unknown)}; there are: {', '.join(known)}")
    return tuple(known[name] for name in names or known)
