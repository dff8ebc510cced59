"""One model for many configurations: DELAY_MS and X in, Y = X out.

X = -1: an error response. X = -2: an error response that blames the caller. X = -99: execute() raises.
X = -77: the model process dies. Every request of a merged batch logs its own start and end.
"""

# ruff: noqa: ANN001, ANN201, ANN205  # runs in Triton's own Python, whose module has no types

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from worklog import WorkLog


class TritonPythonModel:
    def initialize(self, args) -> None:
        self._log = WorkLog(args["model_name"])

    def execute(self, requests):
        xs = [self._input(request, "X") for request in requests]
        delay_ms = max(int(self._input(request, "DELAY_MS").max()) for request in requests)
        executions = [self._log.start(request.request_id()) for request in requests]
        time.sleep(delay_ms / 1000)
        for execution in executions:
            self._log.end(execution)
        if any((x == -77).any() for x in xs):
            os._exit(7)
        if any((x == -99).any() for x in xs):
            raise RuntimeError("execute raised")
        return [self._response(x) for x in xs]

    @staticmethod
    def _input(request, name):
        return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

    @staticmethod
    def _response(x):
        if (x == -1).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("model says no"))
        if (x == -2).any():
            error = pb_utils.TritonError("model says you are wrong", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.astype(np.int32))])
