"""Published packages written for ONNX Runtime run with this package instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.tvm_hybrid.session.onnxruntime_api.package_runs import ROOT, compare, interpreter_with

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

NUDENET = """
import tempfile
import numpy as np
from PIL import Image
from nudenet import NudeDetector

detector = NudeDetector()
session = detector.onnx_session
pixels = np.random.default_rng(0).random((1, 3, 320, 320), np.float32)
results = session.run(None, {session.get_inputs()[0].name: pixels})[0]
with tempfile.TemporaryDirectory() as folder:
    Image.new("RGB", (320, 200), "white").save(f"{folder}/page.png")
    assert detector.detect(f"{folder}/page.png") == []
print(json.dumps([
    type(session).__module__, [(str(i), float(x)) for i, x in enumerate(results.ravel()[::997])]
]))
"""

DDDDOCR = """
import io
from PIL import Image, ImageDraw, ImageFont
import ddddocr, onnxruntime

picture = Image.new("RGB", (160, 60), "white")
ImageDraw.Draw(picture).text((10, 10), "ab3K", fill="black", font=ImageFont.load_default(32))
data = io.BytesIO()
picture.save(data, "PNG")
word = ddddocr.DdddOcr(show_ad=False).classification(data.getvalue())
print(json.dumps([onnxruntime.InferenceSession.__module__, [(word, 1.0)]]))
"""

VOICE = """
import numpy as np
from faster_whisper.vad import get_vad_model

seconds = np.arange(16000 * 4) / 16000
wave = np.sin(880 * seconds) * np.sin(19 * seconds) + 0.3 * np.sin(5654 * seconds)
audio = np.where(seconds % 2 < 1, wave, 0)[: 512 * 120].astype(np.float32)
model = get_vad_model()
speech = np.ravel(model(audio))
print(json.dumps([
    type(model.session).__module__, [(str(i), float(x)) for i, x in enumerate(speech)]
]))
"""

EXCEPTIONS = """
import numpy as np
import onnxruntime
from onnxruntime.capi import _pybind_state
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

said = []
try:
    onnxruntime.InferenceSession("nothing.onnx", disabled_optimizers=["ConstantFolding"])
except NoSuchFile as error:
    said.append("NoSuchFile")
session = onnxruntime.InferenceSession(sys.argv[2])
try:
    session.run(None, {"x": np.zeros((3, 3), np.float32)})
except InvalidArgument as error:
    said.append("InvalidArgument")
assert "CPUExecutionProvider" in _pybind_state.get_available_providers()
said.append(str(onnxruntime.OrtDevice.make("cpu", 0).device_type()))
print(json.dumps([type(session).__module__, [(each, 1.0) for each in said]]))
"""

QUANTIZE = """
import onnx
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
import numpy as np
import onnxruntime

class Samples(CalibrationDataReader):
    def __init__(self):
        draw = np.random.default_rng(0).normal
        self.left = [{"x": draw(size=(4, 64)).astype(np.float32)} for _ in range(3)]

    def get_next(self):
        return self.left.pop() if self.left else None

path, made = sys.argv[2], sys.argv[2] + ".made"
models = []
for quantize in (quantize_dynamic, lambda *paths: quantize_static(*paths, Samples())):
    quantize(path, made)
    models.append(onnx.load(made))
quantizer = MatMulNBitsQuantizer(onnx.load(path), bits=4, block_size=32)
quantizer.process()
models.append(quantizer.model.model)
scales = [
    (each.name, float(onnx.numpy_helper.to_array(each).sum()))
    for model in models for each in model.graph.initializer
]
print(json.dumps([onnxruntime.InferenceSession.__module__, scales]))
"""


def test_magika() -> None:
    """Compares its labels and scores; scores between 0 and 1 differ by the rounding of sums."""
    paths = [ROOT / name for name in ("README.md", "setup.cfg", "Makefile", "pyproject.toml")]
    compare(MAGIKA, 0.01, *paths)


@pytest.mark.slow
def test_rapidocr() -> None:
    """Three networks; two of them are compiled when pictures of new sizes arrive."""
    compare(RAPIDOCR, 0.001)


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A model: x [4, 64] times a weight."""
    weight = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    ends = [onnx.helper.make_tensor_value_info(name, 1, [4, size])
            for name, size in (("x", 64), ("y", 32))]  # fmt: skip
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "product", ends[:1], ends[1:],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    opset = [onnx.helper.make_opsetid("", 21)]
    path = tmp_path / "product.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def test_exceptions_by_their_names(product: Path) -> None:
    compare(EXCEPTIONS, 0.0, product)


def test_quantisers_of_the_real_package(product: Path) -> None:
    """They calibrate with our sessions, so ranges differ by rounding."""
    compare(QUANTIZE, 0.01, product)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "script", "allowed"),
    [("nudenet", NUDENET, 0.01), ("ddddocr", DDDDOCR, 0.0), ("faster_whisper", VOICE, 1e-4)],
)
def test_more_packages(package: str, script: str, allowed: float) -> None:
    compare(script, allowed, python=interpreter_with(package))
