"""Quantisation: a float32 model in, a model of 8-bit integers or of narrow weights out.

ONNX Runtime's quantiser does the work, with settings that suit our kernels (`onnx_quantizer`) and
with samples from files (`samples`). `quantize_model` compares the quantised model with the float32
model and measures both.
"""

from .quantize_model import quantize

__all__ = ["quantize"]
