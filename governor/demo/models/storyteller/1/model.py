"""Continues a text in the manner of a book, token by token."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from storytelling import Storyteller
from textinput import BadInputError, text_of, tokens_asked
from worklog import WorkLog


class TritonPythonModel:
    """`text_input` (and `max_tokens`) -> a stream of `text_output`, one token each.

    It stops at the next token when its request was cancelled, as the vLLM backend does.
    """

    def initialize(self, args):
        self._log = WorkLog(args["model_name"])
        parameters = json.loads(args["model_config"])["parameters"]
        self._delay_s = float(parameters["token_delay_ms"]["string_value"]) / 1000
        self._storyteller = Storyteller.of_book()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            execution = self._log.start(request.request_id())
            try:
                self._tell(request, sender)
            except BadInputError as refused:
                error = pb_utils.TritonError(str(refused), pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error))
            finally:
                self._log.end(execution)
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _tell(self, request, sender):
        text = text_of(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel())
        limit = pb_utils.get_input_tensor_by_name(request, "max_tokens")
        for token in self._storyteller.tokens(text, tokens_asked(limit and limit.as_numpy().ravel())):
            time.sleep(self._delay_s)
            if sender.is_cancelled():
                return
            tensor = pb_utils.Tensor("text_output", np.array([token.encode()], dtype=object))
            sender.send(pb_utils.InferenceResponse([tensor]))
