"""Measures decoders: a given model beside ONNX Runtime, a seeded Llama beside other engines."""
