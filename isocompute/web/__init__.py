"""The local web app: a study's plan, figures, runs, claims and comparisons in a browser, and the API behind them."""
