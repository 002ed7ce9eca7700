// The warps that compute: every thread has its part of the residual stream in registers.

struct Worker {
    const Inputs &in;
    const Unit &unit;
    const Shared &shared;
    int warp, lane;
    int taken = 0, read = 0;  // stages of weights and blocks of the cache so far
    int asked = 0;            // blocks of the cache that are known to have been asked for
    int exchanges = 0;
    u32 none = nothing();
    float x[TILES][NARROW][4];  // residual stream: rows lane/4 and lane/4 + 8, two columns

    DEVICE void sync() { sync_first(THREADS); }
    DEVICE int column(int j) const { return 8 * (warp * NARROW + j) + 2 * (lane & 3); }

    // --- weights ---

    DEVICE const uint4 *take(int ahead = 0) {
        int number = taken + ahead;
        wait(shared.weights_full() + number % WEIGHT_STAGES, number / WEIGHT_STAGES & 1);
        return (const uint4 *)shared.weights(number % WEIGHT_STAGES);
    }

    // `words` are of the last loads, of all whose order the compiler may change (those of a warp come in the order in
    // which they were issued). The barrier's address is made to depend on them, so that no warp says it is done before
    // its loads have come: an arrival does not wait for loads, the compiler puts the products that do behind it, and
    // beside another kernel that keeps shared memory busy a load can be so late that it reads the next stage's bytes.
    // Blocks of a cluster then drew different tokens, and one waited for ever.
    DEVICE void give(u32 words, int stages = 1) {
        warp_sync();
        if (lane < stages) barrier_arrive(shared.weights_empty() + (taken + lane) % WEIGHT_STAGES + (words & none));
        taken += stages;
    }

    DEVICE static const u16 *matrix(const u16 *a, int stride, int tile, int lane) {
        return a + (16 * tile + (lane & 15)) * stride + (lane >> 4) * 8;
    }

    // This block's rows as first operands: in registers where they are few, else loaded anew for each product.
    struct Rows {
        u32 a[TILES == 1 ? WIDTH / 16 : 2][4];
    };

    DEVICE void load(Rows &rows) {
        if constexpr (TILES == 1) {
#pragma unroll
            for (int s = 0; s < WIDTH / 16; ++s)
                load_matrices(rows.a[s], matrix(shared.normed(), NORMED_STRIDE, 0, lane) + 16 * s);
        }
    }

    // This warp's part of the next two stages, or of one (`stages`): normed · weights. Columns that a stage does not
    // have, and a second stage that is not there, give numbers that nobody uses.
    DEVICE void columns(float (&c)[2][BROAD][TALL][4], int stages, const Rows &rows) {
        const uint4 *stage[2] = {take(0), take(stages - 1)};
        int first = warp / SIDES * BROAD, side = warp % SIDES;
        constexpr int SUMS = TILES == 1 ? 2 : 1;  // a sum waits for the one before: of every other step where few do
        float sums[SUMS][2][BROAD][TALL][4] = {};
        u32 words = 0u;
#pragma unroll
        for (int pair = 0; pair < WIDTH / 32; ++pair) {
            uint4 w[2][BROAD];
#pragma unroll
            for (int s = 0; s < 2; ++s)
#pragma unroll
                for (int b = 0; b < BROAD; ++b) {
                    w[s][b] = stage[s][((first + b) * (WIDTH / 32) + pair) * 32 + lane];
                    if (pair == WIDTH / 32 - 1) words |= w[s][b].x;
                }
#pragma unroll
            for (int t = 0; t < TALL; ++t) {
                Rows loaded;
                int step = TILES == 1 ? 2 * pair : 0;
                if constexpr (TILES > 1) {
                    const u16 *at = matrix(shared.normed(), NORMED_STRIDE, side * TALL + t, lane) + 32 * pair;
                    load_matrices(loaded.a[0], at);
                    load_matrices(loaded.a[1], at + 16);
                }
                const Rows &with = TILES == 1 ? rows : loaded;
#pragma unroll
                for (int s = 0; s < 2; ++s)
#pragma unroll
                    for (int b = 0; b < BROAD; ++b) {
                        multiply_add(sums[0][s][b][t], with.a[step], w[s][b].x, w[s][b].y);
                        multiply_add(sums[SUMS - 1][s][b][t], with.a[step + 1], w[s][b].z, w[s][b].w);
                    }
            }
        }
        give(words, stages);
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
    DEVICE void multiply(int phase, const u16 *bias) {
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
                        if (last)
                            keep_logits(c[s][b][t], column + own, row);
                        else
                            keep_projected(c[s][b][t], bias, column + own, row);
                    }
                }
        }
        sync();
    }

    DEVICE void keep_projected(const float (&c)[4], const u16 *bias, int column, int row) {
        float left = 0.0f, right = 0.0f;
        if (BIAS) left = widened(bias[column]), right = widened(bias[column + 1]);
        u16 *to = shared.wide() + row * QKV_STRIDE + column;
        *(u32 *)to = rounded2(c[0] + left, c[1] + right);
        if (!FEW) *(u32 *)(to + 8 * QKV_STRIDE) = rounded2(c[2] + left, c[3] + right);
    }

    DEVICE void keep_logits(const float (&c)[4], int column, int row) {
        float *to = (float *)shared.wide() + row * LOGITS_STRIDE + column;
        to[0] = c[0], to[1] = c[1];
        if (!FEW) to[8 * LOGITS_STRIDE] = c[2], to[8 * LOGITS_STRIDE + 1] = c[3];
    }

    DEVICE void keep_mixed(const float (&gate)[4], const float (&up)[4], int column, int row) {
        u16 *to = shared.wide() + row * MIXED_STRIDE + column;
        *(u32 *)to = rounded2(gated(gate[0], up[0]), gated(gate[1], up[1]));
        if (!FEW) *(u32 *)(to + 8 * MIXED_STRIDE) = rounded2(gated(gate[2], up[2]), gated(gate[3], up[3]));
    }

    // silu(gate) · up
    DEVICE static float gated(float gate, float up) {
        gate = rounded(gate);
        return rounded(gate * one_over(1.0f + power_of_two(gate * -1.4426950408889634f))) * rounded(up);
    }

    // The part of a · weights that this block's inputs make, for this warp's columns of the residual stream.
    DEVICE void slabs(float (&c)[TILES][NARROW][4], const u16 *a, int stride, int inputs) {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < NARROW; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) c[t][j][i] = 0.0f;
        for (int at = 0; at < inputs; at += SLAB) {
            const uint4 *stage = take();
            int pairs = (inputs - at < SLAB ? inputs - at : SLAB) / 32;
            u32 words = 0u;
            for (int pair = 0; pair < pairs; ++pair) {
                uint4 w[NARROW];
                words = 0u;
#pragma unroll
                for (int j = 0; j < NARROW; ++j) {
                    w[j] = stage[((warp * NARROW + j) * pairs + pair) * 32 + lane];
                    words |= w[j].x;
                }
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    const u16 *from = matrix(a, stride, t, lane) + at + 32 * pair;
                    u32 low[4], high[4];
                    load_matrices(low, from);
                    load_matrices(high, from + 16);
#pragma unroll
                    for (int j = 0; j < NARROW; ++j) multiply_add(c[t][j], low, w[j].x, w[j].y);
#pragma unroll
                    for (int j = 0; j < NARROW; ++j) multiply_add(c[t][j], high, w[j].z, w[j].w);
                }
            }
            give(words);
        }
    }

    // The sum of all blocks' parts of a product, in the same order everywhere.
    DEVICE void exchange(float (&c)[TILES][NARROW][4]) {
        constexpr int EACH = FEW ? 2 : 4;
        int turn = exchanges & 1, thread = 32 * warp + lane;
        u64 *barrier = shared.arrived() + turn;
        if (thread == 0) barrier_expect(barrier, (RANKS - 1) * EXCHANGED * 4);
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int j = 0; j < NARROW; ++j)
#pragma unroll
                for (int off = 1; off < RANKS; ++off) {
                    int to = (unit.rank + off) % RANKS, place = unit.rank - (unit.rank > to);
                    float *at = shared.inbox(turn, place) + ((t * NARROW + j) * THREADS + thread) * EACH;
                    if (FEW)
                        send2(at, barrier, to, c[t][j]);
                    else
                        send4(at, barrier, to, c[t][j]);
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
                    const float *at = shared.inbox(turn, place < RANKS - 1 ? place : 0) +
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

    DEVICE void norm(const u16 *weights) {
        u32 w[NARROW];
#pragma unroll
        for (int j = 0; j < NARROW; ++j) w[j] = *(const u32 *)(weights + column(j));
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
                const float4 *parts = (const float4 *)(shared.parts() + row * WARPS);
                float4 a = parts[0], b = parts[1];
                float squares = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
                float scale = one_over_root(squares * (1.0f / WIDTH) + (float)EPSILON);
#pragma unroll
                for (int j = 0; j < NARROW; ++j) {
                    float left = low_of(w[j]) * (x[t][j][2 * half] * scale);
                    float right = high_of(w[j]) * (x[t][j][2 * half + 1] * scale);
                    *(u32 *)(shared.normed() + row * NORMED_STRIDE + column(j)) = rounded2(left, right);
                }
            }
        sync();
    }

    // Norm and turn the q and k of a part's heads of a row, four lanes a head.
    DEVICE void turn(int row, int part, int layer, int step) {
        constexpr int HALF = HEAD / 2, EACH = HALF / 4, TASK_HEADS = TASK_GROUPS * SHARE;
        u16 *wide = shared.wide() + row * QKV_STRIDE;
        i64 position = shared.prompt_length()[row] + step;
        const float *cosine = KEEP_ANGLES ? shared.angles(row) : in.cosines + position * HALF;
        const float *sine = KEEP_ANGLES ? shared.angles(row) + HALF : in.sines + position * HALF;
        int own = (lane & 3) * EACH;
        for (int at = 0; at < TASK_HEADS + TASK_GROUPS; at += 8) {
            int vector = at + (lane >> 2);
            bool there = vector < TASK_HEADS + TASK_GROUPS, query = vector < TASK_HEADS;
            int place = query ? part * TASK_HEADS + vector : OWN_HEADS + part * TASK_GROUPS + vector - TASK_HEADS;
            u16 *here = wide + (there ? place : 0) * HEAD + own;
            const u16 *weights = shared.head_norms() + (2 * layer + !query) * HEAD + own;
            float a[EACH], b[EACH], squares = 0.0f;
#pragma unroll
            for (int e = 0; e < EACH; e += 2) {
                u32 one = *(const u32 *)(here + e), two = *(const u32 *)(here + HALF + e);
                a[e] = low_of(one), a[e + 1] = high_of(one), b[e] = low_of(two), b[e + 1] = high_of(two);
                squares += (a[e] * a[e] + a[e + 1] * a[e + 1]) + (b[e] * b[e] + b[e + 1] * b[e + 1]);
            }
            if (QK_NORM) {
                squares += from_xor(squares, 1);
                squares += from_xor(squares, 2);
                float scale = one_over_root(squares * (1.0f / HEAD) + (float)EPSILON);
#pragma unroll
                for (int e = 0; e < EACH; e += 2) {
                    u32 left = *(const u32 *)(weights + e), right = *(const u32 *)(weights + HALF + e);
                    a[e] = rounded(low_of(left) * (a[e] * scale)),
                    a[e + 1] = rounded(high_of(left) * (a[e + 1] * scale));
                    b[e] = rounded(low_of(right) * (b[e] * scale)),
                    b[e + 1] = rounded(high_of(right) * (b[e + 1] * scale));
                }
            }
            if (!there) continue;
#pragma unroll
            for (int e = 0; e < EACH; e += 2) {
                float c0 = cosine[own + e], c1 = cosine[own + e + 1], s0 = sine[own + e], s1 = sine[own + e + 1];
                *(u32 *)(here + e) = rounded2(a[e] * c0 - b[e] * s0, a[e + 1] * c1 - b[e + 1] * s1);
                *(u32 *)(here + HALF + e) = rounded2(b[e] * c0 + a[e] * s0, b[e + 1] * c1 + a[e + 1] * s1);
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
    DEVICE const u8 *block(int number) {
        if (number >= asked) asked = wait_until_above(shared.asked(), number);
        wait(shared.cache_full() + number % CACHE_STAGES, number / CACHE_STAGES & 1);
        return shared.block(number % CACHE_STAGES);
    }

    DEVICE void release(int number, int count, u32 words) {  // as `give`
        warp_sync();
        if (lane == 0) barrier_arrive(shared.cache_empty() + number % CACHE_STAGES + (words & none), count);
    }

    // The part's keys and values of the token, for the tokens after it.
    DEVICE void keep(const u16 *own, u8 *memory, int part) {
        constexpr int CHUNKS = TASK_GROUPS * HEAD / 8;  // of keys, and of values
#pragma unroll
        for (int at = 0; at < 2 * CHUNKS; at += 32) {
            int chunk = at + lane, place = part * CHUNKS + (chunk < CHUNKS ? chunk : KV / 8 + chunk - CHUNKS);
            if (chunk < 2 * CHUNKS) ((uint4 *)memory)[place] = ((const uint4 *)own)[place];
        }
    }

    // A wave: this warp's part of one of its rows.
    DEVICE void attend(int layer, int step, int first, u32 active) {
        int last = unit.rows - first < WAVE ? unit.rows : first + WAVE, part = warp % PARTS, own = first + warp / PARTS;
        bool mine = active >> warp / PARTS & 1;
        u16 *row = shared.wide() + own * QKV_STRIDE;
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
            const u8 *next = block(of_prompt ? read + i : number);
            u32 words = !of_prompt || (i >= before && slots > 0) ? attention.fold(next, slots) : 0u;
            release(of_prompt ? read + i : number, of_prompt ? 1 : WARPS / PARTS, words);
            if (!of_prompt) number += rows;
        }
        read += prompts + blocks_of(step) * rows;
        if (mine) attention.write(shared.normed() + own * NORMED_STRIDE + part * TASK_GROUPS * SHARE * HEAD);
    }

    // What a half of a layer adds to the residual stream.
    DEVICE void descend(int phase) {
        float c[TILES][NARROW][4];
        bool mixed = phase & 1;
        const u16 *a = mixed ? shared.wide() : shared.normed();
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
        const float *logits = (const float *)shared.wide() + row * LOGITS_STRIDE;
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
        const u16 *table = in.embedding + (i64)unit.cell * VOCABULARY * WIDTH;
        each_row([&](int t, int half, int row) {
            const u16 *embedding = table + (i64)shared.token()[row] * WIDTH;
#pragma unroll
            for (int j = 0; j < NARROW; ++j) {
                u32 pair = *(const u32 *)(embedding + column(j));
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
            const float *last = in.last + (i64)shared.problem()[row < unit.rows ? row : 0] * WIDTH;
#pragma unroll
            for (int j = 0; j < NARROW; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) x[t][j][2 * half + i] = row < unit.rows ? last[column(j) + i] : 0.0f;
        });
        // Half a layer at a time, the head as the last: code that is there once stays in the instruction cache.
        const u16 *bias = in.bias + (BIAS ? (i64)(unit.cell * RANKS + unit.rank) * LAYERS * QKV : 0);
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
