"""Value and gradient of an objective in one pass over the logits: PyTorch, C++, and how that is built."""
