"""What a model's configuration on Triton says about the model of ours that shall use it. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from governor.config.problems import show
from governor.errors import BackendProtocolError
from governor.triton.metadata import parse_model

if TYPE_CHECKING:
    from governor.config import ModelConfig
    from governor.errors import JsonValue
    from governor.triton.metadata import ModelFacts

Level: TypeAlias = Literal["ok", "warning", "error"]

SELF_BATCHING_BACKENDS = frozenset({"vllm", "tensorrtllm"})
"""Triton backends whose one instance runs many calls at once."""


def counted(number: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        level: `error` will not work, `warning` works with a risk or a loss, `ok`.
        subject: the backend or model it is about.
        sentence: what was found.
        advice: what to do about it; empty when nothing.
    """

    level: Level
    subject: str
    sentence: str
    advice: str = ""

    def line(self) -> str:
        """The finding on one line for a terminal."""
        end = f"{'' if self.sentence.endswith('?') else '.'} To do: {self.advice}" if self.advice else ""
        return f"{self.level:<8}{self.subject}: {self.sentence}{end}"


def read_facts(config: JsonValue) -> ModelFacts | None:
    """The facts in the decoded answer of `GET /v2/models/{name}/config`, or None when it is not one."""
    try:
        return parse_model(config, {}) if isinstance(config, dict) else None
    except BackendProtocolError:
        return None


def examine_model(model: ModelConfig, facts: ModelFacts, *, ready: bool) -> list[Finding]:
    """Everything that the configuration of a model and that of its Triton model say about each other."""
    subject = f'model "{model.name}"'
    rules = (_kind, _text, _slots, _evidence)
    findings = [Finding(level, subject, text, advice) for rule in rules for level, text, advice in rule(model, facts)]
    if ready:
        what = "an ensemble" if facts.ensemble else f"of backend {show(facts.backend)}"
        answers = "many answers to a call (decoupled)" if facts.decoupled else "one answer to a call"
        sentence = f"{show(model.triton_model)} is ready: {what}, {answers}"
        findings.insert(0, Finding("ok", subject, sentence))
    return findings


_Said: TypeAlias = Iterator[tuple[Level, str, str]]


def _kind(model: ModelConfig, facts: ModelFacts) -> _Said:
    if facts.decoupled and model.kind != "generate_stream":
        why = (
            "Triton refuses plain infer calls to it"
            if model.kind == "infer"
            else "Triton answers 200 with an error as soon as it sends more or less than one answer"
        )
        yield "error", f'it is decoupled, and kind = "{model.kind}": {why}', 'use kind = "generate_stream"'


def _text(model: ModelConfig, facts: ModelFacts) -> _Said:
    """Whether prompts can be sent: the text tensors exist, and nothing else is asked for."""
    wanted = (("text_input", model.text_input, facts.inputs), ("text_output", model.text_output, facts.outputs))
    missing = False
    for key, name, tensors in wanted:
        tensor = next((each for each in tensors if each.name == name), None)
        if tensor is not None and tensor.datatype == "BYTES":
            continue
        missing = True
        kind = "input" if key == "text_input" else "output"
        texts = [each.name for each in tensors if each.datatype == "BYTES"]
        found = (
            f"its {kind} {show(name)} is {tensor.datatype}, not text (BYTES)"
            if tensor is not None
            else f"it has no {kind} {show(name)}"
        )
        advice = f"set {key} to its text {kind}: {', '.join(map(show, texts))}" if texts else ""
        # A model with other tensors is of use through /v2 all the same, unless its text tensors were named on purpose.
        level: Level = "warning" if model.kind == "infer" and key not in model.model_fields_set else "error"
        yield level, f"{found}, so prompts cannot be sent to it", advice or "call it through /v2 only"
    # `generate` makes inputs of the fields that have an input's name; the parameters of `infer` are no inputs.
    sent = {model.text_input, *(model.parameters if model.kind != "infer" else ())}
    needed = [tensor.name for tensor in facts.inputs if not tensor.optional and tensor.name not in sent]
    if needed and not missing:
        names = ", ".join(map(show, needed))
        other = "" if model.kind == "infer" else "set them in parameters, or "
        yield "error", f"it also needs the inputs {names}, which a prompt does not send", f"{other}make them optional"


def _slots(model: ModelConfig, facts: ModelFacts) -> _Said:
    """Whether Triton runs as many calls at once as there are slots."""
    slots, instances = f"slots = {model.slots}", counted(facts.instance_count, "instance")
    if facts.ensemble or facts.instance_count == 0:
        yield "ok", f"{slots}; how many calls it runs at once cannot be told from its configuration", ""
        return
    if facts.decoupled or facts.backend in SELF_BATCHING_BACKENDS:
        yield "ok", f"{slots}, {instances}; each may run several calls, which its configuration does not tell", ""
        return
    room = facts.instance_count * facts.batch
    each = f" of up to {facts.batch} requests" if facts.batch > 1 else ""
    runs = f"it runs up to {counted(room, 'call')} at once ({instances}{each})"
    if model.slots <= room:
        yield "ok", f"{slots}, and {runs}", ""
        return
    yield (
        "warning",
        f"{slots}, but {runs}; further calls wait inside Triton, where nobody can order or cancel them",
        f"set slots to {room}, or raise the instance count",
    )


def _evidence(model: ModelConfig, facts: ModelFacts) -> _Said:
    """E12: models whose counter is no proof, or counts oddly."""
    if facts.decoupled and model.on_abandon == "disconnect":
        yield (
            "warning",
            (
                "it is decoupled, so its counter may move long before its work ends and proves nothing; with "
                'on_abandon = "disconnect" the slot of an abandoned call stays taken until a restart or an operator '
                "frees it"
            ),
            'use on_abandon = "finish": the end of the stream is the proof',
        )
    if facts.ensemble:
        yield (
            "warning",
            (
                "it is an ensemble: one failed request counts twice, so a call that breaks after a failure may be "
                "proven late"
            ),
            "govern its members instead where the slots of broken calls must come back soon",
        )
