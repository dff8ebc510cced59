"""What the demo models do, apart from any server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from governor.simulator import workload
from governor.simulator.twins import sentiment_of
from governor.simulator.workload.storytelling import Storyteller
from governor.simulator.workload.textinput import BadInputError, seconds_asked, text_of, tokens_asked
from governor.simulator.workload.worklog import WorkLog

WORKLOAD = Path(workload.__file__).parent


def test_same_prompt_tells_the_same_story_and_another_one_another() -> None:
    teller = Storyteller.of_book()
    first, again, other = ("".join(teller.tokens(prompt, 40)) for prompt in ("Alice was", "Alice was", "Alice is"))
    assert first == again != other


def test_story_goes_on_from_the_prompts_last_words() -> None:
    teller = Storyteller("one two three four. one two five six.")
    assert {next(iter(teller.tokens(f"{n} one two", 1))) for n in range(50)} <= {"three", "five"}


@pytest.mark.parametrize("limit", [1, 2, 10, 60])
def test_story_keeps_its_limit_and_ends_with_a_sentence_where_it_can(limit: int) -> None:
    tokens = list(Storyteller.of_book().tokens("Down the", limit))
    assert limit - limit // 5 <= len(tokens) <= limit
    assert not tokens[0].startswith(" ")
    assert all(token.startswith(" ") for token in tokens[1:])


def test_story_of_words_the_book_does_not_know_begins_somewhere() -> None:
    assert len(list(Storyteller.of_book().tokens("日本語 ☺", 5))) == 5


@pytest.mark.parametrize(
    ("elements", "sentence"),
    [
        ([], "text_input has 0 elements; send exactly one text"),
        ([b"a", b"b"], "text_input has 2 elements; send exactly one text"),
        ([b"ok\xff"], "text_input is not UTF-8 (byte 2): send UTF-8 text"),
        ([b" \n\t"], "text_input is empty: send at least one word"),
        ([b""], "text_input is empty: send at least one word"),
        (["str"], "text_input is str; send BYTES"),
    ],
)
def test_bad_text_is_refused_with_a_sentence(elements: list[object], sentence: str) -> None:
    with pytest.raises(BadInputError) as refused:
        text_of(elements)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("text", "seconds"), [("wait", 1.0), ("2.5 or 7", 2.5), ("0", 0.0), ("1e9", 1.0), ("99999", 600.0)]
)
def test_first_number_is_the_time_to_compute(text: str, seconds: float) -> None:
    assert seconds_asked(text) == seconds


def test_token_limit_is_bounded() -> None:
    assert (tokens_asked(None), tokens_asked([7])) == (60, 7)
    for wrong in ([0], [2001], [-1], [1, 2], []):
        with pytest.raises(BadInputError, match="max_tokens"):
            tokens_asked(wrong)


def test_rough_sentiment_has_the_shape_of_the_real_one() -> None:
    assert sentiment_of("I love it")["label"] == "positive"
    assert sentiment_of("What an awful day")["label"] == "negative"
    assert sentiment_of("")["compound"] == 0.0
    assert set(sentiment_of("x")) == {"label", "neg", "neu", "pos", "compound"}


def test_processes_that_log_at_once_never_mix_their_lines(tmp_path: Path) -> None:
    log = tmp_path / "work.jsonl"
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from worklog import WorkLog\n"
        "log = WorkLog('slow', sys.argv[2])\n"
        "for index in range(300): log.end(log.start(f'{sys.argv[3]}-{index}'))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", script, str(WORKLOAD), str(log), str(number)])
        for number in range(4)
    ]
    assert [writer.wait(timeout=30) for writer in writers] == [0, 0, 0, 0]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 4 * 300 * 2
    assert {tuple(line) for line in lines} == {("t", "model", "what", "id")}


def test_work_log_makes_up_an_id_where_the_request_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WorkLog("slow", str(tmp_path / "work.jsonl"))
    assert log.start("mine") == "mine"
    assert log.start("") != log.start("")
    monkeypatch.delenv("GOVERNOR_WORKLOG", raising=False)
    WorkLog("slow").start("nowhere")
