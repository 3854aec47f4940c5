"""What surrounds the networks that turn and read a line: their input, and text out of the scores.

The reading network gives every step along the line a score for each character and for "nothing
new here", the blank. The text is its best path: equal neighbours merged, blanks left out (Graves
et al., "Connectionist Temporal Classification", ICML 2006, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from .ocr_detect import Box

HEIGHT = 48
READ_SHAPE = (1, 3, HEIGHT, 320)
ORIENT_SHAPE = (1, 3, HEIGHT, 192)
TURN_THRESHOLD = 0.9


@dataclass(frozen=True)
class ReadLine:
    """A line that was read.

    Attributes
    ----------
    box : Box
        Where it was.
    text : str
        What it says.
    score : float
        Mean score of its characters; 0 if there are none.
    turned : bool
        Whether it was upside down.
    """

    box: Box
    text: str
    score: float
    turned: bool


def line_planes(line: np.ndarray, width: int) -> np.ndarray:
    """A network's input for a line.

    Parameters
    ----------
    line : numpy.ndarray
        uint8, shape (rows, columns, 3).
    width : int
        Width of the input. A shorter line is padded with grey, a longer one squeezed.

    Returns
    -------
    numpy.ndarray
        float32, shape (1, 3, 48, width), values from -1 to 1.
    """
    rows, columns, _ = line.shape
    used = min(width, math.ceil(HEIGHT * columns / rows))
    scaled = Image.fromarray(line).resize((used, HEIGHT), Image.Resampling.BILINEAR)
    planes = np.zeros((1, 3, HEIGHT, width), np.float32)
    planes[0, :, :, :used] = np.asarray(scaled, np.float32).transpose(2, 0, 1) / 127.5 - 1
    return planes


def decode(scores: np.ndarray, alphabet: Sequence[str]) -> tuple[str, float]:
    """The text of the best path and the mean score of its characters.

    Parameters
    ----------
    scores : numpy.ndarray
        Shape (steps, classes); class 0 is the blank.
    alphabet : sequence of str
        The text of each class.
    """
    best = scores.argmax(axis=1)
    new = (best != 0) & np.append(True, best[1:] != best[:-1])
    text = "".join(alphabet[index] for index in best[new])
    return text, float(scores.max(axis=1)[new].mean()) if text else 0.0


class Reader:
    """Reads lines of text.

    Parameters
    ----------
    read : InferenceSession
        The reading network, or anything with `run(None, {"x": planes}) -> [scores]`.
    orient : InferenceSession
        The network that says whether a line is upright (class 0) or upside down (class 1).
    alphabet : sequence of str
        The text of each class of the reading network.
    """

    def __init__(self, read: Any, orient: Any, alphabet: Sequence[str]) -> None:
        self._read, self._orient, self._alphabet = read, orient, alphabet

    def is_turned(self, line: np.ndarray) -> bool:
        """Whether a line (uint8, shape (rows, columns, 3)) is upside down."""
        (scores,) = self._orient.run(None, {"x": line_planes(line, ORIENT_SHAPE[-1])})
        return bool(scores[0, 1] > TURN_THRESHOLD)

    def read(self, page: np.ndarray, box: Box) -> ReadLine:
        """What a box of a page (uint8, shape (height, width, 3)) says."""
        line = cut_out(page, box)
        turned = self.is_turned(line)
        if turned:
            line = line[::-1, ::-1]
        (scores,) = self._read.run(None, {"x": line_planes(line, READ_SHAPE[-1])})
        text, score = decode(scores[0], self._alphabet)
        return ReadLine(box, text, score, turned)


def cut_out(page: np.ndarray, box: Box) -> np.ndarray:
    """The pixels of a box."""
    return page[box.top : box.bottom, box.left : box.right]
