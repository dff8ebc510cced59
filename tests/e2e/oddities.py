"""Makes `infer` and `generate` requests, good ones and such with faults, for one model."""

from __future__ import annotations

import copy
import json
import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from governor.triton.metadata import ModelFacts

SIZES: Final = {
    "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
    "UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8,
}  # fmt: skip
_ONLY_BINARY: Final = {"FP16", "BF16"}


@dataclass
class Made:
    """One request.

    Attributes:
        document: its JSON.
        faults: what was done to it, in order; empty for a good request.
        binary: its tensors are binary, as far as that can be chosen.
        raw: what comes behind the JSON; None for a request without binary tensors.
        text: what is sent in place of the document, if anything.
    """

    document: dict[str, Any]
    faults: list[str] = field(default_factory=list)
    binary: bool = False
    raw: bytes | None = None
    text: bytes | None = None

    def body(self) -> tuple[bytes, dict[str, str]]:
        """Body and header fields."""
        text = self.text if self.text is not None else json.dumps(self.document).encode()
        if self.raw is None:
            return text, {}
        return text + self.raw, {"Inference-Header-Content-Length": str(len(text))}


def good(facts: ModelFacts, dice: random.Random) -> Made:
    """A request that the model takes."""
    batch = [dice.randint(1, facts.max_batch_size)] if facts.max_batch_size else []
    wanted = [each for each in facts.inputs if not each.optional or dice.random() < 0.3] or [facts.inputs[0]]
    inputs: list[dict[str, Any]] = []
    for tensor in dice.sample(wanted, len(wanted)):
        shape = [*batch, *(size if size >= 0 else dice.randint(1, 3) for size in tensor.shape)]
        inputs.append({"name": tensor.name, "datatype": tensor.datatype, "shape": shape})
    document: dict[str, Any] = {"inputs": inputs}
    if dice.random() < 0.5:
        document["id"] = dice.choice(["", "a", "é", "[x]"])
    if any(each["datatype"] in _ONLY_BINARY for each in inputs):
        document["parameters"] = {"binary_data_output": True}
    elif dice.random() < 0.3 and len(wanted) == len(facts.inputs):
        document["outputs"] = [{"name": each.name} for each in facts.outputs]
    made = Made(document, binary=dice.random() < 0.4)
    fill(made)
    return made


def fill(made: Made) -> None:
    """Gives every input the data that its datatype and shape ask for."""
    raw = b""
    for one in made.document["inputs"]:
        count = math.prod(one["shape"])
        one.pop("data", None)
        one.pop("parameters", None)
        if made.binary or one["datatype"] in _ONLY_BINARY:
            data = _zeros(one["datatype"], count)
            one["parameters"] = {"binary_data_size": len(data)}
            raw += data
        else:
            one["data"] = [_zero(one["datatype"])] * count
    made.raw = raw if raw or made.binary else None


def _zeros(datatype: str, count: int) -> bytes:
    return struct.pack("<I", 0) * count if datatype == "BYTES" else bytes(SIZES[datatype] * count)


def _zero(datatype: str) -> Any:
    return {"BYTES": "", "BOOL": False}.get(datatype, 0)


def faulty(made: Made, dice: random.Random) -> Made:
    """The same with one fault that its JSON tells, and data that fit it otherwise."""
    made = copy.deepcopy(made)
    name = dice.choice(sorted(PLAIN))
    PLAIN[name](made, dice)
    fill(made)
    made.faults.append(name)
    return made


def odd(made: Made, dice: random.Random) -> Made:
    """The same with one to three changes of any kind, which may leave it good."""
    made = copy.deepcopy(made)
    for name in dice.sample(sorted({**PLAIN, **ODD}), dice.randint(1, 3)):
        inputs = made.document["inputs"]
        if made.text is None and isinstance(inputs, list) and inputs and inputs != [None]:
            {**PLAIN, **ODD}[name](made, dice)
            made.faults.append(name)
    return made


def _any(made: Made, dice: random.Random) -> dict[str, Any]:
    one = dice.choice(made.document["inputs"])
    assert isinstance(one, dict)
    return one


def _shape(one: dict[str, Any]) -> list[Any]:
    return one["shape"] if isinstance(one["shape"], list) else []


def _of_one(change: Callable[[dict[str, Any], random.Random], object]) -> Callable[[Made, random.Random], object]:
    return lambda made, dice: change(_any(made, dice), dice)


def _batch(made: Made, size: int) -> None:
    for one in made.document["inputs"]:
        one["shape"] = [size, *_shape(one)[1:]]


def _write(made: Made, old: str, new: str) -> None:
    made.text = json.dumps(made.document).replace(old, new, 1).encode()


_EXTRA: Final = {"name": "ZZZ", "datatype": "INT32", "shape": [1], "data": [0]}
PLAIN: Final[dict[str, Callable[[Made, random.Random], object]]] = {
    "input missing": lambda made, dice: made.document["inputs"].remove(_any(made, dice)),
    "input unknown": _of_one(lambda one, _dice: one.update(name="ZZZ")),
    "input too many": lambda made, dice: made.document["inputs"].insert(dice.randint(0, 1), dict(_EXTRA)),
    "input twice": lambda made, dice: made.document["inputs"].append(copy.deepcopy(_any(made, dice))),
    "datatype other": _of_one(lambda one, dice: one.update(datatype=dice.choice([*SIZES, "BYTES"]))),
    "rank more": _of_one(lambda one, _dice: one.update(shape=[*_shape(one), 1])),
    "rank less": _of_one(lambda one, _dice: one.update(shape=_shape(one)[:-1])),
    "shape empty": _of_one(lambda one, _dice: one.update(shape=[])),
    "shape other": _of_one(lambda one, dice: one.update(shape=[*_shape(one)[:-1], dice.choice([0, 2, 5])])),
    "batch too large": lambda made, _dice: _batch(made, 9),
    "batch of one": _of_one(lambda one, _dice: one.update(shape=[3, *_shape(one)[1:]])),
    "output unknown": lambda made, dice: made.document.update(outputs=[{"name": dice.choice(["ZZZ", ""])}]),
}
"""By name. What Triton says of them is known; some are none for some models."""
_ODD_SHAPES: Final = ([-1], [1.0], ["1"], [True], [2**64], 1, None)
_ODD_PARAMETERS: Final = (None, 1, {"timeout": -1}, {"triton_x": 1}, {"x": None}, {"x": 1.5}, {"priority": "a"})
ODD: Final[dict[str, Callable[[Made, random.Random], object]]] = {
    "batch zero": lambda made, _dice: _batch(made, 0),
    "datatype none": _of_one(lambda one, dice: one.update(datatype=dice.choice(["fp32", "", "TYPE_INT32", 7, None]))),
    "shape odd": _of_one(lambda one, dice: one.update(shape=dice.choice(_ODD_SHAPES))),
    "outputs odd": lambda made, dice: made.document.update(outputs=dice.choice([[], None, {}, [{}], [{"name": 1}]])),
    "id odd": lambda made, dice: made.document.update(id=dice.choice([1, None, ["a"]])),
    "parameters odd": lambda made, dice: made.document.update(parameters=dice.choice(_ODD_PARAMETERS)),
    "data missing": _of_one(lambda one, _dice: one.pop("data", None)),
    "data short": _of_one(lambda one, _dice: one.update(data=[])),
    "data odd": _of_one(lambda one, dice: one.update(data=dice.choice([None, "a", [None], [[0]], {}, ["a"], [1.5]]))),
    "data nested": _of_one(lambda one, _dice: one.update(data=[[each] for each in one.get("data", [])])),
    "binary size": _of_one(lambda one, dice: one.update(parameters={"binary_data_size": dice.choice([0, 3, 1000])})),
    "raw longer": lambda made, _dice: setattr(made, "raw", (made.raw or b"") + b"x"),
    "unknown fields": lambda made, _dice: made.document.update(more={"a": [1]}),
    "inputs none": lambda made, dice: made.document.update(inputs=dice.choice([None, {}, 1, [None]])),
    "NUL in a name": lambda made, _dice: _write(made, '"name": "X"', '"name": "X\\u0000Y"'),
    "key twice": lambda made, _dice: _write(made, '"datatype":', '"datatype": "INT32", "datatype":'),
    "name twice": lambda made, _dice: _write(made, '"name":', '"name": "ZZZ", "name":'),
    "not a number": lambda made, _dice: _write(made, "[0", "[NaN"),
    "no JSON": lambda made, dice: _write(made, '"inputs":', dice.choice(['"inputs"', '"inputs":,', "NaN:"])),
}
"""By name; whatever else may be wrong with a request, or only looks so."""


def generate(facts: ModelFacts, dice: random.Random) -> Made:
    """A `generate` request; its faults name what is missing, and `odd` that something else may be wrong."""
    fields: dict[str, Any] = {}
    faults = []
    is_odd = dice.random() < 0.3
    for tensor in facts.inputs:
        if dice.random() < 0.3:
            faults.append(f"{tensor.name} missing")
        else:
            fields[tensor.name] = dice.choice([[0, 0], "a", None, {}, 1.5]) if is_odd else dice.choice([0, [0]])
    if dice.random() < 0.5:
        moved = dice.sample(sorted(fields), dice.randint(0, len(fields)))
        fields["parameters"] = {name: fields.pop(name) for name in moved}
    if is_odd:
        faults.append("odd")
        name, value = dice.choice([("id", 1), ("more", [1]), ("parameters", 1), ("parameters", None)])
        fields[name] = value
    elif dice.random() < 0.5:
        fields.update(id=dice.choice(["", "a", "é"]), more=dice.choice([1, "a", True]))
    return Made(fields, faults)
