"""Computes for as many seconds as the text asks for, and cannot be interrupted: the stand-in for GPU work."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils
from textinput import BadInputError, seconds_asked, text_of
from worklog import WorkLog


class TritonPythonModel:
    """`text_input` -> `text_output`; the first number in the text is the time to compute, in seconds."""

    def initialize(self, args):
        self._log = WorkLog(args["model_name"])

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        execution = self._log.start(request.request_id())
        started = time.monotonic()
        try:
            text = text_of(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel())
            time.sleep(seconds_asked(text))
        except BadInputError as refused:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(refused), pb_utils.TritonError.INVALID_ARG)
            )
        finally:
            self._log.end(execution)
        answer = f"computed for {time.monotonic() - started:.3f} s".encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([answer], dtype=object))])
