"""The demonstration's third part: PP-OCRv4 finds, turns and reads the lines of a rendered page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.table import Table
from rich.text import Text
from scipy import ndimage

from microkernels.base.errors import ModelError, VerifyError

from ..bench.bench import BenchReport
from ..frontend.onnx.reader.read_model import read_model
from .models import DemoModel, Member, Steps, fetch

STEPS = 6


def demonstrate_ocr(threads: int, seconds: float, steps: Steps) -> list[BenchReport]:
    """Fetches, compiles and verifies the networks, reads a page with them, and measures them.

    Raises
    ------
    VerifyError
        If a result or a text is wrong.
    TvmHybridError
        If something is missing.
    """
    steps.begin("fetching PP-OCRv4, three pretrained networks that read text")
    networks = fetch(PACKAGE, MEMBERS)
    steps.begin("compiling them")
    page = render()
    planes = page_planes(page)
    # The networks find lines of text, tell whether they are upright, and read them.
    detect, orient, read = (
        DemoModel.compile(path, {"x": shape}, threads)
        for path, shape in zip(networks, (planes.shape, ORIENT_SHAPE, READ_SHAPE), strict=True)
    )
    steps.begin("reading a page of two lines")
    boxes = Detector(detect.session).find(page)
    reader = Reader(read.session, orient.session, load_alphabet(networks[-1]))
    steps.show(compare_lines([reader.read(page, box) for box in boxes], LINES))
    line = cut_out(page, boxes[0])
    lines = [line_planes(line, shape[-1]) for shape in (ORIENT_SHAPE, READ_SHAPE)]
    examined = zip((detect, orient, read), (planes, *lines), strict=True)
    return [model.examine({"x": feed}, seconds, steps) for model, feed in examined]


def compare_lines(found: Sequence[ReadLine], printed: Sequence[PrintedLine]) -> Table:
    """Makes the table of the lines that were read, from top to bottom.

    Raises
    ------
    VerifyError
        If they differ from the printed lines.
    """
    table = Table(title="what PP-OCRv4 reads", title_justify="left")
    for column in ("text", "score", "upside down", "columns", "rows"):
        table.add_column(column)
    wrong = []
    for line, truth in zip(found, printed, strict=False):
        right = (line.text, line.turned) == (truth.text, truth.turned)
        text, box = Text(repr(line.text), "green" if right else "bold red"), line.box
        place = f"{box.left} to {box.right - 1}", f"{box.top} to {box.bottom - 1}"
        table.add_row(text, f"{line.score:.4f}", "yes" if line.turned else "no", *place)
        if not right:
            turned = ", turned" if line.turned else ""
            wrong.append(f"the line {truth.text!r} was read as {line.text!r}{turned}")
    if len(found) != len(printed):
        wrong.append(f"{len(found)} lines were found, {len(printed)} are printed")
    if wrong:
        raise VerifyError("; ".join(wrong))
    return table


SIZE = 320
MARGIN = 10


@dataclass(frozen=True)
class PrintedLine:
    """A line of text on a page.

    Attributes
    ----------
    text : str
        The text.
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
    """Renders a page with these lines, in black on white and in Pillow's default font.

    Returns
    -------
    numpy.ndarray
        uint8, shape (size, size, 3).
    """
    page = Image.new("RGB", (size, size), "white")
    for line in lines:
        font = ImageFont.load_default(size=line.points)
        left, top, right, bottom = font.getbbox(line.text)
        # A strip that is just large enough for the line with a margin.
        strip = Image.new(
            "RGB", (int(right - left) + 2 * MARGIN, int(bottom - top) + 2 * MARGIN), "white"
        )
        place = MARGIN - left, MARGIN - top
        ImageDraw.Draw(strip).text(place, line.text, fill="black", font=font)
        page.paste(strip.rotate(180) if line.turned else strip, (line.left, line.top))
    return np.array(page)


# Fetches PP-OCRv4, three networks that read text (Apache-2.0), from a published package.
#
# `rapidocr-onnxruntime` contains them in ONNX form. The alphabet of the reading network is in its
# file's metadata: one character a line, under "character".


PACKAGE = "rapidocr-onnxruntime==1.4.4"
MEMBERS = {
    "ppocr4_det.onnx": Member(
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "ppocr_cls.onnx": Member(
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "ppocr4_rec.onnx": Member(
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
}


def load_alphabet(path: Path) -> tuple[str, ...]:
    """Reads the text of each class of the reading network: the blank (""), characters, a space.

    Raises
    ------
    ModelError
        If the file is not an ONNX model, or has no alphabet.
    """
    for item in read_model(path).metadata_props:
        if item.key == "character":
            return ("", *item.value.split("\n"), " ")
    raise ModelError(f"{path} does not say which characters it reads")


# Pre- and postprocessing of the networks that orient and read a line.
#
# The reading network gives, for every step along the line, a score for each character and for the
# blank, which means "nothing new here". The text is the best path: equal neighbours merged, blanks
# dropped (Graves et al., "Connectionist Temporal Classification", ICML 2006, section 3.2).


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
        Its place on the page.
    text : str
        The text.
    score : float
        Mean score of its characters; 0 if there are none.
    turned : bool
        Whether the line was upside down.
    """

    box: Box
    text: str
    score: float
    turned: bool


def line_planes(line: np.ndarray, width: int) -> np.ndarray:
    """Makes a network's input of a line.

    Parameters
    ----------
    line : numpy.ndarray
        uint8, shape (rows, columns, 3).
    width : int
        Width of the input. A shorter line is padded with grey, a longer one is squeezed.

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
    """Returns the text of the best path and the mean score of its characters.

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

    def read(self, page: np.ndarray, box: Box) -> ReadLine:
        """Reads the text in a box of a page (uint8, shape (height, width, 3))."""
        line = cut_out(page, box)
        (scores,) = self._orient.run(None, {"x": line_planes(line, ORIENT_SHAPE[-1])})
        turned = bool(scores[0, 1] > TURN_THRESHOLD)
        if turned:
            line = line[::-1, ::-1]
        (scores,) = self._read.run(None, {"x": line_planes(line, READ_SHAPE[-1])})
        text, score = decode(scores[0], self._alphabet)
        return ReadLine(box, text, score, turned)


def cut_out(page: np.ndarray, box: Box) -> np.ndarray:
    """Cuts the pixels of a box out of a page."""
    return page[box.top : box.bottom, box.left : box.right]


# Pre- and postprocessing of the network that finds text: its input from a page, boxes from its map.
#
# The network gives each pixel the probability to lie in the shrunk core of a line of text. A core
# is widened by area times a ratio over perimeter, as in "Real-time Scene Text Detection with
# Differentiable Binarization" (arXiv 1911.08947, section 3, on inference). Boxes here are parallel
# to the axes.


# Mean and deviation of ImageNet's red, green and blue, for values from 0 to 1.
MEAN = np.array((0.485, 0.456, 0.406), np.float32)
DEVIATION = np.array((0.229, 0.224, 0.225), np.float32)
PIXEL_THRESHOLD = 0.3
BOX_THRESHOLD = 0.5
WIDEN_RATIO = 1.6
SMALLEST_SIDE = 3


@dataclass(frozen=True)
class Box:
    """A rectangle of pixels; `right` and `bottom` are outside of it."""

    left: int
    top: int
    right: int
    bottom: int


def page_planes(page: np.ndarray) -> np.ndarray:
    """Makes the network's input of a page.

    Parameters
    ----------
    page : numpy.ndarray
        uint8, shape (height, width, 3).

    Returns
    -------
    numpy.ndarray
        float32, shape (1, 3, height, width): normalised planes.
    """
    pixels = (page.astype(np.float32) / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def find_boxes(probabilities: np.ndarray) -> list[Box]:
    """Finds the lines of text, from top to bottom.

    Parameters
    ----------
    probabilities : numpy.ndarray
        The network's map, shape (height, width).
    """
    labels, _ = ndimage.label(probabilities > PIXEL_THRESHOLD, structure=np.ones((3, 3)))
    boxes = []
    for label, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        core = labels[rows, columns] == label
        height, width = core.shape
        score = float(probabilities[rows, columns][core].mean())
        if min(height, width) < SMALLEST_SIDE or score < BOX_THRESHOLD:
            continue
        distance = height * width * WIDEN_RATIO / (2 * (height + width))
        left, top = (max(0, int(each.start - distance)) for each in (columns, rows))
        last = [math.ceil(each.stop + distance) for each in (rows, columns)]
        bottom, right = map(min, probabilities.shape, last)
        boxes.append(Box(left, top, right, bottom))
    return sorted(boxes, key=lambda box: (box.top, box.left))


class Detector:
    """Finds the lines of text on a page.

    Parameters
    ----------
    session : InferenceSession
        The network, or anything with `run(None, {"x": planes}) -> [map]`.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def find(self, page: np.ndarray) -> list[Box]:
        """Finds the boxes of a page (uint8, shape (height, width, 3)), from top to bottom."""
        (probabilities,) = self._session.run(None, {"x": page_planes(page)})
        return find_boxes(probabilities[0, 0])
