"""Names of the contestants of a benchmark, in tables and on the command line."""

OURS = "tvm_hybrid"
ONNX_RUNTIME = "ONNX Runtime"
STOCK_TVM = "stock TVM"
OPENVINO = "OpenVINO"
PEERS = {"ort": ONNX_RUNTIME, "openvino": OPENVINO, "stock": STOCK_TVM}
# They multiply bytes by instructions that `onnx_runtime.why_products_differ` is about.
SATURATING = (ONNX_RUNTIME, OPENVINO)
