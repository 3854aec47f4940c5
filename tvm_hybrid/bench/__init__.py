"""Measures models beside ONNX Runtime, OpenVINO and stock TVM, and this machine.

In: models and feeds. Out: times of all contestants, measured in turns, and tables of them.
`peers` runs the others, `compare` judges results, `conv_layers` measures single convolutions,
`scale` and `predict` estimate times on more threads and on AMX.
"""
