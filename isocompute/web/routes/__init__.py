"""The API, one file a page: each answer is what a command prints with `--json`."""
