"""What is wrong with a run, and what a set of runs says of the papers."""
