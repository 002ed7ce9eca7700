"""Shared types and helpers: allocations, recipes, runs, curves, errors, files and the recorder of a run."""
