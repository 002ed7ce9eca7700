"""Engines make runs: the simulator, the native language-model trainer, or any outside command."""
