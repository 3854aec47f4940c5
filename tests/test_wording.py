"""A short list of phrases that read as riddles: no file has them, and each says what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "microkernels",
    "tir_schedules",
    "relay_passes",
    "tvm_hybrid",
    "tests",
    "tools",
    "examples",
    "notebooks",
    "docs",
    "changelog.d",
)
SUFFIXES = {".py", ".md", ".ipynb"}

RIDDLES = {
    r"\bbecame of\b": "name the decision or the result",
    r"\bso many\b": "name the number",
    r"\bas of (?:an?|the|known|all)\b": "write `as with`, `as in` or `like`, and name the object",
    r"\bwhat is left\b(?! (?:out|over|to)\b)": "name the tail, the remainder or the fallback",
    r"\bwho(?:ever)? asks\b": "name the caller",
    r"\bis of none\b": "say which case this is",
    r"[\"#(:;.]\s*the same of\b": "name the object again",
    r'"""The same(?:,|;|:| for| by| with| in| but)': "name the object again",
    r"\ban? open (?:size|shape|dimension|extent|axis|batch|length)s?\b": "write `dynamic`",
    r"\bopen (?:sizes|shapes|dimensions|extents|axes|lengths)\b": "write `dynamic`",
    r"\bstays? open\b": "write that sizes stay dynamic, or that a file is not closed",
    r"\bof just (?:this|that|these|those)\b": "name the object again",
}
"""Phrase, as a pattern -> what to write instead."""


def sources() -> Iterator[Path]:
    """Texts that people read, without this file."""
    for path in sorted(ROOT.iterdir()):
        if path.suffix in SUFFIXES:
            yield path
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path != Path(__file__).resolve():
                yield path


def text_of(path: Path) -> str:
    """A file's text; of a notebook its cells without outputs, whose lines are counted from 1."""
    text = path.read_text()
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def riddles(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and advice for each riddle; a phrase may go on in the next line."""
    for pattern, advice in RIDDLES.items():
        spread = pattern.replace(" ", r"\s+(?:#:?\s+)?")
        for found in re.finditer(spread, text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), advice


def test_nothing_is_a_riddle() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}: {advice}"
        for path in sources()
        for line, phrase, advice in sorted(riddles(text_of(path)))
    ]
    assert not found, "\n".join([f"{len(found)} riddles:", *found])


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("shows what became of each node", "became of"),
        ("# takes so\n# many bytes", "so # many"),
        ('"""The same, of rows that have begun."""', '"""The same,'),
        ("vectors, and what is\nleft of one", "what is left"),
        ('"""The same of any number of keys."""', '"The same of'),
        ("code for open\nsizes", "open sizes"),
        ("an open shape", "an open shape"),
        ("sizes may stay open", "stay open"),
    ],
)
def test_riddles_are_found(text: str, phrase: str) -> None:
    assert [each for _, each, _ in riddles(text)] == [phrase]


@pytest.mark.parametrize(
    "text",
    [
        "equal sizes, or the same sizes",
        '"""The same kernel as before."""',
        "the same as TVM's",
        "what is left out",
        "an open file of this size",
        "the bias of a convolution",
    ],
)
def test_ordinary_english_passes(text: str) -> None:
    assert not list(riddles(text))
