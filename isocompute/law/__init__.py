"""The law: from learning curves to forecasts, comparisons and n*(C), with an error on every number."""
