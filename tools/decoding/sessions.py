"""Our session and ONNX Runtime's as engines; both hold caches in arrays of a fixed room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tvm_hybrid
from tvm_hybrid.bench.peers.onnx_runtime import import_runtime, optimised_session

from .engines import Engine
from .llama import Sizes
from .onnx_files import BF16
from .peers import Given

ROOM = 1024 + 64  # tokens


class _Session(Engine):
    """A session with caches of keys and values."""

    session: Any

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        shape = (1, sizes.shared, ROOM, sizes.size)
        parts = [f"{i}.{part}" for i in range(sizes.layers) for part in ("key", "value")]
        self.caches = {part: np.zeros(shape, np.float32) for part in parts}

    def keep(self, count: int) -> None:
        self.length = count

    def read(self, ids: list[int]) -> np.ndarray:
        end = self.length + len(ids)
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([ids]))
        binding.bind_cpu_input("attention_mask", np.ones((1, end), np.int64))
        binding.bind_output("logits")
        self.bind_caches(binding, end)
        self.session.run_with_iobinding(binding)
        self.length = end
        logits: np.ndarray = binding.get_outputs()[0].numpy()  # a copy of all copies the caches
        return logits[0, -1]

    def bind_caches(self, binding: Any, end: int) -> None:
        """Binds the caches so that the past lies where the present will be written."""
        raise NotImplementedError


class Ours(_Session):
    """tvm_hybrid, with caches that are the first rows of larger arrays."""

    def __init__(self, path: Path, given: Given) -> None:
        super().__init__(given.sizes)
        how: dict[str, Any] = {"num_threads": given.threads, "cache": False, "progress": False}
        if given.kind == BF16:
            how["precision"] = "bf16"
        self.session = tvm_hybrid.InferenceSession(str(path), **how)

    def bind_caches(self, binding: Any, end: int) -> None:
        for name, rows in self.caches.items():
            binding.bind_input(f"past_key_values.{name}", rows[:, :, : self.length])
            binding.bind_output(f"present.{name}", rows[:, :, :end])


class OnnxRuntime(_Session):
    """ONNX Runtime; past and present share a buffer, as in onnxruntime-genai."""

    def __init__(self, path: Path, given: Given) -> None:
        super().__init__(given.sizes)
        self.session = optimised_session(str(path), given.threads)
        make = import_runtime().OrtValue.ortvalue_from_numpy
        self.buffers = {name: make(rows) for name, rows in self.caches.items()}

    def bind_caches(self, binding: Any, end: int) -> None:
        for name, buffer in self.buffers.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", buffer)
            binding.bind_ortvalue_output(f"present.{name}", buffer)
