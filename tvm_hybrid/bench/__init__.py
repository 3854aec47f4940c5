"""Measures models against ONNX Runtime, OpenVINO and stock TVM, and measures this machine.

In: models and feeds. Out: times of all contestants, measured in turns, and tables of them. `peers`
runs the other libraries, `compare` judges results, `conv_layers` measures single convolutions,
`scale` and `predict` estimate times on more threads and on AMX.
"""
