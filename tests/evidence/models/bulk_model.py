"""DELAY_MS and N in, N numbers out, a whole batch at once: Triton counts it when its last answer is written."""

# ruff: noqa: ANN001, ANN201  # runs in Triton's own Python, whose module has no types
# mypy: ignore-errors

import time

import numpy as np
import triton_python_backend_utils as pb_utils
from worklog import WorkLog


class TritonPythonModel:
    def initialize(self, args) -> None:
        self._log = WorkLog(args["model_name"])

    def execute(self, requests):
        inputs = {
            name: [int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().max()) for request in requests]
            for name in ("DELAY_MS", "N")
        }
        executions = [self._log.start(request.request_id()) for request in requests]
        time.sleep(max(inputs["DELAY_MS"]) / 1000)
        for execution in executions:
            self._log.end(execution)
        tensors = [pb_utils.Tensor("Y", np.zeros((1, size), np.int32)) for size in inputs["N"]]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
