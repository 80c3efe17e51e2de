"""Words and their numbers: PAD 0, BOS 1, EOS 2, OOV 3, then the words by decreasing frequency from 4 on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

PAD, BOS, EOS, OOV = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<oov>")

# Words keep apostrophes and hyphens, marks such as <url> stay whole, other punctuation stands alone: the way the
# Stack Overflow data of TensorFlow Federated was cut.
_WORD = re.compile(r"<\w+>|\w+(?:['’-]\w+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    """The words of a text, in lower case.

    >>> split_words("Don't panic: see <URL>, step-by-step!")
    ["don't", 'panic', ':', 'see', '<url>', ',', 'step-by-step', '!']
    """
    return _WORD.findall(text.lower())


def most_frequent(counts: Mapping[str, int], words: int) -> tuple[str, ...]:
    """The vocabulary: the four marks, then the most frequent words; words as frequent as each other in their order.

    >>> most_frequent({"b": 2, "a": 2, "c": 5, "d": 1}, words=3)
    ('<pad>', '<bos>', '<eos>', '<oov>', 'c', 'a', 'b')
    """
    ranked = sorted((-count, word) for word, count in counts.items() if word not in SPECIAL)
    return SPECIAL + tuple(word for _, word in ranked[:words])


def numbers(vocabulary: Sequence[str]) -> dict[str, int]:
    """The number of each word; words it does not hold are OOV."""
    return {word: number for number, word in enumerate(vocabulary) if number >= len(SPECIAL)}


def sequences(message: Sequence[int], length: int, cut: bool) -> list[list[int]]:
    """A message as sequences of length + 1 tokens: the first `length` are inputs, the last `length` their targets.

    BOS, the words and EOS are cut into consecutive pieces that share one token, so each word is a target exactly once;
    with `cut` only the first piece is kept. A short piece is not padded here.

    >>> sequences([7, 8, 9], length=3, cut=False)
    [[1, 7, 8, 9], [9, 2]]
    >>> sequences([7, 8, 9], length=3, cut=True)
    [[1, 7, 8, 9]]
    """
    tokens = [BOS, *message, EOS]
    if cut:
        return [tokens[: length + 1]]
    return [tokens[start : start + length + 1] for start in range(0, len(tokens) - 1, length)]
