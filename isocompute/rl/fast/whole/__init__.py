"""A whole generation as one kernel, in CUDA C++, for small models on Hopper GPUs."""
