"""Published packages that load a model from a folder run with this package instead.

Their own models come from a hub. These tests make small ones with random weights, so that nothing
is downloaded.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.tvm_hybrid.session.onnxruntime_api.package_models import cut_out, save_encoder
from tests.tvm_hybrid.session.onnxruntime_api.package_runs import compare, interpreter_with

pytestmark = pytest.mark.slow

REMBG = """
import os
os.environ["U2NET_HOME"] = os.path.dirname(sys.argv[2])
import numpy as np
from PIL import Image, ImageDraw
from rembg import new_session, remove

picture = Image.new("RGB", (200, 150), "white")
ImageDraw.Draw(picture).ellipse((50, 30, 150, 120), fill="red", outline="blue", width=7)
session = new_session("u2net_custom", model_path=sys.argv[2])
mask = np.array(remove(picture, session=session, only_mask=True)).astype(int)
cut = np.array(remove(picture, session=session, post_process_mask=True)).astype(int)
assert mask.std() > 10
print(json.dumps([
    type(session.inner_session).__module__,
    [(str(i), float(x)) for i, x in enumerate([*mask[::9, ::9].ravel(), cut.mean()])],
]))
"""

TEXTS = 'texts = ["The cat sits on the mat.", "a bird sings?", "dog", "the sky over the slow tree"]'

FASTEMBED = f"""
{TEXTS}
import numpy as np
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

TextEmbedding.add_custom_model(
    model="own", pooling=PoolingType.MEAN, normalization=True, dim=32,
    sources=ModelSource(hf="own/own"), model_file="onnx/model.onnx",
)
model = TextEmbedding("own", specific_model_path=sys.argv[2], threads=1)
found = np.array([*model.embed(texts, batch_size=2)])
assert found.shape == (4, 32)
print(json.dumps([
    type(model.model.model).__module__, [(str(i), float(x)) for i, x in enumerate(found.ravel())]
]))
"""

OPTIMUM = f"""
{TEXTS}
import numpy as np
from optimum.onnxruntime import ORTModelForFeatureExtraction
from transformers import AutoTokenizer, pipeline

tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
found = []
for bound in (False, True):
    model = ORTModelForFeatureExtraction.from_pretrained(sys.argv[2], use_io_binding=bound)
    extract = pipeline("feature-extraction", model=model, tokenizer=tokenizer)
    found += [np.array(each).sum(axis=1).ravel() for each in extract(texts)]
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    found.append(model(**tokens).last_hidden_state.numpy()[:, 0].ravel())
print(json.dumps([
    type(model.session).__module__,
    [(str(i), float(x)) for i, x in enumerate(np.concatenate(found))],
]))
"""

SENTENCES = f"""
{TEXTS}
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(
    sys.argv[2], backend="onnx", device="cpu", model_kwargs={{"provider": "CPUExecutionProvider"}}
)
found = model.encode(texts, batch_size=2, normalize_embeddings=True)
assert found.shape == (4, 32)
likeness = model.similarity(found, found).numpy().ravel()
print(json.dumps([
    type(model[0].auto_model.session).__module__,
    [(str(i), float(x)) for i, x in enumerate([*found.ravel(), *likeness])],
]))
"""


def test_rembg(tmp_path: Path) -> None:
    """Masks are whole numbers of 0 to 255, which rounding moves by one."""
    python = interpreter_with("rembg")
    onnx.save(cut_out(), tmp_path / "model.onnx")
    compare(REMBG, 1.0, tmp_path / "model.onnx", python=python)


@pytest.mark.parametrize(
    ("package", "script"),
    [("fastembed", FASTEMBED), ("optimum", OPTIMUM), ("sentence_transformers", SENTENCES)],
)
def test_embeddings(package: str, script: str, tmp_path: Path) -> None:
    python = interpreter_with(package)
    save_encoder(tmp_path / "model")
    compare(script, 1e-4, tmp_path / "model", python=python)
