"""Fast forms of the decoupled objectives: value and gradient in one pass, in PyTorch, C++ and numpy."""
