"""Where rollouts come from: sampled for each update (`source`), or from a pool that never drains (`pipeline`)."""
