"""Register tiles: one instruction set each, the innermost loops of every kernel."""
