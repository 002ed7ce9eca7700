// Attention of one row, TASK_GROUPS of its groups of heads: a running softmax over blocks of the cache. Scores are q ·
// kᵀ with a head in each of four rows of the first operand (and again in the next four), zero where a channel is
// another group's; in the second product, v · p, the heads are columns, the first four with the weights rounded to bf16
// and the next four with the rest.
struct Attention {
    static constexpr int STEPS = HEAD / 16, SUBS = SLOTS / 16, TASK_HEADS = TASK_GROUPS * SHARE;
    static constexpr int CHANNELS = TASK_GROUPS * HEAD / 16;           // tiles of 16
    static constexpr bool EARLY = SUBS * CHANNELS <= 12;               // whether registers hold all values of a block
    static constexpr float SCALE = 1.4426950408889634 / ROOT_OF_HEAD;  // scores in powers of two
    int lane, group, channel;
    u32 q[STEPS][2];
    float top, sum, out[CHANNELS][4];

    // `part` says which groups: their queries and the token's own keys and values are in `row`, the keys of other
    // tokens from `channel` on. The token itself comes first, so that the largest score is a number from the start.
    DEVICE Attention(const u16 *row, int part, int lane_) : lane(lane_) {
        int head = lane >> 2 & 3;
        group = head / SHARE, channel = part * TASK_GROUPS * HEAD;
        bool there = head < TASK_HEADS;
        const u16 *query = row + (part * TASK_HEADS + (there ? head : 0)) * HEAD + 2 * (lane & 3);
        const u16 *key = row + Q + channel + (there ? group : 0) * HEAD + 2 * (lane & 3);
        float score = 0.0f;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                u32 pair = *(const u32 *)(query + 16 * s + 8 * half), other = *(const u32 *)(key + 16 * s + 8 * half);
                q[s][half] = there ? pair : 0u;
                score += low_of(pair) * low_of(other) + high_of(pair) * high_of(other);
            }
        score += from_xor(score, 1);
        score += from_xor(score, 2);
        top = score * SCALE;
        sum = (lane & 3) == 0 ? 1.0f : 0.0f;  // lanes add up different slots
        const u16 *value = row + Q + KV + channel + (lane >> 2);
#pragma unroll
        for (int tile = 0; tile < CHANNELS; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                out[tile][i] = (lane & 2) == 0 ? widened(value[16 * tile + (i & 2 ? 8 : 0)]) : 0.0f;
    }

    // Where this lane's row of four 8 × 8 matrices is: 16 slots × 16 channels.
    DEVICE const u8 *matrices(const u8 *block, int sub, int first) const {
        return block + (16 * sub + (lane >> 4) * 8 + (lane & 7)) * SLOT + (channel + first) * 2 + (lane >> 3 & 1) * 16;
    }

    // Slots behind the last are multiplied like the others, and their weight is zero: nothing waits for a branch.
    // Returns words of the last loads (`Worker::give`); keys have come long before.
    DEVICE u32 fold(const u8 *block, int slots) {
        float score[SUBS][2][2], high = top;
        u32 words = 0u;
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
                if (sub == SUBS - 1) words |= of[0];
                multiply_add(out[tile], of, b[0], b[1]);
            }
        }
        return words;
    }

    DEVICE void write(u16 *row) {  // the part's own columns
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
