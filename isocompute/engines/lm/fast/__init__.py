"""The fast path on a GPU: whole generations in one kernel, whole steps in one CUDA graph."""
