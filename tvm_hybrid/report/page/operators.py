"""The operators in a decision's text, by anchors: `a (b + c, d)` is b with c fused, and d."""

from __future__ import annotations

import re

_MERGED = re.compile(r"\w+ \((.*)\)")
_SENTENCE = re.compile(r"; (?![^()]*\))")


def parts_of(op: str) -> list[list[str]]:
    """The operators of each anchor of a region, in order."""
    merged = _MERGED.fullmatch(op)
    return [_split(each, " + ") for each in _split(merged[1] if merged else op, ", ")]


def title_of(op: str) -> str:
    """What a region is, in a word: its template, or its first operator."""
    return re.split(r"[ (]", op, maxsplit=1)[0]


def reasons_of(reason: str) -> list[str]:
    """The sentences of a reason."""
    return [each for each in _SENTENCE.split(reason) if each]


def _split(text: str, separator: str) -> list[str]:
    """Splits outside of parentheses."""
    found, depth, start, position = [], 0, 0, 0
    while position < len(text):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0 and text.startswith(separator, position):
            found.append(text[start:position])
            start = position = position + len(separator)
        else:
            position += 1
    return [*found, text[start:]]
