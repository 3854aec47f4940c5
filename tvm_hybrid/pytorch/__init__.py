"""PyTorch's door: the backend of `torch.compile`, and modules for `tvm_hybrid.compile`.

In: graphs that TorchDynamo captures, `torch.nn.Module`s. Out: callables over torch tensors that run
Executables, and `torch_programs`, which says what became of each graph. Only `programs` is imported
without torch.
"""
