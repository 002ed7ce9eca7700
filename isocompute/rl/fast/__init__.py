"""The fast path on a GPU: kernels for decoding and for training on shared prompts, whole steps in one CUDA graph."""
