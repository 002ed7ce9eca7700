"""Sampling on a CPU in C, compiled on first use where there is a C compiler."""
