"""Fetches PP-OCRv4, three networks that read text (Apache-2.0), out of a published package.

`rapidocr-onnxruntime` holds them in ONNX form. The alphabet of the reading network is in that
file's metadata: one character a line, under "character".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from microkernels.base.errors import ModelError

from ..frontend.read_model import read_model
from .published import Member, fetch

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


@dataclass(frozen=True)
class OcrFiles:
    """Where the networks lie that find lines of text, see whether they stand upright, read them."""

    detect: Path
    orient: Path
    read: Path


def fetch_ocr(folder: Path | None = None) -> OcrFiles:
    """The files, downloaded if they are not there yet.

    Parameters
    ----------
    folder : Path or None
        Where to keep them; None for a folder below `cache_dir()`.

    Raises
    ------
    DownloadError
        If the package cannot be downloaded or holds other files than expected.
    """
    return OcrFiles(*fetch(PACKAGE, MEMBERS, folder))


def load_alphabet(path: Path) -> tuple[str, ...]:
    """The text of each class of the reading network: the blank (""), its characters, a space.

    Raises
    ------
    ModelError
        If the file is no ONNX model, or does not say what it reads.
    """
    for item in read_model(path).metadata_props:
        if item.key == "character":
            return ("", *item.value.split("\n"), " ")
    raise ModelError(f"{path} does not say which characters it reads")
