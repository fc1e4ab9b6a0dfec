"""What code do GPUs run? A Program as CUDA C++, where its connections lie, and how it is compiled."""
