"""Published packages that are written for ONNX Runtime run with this package in its place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]

SWAP = """
import json, sys
if sys.argv[1] == "ours":
    import tvm_hybrid
    sys.modules["onnxruntime"] = tvm_hybrid
"""

MAGIKA = """
from magika import Magika

program = b"import os\\n\\nfor name in os.listdir():\\n    print(name)\\n" * 5
table = b"name,size,time\\n" + b"".join(b"file%d,%d,0.5\\n" % (i, i * i) for i in range(40))
page = b"<!DOCTYPE html>\\n<html><head><title>a</title></head><body>text</body></html>\\n" * 9
magika = Magika()
found = [magika.identify_bytes(each) for each in (program, table, page, b"")]
found += magika.identify_paths(sys.argv[2:])
print(json.dumps([
    type(magika._onnx_session).__module__, [(str(each.output.label), each.score) for each in found]
]))
"""

RAPIDOCR = """
import logging
import numpy as np
from PIL import Image, ImageDraw, ImageFont

picture = Image.new("RGB", (320, 96), "white")
ImageDraw.Draw(picture).text((16, 24), "Page 12345", fill="black", font=ImageFont.load_default(36))
from rapidocr import RapidOCR

engine = RapidOCR()
found = engine(np.array(picture))
print(json.dumps([
    type(engine.text_det.session.session).__module__,
    [(text, float(score)) for text, score in zip(found.txts, found.scores)],
]))
"""


def run(script: str, which: str, *arguments: Path) -> list[Any]:
    """What a script says of its session's module, and what it found."""
    done = subprocess.run(
        [sys.executable, "-c", SWAP + script, which, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(script: str, allowed: float, *arguments: Path) -> None:
    """Runs a script with either module: the same answers, scores that differ by little."""
    (ours, mine), (theirs, others) = (run(script, each, *arguments) for each in ("ours", "theirs"))
    assert ours == "tvm_hybrid.session.inference_session" and theirs.startswith("onnxruntime.")
    assert [label for label, _ in mine] == [label for label, _ in others] != []
    for (_, score), (_, other) in zip(mine, others, strict=True):
        assert abs(score - other) <= allowed


def test_magika() -> None:
    """Its own labels and scores; between 0 and 1, the scores differ by what sums round."""
    paths = [ROOT / name for name in ("README.md", "setup.cfg", "Makefile", "pyproject.toml")]
    compare(MAGIKA, 0.01, *paths)


@pytest.mark.slow
def test_rapidocr() -> None:
    """Three networks, of which two are compiled when pictures of new sizes arrive."""
    compare(RAPIDOCR, 0.001)
