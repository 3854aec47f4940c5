"""The door of PyTorch."""
