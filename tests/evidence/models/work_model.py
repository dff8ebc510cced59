"""DELAY_MS and X in, Y = X out. While it computes it says every 25 ms that it still does, so that its death shows.

X = -1: an error response. X = -99: execute() raises.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ANN205  # runs in Triton's own Python, whose module has no types
# mypy: ignore-errors

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils
import worklog

BEAT_S = 0.025


class TritonPythonModel:
    def initialize(self, args) -> None:
        self._model = args["model_name"]
        self._path = os.environ[worklog.ENVIRONMENT_KEY]
        self._log = worklog.WorkLog(self._model)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = self._input(request, "X")
        delay_s = int(self._input(request, "DELAY_MS").max()) / 1000
        execution = self._log.start(request.request_id())
        until_s = time.monotonic() + delay_s
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(BEAT_S, left_s))
            worklog.append(self._path, t=time.time(), model=self._model, what="beat", execution=execution)
        self._log.end(execution)
        if (x == -99).any():
            raise RuntimeError("execute raised")
        if (x == -1).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("model says no"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.astype(np.int32))])

    @staticmethod
    def _input(request, name):
        return pb_utils.get_input_tensor_by_name(request, name).as_numpy()
