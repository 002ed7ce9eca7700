"""PipelineRL-k (ScaleRL section 3.1): sampling goes on while training does, and no token gets older than k updates.

`ledger` decides what may start and what may be trained on; it knows neither tensors nor clocks. `pool` decodes a
rolling set of sequences in slots of one cache. `training` runs both as a training of the engine. `clock` runs the
ledger against given response lengths and costs, and tells how busy the sampler is.
"""
