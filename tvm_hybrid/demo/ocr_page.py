"""The page that the demonstration reads: two lines of text, the second one upside down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 320
MARGIN = 10


@dataclass(frozen=True)
class PrintedLine:
    """A line of text on a page.

    Attributes
    ----------
    text : str
        What it says.
    left, top : int
        Corner of its place on the page, in pixels.
    points : int
        Size of the letters, in pixels.
    turned : bool
        Whether it is upside down.
    """

    text: str
    left: int
    top: int
    points: int = 34
    turned: bool = False


LINES = (PrintedLine("Hello TVM 2026", 25, 60), PrintedLine("upside down", 80, 190, turned=True))


def render(lines: tuple[PrintedLine, ...] = LINES, size: int = SIZE) -> np.ndarray:
    """A page with these lines, in black on white and in Pillow's own font.

    Returns
    -------
    numpy.ndarray
        uint8, shape (size, size, 3).
    """
    page = Image.new("RGB", (size, size), "white")
    for line in lines:
        strip = _strip(line)
        page.paste(strip.rotate(180) if line.turned else strip, (line.left, line.top))
    return np.array(page)


def _strip(line: PrintedLine) -> Image.Image:
    """A white image that is just large enough for a line with a margin."""
    font = ImageFont.load_default(size=line.points)
    left, top, right, bottom = font.getbbox(line.text)
    size = int(right - left) + 2 * MARGIN, int(bottom - top) + 2 * MARGIN
    strip = Image.new("RGB", size, "white")
    ImageDraw.Draw(strip).text((MARGIN - left, MARGIN - top), line.text, fill="black", font=font)
    return strip
