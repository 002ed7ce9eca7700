/* The element-wise parts of a training pass on a CPU, each with its gradient; matrix products are a library's.
 *
 * Tokens stand in one flat array, a problem after the other: its prompt, then each of its responses without the last
 * token. A response looks at its prompt and at itself. Names as in generate.c; N tokens. Every function answers 0, or 1
 * where there is no memory for it.
 */
#include "vectors.h"

/* y = w · x / sqrt(mean x² + ε), row by row; `scale_N` is kept for the gradient. */
int norm_forward(
    const float *x_ND, const float *w_D, int64_t rows, int64_t D, float epsilon, float *y_ND, float *scale_N) {
    for (int64_t r = 0; r < rows; r++) {
        const float *x = x_ND + r * D;
        float *y = y_ND + r * D;
        float scale = scale_N[r] = 1.0f / sqrtf(dot(x, x, D) / (float)D + epsilon);
        for (int64_t i = 0; i < D; i++) y[i] = x[i] * scale * w_D[i];
    }
    return 0;
}

/* dx = s (w g - u mean(w g u)) with u = x s; dw += g u. */
int norm_backward(
    const float *x_ND, const float *w_D, const float *scale_N, const float *g_ND, int64_t rows, int64_t D, float *dx_ND,
    float *dw_D) {
    for (int64_t r = 0; r < rows; r++) {
        const float *x = x_ND + r * D, *g = g_ND + r * D;
        float *dx = dx_ND + r * D, scale = scale_N[r];
        for (int64_t i = 0; i < D; i++) dx[i] = g[i] * w_D[i];
        float mean = dot(dx, x, D) * scale * scale / (float)D;
        for (int64_t i = 0; i < D; i++) {
            dx[i] = scale * (dx[i] - x[i] * mean);
            dw_D[i] += g[i] * x[i] * scale;
        }
    }
    return 0;
}

/* silu(gate) · up, where a row holds gate and up side by side. */
int swiglu_forward(const float *both_NF, int64_t rows, int64_t F, float *out_NF) {
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = both_NF + r * 2 * F, *up = gate + F;
        for (int64_t i = 0; i < F; i += LANES) {
            vec x = some(gate + i, F - i);
            put_some(out_NF + r * F + i, x / (all(1.0f) + exp_of(-x)) * some(up + i, F - i), F - i);
        }
    }
    return 0;
}

int swiglu_backward(const float *both_NF, const float *g_NF, int64_t rows, int64_t F, float *d_NF) {
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = both_NF + r * 2 * F, *up = gate + F;
        float *to = d_NF + r * 2 * F;
        for (int64_t i = 0; i < F; i += LANES) {
            vec x = some(gate + i, F - i), g = some(g_NF + r * F + i, F - i);
            vec sigmoid = all(1.0f) / (all(1.0f) + exp_of(-x));
            put_some(to + i, g * some(up + i, F - i) * sigmoid * (all(1.0f) + x * (all(1.0f) - sigmoid)), F - i);
            put_some(to + F + i, g * x * sigmoid, F - i);
        }
    }
    return 0;
}

/* Log-prob of each row's token, and the entropy of the distribution softmax(logits / temperature) it comes from. */
int choice_forward(
    const float *logits_NV, const int64_t *token_N, int64_t rows, int64_t V, float temperature, float *logprob_N,
    float *entropy_N, float *log_sum_N) {
    vec cold = all(1.0f / temperature);
    for (int64_t r = 0; r < rows; r++) {
        const float *logits = logits_NV + r * V;
        float top = largest_in(logits, V);
        vec total = all(0), mean = all(0);
        for (int64_t v = 0; v < V; v += LANES) {
            vec x = (some(logits + v, V - v) - all(top)) * cold, p = first(exp_of(x), V - v);
            total += p;
            mean += p * x;
        }
        double sum = exact_sum_of(total);
        float log_sum = (float)log(sum);
        log_sum_N[r] = log_sum; /* beside the largest logit: a probability near 1 needs all its digits */
        logprob_N[r] = (logits[token_N[r]] - top) * cold[0] - log_sum;
        entropy_N[r] = (float)(log(sum) - exact_sum_of(mean) / sum);
    }
    return 0;
}

/* dlogit_v = (a (1[v = token] - p_v) - b p_v (log p_v + entropy)) / temperature, for gradients a and b of the two. */
int choice_backward(
    const float *logits_NV, const int64_t *token_N, const float *log_sum_N, const float *entropy_N, const float *a_N,
    const float *b_N, int64_t rows, int64_t V, float temperature, float *d_NV) {
    float cold = 1.0f / temperature;
    for (int64_t r = 0; r < rows; r++) {
        const float *logits = logits_NV + r * V;
        float *d = d_NV + r * V;
        vec a = all(a_N[r]), b = all(b_N[r]), entropy = all(entropy_N[r]), top = all(largest_in(logits, V));
        for (int64_t v = 0; v < V; v += LANES) {
            vec x = (some(logits + v, V - v) - top) * all(cold) - all(log_sum_N[r]);
            put_some(d + v, -exp_of(x) * (a + b * (x + entropy)) * all(cold), V - v);
        }
        d[token_N[r]] += a_N[r] * cold;
    }
    return 0;
}

typedef struct {
    int64_t heads, groups, size, problems, slots; /* the most tokens of a prompt and a response together */
    const int64_t *prompt_P, *length_P;           /* where a problem's prompt starts, its tokens */
    const int64_t *first_P;                       /* its first response; `problems` + 1 of them */
    const int64_t *response_B, *length_B;
    const float *cos_PK, *sin_PK, *norm_HK; /* no norm: null */
    float epsilon;
} Attention;

enum { QUERIES = 4 }; /* that share a pass over the slots */

typedef struct {
    int64_t S, K;                                     /* padded sizes */
    float *keys_KS, *keys_SK, *values_KS, *values_SK; /* of a prompt and a response, for one key-value head */
    float *dkeys_SK, *dvalues_SK, *score_QS, *ds_QS, *q_QK, *d_QK, *dq_K;
    void *memory;
} Room;

static int make_room(const Attention *a, Room *room) {
    int64_t S = room->S = padded(a->slots), K = room->K = padded(a->size);
    float **parts[] = {&room->keys_KS,  &room->keys_SK,    &room->values_KS, &room->values_SK,
                       &room->dkeys_SK, &room->dvalues_SK, &room->score_QS,  &room->ds_QS,
                       &room->q_QK,     &room->d_QK,       &room->dq_K};
    int64_t Q = QUERIES, total = 0;
    int64_t sizes[] = {S * K, S * K, S * K, S * K, S * K, S * K, Q * S, Q * S, Q * K, Q * K, K};
    for (int i = 0; i < 11; i++) total += sizes[i] = (sizes[i] + 15) / 16 * 16;
    room->memory = calloc((size_t)total + 16, sizeof(float)); /* padding stays zero and adds nothing */
    if (!room->memory) return 1;
    float *start = aligned(room->memory);
    for (int i = 0; i < 11; i++) {
        *parts[i] = start;
        start += sizes[i];
    }
    return 0;
}

/* A head of q or k as attention sees it: normed, rotated, and times a factor. */
static void turned(
    const Attention *a, int64_t head, const float *restrict x_K, int64_t position, float factor,
    float *restrict out_K) {
    int64_t K = a->size, half = K / 2;
    const float *restrict cos_K = a->cos_PK + position * K, *restrict sin_K = a->sin_PK + position * K;
    float unit[K];
    if (a->norm_HK) {
        const float *w_K = a->norm_HK + head * K;
        float scale = 1.0f / sqrtf(dot(x_K, x_K, K) / (float)K + a->epsilon);
        for (int64_t k = 0; k < K; k++) unit[k] = x_K[k] * scale * w_K[k];
        x_K = unit;
    }
    for (int64_t k = 0; k < half; k++) {
        out_K[k] = factor * (x_K[k] * cos_K[k] + x_K[k + half] * sin_K[k]);
        out_K[k + half] = factor * (x_K[k + half] * cos_K[k + half] + x_K[k] * sin_K[k + half]);
    }
}

/* The gradient of `turned`; that of the norm's weights is added to `dw_HK`. */
static void turned_back(
    const Attention *a, int64_t head, const float *restrict x_K, int64_t position, const float *restrict g_K,
    float *restrict dx_K, float *restrict dw_HK) {
    int64_t K = a->size, half = K / 2;
    const float *restrict cos_K = a->cos_PK + position * K, *restrict sin_K = a->sin_PK + position * K;
    float d[K];
    for (int64_t k = 0; k < half; k++) {
        d[k] = g_K[k] * cos_K[k] + g_K[k + half] * sin_K[k + half];
        d[k + half] = g_K[k + half] * cos_K[k + half] + g_K[k] * sin_K[k];
    }
    if (!a->norm_HK) {
        memcpy(dx_K, d, (size_t)K * sizeof(float));
        return;
    }
    const float *w_K = a->norm_HK + head * K;
    float scale = 1.0f / sqrtf(dot(x_K, x_K, K) / (float)K + a->epsilon);
    for (int64_t k = 0; k < K; k++) {
        dw_HK[head * K + k] += d[k] * x_K[k] * scale;
        d[k] *= w_K[k];
    }
    float mean = dot(d, x_K, K) * scale * scale / (float)K;
    for (int64_t k = 0; k < K; k++) dx_K[k] = scale * (d[k] - x_K[k] * mean);
}

/* Keys and values of some tokens of one key-value head, into slots from `slot` on. */
static void gather(
    const Attention *a, const Room *room, const float *qkv_NC, int64_t g, int64_t start, int64_t count, int64_t slot) {
    int64_t H = a->heads, G = a->groups, K = a->size, C = (H + 2 * G) * K;
    for (int64_t t = 0; t < count; t++) {
        const float *row = qkv_NC + (start + t) * C;
        float *key = room->keys_SK + (slot + t) * room->K, *value = room->values_SK + (slot + t) * room->K;
        turned(a, H + g, row + (H + g) * K, slot + t, 1.0f, key);
        memcpy(value, row + (H + G + g) * K, (size_t)K * sizeof(float));
        for (int64_t k = 0; k < K; k++) {
            room->keys_KS[k * room->S + slot + t] = key[k];
            room->values_KS[k * room->S + slot + t] = value[k];
        }
    }
}

/* Queries of some tokens, which see `slot` + 1, `slot` + 2, … slots. */
static void look(
    const Attention *a, const Room *room, const float *qkv_NC, int64_t g, int64_t start, int64_t count, int64_t slot,
    float *out_NA, float *normaliser_NH) {
    int64_t H = a->heads, K = a->size, C = (H + 2 * a->groups) * K;
    float cold = 1.0f / sqrtf((float)K);
    for (int64_t t = 0; t < count; t++) {
        int64_t seen = slot + t + 1;
        for (int64_t h = g * (H / a->groups); h < (g + 1) * (H / a->groups); h++) {
            turned(a, h, qkv_NC + (start + t) * C + h * K, slot + t, cold, room->q_QK);
            against(room->q_QK, K, room->keys_KS, room->S, seen, room->score_QS);
            float most = largest_in(room->score_QS, seen);
            vec total = all(0);
            for (int64_t s = 0; s < seen; s += LANES) {
                vec p = first(exp_of(at(room->score_QS + s) - all(most)), seen - s);
                put(room->score_QS + s, p);
                total += p;
            }
            float sum = sum_of(total);
            for (int64_t k = 0; k < K; k += LANES) {
                vec mean = along(room->score_QS, room->values_SK + k, room->K, seen) / all(sum);
                put_some(out_NA + (start + t) * H * K + h * K + k, mean, K - k);
            }
            normaliser_NH[(start + t) * H + h] = most + logf(sum);
        }
    }
}

/* Attention of the problems from `first` to `last`; 1 where there is no memory for it. */
int attention_forward(
    const Attention *a, const float *qkv_NC, int64_t first, int64_t last, float *out_NA, float *normaliser_NH) {
    Room room;
    if (make_room(a, &room)) return 1;
    for (int64_t p = first; p < last; p++)
        for (int64_t g = 0; g < a->groups; g++) {
            gather(a, &room, qkv_NC, g, a->prompt_P[p], a->length_P[p], 0);
            look(a, &room, qkv_NC, g, a->prompt_P[p], a->length_P[p], 0, out_NA, normaliser_NH);
            for (int64_t b = a->first_P[p]; b < a->first_P[p + 1]; b++) {
                gather(a, &room, qkv_NC, g, a->response_B[b], a->length_B[b], a->length_P[p]);
                look(a, &room, qkv_NC, g, a->response_B[b], a->length_B[b], a->length_P[p], out_NA, normaliser_NH);
            }
        }
    free(room.memory);
    return 0;
}

/* One query's weights p and gradients of its scores, into `score` and `ds`; q and the gradient of its output beside. */
static void weigh(
    const Attention *a, const Room *room, const float *x_K, int64_t head, int64_t seen, const float *out_K,
    const float *g_K, float normaliser, float *q_K, float *d_K, float *score_S, float *ds_S) {
    int64_t K = a->size;
    float cold = 1.0f / sqrtf((float)K);
    memcpy(d_K, g_K, (size_t)K * sizeof(float));
    turned(a, head, x_K, seen - 1, cold, q_K);
    vec mean = all(dot(out_K, g_K, K));
    against(q_K, K, room->keys_KS, room->S, seen, score_S);
    against(d_K, K, room->values_KS, room->S, seen, ds_S);
    for (int64_t s = 0; s < seen; s += LANES) {
        vec p = first(exp_of(at(score_S + s) - all(normaliser)), seen - s);
        put(score_S + s, p);
        put(ds_S + s, p * (at(ds_S + s) - mean));
    }
}

/* What QUERIES queries add to the gradients of keys and values: a slot is read and written once for all of them. */
static void add_up(const Room *room, int64_t K, int64_t seen) {
    int64_t S = room->S;
    for (int64_t k = 0; k < K; k += LANES) {
        vec q[QUERIES], d[QUERIES];
        for (int j = 0; j < QUERIES; j++) {
            q[j] = at(room->q_QK + j * room->K + k);
            d[j] = at(room->d_QK + j * room->K + k);
        }
        for (int64_t s = 0; s < seen; s++) {
            float *dkey = room->dkeys_SK + s * room->K + k, *dvalue = room->dvalues_SK + s * room->K + k;
            vec key = at(dkey), value = at(dvalue);
#pragma GCC unroll 4
            for (int j = 0; j < QUERIES; j++) {
                key += all(room->ds_QS[j * S + s]) * q[j];
                value += all(room->score_QS[j * S + s]) * d[j];
            }
            put(dkey, key);
            put(dvalue, value);
        }
    }
}

/* The gradient of `look`: that of queries is done, those of keys and values are added up by slot. */
static void look_back(
    const Attention *a, const Room *room, const float *qkv_NC, int64_t g, int64_t start, int64_t count, int64_t slot,
    const float *out_NA, const float *normaliser_NH, const float *g_NA, float *d_NC, float *dw_HK) {
    int64_t H = a->heads, K = a->size, C = (H + 2 * a->groups) * K, shared = H / a->groups;
    float cold = 1.0f / sqrtf((float)K);
    for (int64_t i = 0; i < count * shared; i += QUERIES) {
        int64_t queries = count * shared - i < QUERIES ? count * shared - i : QUERIES;
        int64_t last = padded(slot + (i + queries - 1) / shared + 1);
        for (int64_t j = 0; j < QUERIES; j++) {
            float *score_S = room->score_QS + j * room->S, *ds_S = room->ds_QS + j * room->S;
            int64_t t = start + (i + j) / shared, head = g * shared + (i + j) % shared;
            int64_t seen = j < queries ? slot + (i + j) / shared + 1 : 0, where = (t * H + head) * K;
            if (seen)
                weigh(
                    a, room, qkv_NC + t * C + head * K, head, seen, out_NA + where, g_NA + where,
                    normaliser_NH[t * H + head], room->q_QK + j * room->K, room->d_QK + j * room->K, score_S, ds_S);
            for (int64_t s = padded(seen); s < last; s += LANES) {
                put(score_S + s, all(0));
                put(ds_S + s, all(0));
            }
        }
        add_up(room, K, last < room->S ? last : room->S);
        for (int64_t j = 0; j < queries; j++) {
            int64_t t = (i + j) / shared, head = g * shared + (i + j) % shared, seen = slot + t + 1;
            for (int64_t k = 0; k < K; k += LANES)
                put(room->dq_K + k, along(room->ds_QS + j * room->S, room->keys_SK + k, room->K, seen) * all(cold));
            float *to_K = d_NC + (start + t) * C + head * K;
            turned_back(a, head, qkv_NC + (start + t) * C + head * K, slot + t, room->dq_K, to_K, dw_HK);
        }
    }
}

/* The gradient of `gather`, which empties the slots for the next. */
static void gather_back(
    const Attention *a, const Room *room, const float *qkv_NC, int64_t g, int64_t start, int64_t count, int64_t slot,
    float *d_NC, float *dw_HK) {
    int64_t H = a->heads, G = a->groups, K = a->size, C = (H + 2 * G) * K;
    for (int64_t t = 0; t < count; t++) {
        const float *row = qkv_NC + (start + t) * C;
        float *to = d_NC + (start + t) * C, *dkey = room->dkeys_SK + (slot + t) * room->K;
        float *dvalue = room->dvalues_SK + (slot + t) * room->K;
        turned_back(a, H + g, row + (H + g) * K, slot + t, dkey, to + (H + g) * K, dw_HK);
        memcpy(to + (H + G + g) * K, dvalue, (size_t)K * sizeof(float));
        memset(dkey, 0, (size_t)K * sizeof(float));
        memset(dvalue, 0, (size_t)K * sizeof(float));
    }
}

/* The gradient of `attention_forward` by its inputs, and by the norms' weights in `dw_HK`. */
int attention_backward(
    const Attention *a, const float *qkv_NC, int64_t first, int64_t last, const float *out_NA,
    const float *normaliser_NH, const float *g_NA, float *d_NC, float *dw_HK) {
    Room room;
    if (make_room(a, &room)) return 1;
    for (int64_t p = first; p < last; p++)
        for (int64_t g = 0; g < a->groups; g++) {
            int64_t prompt = a->prompt_P[p], length = a->length_P[p];
            gather(a, &room, qkv_NC, g, prompt, length, 0);
            look_back(a, &room, qkv_NC, g, prompt, length, 0, out_NA, normaliser_NH, g_NA, d_NC, dw_HK);
            for (int64_t b = a->first_P[p]; b < a->first_P[p + 1]; b++) {
                int64_t start = a->response_B[b], count = a->length_B[b];
                gather(a, &room, qkv_NC, g, start, count, length);
                look_back(a, &room, qkv_NC, g, start, count, length, out_NA, normaliser_NH, g_NA, d_NC, dw_HK);
                gather_back(a, &room, qkv_NC, g, start, count, length, d_NC, dw_HK);
            }
            gather_back(a, &room, qkv_NC, g, prompt, length, 0, d_NC, dw_HK);
        }
    free(room.memory);
    return 0;
}
