"""Compares a model's programs through torch.export, through ONNX, and through TVM's nn.Module.

`python -m tools.doors` shows how kernels and results differ; `--speed` also measures. It needs
torch and onnxscript.
"""
