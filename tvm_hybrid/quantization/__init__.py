"""Quantisation: a float32 model in, a model of 8-bit integers or of narrow weights out.

ONNX Runtime's quantiser does the work, with the settings that our kernels like (`settings`) and
with samples that come from files (`samples`). What it wrote is compared with the model that it was
made of (`accuracy`) and measured beside it (`quantize_model`).
"""

from .quantize_model import quantize

__all__ = ["quantize"]
