// Responses to prompts in one kernel: a cluster of RANKS blocks takes up to 16 · TILES rows through every token and
// every layer, and the host is not asked for anything in between.
//
// What bounds decoding of a small model is neither arithmetic nor memory but the way there: 21 launches a token, each
// of which waits for the last. Here nothing is launched. Two warps of a block do nothing but ask for data, one for
// weights, in the order of their use, one for keys and values, each into a ring in shared memory, and run ahead of the
// eight that compute. A multiprocessor takes in about 100 GB a second, so the weights of few rows are divided among the
// blocks of a cluster as tensor parallelism divides them: a block has its own heads and its own part of the inner
// layer, and twice a layer all of them send their part of a sum to all others (`exchange`). Every block has the whole
// residual stream, makes the same logits of it and draws the same tokens; the first writes them.
//
// Numerics are those of `kernels.py`: products of bf16 numbers summed in FP32 and rounded to bf16, norms and softmax in
// FP32, softmax weights as the trainer has them (two bf16 numbers, the second the rest of the first: 16 bits of them),
// the head's logits never rounded.
//
// Weights come packed (`packing.py`): for every 8 columns and 32 inputs of a product the four registers of each lane
// that the tensor core's second operand has. Sizes and places in shared memory are constants of the compiler
// (`shape.py`): WIDTH, HEADS, GROUPS, HEAD, ROOT_OF_HEAD, INNER, LAYERS, VOCABULARY, QK_NORM, BIAS, EPSILON, RANKS,
// TILES, FEW, SLOTS, TASK_GROUPS, WEIGHT_BYTES, *_STAGES, AT_*.

DEVICE void prepare(const Inputs &in, const Unit &unit, const Shared &shared) {
    if (thread_index() == 0) {
        for (int i = 0; i < WEIGHT_STAGES; ++i) {
            barrier_init(shared.weights_full() + i, 1);
            barrier_init(shared.weights_empty() + i, WARPS);
        }
        for (int i = 0; i < CACHE_STAGES; ++i) {
            barrier_init(shared.cache_full() + i, 1);
            barrier_init(shared.cache_empty() + i, WARPS);
        }
        barrier_init(shared.drawn(), 1);
        for (int i = 0; i < 2; ++i) barrier_init(shared.arrived() + i, 1);
        barriers_made();
        *shared.asked() = 0;
        *shared.quit() = 0;
    }
    for (int row = thread_index(); row < ROWS; row += block_size()) {
        bool there = row < unit.rows;
        shared.going()[row] = there;
        shared.token()[row] = 0;
        shared.problem()[row] = unit.row(in, there ? row : 0) / in.per_prompt;
        shared.prompt_length()[row] = in.prompt_slots - in.padding[shared.problem()[row]];
    }
    const u32 *norms = (const u32 *)in.norms + (i64)unit.cell * NORMS / 2;
    const u32 *head_norms = (const u32 *)in.head_norms + (i64)unit.cell * HEAD_NORMS / 2;
    for (int i = thread_index(); i < (NORMS + HEAD_NORMS) / 2; i += block_size())
        ((u32 *)shared.norms())[i] = i < NORMS / 2 ? norms[i] : head_norms[i - NORMS / 2];
    // What nobody has written yet is multiplied by zero, which must give zero.
    for (int at = thread_index() * 4; at < AT_END - AT_ZEROED; at += block_size() * 4)
        *(u32 *)(shared.memory + AT_ZEROED + at) = 0u;
    before_copies();
    block_sync();
    if constexpr (RANKS > 1) cluster_sync();
}

KERNEL IN_CLUSTERS(THREADS + 64, RANKS) generate(
    const u8 *weights, const u16 *norms, const u16 *head_norms, const u16 *bias, const u16 *embedding,
    const float *cosines, const float *sines, const u8 *prompts, const int *padding, const float *last, u8 *cache,
    const int *stops, const i64 *seed, const i64 *first_row, i64 *tokens, float *logprobs, int *lengths, int *stopped,
    int stop_count, int problems, int per_prompt, int prompt_slots, int new_slots, int cell_rows, int unit_rows,
    double temperature) {
    Inputs in{
        weights,    norms,    head_norms, bias,         embedding, cosines,   sines,     prompts,           padding,
        last,       cache,    stops,      seed,         first_row, tokens,    logprobs,  lengths,           stopped,
        stop_count, problems, per_prompt, prompt_slots, new_slots, cell_rows, unit_rows, (float)temperature};
    Unit unit = unit_of(in);
    Shared shared{shared_memory()};
    prepare(in, unit, shared);
    int warp = thread_index() / 32, lane = thread_index() % 32;
    if (warp < WARPS) {
        Worker worker{in, unit, shared, warp, lane};
        worker.run();
    } else if (warp == WARPS && lane == 0) {
        feed_weights(in, unit, shared);
    } else if (warp == WARPS + 1 && lane == 0) {
        feed_cache(in, unit, shared);
    }
    block_sync();
    warp_sync();
    if constexpr (RANKS > 1) cluster_sync();  // what others send must find this block
}
