"""Sections about models: published ones, dynamic shapes, decoders, and compile times.

Models come from packages of the index, checked by their SHA-256, or are made by the corpus of
`tools.compile_times`: published architectures with seeded weights, as fast as trained ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

import tvm_hybrid
from tools.compile_times.__main__ import Settings, measured
from tools.compile_times.corpus import build
from tools.compile_times.results import AGAIN, COLD
from tools.compile_times.results import ONNXRUNTIME as ONNX_RUNTIME_STARTS
from tools.compile_times.results import OPENVINO as OPENVINO_STARTS
from tools.decoding import table
from tools.decoding.llama import MODELS
from tools.decoding.onnx_files import BF16, F32, INT4, INT8
from tools.dynamic_shapes import dynamic_names, inputs_of, least_times, timed
from tvm_hybrid.bench.peers.contestants import OpenVino
from tvm_hybrid.bench.peers.onnx_runtime import optimised_session
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS
from tvm_hybrid.demo import file_types, ocr
from tvm_hybrid.demo.models import Member, fetch, quantize

from .race import Racer, race, race_model
from .section import Case, Job
from .store import Row

STATIC = "static"  # our program for static sizes


@dataclass(frozen=True)
class Published:
    """A model in a package, its inputs, and whether it is measured quantised, too."""

    package: str
    members: Mapping[str, Member]
    file: str
    feeds: Callable[[], dict[str, np.ndarray]]
    quantized: bool = False

    def racer(self) -> Racer:
        """The model with its inputs."""
        (path,) = fetch(self.package, {self.file: self.members[self.file]})
        return Racer(path, self.feeds())


def _bytes() -> dict[str, np.ndarray]:
    return {"bytes": np.random.default_rng(0).integers(0, 256, (1, 2048)).astype(np.int32)}


def _page() -> dict[str, np.ndarray]:
    return {"x": ocr.page_planes(ocr.render())}


def _line(width: int) -> dict[str, np.ndarray]:
    """The page's first line of text."""
    first = ocr.LINES[0]
    rows = slice(first.top - 5, first.top + first.points + 10)
    return {"x": ocr.line_planes(ocr.render()[rows, first.left - 5 :], width)}


def _sound() -> dict[str, np.ndarray]:
    """32 ms of noise at 16 kHz, after the 4 ms before it, and the state of the LSTM."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((1, 576))
    state = np.zeros((2, 1, 128), np.float32)
    return {"input": noise.astype(np.float32), "sr": np.array(16000), "state": state}


SILERO = "silero-vad==6.2.3"
SILERO_MEMBERS = {
    "silero_vad.onnx": Member(
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
    )
}
_OCR = ocr.PACKAGE, ocr.MEMBERS
_READ = functools.partial(_line, ocr.READ_SHAPE[-1])
_ORIENT = functools.partial(_line, ocr.ORIENT_SHAPE[-1])
PUBLISHED = {
    "magika": Published(file_types.PACKAGE, file_types.MEMBERS, "magika.onnx", _bytes),
    "PP-OCRv4 detection, 320x320": Published(*_OCR, "ppocr4_det.onnx", _page, quantized=True),
    "PP-OCRv4 recognition, 48x320": Published(*_OCR, "ppocr4_rec.onnx", _READ, quantized=True),
    "PP-OCR orientation": Published(*_OCR, "ppocr_cls.onnx", _ORIENT),
    "Silero VAD, 32 ms": Published(SILERO, SILERO_MEMBERS, "silero_vad.onnx", _sound),
}
CORPUS = {  # row -> (name in the corpus, precision)
    "MiniLM, 128 tokens": ("minilm", "auto"),
    "MiniLM, 128 tokens, QDQ": ("minilm_qdq", "auto"),
    "MiniLM, 128 tokens, bf16": ("minilm", "bf16"),
    "ResNet-50": ("resnet50", "auto"),
    "SqueezeNet": ("squeezenet", "auto"),
    "ShuffleNet": ("shufflenet", "auto"),
    "MobileViT": ("mobilevit", "auto"),
    "BERT-base, 128 tokens": ("bert_base", "auto"),
    "BERT-base, 128 tokens, QDQ": ("bert_base_qdq", "auto"),
    "ResNet-50, bf16": ("resnet50", "bf16"),
}
DYNAMIC = {
    "MiniLM": ("minilm_dynamic", ("1x1", "1x7", "1x32", "1x128", "3x32")),
    "PP-OCRv4 recognition": ("text_recognition_dynamic", ("1x160", "1x320")),
}
LLAMA, DECODED = "110M", (INT4, INT8, F32, BF16)  # first the types with which others win most often
DECODER_TURNS = 2
COMPILED = ("minilm", "minilm_dynamic", "squeezenet", "resnet50", "text_detection_dynamic",
            "bert_base")  # fmt: skip
QUANTIZED_OPSET = 13
COMPILE_LIMIT = 60.0  # CPU seconds of a start


def models(job: Job) -> list[Case]:
    """Cases: models of static shapes beside ONNX Runtime and OpenVINO."""

    def published(name: str, model: Published) -> Iterator[Row]:
        racer = model.racer()
        yield race(name, racer, job)
        if model.quantized:
            with TemporaryDirectory(prefix="survey-") as folder:
                path = Path(folder) / "quantized.onnx"
                quantize(prepared(racer, Path(folder)), path, [racer.feeds])
                yield race(f"{name}, QDQ", Racer(path, racer.feeds), job)

    def made(name: str, of: str, precision: str) -> Iterator[Row]:
        yield race_model(name, build(of), job, precision=precision)

    found = [Case(name, functools.partial(published, name, one)) for name, one in PUBLISHED.items()]
    return found + [Case(name, functools.partial(made, name, *how)) for name, how in CORPUS.items()]


def prepared(racer: Racer, folder: Path) -> Path:
    """The model for the quantiser: static shapes, and an opset with scales for channels."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = version_converter.convert_version(onnx.load(racer.path), QUANTIZED_OPSET)
    for info in model.graph.input:
        sizes = racer.feeds[info.name].shape
        for dim, size in zip(info.type.tensor_type.shape.dim, sizes, strict=True):
            dim.dim_value = size
    static, path = folder / "static.onnx", folder / "prepared.onnx"
    onnx.save(model, static)
    quant_pre_process(static, path, skip_symbolic_shape=True)
    return path


@contextmanager
def of_corpus(name: str, threads: int) -> Iterator[tuple[Path, Any, Any]]:
    """The file of a model of the corpus, our session of it, and ONNX Runtime's."""
    with TemporaryDirectory(prefix="survey-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(build(name).proto, path)
        ours = tvm_hybrid.InferenceSession(
            str(path), num_threads=threads, cache=False, progress=False
        )
        yield path, ours, optimised_session(str(path), threads)


def dynamic_shapes(job: Job) -> list[Case]:
    """Cases: one program for all sizes, beside a static one, and beside other libraries."""

    def sizes_of(name: str, of: str, sizes: tuple[str, ...]) -> Iterator[Row]:
        with of_corpus(of, job.threads) as (path, whole, peer):
            for size in sizes:
                yield sized(f"{name}, {size}", path, whole, peer)

    def sized(case: str, path: Path, whole: Any, peer: Any) -> Row:
        numbers = map(int, case.rpartition(", ")[2].split("x"))
        values = dict(zip(names_by_size(whole), numbers, strict=True))
        racer = Racer(path, inputs_of(whole, values))
        sessions = {OURS: whole, STATIC: racer.session(job.threads), ONNX_RUNTIME: peer}
        runs = {name: timed(one.run, dict(racer.feeds)) for name, one in
                sessions.items()}  # fmt: skip
        with ExitStack() as running:
            if job.openvino:
                worker = OpenVino(path, racer.feeds, job.threads, job.openvino)
                running.enter_context(closing(worker))
                runs[OPENVINO] = worker.run_for
            least = least_times(list(runs.values()), pauses=True)
        times = {name: round(1e6 * time, 3) for name, time in zip(runs, least, strict=True)}
        return Row(case=case, threads=job.threads, values=times)

    return [Case(name, functools.partial(sizes_of, name, *how)) for name, how in DYNAMIC.items()]


def names_by_size(session: Any) -> list[str]:
    """Dynamic dimensions of a session, the batch first."""
    return sorted(dynamic_names(session), key=lambda name: name != "batch")


def decoders(job: Job) -> list[Case]:
    """Cases: a seeded Llama in every engine; tokens after a past, and prompts."""
    pythons = {**job.engines, **({OPENVINO: job.openvino} if job.openvino else {})}

    def columns(kind: str) -> Iterator[Row]:
        found = table.measured((LLAMA, MODELS[LLAMA]), kind, job.threads, pythons, DECODER_TURNS)
        for place, each in enumerate(found):
            yield Row(
                case=f"Llama {LLAMA}, {kind}, {each.column}",
                threads=job.threads,
                values={name: round(1e6 * time, 3) for name, time in each.least.items()},
                notes={} if place else each.notes,
            )

    return [Case(f"Llama {LLAMA}, {kind}", functools.partial(columns, kind)) for kind in DECODED]


def compile_times(job: Job) -> list[Case]:
    """Cases: CPU seconds until the first answer, with an empty and a full cache, and of others."""
    starts = [COLD, AGAIN, ONNX_RUNTIME_STARTS, *([OPENVINO_STARTS] if job.openvino else [])]
    settings = Settings(starts, job.threads, COMPILE_LIMIT, job.openvino)

    def started(name: str) -> Iterator[Row]:
        values, notes = {}, {}
        for kind, found in measured(name, settings):
            if found.fault:
                notes[kind] = found.fault
            else:
                values[kind] = round(found.seconds().cpu, 2)
        yield Row(case=name, threads=job.threads, unit="CPU s", values=values, notes=notes)

    return [Case(name, functools.partial(started, name)) for name in COMPILED]
