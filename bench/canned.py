"""What the truth-telling backend answers: as much of Triton, OpenAI and SGLang as gateways ask for."""

from __future__ import annotations

import json
from functools import lru_cache

OTHERS: dict[bytes, object] = {
    b"/get_model_info": {"model_path": "noop", "is_generation": True},
    b"/model_info": {"model_path": "noop", "is_generation": True},
    b"/get_server_info": {"model_path": "noop", "served_model_name": "noop"},
    b"/server_info": {"model_path": "noop", "served_model_name": "noop"},
    b"/v1/models": {"object": "list", "data": [{"id": "noop", "object": "model", "owned_by": "bench"}]},
}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_EVENT = b'2b\r\ndata: {"model_name":"noop","text":"word"}\n\n\r\n'


def statistics(name: str, success: int) -> dict[str, object]:
    ended, none = {"count": success, "ns": success}, {"count": 0, "ns": 0}
    return {
        "name": name,
        "version": "1",
        "last_inference": success,
        "inference_count": success,
        "execution_count": success,
        "inference_stats": {"success": ended, "fail": none},
    }


TENSORS = {
    "noop": ("X", "X", "FP32"),
    "text": ("text_input", "text_output", "BYTES"),
}
"""Input, output and datatype of the two models."""


def config(name: str) -> dict[str, object]:
    """As `GET /v2/models/NAME/config` tells it."""
    given, made, datatype = TENSORS.get(name, TENSORS["noop"])
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {
        "name": name,
        "platform": "none",
        "max_batch_size": 0,
        "input": [{"name": given, "data_type": kind, "dims": ["-1"]}],
        "output": [{"name": made, "data_type": kind, "dims": ["-1"]}],
        "instance_group": [{"count": 1}],
    }


def metadata(name: str) -> dict[str, object]:
    """As `GET /v2/models/NAME` tells it."""
    given, made, datatype = TENSORS.get(name, TENSORS["noop"])
    return {
        "name": name,
        "versions": ["1"],
        "platform": "none",
        "inputs": [{"name": given, "datatype": datatype, "shape": [-1]}],
        "outputs": [{"name": made, "datatype": datatype, "shape": [-1]}],
    }


@lru_cache(maxsize=64)
def answer(kind: bytes, length: int) -> bytes:
    if kind == b"completions":
        message = {"role": "assistant", "content": "word"}
        body = json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": "noop",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        ).encode()
    elif kind == b"generate":
        body = b'{"model_name":"text","text_output":"word","text":"word","meta_info":{"finish_reason":{"type":"stop"}}}'
    else:
        body = (
            b'{"model_name":"noop","model_version":"1","outputs":'
            b'[{"name":"X","datatype":"FP32","shape":[4],"data":[0.5,0.5,0.5,0.5]}]}'
        )
    return _with_head(body + b" " * (length - len(body)))  # blanks after a JSON document are part of it


def json_answer(value: object) -> bytes:
    return _with_head(json.dumps(value).encode())


def _with_head(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
