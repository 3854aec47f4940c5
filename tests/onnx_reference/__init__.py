"""What quantised ONNX models mean, in NumPy; written from the operators' text, bit by bit."""
