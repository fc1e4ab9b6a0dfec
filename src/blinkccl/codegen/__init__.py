"""The code that GPUs run: a Program as CUDA C++, where its connections lie, and how it is compiled."""
