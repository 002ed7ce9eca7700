"""The decoder of Llama, Qwen2 and Qwen3 checkpoints: configuration, modules, reading and writing folders."""
