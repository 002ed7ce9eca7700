"""Charts, one function each; they take results and read no files."""
