"""Health checks of one run, and the two papers' claims judged on a set of runs."""
