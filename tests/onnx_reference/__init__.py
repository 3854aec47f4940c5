"""Bit-exact NumPy reference of quantised ONNX models, after the operators' specification."""
