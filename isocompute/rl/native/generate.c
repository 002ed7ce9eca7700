/* Sampling on a CPU: a few rows at a time, each from its first token to its last.
 *
 * A row that stops makes room for the next, so nothing waits for the longest response, and what is at work stays in the
 * processor's cache. A row's numbers do not depend on which others stand beside it: every sum has its order from the
 * shapes of the model and of the padded prompts alone.
 *
 * Names: D width, H heads, G key-value heads, K head size, V vocabulary, T a prompt's tokens, S a response's. Widths
 * are padded with zeros to whole vectors; `padded` says how wide. Products are with packed weights (`_packed` in
 * packing.py): panels of WIDE vectors of columns, all rows of a panel together.
 */
#include "vectors.h"

#if defined(__AVX512F__)
enum { WIDE = 4 };
#else
enum { WIDE = 2 };
#endif
enum { TILE = 6, ROWS = 48 }; /* rows of a product's tile; rows at work, whole tiles of them */

enum { NORM_ATTENTION, QKV, QKV_BIAS, QK_NORM, OUT, NORM_MLP, GATE, UP, DOWN, OF_A_LAYER };

typedef struct {
    int64_t layers, width, heads, groups, size, inner, vocabulary, qk_norm;
    float epsilon, temperature;
    const float *embedding_VD, *norm_D, *head_DV;
    const float *cos_PK, *sin_PK; /* by position; the sine of the first half is negative */
    const float *const *layer;    /* OF_A_LAYER pointers for each */
} Model;

typedef struct {
    int64_t first, last, width, tokens; /* rows to sample, slots of a prompt, tokens of a response at most */
    int64_t problems, stops;
    const int64_t *problem_B, *padding_P, *stop;
    const float *logits_PV, *keys_LPGKT, *values_LPGTK; /* of the prompts */
    const double *uniform_SB;
    int64_t rows; /* of `uniform_SB` */
    int64_t *response_BS, *length_B;
    float *logprob_BS;
} Batch;

typedef struct {
    int64_t row, step, place, token; /* `step` tokens are drawn, `token` the last; its cache is at `place` */
} Live;

typedef struct {
    int64_t D, QKV, A, F, V, K, T, S; /* padded sizes: width, all heads, attention's output, inner, vocabulary, … */
    float *x, *h, *qkv, *a, *gate, *up, *logits, *score;
    float *keys, *values; /* of the responses: place, layer, group, [K][S] and [S][K] */
} Scratch;

int64_t lanes(void) { return LANES; }
int64_t wide(void) { return WIDE; }

/* A tile of a product: TILE rows of x, `n` vectors of columns. */
static inline __attribute__((always_inline)) void tile(
    int n, const float *x, int64_t stride, int64_t inputs, const float *w, float *out, int64_t out_stride, int add) {
    vec sum[TILE][WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) sum[r][j] = add ? at(out + r * out_stride + j * LANES) : all(0);
    for (int64_t k = 0; k < inputs; k++) {
        vec column[WIDE];
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) column[j] = at(w + (k * n + j) * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < TILE; r++) {
            vec input = all(x[r * stride + k]);
#pragma GCC unroll 8
            for (int j = 0; j < n; j++) sum[r][j] += input * column[j];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) put(out + r * out_stride + j * LANES, sum[r][j]);
}

/* out (+)= x w, for whole tiles of rows. */
static void product(
    const float *x, int64_t stride, int64_t rows, int64_t inputs, const float *w, int64_t outputs, float *out,
    int add) {
    for (int64_t n = 0; n < outputs; n += WIDE * LANES) {
        int64_t vectors = (outputs - n) / LANES < WIDE ? (outputs - n) / LANES : WIDE;
        for (int64_t r = 0; r < rows; r += TILE) {
            const float *in = x + r * stride;
            float *to = out + r * outputs + n;
            switch (vectors) {
                case 1: tile(1, in, stride, inputs, w, to, outputs, add); break;
                case 2: tile(2, in, stride, inputs, w, to, outputs, add); break;
#if defined(__AVX512F__)
                case 3: tile(3, in, stride, inputs, w, to, outputs, add); break;
                default: tile(4, in, stride, inputs, w, to, outputs, add); break;
#endif
            }
        }
        w += inputs * vectors * LANES;
    }
}

/* w · x / sqrt(mean x² + ε) of a row that is padded with zeros. */
static void normalise(const float *x, int64_t n, const float *w, float epsilon, float *out) {
    vec squares = all(0);
    for (int64_t i = 0; i < n; i += LANES) squares += at(x + i) * at(x + i);
    vec scale = all(1.0f / sqrtf(sum_of(squares) / (float)n + epsilon));
    for (int64_t i = 0; i < n; i += LANES) put(out + i, at(x + i) * scale * at(w + i));
}

/* The same for a head, whose size need not be whole vectors, in place, and the rotation by its position. */
static void turn(const Model *m, float *restrict head_K, const float *restrict norm_K, int64_t position) {
    int64_t K = m->size, half = K / 2;
    const float *restrict cos_K = m->cos_PK + position * K, *restrict sin_K = m->sin_PK + position * K;
    if (m->qk_norm) {
        float scale = 1.0f / sqrtf(dot(head_K, head_K, K) / (float)K + m->epsilon);
        for (int64_t i = 0; i < K; i++) head_K[i] = head_K[i] * scale * norm_K[i];
    }
    for (int64_t i = 0; i < half; i++) {
        float low = head_K[i], high = head_K[i + half];
        head_K[i] = low * cos_K[i] + high * sin_K[i];
        head_K[i + half] = high * cos_K[i + half] + low * sin_K[i + half];
    }
}

/* One row's attention in one layer: its new key and value join the cache, all its heads look at prompt and cache. */
static void attend(
    const Model *m, const Batch *b, const Scratch *t, int64_t layer, const Live *live, float *qkv, float *out) {
    const float *const *w = m->layer + layer * OF_A_LAYER;
    int64_t H = m->heads, G = m->groups, K = m->size, p = b->problem_B[live->row], padding = b->padding_P[p];
    int64_t place = (live->place * m->layers + layer) * G, slot = live->step - 1;
    for (int64_t i = 0; i < (H + 2 * G) * K; i++) qkv[i] += w[QKV_BIAS][i];
    for (int64_t h = 0; h < H + G; h++) turn(m, qkv + h * K, w[QK_NORM] + h * K, b->width - padding + slot);
    float *own = t->score + t->T, scale = 1.0f / sqrtf((float)K);
    for (int64_t g = 0; g < G; g++) {
        float *keys_KS = t->keys + (place + g) * K * t->S, *values_SK = t->values + (place + g) * t->S * t->K;
        const float *prompt_keys_KT = b->keys_LPGKT + ((layer * b->problems + p) * G + g) * K * t->T;
        const float *prompt_values_TK = b->values_LPGTK + ((layer * b->problems + p) * G + g) * b->width * t->K;
        for (int64_t k = 0; k < K; k++) keys_KS[k * t->S + slot] = qkv[(H + g) * K + k];
        memcpy(values_SK + slot * t->K, qkv + (H + G + g) * K, (size_t)K * sizeof(float));
        int64_t seen = padded(live->step);
        for (int64_t h = g * (H / G); h < (g + 1) * (H / G); h++) {
            float *q_K = qkv + h * K;
            for (int64_t k = 0; k < K; k++) q_K[k] *= scale;
            against(q_K, K, prompt_keys_KT, t->T, t->T, t->score);
            against(q_K, K, keys_KS, t->S, seen, own);
            for (int64_t s = 0; s < padding; s++) t->score[s] = -INFINITY;
            for (int64_t s = b->width; s < t->T; s++) t->score[s] = -INFINITY;
            for (int64_t s = live->step; s < seen; s++) own[s] = -INFINITY;
            vec most = at(t->score), total = all(0);
            for (int64_t s = 0; s < t->T + seen; s += LANES) most = larger(at(t->score + s), most);
            most = all(largest_of(most));
            for (int64_t s = 0; s < t->T + seen; s += LANES) {
                vec weight = exp_of(at(t->score + s) - most);
                put(t->score + s, weight);
                total += weight;
            }
            float share = 1.0f / sum_of(total);
            for (int64_t k = 0; k < K; k += LANES) {
                int64_t tokens = b->width - padding;
                vec sum = along(t->score + padding, prompt_values_TK + padding * t->K + k, t->K, tokens);
                sum = (sum + along(own, values_SK + k, t->K, live->step)) * all(share);
                for (int64_t i = 0; i < LANES && k + i < K; i++) out[h * K + k + i] = sum[i];
            }
        }
    }
}

/* The last hidden states of `count` rows, into `h`. */
static void read_rows(const Model *m, const Batch *b, const Scratch *t, const Live *live, int64_t count) {
    int64_t D = t->D, rows = (count + TILE - 1) / TILE * TILE;
    for (int64_t r = 0; r < count; r++)
        memcpy(t->x + r * D, m->embedding_VD + live[r].token * D, (size_t)D * sizeof(float));
    for (int64_t layer = 0; layer < m->layers; layer++) {
        const float *const *w = m->layer + layer * OF_A_LAYER;
        for (int64_t r = 0; r < count; r++)
            normalise(t->x + r * D, m->width, w[NORM_ATTENTION], m->epsilon, t->h + r * D);
        product(t->h, D, rows, m->width, w[QKV], t->QKV, t->qkv, 0);
        for (int64_t r = 0; r < count; r++) attend(m, b, t, layer, live + r, t->qkv + r * t->QKV, t->a + r * t->A);
        product(t->a, t->A, rows, m->heads * m->size, w[OUT], D, t->x, 1);
        for (int64_t r = 0; r < count; r++) normalise(t->x + r * D, m->width, w[NORM_MLP], m->epsilon, t->h + r * D);
        product(t->h, D, rows, m->width, w[GATE], t->F, t->gate, 0);
        product(t->h, D, rows, m->width, w[UP], t->F, t->up, 0);
        for (int64_t i = 0; i < count * t->F; i += LANES) {
            vec gate = at(t->gate + i);
            put(t->gate + i, gate / (all(1.0f) + exp_of(-gate)) * at(t->up + i));
        }
        product(t->gate, t->F, rows, m->inner, w[DOWN], D, t->x, 1);
    }
    for (int64_t r = 0; r < count; r++) normalise(t->x + r * D, m->width, m->norm_D, m->epsilon, t->h + r * D);
}

/* A token by inverse transform and its log-prob (sampler.draw); `logits` is padded, and overwritten. */
static int64_t draw(float *logits, int64_t V, float temperature, double uniform, float *logprob) {
    int64_t wide = padded(V), token = 0;
    float softness = temperature > 0 ? temperature : 1.0f;
    for (int64_t v = V; v < wide; v++) logits[v] = -INFINITY;
    vec most = at(logits) / all(softness), total = all(0);
    for (int64_t v = 0; v < wide; v += LANES) {
        vec x = at(logits + v) / all(softness);
        put(logits + v, x);
        most = larger(x, most);
    }
    most = all(largest_of(most));
    for (int64_t v = 0; v < wide; v += LANES) total += exp_of(at(logits + v) - most);
    float log_sum = (float)log(exact_sum_of(total)); /* beside the largest: a probability near 1 needs all its digits */
    if (temperature <= 0) {
        for (int64_t v = 1; v < V; v++) token = logits[v] > logits[token] ? v : token;
        *logprob = logits[token] - most[0] - log_sum;
        return token;
    }
    double sum = 0, below = 0;
    for (int64_t v = 0; v < wide; v += LANES) {
        vec p = exp_of(at(logits + v) - most - all(log_sum));
        for (int64_t i = 0; i < LANES && v + i < V; i++) sum += (double)p[i];
    }
    double target = uniform * sum;
    for (int64_t v = 0; v < wide; v += LANES) {
        vec p = exp_of(at(logits + v) - most - all(log_sum));
        for (int64_t i = 0; i < LANES && v + i < V; i++) {
            below += (double)p[i];
            token = v + i;
            if (below > target) {
                *logprob = logits[token] - most[0] - log_sum;
                return token;
            }
        }
    }
    *logprob = logits[V - 1] - most[0] - log_sum;
    return V - 1;
}

/* Draw a row's next token from its logits; whether the row goes on. */
static int advance(const Model *m, const Batch *b, Live *live, float *logits) {
    int64_t at_token = live->row * b->tokens + live->step;
    double uniform = b->uniform_SB[live->step * b->rows + live->row];
    live->token = draw(logits, m->vocabulary, m->temperature, uniform, b->logprob_BS + at_token);
    b->response_BS[at_token] = live->token;
    b->length_B[live->row] = ++live->step;
    for (int64_t i = 0; i < b->stops; i++)
        if (b->stop[i] == live->token) return 0;
    return live->step < b->tokens;
}

static void work(const Model *m, const Batch *b, const Scratch *t) {
    Live live[ROWS];
    int64_t count = 0, next = b->first, free_places[ROWS], unused = ROWS;
    for (int64_t i = 0; i < ROWS; i++) free_places[i] = i;
    while (1) {
        while (count < ROWS && next < b->last) {
            Live row = {next++, 0, 0, 0};
            memcpy(
                t->logits, b->logits_PV + b->problem_B[row.row] * m->vocabulary, (size_t)m->vocabulary * sizeof(float));
            if (!advance(m, b, &row, t->logits)) continue;
            row.place = free_places[--unused];
            live[count++] = row;
        }
        if (!count) return;
        read_rows(m, b, t, live, count);
        product(t->h, t->D, (count + TILE - 1) / TILE * TILE, m->width, m->head_DV, t->V, t->logits, 0);
        int64_t kept = 0;
        for (int64_t r = 0; r < count; r++) {
            if (advance(m, b, live + r, t->logits + r * t->V))
                live[kept++] = live[r];
            else
                free_places[unused++] = live[r].place;
        }
        count = kept;
    }
}

/* Room for ROWS rows, and for caches of so many of them; 1 where there is no memory for it. */
static int make_scratch(const Model *m, int64_t width, int64_t tokens, int64_t cached_rows, Scratch *t, void **memory) {
    *t = (Scratch){
        .D = padded(m->width),
        .QKV = padded((m->heads + 2 * m->groups) * m->size),
        .A = padded(m->heads * m->size),
        .F = padded(m->inner),
        .V = padded(m->vocabulary),
        .K = padded(m->size),
        .T = padded(width),
        .S = padded(tokens),
    };
    int64_t cached = m->layers * m->groups * cached_rows * t->S;
    int64_t sizes[] = {ROWS * t->D, ROWS * t->D, ROWS * t->QKV, ROWS * t->A,      ROWS * t->F,
                       ROWS * t->F, ROWS * t->V, t->T + t->S,   cached * m->size, cached * t->K};
    float **parts[] = {&t->x, &t->h, &t->qkv, &t->a, &t->gate, &t->up, &t->logits, &t->score, &t->keys, &t->values};
    int64_t total = 0, count = sizeof(sizes) / sizeof(sizes[0]);
    for (int64_t i = 0; i < count; i++) total += sizes[i] = (sizes[i] + 15) / 16 * 16;
    *memory = calloc((size_t)total + 16, sizeof(float)); /* padding stays zero: what is padded adds nothing */
    if (!*memory) return 1;
    float *start = aligned(*memory);
    for (int64_t i = 0; i < count; i++) {
        *parts[i] = start;
        start += sizes[i];
    }
    return 0;
}

/* Sample the rows from `first` to `last`; 1 where there is no memory for it. */
int generate(const Model *m, const Batch *b) {
    Scratch t;
    void *memory;
    if (make_scratch(m, b->width, b->tokens, ROWS, &t, &memory)) return 1;
    work(m, b, &t);
    free(memory);
    return 0;
}

/* Sequences of a pool, each with its prompt and its response in a cache of its own. */
typedef struct {
    int64_t tokens; /* slots of a cache */
    const int64_t *token_A, *length_A;
    float *keys_ALGKS, *values_ALGSK, *hidden_AD;
} Slots;

/* One more token of the sequences from `first` to `last`: it joins their caches; the hidden states that follow. */
int read_slots(const Model *m, const Slots *s, int64_t first, int64_t last) {
    static const int64_t none[ROWS] = {0};
    Scratch t;
    Live live[ROWS];
    void *memory;
    if (make_scratch(m, 0, s->tokens, 0, &t, &memory)) return 1;
    t.keys = s->keys_ALGKS;
    t.values = s->values_ALGSK;
    Batch b = {.problems = 1, .problem_B = none, .padding_P = none, .keys_LPGKT = t.keys, .values_LPGTK = t.values};
    for (int64_t start = first; start < last; start += ROWS) {
        int64_t count = last - start < ROWS ? last - start : ROWS;
        for (int64_t r = 0; r < count; r++)
            live[r] = (Live){
                .row = r, .step = s->length_A[start + r] + 1, .place = start + r, .token = s->token_A[start + r]};
        read_rows(m, &b, &t, live, count);
        for (int64_t r = 0; r < count; r++)
            memcpy(s->hidden_AD + (start + r) * m->width, t.h + r * t.D, (size_t)m->width * sizeof(float));
    }
    free(memory);
    return 0;
}
