"""Decoupled: N responses Y = 0, 1, ..., DELAY_MS before each, whatever becomes of the client.

N = -1: an error response after DELAY_MS. N = 0: only the final flag. Named "late": execute() returns at once
and a thread does the rest.
"""

# ruff: noqa: ANN001  # runs in Triton's own Python, whose module has no types

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from worklog import WorkLog


class TritonPythonModel:
    def initialize(self, args) -> None:
        self._log = WorkLog(args["model_name"])
        self._late = args["model_name"] == "late"

    def execute(self, requests) -> None:
        for request in requests:
            work = (
                int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0]),
                int(pb_utils.get_input_tensor_by_name(request, "DELAY_MS").as_numpy()[0]) / 1000,
                request.request_id(),
                request.get_response_sender(),
            )
            if self._late:
                threading.Thread(target=self._send, args=work, daemon=True).start()
            else:
                self._send(*work)

    def _send(self, count, delay_s, request_id, sender) -> None:
        execution = self._log.start(request_id)
        if count == -1:
            time.sleep(delay_s)
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("stream says no")))
        for index in range(count):
            time.sleep(delay_s)
            tensor = pb_utils.Tensor("Y", np.array([index], np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
        self._log.end(execution)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
