"""What is known of CPUs, as data: one file each, with the source of every number.

In: LLVM's name of a CPU. Out: a `Machine`, from which every estimate of cost takes its numbers.
"""
