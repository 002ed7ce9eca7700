"""The cost of a rollout, a step and a run: model shapes, GPUs, throughput and prices."""
