// Responses to prompts in one kernel: a cluster of RANKS blocks takes up to 16 · TILES rows through every token and every
// layer, and the host is not asked for anything in between.
//
// What bounds decoding of a small model is neither arithmetic nor memory but the way there: 130 launches a token, each of
// which waits for the last. Here nothing is launched. Two warps of a block do nothing but ask for data, one for weights,
// in the order of their use, one for keys and values, each into a ring in shared memory, and run ahead of the eight that
// compute. A multiprocessor takes in about 45 GB a second, so the weights of few rows are divided among the blocks of a
// cluster as tensor parallelism divides them: a block has its own heads and its own part of the inner layer, and twice a
// layer all of them send their part of a sum to all others (`exchange`). Every block has the whole residual stream, makes
// the same logits of it and draws the same tokens; the first writes them.
//
// Numerics are those of `kernels.py`: products of bf16 numbers summed in FP32 and rounded to bf16, norms and softmax in
// FP32, softmax weights not rounded (as two bf16 numbers side by side), the head's logits never rounded.
//
// Weights come packed (`packing.py`): for every 8 columns and 32 inputs of a product the four registers of each lane that
// the tensor core's second operand has. Sizes and places in shared memory are constants of the compiler (`shape.py`):
// WIDTH, HEADS, GROUPS, HEAD, INNER, LAYERS, VOCABULARY, RANKS, TILES, FEW, SLOTS, QK_NORM, BIAS, EPSILON, *_STAGES, AT_*.

constexpr int WARPS = 8, THREADS = 32 * WARPS, ROWS = 16 * TILES;
constexpr int NARROW = WIDTH / (8 * WARPS);  // tiles of 8 columns of the residual stream that a warp has
constexpr int OWN_HEADS = HEADS / RANKS, OWN_GROUPS = GROUPS / RANKS, OWN_INNER = INNER / RANKS, SHARE = HEADS / GROUPS;
constexpr int Q = OWN_HEADS * HEAD, KV = OWN_GROUPS * HEAD, QKV = Q + 2 * KV;  // columns
constexpr int Q_INPUTS = (Q + 31) / 32 * 32;
constexpr int NORMED_STRIDE = (WIDTH > Q_INPUTS ? WIDTH : Q_INPUTS) + 8, QKV_STRIDE = QKV + 8;
constexpr int MIXED_STRIDE = OWN_INNER + 8, LOGITS_STRIDE = (VOCABULARY + 7) / 8 * 8 + 4;
constexpr int SLOT = 4 * KV + 16;  // bytes of a token's keys and values, so that eight of them begin at other banks
constexpr int SLAB = 64;           // inputs of a stage of weights that has all columns; others have 64 columns
constexpr int STAGE = 2 * SLAB * WIDTH;
constexpr int SIDES = TILES >= 4 ? 2 : 1;  // a product's rows are divided among so many groups of warps
constexpr int TALL = TILES / SIDES, BROAD = SIDES;  // tiles of rows, and of columns, of a warp's part of a stage
constexpr int EXCHANGED = TILES * NARROW * THREADS * (FEW ? 2 : 4);  // numbers that a block sends to another
constexpr int PARTS = OWN_GROUPS / TASK_GROUPS;  // warps that attend for one row, each with some of its heads
constexpr int WAVE = WARPS / PARTS;              // rows that attend at the same time
constexpr int NORMS = (2 * LAYERS + 1) * WIDTH, HEAD_NORMS = QK_NORM ? 2 * LAYERS * HEAD : 0, ANGLES = HEAD;
constexpr bool KEEP_ANGLES = AT_ANGLES > 0;

struct Inputs {
    const u8* weights;        // cells × ranks × stages
    const u16* norms;         // cells × (layers × (before attention, before the inner layer), last) × width
    const u16* head_norms;    // cells × layers × (q, k) × head
    const u16* bias;          // cells × ranks × layers × qkv
    const u16* embedding;     // cells × vocabulary × width
    const float *cosines, *sines;  // positions × half a head
    const u8* prompts;        // ranks × layers × problems × prompt slots × SLOT
    const int* padding;       // problems
    const float* last;        // problems × width: residual stream of the prompts' last tokens
    u8* cache;                // ranks × layers × rows × new slots × SLOT
    const int* stops;
    const i64 *seed, *first_row;  // cells
    i64* tokens;              // rows × new slots
    float* logprobs;
    int *lengths, *stopped;   // rows
    int stop_count, problems, per_prompt, prompt_slots, new_slots, cell_rows, unit_rows;
    float temperature;
};

// Where this block's rows are.
struct Unit {
    int cell, first, rows, all, rank;  // `first` counts in the cell; `all` rows of all cells

    DEVICE int row(const Inputs& in, int local) const { return cell * in.cell_rows + first + local; }
};

DEVICE Unit unit_of(const Inputs& in) {
    int number = block_index() / RANKS, per_cell = (in.cell_rows + in.unit_rows - 1) / in.unit_rows;
    Unit out;
    out.cell = number / per_cell;
    out.first = number % per_cell * in.unit_rows;
    out.rows = in.cell_rows - out.first < in.unit_rows ? in.cell_rows - out.first : in.unit_rows;
    out.all = in.problems * in.per_prompt;
    out.rank = RANKS > 1 ? cluster_rank() : 0;
    return out;
}

// Shared memory.
struct Shared {
    u8* memory;

    DEVICE u16* normed() const { return (u16*)(memory + AT_NORMED); }  // and what attention makes of it
    DEVICE u16* wide() const { return (u16*)(memory + AT_WIDE); }      // q, k and v; the inner layer; logits
    DEVICE float* parts() const { return (float*)(memory + AT_PARTS); }
    DEVICE u16* norms() const { return (u16*)(memory + AT_NORMS); }
    DEVICE u16* head_norms() const { return norms() + NORMS; }
    DEVICE float* angles(int row) const { return (float*)(memory + AT_ANGLES) + row * ANGLES; }  // cosines, then sines
    DEVICE float* inbox(int turn, int from) const {
        return (float*)(memory + AT_INBOX) + (turn * (RANKS - 1) + from) * EXCHANGED;
    }
    DEVICE u8* weights(int stage) const { return memory + AT_WEIGHTS + stage * STAGE; }
    DEVICE u8* block(int stage) const { return memory + AT_CACHE + stage * SLOTS * SLOT; }
    DEVICE u64* weights_full() const { return (u64*)(memory + AT_BARRIERS); }
    DEVICE u64* weights_empty() const { return weights_full() + WEIGHT_STAGES; }
    DEVICE u64* cache_full() const { return weights_empty() + WEIGHT_STAGES; }
    DEVICE u64* cache_empty() const { return cache_full() + CACHE_STAGES; }
    DEVICE u64* drawn() const { return cache_empty() + CACHE_STAGES; }
    DEVICE u64* arrived() const { return drawn() + 1; }  // two
    DEVICE int* asked() const { return (int*)(arrived() + 2); }  // blocks of the cache that have been asked for
    DEVICE int* going() const { return asked() + 1; }
    DEVICE int* token() const { return going() + ROWS; }
    DEVICE int* prompt_length() const { return token() + ROWS; }
    DEVICE int* problem() const { return prompt_length() + ROWS; }
    DEVICE volatile int* quit() const { return problem() + ROWS; }
};

DEVICE void wait(u64* barrier, int parity) {
    while (!barrier_passed(barrier, parity)) {
    }
}

DEVICE float low_of(u32 pair) { return from_bits(pair << 16); }
DEVICE float high_of(u32 pair) { return from_bits(pair & 0xffff0000u); }
DEVICE float widened(u16 x) { return from_bits((u32)x << 16); }
DEVICE float rounded(float x) { return low_of(rounded2(x, 0.0f)); }
DEVICE u16 rounded_bits(float x) { return (u16)rounded2(x, 0.0f); }

// Which rows are still going.
DEVICE u64 active_rows(const Shared& shared, int lane) {
    u64 out = votes(lane < ROWS && shared.going()[lane < ROWS ? lane : 0]);
    if (ROWS > 32) out |= (u64)votes(lane + 32 < ROWS && shared.going()[lane + 32 < ROWS ? lane + 32 : 0]) << 32;
    return out;
}

// --- the warp that asks for weights ---

struct WeightFeed {
    const Shared& shared;
    const u8* from;
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

DEVICE void feed_weights(const Inputs& in, const Unit& unit, const Shared& shared) {
    const u8* begin = in.weights + (i64)(unit.cell * RANKS + unit.rank) * WEIGHT_BYTES;
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
DEVICE int end_of_run(const Shared& shared, int first, int last) {
    int end = first + 1;
#pragma unroll 1
    while (end < last && shared.problem()[end] == shared.problem()[first]) ++end;
    return end;
}

// Of a wave, the rows from `first` to before `last`.
DEVICE u32 bits_of(int first, int last) { return ((1u << (last - first)) - 1u) << first % WAVE; }

DEVICE int blocks_of(int slots) { return (slots + SLOTS - 1) / SLOTS; }

struct CacheFeed {
    const Shared& shared;
    int issued = 0;

    DEVICE void put(const u8* from, int bytes) {
        int stage = issued % CACHE_STAGES, turn = issued / CACHE_STAGES;
        if (turn > 0) wait(shared.cache_empty() + stage, (turn - 1) & 1);
        barrier_expect(shared.cache_full() + stage, bytes);
        copy_in(shared.block(stage), from, bytes, shared.cache_full() + stage);
        publish(shared.asked(), ++issued);
    }
};

DEVICE void feed_cache_of_wave(
    const Inputs& in, const Unit& unit, CacheFeed& feed, int layer, int step, int first, u32 active) {
    int last = unit.rows - first < WAVE ? unit.rows : first + WAVE, place = unit.rank * LAYERS + layer;
#pragma unroll 1
    for (int row = first, end; row < last; row = end) {
        end = end_of_run(feed.shared, row, last);
        if (!(active & bits_of(row, end))) continue;
        const u8* prompt =
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
                feed.put(in.cache + (((i64)place * unit.all + unit.row(in, row)) * in.new_slots + at) * SLOT,
                         (step - at < SLOTS ? step - at : SLOTS) * SLOT);
}

DEVICE void feed_cache(const Inputs& in, const Unit& unit, const Shared& shared) {
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

// --- the warps that compute ---

// Attention of one row, TASK_GROUPS of its groups of heads: a running softmax over blocks of the cache. Scores are q · kᵀ
// with a head in each of four rows of the first operand (and again in the next four), zero where a channel is another
// group's; in the second product, v · p, the heads are columns, the first four with the weights rounded to bf16 and the
// next four with the rest.
struct Attention {
    static constexpr int STEPS = HEAD / 16, SUBS = SLOTS / 16, TASK_HEADS = TASK_GROUPS * SHARE;
    static constexpr int CHANNELS = TASK_GROUPS * HEAD / 16;  // tiles of 16
    static constexpr bool EARLY = SUBS * CHANNELS <= 12;      // whether registers hold all values of a block
    static constexpr float SCALE = 1.4426950408889634 / ROOT_OF_HEAD;  // scores in powers of two
    int lane, group, channel;
    u32 q[STEPS][2];
    float top, sum, out[CHANNELS][4];

    // `part` says which groups: their queries and the token's own keys and values are in `row`, the keys of other tokens
    // from `channel` on. The token itself comes first, so that the largest score is a number from the start.
    DEVICE Attention(const u16* row, int part, int lane_) : lane(lane_) {
        int head = lane >> 2 & 3;
        group = head / SHARE, channel = part * TASK_GROUPS * HEAD;
        bool there = head < TASK_HEADS;
        const u16* query = row + (part * TASK_HEADS + (there ? head : 0)) * HEAD + 2 * (lane & 3);
        const u16* key = row + Q + channel + (there ? group : 0) * HEAD + 2 * (lane & 3);
        float score = 0.0f;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                u32 pair = *(const u32*)(query + 16 * s + 8 * half), other = *(const u32*)(key + 16 * s + 8 * half);
                q[s][half] = there ? pair : 0u;
                score += low_of(pair) * low_of(other) + high_of(pair) * high_of(other);
            }
        score += from_xor(score, 1);
        score += from_xor(score, 2);
        top = score * SCALE;
        sum = (lane & 3) == 0 ? 1.0f : 0.0f;  // lanes add up different slots
        const u16* value = row + Q + KV + channel + (lane >> 2);
#pragma unroll
        for (int tile = 0; tile < CHANNELS; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                out[tile][i] = (lane & 2) == 0 ? widened(value[16 * tile + (i & 2 ? 8 : 0)]) : 0.0f;
    }

    // Where this lane's row of four 8 × 8 matrices is: 16 slots × 16 channels.
    DEVICE const u8* matrices(const u8* block, int sub, int first) const {
        return block + (16 * sub + (lane >> 4) * 8 + (lane & 7)) * SLOT + (channel + first) * 2 + (lane >> 3 & 1) * 16;
    }

    // Slots behind the last are multiplied like the others, and their weight is zero: nothing waits for a branch.
    DEVICE void fold(const u8* block, int slots) {
        float score[SUBS][2][2], high = top;
        u32 v[EARLY ? SUBS : 1][EARLY ? CHANNELS : 1][4];
#pragma unroll
        for (int sub = 0; sub < SUBS; ++sub) {
            float c[2][2][4] = {};  // two sums of every other step: each waits for the one before
#pragma unroll
            for (int g = 0; g < TASK_GROUPS; ++g)
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    u32 k[4], a[4] = {group == g ? q[s][0] : 0u, 0u, group == g ? q[s][1] : 0u, 0u};
                    load_matrices(k, matrices(block, sub, g * HEAD + 16 * s));
                    multiply_add(c[(g * STEPS + s) & 1][0], a, k[0], k[1]);
                    multiply_add(c[(g * STEPS + s) & 1][1], a, k[2], k[3]);
                }
#pragma unroll
            for (int tile = 0; tile < 2; ++tile)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    bool there = 16 * sub + 8 * tile + 2 * (lane & 3) + i < slots;
                    score[sub][tile][i] = there ? (c[0][tile][i] + c[1][tile][i]) * SCALE : -1e30f;
                    high = fmaxf(high, score[sub][tile][i]);
                }
        }
        if constexpr (EARLY)  // while the scores are compared
#pragma unroll
            for (int sub = 0; sub < SUBS; ++sub)
#pragma unroll
                for (int tile = 0; tile < CHANNELS; ++tile)
                    load_transposed(v[sub][tile], matrices(block, sub, KV + 16 * tile));
        high = fmaxf(high, from_xor(high, 1));
        high = fmaxf(high, from_xor(high, 2));
        float shrink = power_of_two(top - high);
        float left = from_lane(shrink, 4 * (2 * lane & 3)), right = from_lane(shrink, 4 * (2 * lane & 3) + 4);
#pragma unroll
        for (int tile = 0; tile < CHANNELS; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) out[tile][i] *= i & 1 ? right : left;
        sum *= shrink;
        top = high;
#pragma unroll
        for (int sub = 0; sub < SUBS; ++sub) {
            u32 b[2];
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                float p0 = power_of_two(score[sub][tile][0] - top), p1 = power_of_two(score[sub][tile][1] - top);
                sum += p0 + p1;
                u32 pair = rounded2(p0, p1);
                b[tile] = lane < 16 ? pair : rounded2(p0 - low_of(pair), p1 - high_of(pair));
            }
#pragma unroll
            for (int tile = 0; tile < CHANNELS; ++tile) {
                u32(&of)[4] = v[EARLY ? sub : 0][EARLY ? tile : 0];
                if constexpr (!EARLY) load_transposed(of, matrices(block, sub, KV + 16 * tile));
                multiply_add(out[tile], of, b[0], b[1]);
            }
        }
    }

    DEVICE void write(u16* row) {  // the part's own columns
        sum += from_xor(sum, 1);
        sum += from_xor(sum, 2);
        float share = one_over(sum);
        float left = from_lane(share, 4 * (2 * lane & 3)), right = from_lane(share, 4 * (2 * lane & 3) + 4);
#pragma unroll
        for (int tile = 0; tile < CHANNELS; ++tile) {
            const int of_tile = 16 * tile / HEAD;  // its group
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if ((i & 1) / SHARE != of_tile && (2 + (i & 1)) / SHARE != of_tile) continue;  // no lane has its head
                float whole = (out[tile][i] + from_xor(out[tile][i], 2)) * (i & 1 ? right : left);
                int of = 2 * (lane & 1) + (i & 1), place = 16 * tile % HEAD + (lane >> 2) + (i & 2 ? 8 : 0);
                if ((lane & 2) == 0 && of < TASK_HEADS && of / SHARE == of_tile)
                    row[of * HEAD + place] = rounded_bits(whole);
            }
        }
    }
};

struct Worker {
    const Inputs& in;
    const Unit& unit;
    const Shared& shared;
    int warp, lane, taken = 0, read = 0, asked = 0, exchanges = 0;
    float x[TILES][NARROW][4];  // residual stream: rows lane/4 and lane/4 + 8, two columns

    DEVICE void sync() { sync_first(THREADS); }
    DEVICE int column(int j) const { return 8 * (warp * NARROW + j) + 2 * (lane & 3); }

    // --- weights ---

    DEVICE const uint4* take(int ahead = 0) {
        int number = taken + ahead;
        wait(shared.weights_full() + number % WEIGHT_STAGES, number / WEIGHT_STAGES & 1);
        return (const uint4*)shared.weights(number % WEIGHT_STAGES);
    }

    DEVICE void give(int stages = 1) {
        warp_sync();
        if (lane < stages) barrier_arrive(shared.weights_empty() + (taken + lane) % WEIGHT_STAGES);
        taken += stages;
    }

    DEVICE static const u16* matrix(const u16* a, int stride, int tile, int lane) {
        return a + (16 * tile + (lane & 15)) * stride + (lane >> 4) * 8;
    }

    // This block's rows as first operands: in registers where they are few, else loaded anew for each product.
    struct Rows {
        u32 a[TILES == 1 ? WIDTH / 16 : 2][4];
    };

    DEVICE void load(Rows& rows) {
        if constexpr (TILES == 1) {
#pragma unroll
            for (int s = 0; s < WIDTH / 16; ++s)
                load_matrices(rows.a[s], matrix(shared.normed(), NORMED_STRIDE, 0, lane) + 16 * s);
        }
    }

    // This warp's part of the next two stages, or of one (`stages`): normed · weights. Columns that a stage does not have,
    // and a second stage that is not there, give numbers that nobody uses.
    DEVICE void columns(float (&c)[2][BROAD][TALL][4], int stages, const Rows& rows) {
        const uint4* stage[2] = {take(0), take(stages - 1)};
        int first = warp / SIDES * BROAD, side = warp % SIDES;
        constexpr int SUMS = TILES == 1 ? 2 : 1;  // a sum waits for the one before: of every other step where few do
        float sums[SUMS][2][BROAD][TALL][4] = {};
#pragma unroll
        for (int pair = 0; pair < WIDTH / 32; ++pair) {
            uint4 w[2][BROAD];
#pragma unroll
            for (int s = 0; s < 2; ++s)
#pragma unroll
                for (int b = 0; b < BROAD; ++b) w[s][b] = stage[s][((first + b) * (WIDTH / 32) + pair) * 32 + lane];
#pragma unroll
            for (int t = 0; t < TALL; ++t) {
                Rows loaded;
                int step = TILES == 1 ? 2 * pair : 0;
                if constexpr (TILES > 1) {
                    const u16* at = matrix(shared.normed(), NORMED_STRIDE, side * TALL + t, lane) + 32 * pair;
                    load_matrices(loaded.a[0], at);
                    load_matrices(loaded.a[1], at + 16);
                }
                const Rows& with = TILES == 1 ? rows : loaded;
#pragma unroll
                for (int s = 0; s < 2; ++s)
#pragma unroll
                    for (int b = 0; b < BROAD; ++b) {
                        multiply_add(sums[0][s][b][t], with.a[step], w[s][b].x, w[s][b].y);
                        multiply_add(sums[SUMS - 1][s][b][t], with.a[step + 1], w[s][b].z, w[s][b].w);
                    }
            }
        }
        give(stages);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int b = 0; b < BROAD; ++b)
#pragma unroll
                for (int t = 0; t < TALL; ++t)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        c[s][b][t][i] = SUMS == 2 ? sums[0][s][b][t][i] + sums[1][s][b][t][i] : sums[0][s][b][t][i];
    }

    // What becomes of a product of the normed rows: q, k and v; the inner layer; logits.
    DEVICE void multiply(int phase, const u16* bias) {
        Rows rows;
        load(rows);
        bool mixes = phase < 2 * LAYERS && phase & 1, last = phase == 2 * LAYERS;
        int count = last ? (VOCABULARY + 7) / 8 * 8 : mixes ? OWN_INNER : QKV;
#pragma unroll 1
        for (int at = 0; at < count; at += mixes ? 8 * WARPS : 16 * WARPS) {
            float c[2][BROAD][TALL][4];
            columns(c, mixes || count - at > 8 * WARPS ? 2 : 1, rows);
#pragma unroll
            for (int b = 0; b < BROAD; ++b)
#pragma unroll
                for (int t = 0; t < TALL; ++t) {
                    int column = at + 8 * (warp / SIDES * BROAD + b), own = 2 * (lane & 3);
                    int row = 16 * (warp % SIDES * TALL + t) + (lane >> 2);
                    if (mixes) {
                        if (column < count) keep_mixed(c[0][b][t], c[1][b][t], column + own, row);
                        continue;
                    }
#pragma unroll
                    for (int s = 0; s < 2; ++s, column += 8 * WARPS) {
                        if (column >= count) continue;
                        if (last) keep_logits(c[s][b][t], column + own, row);
                        else keep_projected(c[s][b][t], bias, column + own, row);
                    }
                }
        }
        sync();
    }

    DEVICE void keep_projected(const float (&c)[4], const u16* bias, int column, int row) {
        float left = 0.0f, right = 0.0f;
        if (BIAS) left = widened(bias[column]), right = widened(bias[column + 1]);
        u16* to = shared.wide() + row * QKV_STRIDE + column;
        *(u32*)to = rounded2(c[0] + left, c[1] + right);
        if (!FEW) *(u32*)(to + 8 * QKV_STRIDE) = rounded2(c[2] + left, c[3] + right);
    }

    DEVICE void keep_logits(const float (&c)[4], int column, int row) {
        float* to = (float*)shared.wide() + row * LOGITS_STRIDE + column;
        to[0] = c[0], to[1] = c[1];
        if (!FEW) to[8 * LOGITS_STRIDE] = c[2], to[8 * LOGITS_STRIDE + 1] = c[3];
    }

    DEVICE void keep_mixed(const float (&gate)[4], const float (&up)[4], int column, int row) {
        u16* to = shared.wide() + row * MIXED_STRIDE + column;
        *(u32*)to = rounded2(gated(gate[0], up[0]), gated(gate[1], up[1]));
        if (!FEW) *(u32*)(to + 8 * MIXED_STRIDE) = rounded2(gated(gate[2], up[2]), gated(gate[3], up[3]));
    }

    // silu(gate) · up
    DEVICE static float gated(float gate, float up) {
        gate = rounded(gate);
        return rounded(gate * one_over(1.0f + power_of_two(gate * -1.4426950408889634f))) * rounded(up);
    }

    // The part of a · weights that this block's inputs make, for this warp's columns of the residual stream.
    DEVICE void slabs(float (&c)[TILES][NARROW][4], const u16* a, int stride, int inputs) {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < NARROW; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) c[t][j][i] = 0.0f;
        for (int at = 0; at < inputs; at += SLAB) {
            const uint4* stage = take();
            int pairs = (inputs - at < SLAB ? inputs - at : SLAB) / 32;
            for (int pair = 0; pair < pairs; ++pair) {
                uint4 w[NARROW];
#pragma unroll
                for (int j = 0; j < NARROW; ++j) w[j] = stage[((warp * NARROW + j) * pairs + pair) * 32 + lane];
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    const u16* from = matrix(a, stride, t, lane) + at + 32 * pair;
                    u32 low[4], high[4];
                    load_matrices(low, from);
                    load_matrices(high, from + 16);
#pragma unroll
                    for (int j = 0; j < NARROW; ++j) multiply_add(c[t][j], low, w[j].x, w[j].y);
#pragma unroll
                    for (int j = 0; j < NARROW; ++j) multiply_add(c[t][j], high, w[j].z, w[j].w);
                }
            }
            give();
        }
    }

    // The sum of all blocks' parts of a product, in the same order everywhere.
    DEVICE void exchange(float (&c)[TILES][NARROW][4]) {
        constexpr int EACH = FEW ? 2 : 4;
        int turn = exchanges & 1, thread = 32 * warp + lane;
        u64* barrier = shared.arrived() + turn;
        if (thread == 0) barrier_expect(barrier, (RANKS - 1) * EXCHANGED * 4);
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < NARROW; ++j)
#pragma unroll
                for (int off = 1; off < RANKS; ++off) {
                    int to = (unit.rank + off) % RANKS, place = unit.rank - (unit.rank > to);
                    float* at = shared.inbox(turn, place) + ((t * NARROW + j) * THREADS + thread) * EACH;
                    if (FEW) send2(at, barrier, to, c[t][j]);
                    else send4(at, barrier, to, c[t][j]);
                }
        while (!barrier_passed_cluster(barrier, exchanges >> 1 & 1)) {
        }
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < NARROW; ++j) {
                float total[4] = {};
#pragma unroll
                for (int from = 0; from < RANKS; ++from) {
                    int place = from - (from > unit.rank);
                    const float* at = shared.inbox(turn, place < RANKS - 1 ? place : 0) +
                                      ((t * NARROW + j) * THREADS + thread) * EACH;
#pragma unroll
                    for (int i = 0; i < EACH; ++i) total[i] += from == unit.rank ? c[t][j][i] : at[i];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) c[t][j][i] = total[i];
            }
        ++exchanges;
    }

    // --- what stands between products ---

    DEVICE void norm(const u16* weights) {
        u32 w[NARROW];
#pragma unroll
        for (int j = 0; j < NARROW; ++j) w[j] = *(const u32*)(weights + column(j));
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < (FEW ? 1 : 2); ++half) {
                float squares = 0.0f;
#pragma unroll
                for (int j = 0; j < NARROW; ++j) {
                    float a = x[t][j][2 * half], b = x[t][j][2 * half + 1];
                    squares += a * a + b * b;
                }
                squares += from_xor(squares, 1);
                squares += from_xor(squares, 2);
                if ((lane & 3) == 0) shared.parts()[(16 * t + 8 * half + (lane >> 2)) * WARPS + warp] = squares;
            }
        sync();
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < (FEW ? 1 : 2); ++half) {
                int row = 16 * t + 8 * half + (lane >> 2);
                const float4* parts = (const float4*)(shared.parts() + row * WARPS);
                float4 a = parts[0], b = parts[1];
                float squares = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
                float scale = one_over_root(squares * (1.0f / WIDTH) + (float)EPSILON);
#pragma unroll
                for (int j = 0; j < NARROW; ++j) {
                    float left = low_of(w[j]) * (x[t][j][2 * half] * scale);
                    float right = high_of(w[j]) * (x[t][j][2 * half + 1] * scale);
                    *(u32*)(shared.normed() + row * NORMED_STRIDE + column(j)) = rounded2(left, right);
                }
            }
        sync();
    }

    // Norm and turn the q and k of a part's heads of a row, four lanes a head.
    DEVICE void turn(int row, int part, int layer, int step) {
        constexpr int HALF = HEAD / 2, EACH = HALF / 4, TASK_HEADS = TASK_GROUPS * SHARE;
        u16* wide = shared.wide() + row * QKV_STRIDE;
        i64 position = shared.prompt_length()[row] + step;
        const float* cosine = KEEP_ANGLES ? shared.angles(row) : in.cosines + position * HALF;
        const float* sine = KEEP_ANGLES ? shared.angles(row) + HALF : in.sines + position * HALF;
        int own = (lane & 3) * EACH;
        for (int at = 0; at < TASK_HEADS + TASK_GROUPS; at += 8) {
            int vector = at + (lane >> 2);
            bool there = vector < TASK_HEADS + TASK_GROUPS, query = vector < TASK_HEADS;
            int place = query ? part * TASK_HEADS + vector : OWN_HEADS + part * TASK_GROUPS + vector - TASK_HEADS;
            u16* here = wide + (there ? place : 0) * HEAD + own;
            const u16* weights = shared.head_norms() + (2 * layer + !query) * HEAD + own;
            float a[EACH], b[EACH], squares = 0.0f;
#pragma unroll
            for (int e = 0; e < EACH; e += 2) {
                u32 one = *(const u32*)(here + e), two = *(const u32*)(here + HALF + e);
                a[e] = low_of(one), a[e + 1] = high_of(one), b[e] = low_of(two), b[e + 1] = high_of(two);
                squares += (a[e] * a[e] + a[e + 1] * a[e + 1]) + (b[e] * b[e] + b[e + 1] * b[e + 1]);
            }
            if (QK_NORM) {
                squares += from_xor(squares, 1);
                squares += from_xor(squares, 2);
                float scale = one_over_root(squares * (1.0f / HEAD) + (float)EPSILON);
#pragma unroll
                for (int e = 0; e < EACH; e += 2) {
                    u32 left = *(const u32*)(weights + e), right = *(const u32*)(weights + HALF + e);
                    a[e] = rounded(low_of(left) * (a[e] * scale)), a[e + 1] = rounded(high_of(left) * (a[e + 1] * scale));
                    b[e] = rounded(low_of(right) * (b[e] * scale)), b[e + 1] = rounded(high_of(right) * (b[e + 1] * scale));
                }
            }
            if (!there) continue;
#pragma unroll
            for (int e = 0; e < EACH; e += 2) {
                float c0 = cosine[own + e], c1 = cosine[own + e + 1], s0 = sine[own + e], s1 = sine[own + e + 1];
                *(u32*)(here + e) = rounded2(a[e] * c0 - b[e] * s0, a[e + 1] * c1 - b[e + 1] * s1);
                *(u32*)(here + HALF + e) = rounded2(b[e] * c0 + a[e] * s0, b[e + 1] * c1 + a[e + 1] * s1);
            }
        }
        warp_sync();
    }

    // Cosines and sines of the rows' next positions.
    DEVICE void look_up_angles(int step) {
        if (!KEEP_ANGLES) return;
        constexpr int HALF = HEAD / 2;
#pragma unroll 1
        for (int i = 32 * warp + lane; i < unit.rows * HALF; i += THREADS) {
            int row = i / HALF;
            i64 at = (i64)(shared.prompt_length()[row] + step) * HALF + i % HALF;
            shared.angles(row)[i % HALF] = in.cosines[at];
            shared.angles(row)[HALF + i % HALF] = in.sines[at];
        }
    }

    // --- attention ---

    // A warp passes over the blocks of others, so a barrier may be more than a turn behind what it waits for, and one
    // bit cannot tell: it has to know that its block has been asked for.
    DEVICE const u8* block(int number) {
        if (number >= asked) asked = wait_until_above(shared.asked(), number);
        wait(shared.cache_full() + number % CACHE_STAGES, number / CACHE_STAGES & 1);
        return shared.block(number % CACHE_STAGES);
    }

    DEVICE void release(int number, int count) {
        warp_sync();
        if (lane == 0) barrier_arrive(shared.cache_empty() + number % CACHE_STAGES, count);
    }

    // The part's keys and values of the token, for the tokens after it.
    DEVICE void keep(const u16* own, u8* memory, int part) {
        constexpr int CHUNKS = TASK_GROUPS * HEAD / 8;  // of keys, and of values
#pragma unroll
        for (int at = 0; at < 2 * CHUNKS; at += 32) {
            int chunk = at + lane, place = part * CHUNKS + (chunk < CHUNKS ? chunk : KV / 8 + chunk - CHUNKS);
            if (chunk < 2 * CHUNKS) ((uint4*)memory)[place] = ((const uint4*)own)[place];
        }
    }

    // A wave: this warp's part of one of its rows.
    DEVICE void attend(int layer, int step, int first, u32 active) {
        int last = unit.rows - first < WAVE ? unit.rows : first + WAVE, part = warp % PARTS, own = first + warp / PARTS;
        bool mine = active >> warp / PARTS & 1;
        u16* row = shared.wide() + own * QKV_STRIDE;
        if (mine) {
            turn(own, part, layer, step);
            i64 place = (i64)(unit.rank * LAYERS + layer) * unit.all + unit.row(in, own);
            keep(row + Q, in.cache + (place * in.new_slots + step) * SLOT, part);
        }
        Attention attention(row, part, lane);
        // Prompts come first: all warps pass all of the wave's, each takes those of its own row.
        int prompts = 0, before = 0, length = 0;
#pragma unroll 1
        for (int start = first, end; start < last; start = end) {
            end = end_of_run(shared, start, last);
            if (!(active & bits_of(start, end))) continue;
            if (own >= start && own < end) before = prompts, length = mine ? shared.prompt_length()[start] : 0;
            prompts += blocks_of(shared.prompt_length()[start]);
        }
        int rows = ones(active), number = read + prompts + ones(active & bits_of(first, own));
        int blocks = prompts + (mine ? blocks_of(step) : 0);
#pragma unroll 1
        for (int i = 0; i < blocks; ++i) {
            bool of_prompt = i < prompts;
            int slots = of_prompt ? length - (i - before) * SLOTS : step - (i - prompts) * SLOTS;
            const u8* next = block(of_prompt ? read + i : number);
            if (!of_prompt || (i >= before && slots > 0)) attention.fold(next, slots);
            release(of_prompt ? read + i : number, of_prompt ? 1 : WARPS / PARTS);
            if (!of_prompt) number += rows;
        }
        read += prompts + blocks_of(step) * rows;
        if (mine) attention.write(shared.normed() + own * NORMED_STRIDE + part * TASK_GROUPS * SHARE * HEAD);
    }

    // What a half of a layer adds to the residual stream.
    DEVICE void descend(int phase) {
        float c[TILES][NARROW][4];
        bool mixed = phase & 1;
        const u16* a = mixed ? shared.wide() : shared.normed();
        slabs(c, a, mixed ? MIXED_STRIDE : NORMED_STRIDE, mixed ? OWN_INNER : Q_INPUTS);
        if constexpr (RANKS > 1) exchange(c);
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < NARROW; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) x[t][j][i] += rounded(c[t][j][i]);
    }

    // --- tokens ---

    // A hash of (seed, row, position) in (0, 1): `sampler.uniforms`.
    DEVICE static float uniform(u64 seed, u64 row, u64 position) {
        u64 x = row * 11400714819323198485ull + seed * 15074714826142052245ull + position * 15750249268501108917ull;
        x = (x ^ (x >> 30)) * 13787848793156543929ull;
        x = (x ^ (x >> 27)) * 10723151780598845931ull;
        x = x ^ (x >> 31);
        return (float)(((double)(x >> 11) + 0.5) * 1.1102230246251565e-16);
    }

    // Draw the next token of a row from its logits.
    DEVICE void draw(int row, int step) {
        constexpr int EACH = (VOCABULARY + 31) / 32;
        const float* logits = (const float*)shared.wide() + row * LOGITS_STRIDE;
        float z[EACH], high = -1e30f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            int token = lane * EACH + i;
            z[i] = token < VOCABULARY ? logits[token < VOCABULARY ? token : 0] / in.temperature : -1e30f;
            high = fmaxf(high, z[i]);
        }
        for (int mask = 1; mask < 32; mask *= 2) high = fmaxf(high, from_xor(high, mask));
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            z[i] = lane * EACH + i < VOCABULARY ? power_of_two((z[i] - high) * 1.4426950408889634f) : 0.0f;
            sum += z[i];
        }
        float before = sum;  // of all lanes up to this one
        for (int distance = 1; distance < 32; distance *= 2) {
            float other = from_before(before, distance);
            if (lane >= distance) before += other;
        }
        float total = from_lane(before, 31);
        before -= sum;
        i64 number = unit.first + row + in.first_row[unit.cell];
        float target = uniform((u64)in.seed[unit.cell], (u64)number, (u64)step) * total;
        int token = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            before += z[i];
            token += ones(votes(lane * EACH + i < VOCABULARY && before <= target));
        }
        token = token < VOCABULARY ? token : VOCABULARY - 1;
        bool stop = false;
        for (int i = 0; i < in.stop_count; ++i) stop |= in.stops[i] == token;
        if (lane == 0) {
            if (unit.rank == 0) {
                i64 at = (i64)unit.row(in, row);
                in.tokens[at * in.new_slots + step] = token;
                in.logprobs[at * in.new_slots + step] = logits[token] / in.temperature - high - natural_log(total);
                in.lengths[at] = step + 1;
                in.stopped[at] = stop;
            }
            shared.token()[row] = token;
            shared.going()[row] = !stop;
        }
    }

    // Draw all rows' next tokens; their embeddings become the residual stream.
    DEVICE void choose(int step) {
#pragma unroll 1
        for (int row = warp; row < unit.rows; row += WARPS)
            if (shared.going()[row]) draw(row, step);
        before_copies();  // what this token added to the cache: copies of the next one read it
        sync();
        if (warp == 0 && lane == 0) barrier_arrive(shared.drawn());
        look_up_angles(step);
        const u16* table = in.embedding + (i64)unit.cell * VOCABULARY * WIDTH;
        each_row([&](int t, int half, int row) {
            const u16* embedding = table + (i64)shared.token()[row] * WIDTH;
#pragma unroll
            for (int j = 0; j < NARROW; ++j) {
                u32 pair = *(const u32*)(embedding + column(j));
                x[t][j][2 * half] = low_of(pair), x[t][j][2 * half + 1] = high_of(pair);
            }
        });
    }

    template <class Do>
    DEVICE void each_row(Do with) {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) with(t, half, 16 * t + 8 * half + (lane >> 2));
    }

    DEVICE void run() {
        each_row([&](int t, int half, int row) {
            const float* last = in.last + (i64)shared.problem()[row < unit.rows ? row : 0] * WIDTH;
#pragma unroll
            for (int j = 0; j < NARROW; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) x[t][j][2 * half + i] = row < unit.rows ? last[column(j) + i] : 0.0f;
        });
        // Half a layer at a time, the head as the last: code that is there once stays in the instruction cache.
        const u16* bias = in.bias + (BIAS ? (i64)(unit.cell * RANKS + unit.rank) * LAYERS * QKV : 0);
        u64 active = 0;
        for (int step = 0, phase = 2 * LAYERS; step < in.new_slots;) {
            norm(shared.norms() + phase * WIDTH);
            multiply(phase, bias + phase / 2 * QKV);
            if (phase == 2 * LAYERS) {
                choose(step);
                active = active_rows(shared, lane);
                if (!active || step + 1 == in.new_slots) break;
                phase = 0;
                continue;
            }
            if ((phase & 1) == 0) {
#pragma unroll 1
                for (int first = 0; first < unit.rows; first += WAVE)
                    attend(phase / 2, step, first, (u32)(active >> first) & bits_of(0, WAVE));
                sync();
            }
            descend(phase);
            if (++phase == 2 * LAYERS) ++step;
        }
        if (warp == 0 && lane == 0) *shared.quit() = 1;
    }
};

DEVICE void prepare(const Inputs& in, const Unit& unit, const Shared& shared) {
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
    const u32* norms = (const u32*)in.norms + (i64)unit.cell * NORMS / 2;
    const u32* head_norms = (const u32*)in.head_norms + (i64)unit.cell * HEAD_NORMS / 2;
    for (int i = thread_index(); i < (NORMS + HEAD_NORMS) / 2; i += block_size())
        ((u32*)shared.norms())[i] = i < NORMS / 2 ? norms[i] : head_norms[i - NORMS / 2];
    // What nobody has written yet is multiplied by zero, which must give zero.
    for (int at = thread_index() * 4; at < AT_END - AT_ZEROED; at += block_size() * 4)
        *(u32*)(shared.memory + AT_ZEROED + at) = 0u;
    before_copies();
    block_sync();
    if constexpr (RANKS > 1) cluster_sync();
}

KERNEL IN_CLUSTERS(THREADS + 64, RANKS) generate(
    const u8* weights, const u16* norms, const u16* head_norms, const u16* bias, const u16* embedding,
    const float* cosines, const float* sines, const u8* prompts, const int* padding, const float* last, u8* cache,
    const int* stops, const i64* seed, const i64* first_row, i64* tokens, float* logprobs, int* lengths, int* stopped,
    int stop_count, int problems, int per_prompt, int prompt_slots, int new_slots, int cell_rows, int unit_rows,
    double temperature) {
    Inputs in{weights, norms, head_norms, bias, embedding, cosines, sines, prompts, padding, last, cache, stops, seed,
              first_row, tokens, logprobs, lengths, stopped, stop_count, problems, per_prompt, prompt_slots, new_slots,
              cell_rows, unit_rows, (float)temperature};
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
