"""Charts, the papers' figures drawn from a user's runs, and the report page."""
