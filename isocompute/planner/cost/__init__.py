"""What a rollout, a step and a run cost: model shapes, GPUs, throughput and prices."""
