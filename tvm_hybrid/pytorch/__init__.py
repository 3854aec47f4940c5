"""The PyTorch front door: the backend of `torch.compile`, and modules for `tvm_hybrid.compile`.

In: graphs that TorchDynamo captures, and `torch.nn.Module`s. Out: callables over torch tensors that
run Executables, and `torch_programs`, which says how each graph runs. Only the module `programs`
can be imported without torch.
"""
