// The two warps that ask for data, ahead of those that compute: each fills a ring in shared memory, whose stages are
// full when their bytes have come and empty when all readers are done.

// --- the warp that asks for weights ---

struct WeightFeed {
    const Shared &shared;
    const u8 *from;
    int issued = 0;

    // False where the block has no use for more.
    DEVICE bool put(int bytes) {
        int stage = issued % WEIGHT_STAGES, turn = issued / WEIGHT_STAGES;
        if (turn > 0)
            while (!barrier_passed(shared.weights_empty() + stage, (turn - 1) & 1))
                if (*shared.quit()) return false;
        barrier_expect(shared.weights_full() + stage, bytes);
        int half = bytes / 32 * 16;  // two at a time come faster than one
        copy_in(shared.weights(stage), from, half, shared.weights_full() + stage);
        copy_in(shared.weights(stage) + half, from + half, bytes - half, shared.weights_full() + stage);
        from += bytes;
        ++issued;
        return true;
    }

    // A product of which a stage has up to 64 columns and all inputs.
    DEVICE bool columns(int count, int inputs) {
#pragma unroll 1
        for (int at = 0; at < count; at += 8 * WARPS)
            if (!put((count - at < 8 * WARPS ? count - at : 8 * WARPS) * inputs * 2)) return false;
        return true;
    }

    // A product of which a stage has all columns and up to 64 inputs.
    DEVICE bool slabs(int inputs) {
#pragma unroll 1
        for (int at = 0; at < inputs; at += SLAB)
            if (!put((inputs - at < SLAB ? inputs - at : SLAB) * WIDTH * 2)) return false;
        return true;
    }

    DEVICE bool layer() {
        if (!columns(QKV, WIDTH) || !slabs(Q_INPUTS)) return false;
#pragma unroll 1
        for (int at = 0; at < OWN_INNER; at += 8 * WARPS) {  // gate and up of the same columns in turn
            int bytes = (OWN_INNER - at < 8 * WARPS ? OWN_INNER - at : 8 * WARPS) * WIDTH * 2;
            if (!put(bytes) || !put(bytes)) return false;
        }
        return slabs(OWN_INNER);
    }

    // A copy must not arrive where nobody is any more.
    DEVICE void drain() {
        for (int i = issued > WEIGHT_STAGES ? issued - WEIGHT_STAGES : 0; i < issued; ++i)
            wait(shared.weights_full() + i % WEIGHT_STAGES, i / WEIGHT_STAGES & 1);
    }
};

DEVICE void feed_weights(const Inputs &in, const Unit &unit, const Shared &shared) {
    const u8 *begin = in.weights + (i64)(unit.cell * RANKS + unit.rank) * WEIGHT_BYTES;
    WeightFeed feed{shared, begin};
    bool wanted = true;
    for (int step = 0; wanted && step < in.new_slots; ++step) {
        feed.from = begin;
        wanted = feed.columns((VOCABULARY + 7) / 8 * 8, WIDTH);
#pragma unroll 1
        for (int layer = 0; wanted && step + 1 < in.new_slots && layer < LAYERS; ++layer) wanted = feed.layer();
    }
    feed.drain();
}

// --- keys and values: the order in which a wave of rows reads them, for the warp that asks and those that compute

// Where the rows of one prompt end that begin at `first`, at `last` of the wave at the latest.
DEVICE int end_of_run(const Shared &shared, int first, int last) {
    int end = first + 1;
#pragma unroll 1
    while (end < last && shared.problem()[end] == shared.problem()[first]) ++end;
    return end;
}

// Of a wave, the rows from `first` to before `last`.
DEVICE u32 bits_of(int first, int last) { return ((1u << (last - first)) - 1u) << first % WAVE; }

DEVICE int blocks_of(int slots) { return (slots + SLOTS - 1) / SLOTS; }

struct CacheFeed {
    const Shared &shared;
    int issued = 0;

    DEVICE void put(const u8 *from, int bytes) {
        int stage = issued % CACHE_STAGES, turn = issued / CACHE_STAGES;
        if (turn > 0) wait(shared.cache_empty() + stage, (turn - 1) & 1);
        barrier_expect(shared.cache_full() + stage, bytes);
        copy_in(shared.block(stage), from, bytes, shared.cache_full() + stage);
        publish(shared.asked(), ++issued);
    }
};

DEVICE void feed_cache_of_wave(
    const Inputs &in, const Unit &unit, CacheFeed &feed, int layer, int step, int first, u32 active) {
    int last = unit.rows - first < WAVE ? unit.rows : first + WAVE, place = unit.rank * LAYERS + layer;
#pragma unroll 1
    for (int row = first, end; row < last; row = end) {
        end = end_of_run(feed.shared, row, last);
        if (!(active & bits_of(row, end))) continue;
        const u8 *prompt =
            in.prompts + ((i64)place * in.problems + feed.shared.problem()[row]) * in.prompt_slots * SLOT;
        int length = feed.shared.prompt_length()[row];
#pragma unroll 1
        for (int at = 0; at < length; at += SLOTS)
            feed.put(prompt + at * SLOT, (length - at < SLOTS ? length - at : SLOTS) * SLOT);
    }
#pragma unroll 1
    for (int at = 0; at < step; at += SLOTS)  // the token itself is not in memory yet
#pragma unroll 1
        for (int row = first; row < last; ++row)
            if (active >> row % WAVE & 1)
                feed.put(
                    in.cache + (((i64)place * unit.all + unit.row(in, row)) * in.new_slots + at) * SLOT,
                    (step - at < SLOTS ? step - at : SLOTS) * SLOT);
}

// The barrier of drawn tokens has one bit: workers must not be two tokens ahead. They are not, since every token of a
// row that is going reads its prompt, which is never empty.
DEVICE void feed_cache(const Inputs &in, const Unit &unit, const Shared &shared) {
    CacheFeed feed{shared};
    for (int step = 0; step + 1 < in.new_slots; ++step) {
        wait(shared.drawn(), step & 1);
        u64 active = 0;
#pragma unroll 1
        for (int row = 0; row < unit.rows; ++row) active |= (u64)(shared.going()[row] != 0) << row;
        if (!active) return;
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; ++layer)
#pragma unroll 1
            for (int first = 0; first < unit.rows; first += WAVE)
                feed_cache_of_wave(in, unit, feed, layer, step, first, (u32)(active >> first) & bits_of(0, WAVE));
    }
}
