"""The nouns of the package, each once, and what everything above needs: files, locks, the recorder of a run."""
