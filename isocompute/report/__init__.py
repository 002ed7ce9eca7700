"""Charts, the papers' figures from one's own runs, and the report page."""
