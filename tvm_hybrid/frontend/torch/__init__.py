"""Graphs of PyTorch's ATen operators as Relax modules.

In: an `fx.GraphModule` whose nodes carry their types (`meta["val"]`), and tensors for the inputs
that are constants. Out: an `IRModule` with a function `main`. Importing this needs torch.
"""
