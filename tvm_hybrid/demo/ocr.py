"""The demonstration's third part: PP-OCRv4 finds, turns and reads the lines of a rendered page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from microkernels.base.errors import VerifyError

from ..bench.bench import BenchReport
from .models import DemoModel
from .ocr_detect import Box, Detector, page_planes
from .ocr_files import fetch_ocr, load_alphabet
from .ocr_page import LINES, PrintedLine, render
from .ocr_read import ORIENT_SHAPE, READ_SHAPE, Reader, ReadLine, cut_out, line_planes
from .steps import Steps

STEPS = 6


def demonstrate_ocr(threads: int, seconds: float, steps: Steps) -> list[BenchReport]:
    """Fetches, compiles and verifies the three networks, reads the page with them, measures them.

    Raises
    ------
    VerifyError
        If a result or a text is wrong.
    TvmHybridError
        If something is missing.
    """
    steps.begin("fetching PP-OCRv4, three pretrained networks that read text")
    files = fetch_ocr()
    steps.begin("compiling them")
    page = render()
    planes = page_planes(page)
    detect = DemoModel.compile(files.detect, {"x": planes.shape}, threads)
    orient = DemoModel.compile(files.orient, {"x": ORIENT_SHAPE}, threads)
    read = DemoModel.compile(files.read, {"x": READ_SHAPE}, threads)
    steps.begin("reading a page of two lines")
    boxes = Detector(detect.session).find(page)
    reader = Reader(read.session, orient.session, load_alphabet(files.read))
    steps.show(compare_lines([reader.read(page, box) for box in boxes], LINES))
    line = cut_out(page, boxes[0])
    examined = (
        (detect, planes),
        (orient, line_planes(line, ORIENT_SHAPE[-1])),
        (read, line_planes(line, READ_SHAPE[-1])),
    )
    return [model.examine({"x": feed}, seconds, steps) for model, feed in examined]


def compare_lines(found: Sequence[ReadLine], printed: Sequence[PrintedLine]) -> Table:
    """The table of what was read, from top to bottom.

    Raises
    ------
    VerifyError
        If that is not what is printed.
    """
    table = Table(title="what PP-OCRv4 reads", title_justify="left")
    for column in ("text", "score", "upside down", "columns", "rows"):
        table.add_column(column)
    wrong = []
    for line, truth in zip(found, printed, strict=False):
        right = (line.text, line.turned) == (truth.text, truth.turned)
        table.add_row(
            Text(repr(line.text), "green" if right else "bold red"),
            f"{line.score:.4f}",
            "yes" if line.turned else "no",
            *_extent(line.box),
        )
        if not right:
            wrong.append(f"the line {truth.text!r} was read as {line.text!r}{_turned(line)}")
    if len(found) != len(printed):
        wrong.append(f"{len(found)} lines were found, {len(printed)} are printed")
    if wrong:
        raise VerifyError("; ".join(wrong))
    return table


def _extent(box: Box) -> tuple[str, str]:
    return f"{box.left} to {box.right - 1}", f"{box.top} to {box.bottom - 1}"


def _turned(line: ReadLine) -> str:
    return ", turned" if line.turned else ""
