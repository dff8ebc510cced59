"""Adds up the numbers of each sequence."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, _args):
        self._sums = {}

    def execute(self, requests):
        return [self._add(request) for request in requests]

    def _add(self, request):
        number, start, key = (
            int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0]) for name in ("IN", "START", "ID")
        )
        self._sums[key] = number if start else self._sums[key] + number
        total = np.array([[self._sums[key]]], dtype=np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)])
