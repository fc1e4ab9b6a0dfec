"""How fast is it here? A harness in nccl-tests' shape."""
