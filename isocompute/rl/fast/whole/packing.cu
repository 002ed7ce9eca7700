// What the one kernel reads, in the order in which it reads it: a pass over memory each, before every generation.

// Weights as words of two numbers, each from where `sources` says (`packing.py`); 0 is a word of zeros.
KERNEL gather_words(const u64 *sources, u32 *out, int count) {
    for (int i = block_index() * block_size() + thread_index(); i < count; i += block_count() * block_size()) {
        const u32 *from = (const u32 *)sources[i];
        out[i] = from ? *from : 0u;
    }
}

// Keys and values of prompts (layers × problems × groups × slots × head), a token's side by side, without what pads a
// prompt on the left; a block's groups for itself. Every token has 16 bytes more, as in the kernel's own cache.
KERNEL pack_prompts(
    const u8 *keys, const u8 *values, const int *padding, u8 *out, int ranks, int layers, int problems, int groups,
    int slots, int head) {
    int of_group = head / 8, own = groups / ranks * of_group, chunks = 2 * own + 1;  // of 16 bytes
    i64 count = (i64)ranks * layers * problems * slots * chunks, step = (i64)block_count() * block_size();
    for (i64 i = (i64)block_index() * block_size() + thread_index(); i < count; i += step) {
        int chunk = (int)(i % chunks), slot = (int)(i / chunks % slots), problem = (int)(i / chunks / slots % problems);
        int place = (int)(i / chunks / slots / problems), layer = place % layers, rank = place / layers;
        int from = slot + padding[problem], of_kind = chunk % own, group = rank * (groups / ranks) + of_kind / of_group;
        uint4 value = {0u, 0u, 0u, 0u};
        if (from < slots && chunk < 2 * own) {
            i64 token = (((i64)layer * problems + problem) * groups + group) * slots + from;
            value = ((const uint4 *)(chunk < own ? keys : values))[token * of_group + of_kind % of_group];
        }
        ((uint4 *)out)[i] = value;
    }
}
