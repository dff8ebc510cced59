"""BYTES tensors through tritonclient's encoder and decoder, without its transport.

Importing tritonclient.http imports gevent but patches nothing, and none of the functions used here touch it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.triton.text import TextTarget


class TensorCodec:
    """One text per request, any number of texts per answer."""

    def encode(
        self, target: TextTarget, shape: list[int], text: bytes, fields: dict[str, JsonValue], request_id: str
    ) -> tuple[bytes, int]:
        """The body of an `infer` request, and the length of its JSON part.

        Raises:
            ValueError: a parameter is reserved or cannot be encoded.
        """
        tensor = InferInput(target.text_input, shape, "BYTES")
        tensor.set_data_from_numpy(np.array([text], dtype=np.object_).reshape(shape), binary_data=True)
        try:
            body, json_size = InferenceServerClient.generate_request_body(
                [tensor],
                outputs=[InferRequestedOutput(target.text_output, binary_data=True)],
                request_id=request_id,
                parameters=fields or None,
            )
        except InferenceServerException as error:
            raise ValueError(error.message()) from error
        return bytes(body), int(json_size)

    def decode(self, body: bytes, header_length: int | None, output: str) -> list[object] | None:
        """The elements of one output in row-major order; None when the answer does not have it.

        Raises:
            ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error: the body is malformed.
        """
        try:
            result = InferenceServerClient.parse_response_body(body, header_length=header_length)
            array = result.as_numpy(output)
        except InferenceServerException as error:
            raise ValueError(error.message()) from error
        return None if array is None else list(array.reshape(-1).tolist())
