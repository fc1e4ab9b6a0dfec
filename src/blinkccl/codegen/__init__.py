"""The code that GPUs run: a Program as CUDA C++, the layout of its connections, and its compilation."""
