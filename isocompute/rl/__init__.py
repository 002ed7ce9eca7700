"""The native language-model engine."""
