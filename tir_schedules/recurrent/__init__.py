"""Recurrent layers: all steps of LSTM, GRU and RNN in one kernel.

In: regions of recurrent layers, whose input parts a product computed for all steps. Out: kernels
that keep states in cache from step to step.
"""
