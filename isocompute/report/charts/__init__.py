"""Charts, one function each; they take results and know nothing of files."""
