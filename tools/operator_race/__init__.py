"""Measures every ONNX operator beside ONNX Runtime."""
