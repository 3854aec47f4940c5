"""Matrix products: templates "matmul", "batch_matmul" and "weight_only_matmul".

In: activations, and a weight that is packed at compile time or inside the kernel. Out: a TIR
function whose innermost loops are microkernels.
"""
