"""Plans a run: from a law and a budget to an allocation, a recipe and a cost.

The folder is not called `plan` because `isocompute.plan` is a function.
"""
