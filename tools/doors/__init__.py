"""Compares what one model becomes through torch.export, through ONNX, and as TVM's nn.Module.

`python -m tools.doors` tells how kernels and results differ; `--speed` measures, too. It needs
torch and onnxscript.
"""
