"""A small real text generator: a Markov chain over the words of a book.

It continues any prompt, one token (a word with its punctuation) at a time, and the same prompt always gets
the same continuation.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOK = Path(__file__).with_name("alice.txt")

_WANDER = 0.25
"""How often the next word follows one word rather than two: less quotes the book, more makes no sense."""

_SENTENCE_END = (".", "!", "?", ".\u2019", "!\u2019", "?\u2019", ".)")


class Storyteller:
    """The chain of one book.

    Args:
        text: the book.
    """

    def __init__(self, text: str) -> None:
        words = text.split()
        if not words:
            raise ValueError("the book has no words")
        self._after_one: dict[str, list[str]] = defaultdict(list)
        self._after_two: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._openings = [words[0]]
        for index, word in enumerate(words[:-1]):
            self._after_one[word].append(words[index + 1])
            if index:
                self._after_two[words[index - 1], word].append(words[index + 1])
            if word.endswith(_SENTENCE_END):
                self._openings.append(words[index + 1])

    @classmethod
    def of_book(cls, path: Path = BOOK) -> Storyteller:
        """The storyteller of the book at `path`."""
        return cls(path.read_text(encoding="utf-8"))

    def tokens(self, prompt: str, limit: int) -> Iterator[str]:
        """Yield 1 to `limit` tokens; joined together they are the continuation of `prompt`.

        The last token is followed by the end of a sentence where one comes in the last fifth of the limit.
        """
        # Not a secret: the prompt's digest only makes the same prompt tell the same story.
        chance = random.Random(hashlib.sha256(prompt.encode("utf-8")).digest())  # noqa: S311
        before, word = self._entry(prompt, chance)
        for count in range(1, limit + 1):
            if count == 1 and word is None:
                following = chance.choice(self._openings)
            else:
                following = self._next(before, word, chance)
            yield following if count == 1 else f" {following}"
            if count >= limit - limit // 5 and following.endswith(_SENTENCE_END):
                return
            before, word = word, following

    def _entry(self, prompt: str, chance: random.Random) -> tuple[str | None, str | None]:
        """The last words of the prompt that the book knows too, as the place to go on from."""
        words = prompt.split()[-2:]
        if words and words[-1] in self._after_one:
            return (words[-2] if len(words) == 2 else None), words[-1]
        known = sorted({word for word in prompt.split() if word in self._after_one})
        return None, (chance.choice(known) if known else None)

    def _next(self, before: str | None, word: str | None, chance: random.Random) -> str:
        if word is not None:
            if before is not None and chance.random() >= _WANDER:
                choices = self._after_two.get((before, word))
                if choices:
                    return chance.choice(choices)
            choices = self._after_one.get(word)
            if choices:
                return chance.choice(choices)
        return chance.choice(self._openings)
