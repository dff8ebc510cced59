"""Scores how positive or negative an English text is, with VADER's lexicon and rules."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from textinput import BadInputError, text_of
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
from worklog import WorkLog


def label_of(compound):
    """The label that VADER's authors give a compound score."""
    if compound >= 0.05:
        return "positive"
    return "negative" if compound <= -0.05 else "neutral"


class TritonPythonModel:
    """`text_input` -> `text_output`: a JSON object with `label`, `compound`, `pos`, `neu`, `neg`."""

    def initialize(self, args):
        self._log = WorkLog(args["model_name"])
        self._analyzer = SentimentIntensityAnalyzer()

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        execution = self._log.start(request.request_id())
        try:
            text = text_of(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel())
            scores = self._analyzer.polarity_scores(text)
        except BadInputError as refused:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(refused), pb_utils.TritonError.INVALID_ARG)
            )
        finally:
            self._log.end(execution)
        answer = json.dumps({"label": label_of(scores["compound"]), **scores}).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([answer], dtype=object))])
