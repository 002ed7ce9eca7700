/* Vectors of floats as wide as the processor has them, by the compiler's own vector types. */
#ifndef ISOCOMPUTE_VECTORS_H
#define ISOCOMPUTE_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* The first whole cache line: a vector that lies in two of them is read and written twice. */
static inline float *aligned(void *memory) { return (float *)(((uintptr_t)memory + 63) / 64 * 64); }

static inline vec all(float x) { return (vec){0} + x; }

static inline vec at(const float *p) { return *(const vec *)p; }

static inline void put(float *p, vec x) { *(vec *)p = x; }

static inline vec chosen(ivec which, vec a, vec b) { return (vec)(((ivec)a & which) | ((ivec)b & ~which)); }

static inline vec larger(vec a, vec b) { return chosen(a > b, a, b); }

/* Halves onto each other, until one number is left. */
static inline float sum_of(vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x); /* the same without leaving the registers, as below */
#endif
    float part[LANES];
    put(part, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* In double: beside a probability near 1 the small ones count as well. */
static inline double exact_sum_of(vec x) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += (double)x[i];
    return sum;
}

static inline float largest_of(vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#endif
    float part[LANES];
    put(part, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] = part[i + half] > part[i] ? part[i + half] : part[i];
    return part[0];
}

/* The first `n` of a vector's numbers, zero for the others; beyond the end of an array nothing is read or written. */
static inline vec first(vec x, int64_t n) {
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    ivec inside = *(const ivec *)lane < (ivec){0} + (int32_t)(n < LANES ? n : LANES);
    return (vec)((ivec)x & inside);
}

static inline vec some(const float *p, int64_t n) {
    if (n >= LANES) return at(p);
    vec out = all(0);
    memcpy(&out, p, (size_t)n * sizeof(float));
    return out;
}

static inline void put_some(float *p, vec x, int64_t n) {
    if (n >= LANES)
        put(p, x);
    else
        memcpy(p, &x, (size_t)n * sizeof(float));
}

static inline float dot(const float *x, const float *y, int64_t n) {
    vec sum = all(0);
    for (int64_t i = 0; i < n; i += LANES) sum += some(x + i, n - i) * some(y + i, n - i);
    return sum_of(sum);
}

static inline float largest_in(const float *x, int64_t n) {
    vec most = all(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) most = larger(at(x + i), most);
    float top = largest_of(most);
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* exp to about 1e-7: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (coefficients of Cephes' expf). */
static inline vec exp_of(vec x) {
    x = chosen(x < all(-87.0f), all(-87.0f), x); /* what is no number stays so */
    x = chosen(x > all(88.0f), all(88.0f), x);
    vec shifted = x * all(1.44269504f) + all(12582912.0f); /* adding 1.5 · 2^23 rounds to a whole number */
    vec n = shifted - all(12582912.0f);
    vec r = x - n * all(0.693359375f) + n * all(2.12194440e-4f);
    vec p = all(1.9875691500e-4f);
    p = p * r + all(1.3981999507e-3f);
    p = p * r + all(8.3334519073e-3f);
    p = p * r + all(4.1665795894e-2f);
    p = p * r + all(1.6666665459e-1f);
    p = p * r + all(5.0000001201e-1f);
    p = p * r * r + r + all(1.0f);
    ivec power = ((ivec)shifted << 23) + (ivec)all(1.0f);
    return p * (vec)power;
}

/* out_S = x_K · m_KS for whole vectors of slots, as many as hold `count`; K is even. Sums run side by side, since a
 * processor goes on adding while it waits for a sum.
 */
static inline __attribute__((always_inline)) void across(
    int n, const float *x_K, int64_t K, const float *m_KS, int64_t stride, float *out_S) {
    vec even[4], odd[4];
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) even[j] = odd[j] = all(0);
    for (int64_t k = 0; k < K; k += 2) {
        vec first_x = all(x_K[k]), second_x = all(x_K[k + 1]);
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) {
            even[j] += first_x * at(m_KS + k * stride + j * LANES);
            odd[j] += second_x * at(m_KS + (k + 1) * stride + j * LANES);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) put(out_S + j * LANES, even[j] + odd[j]);
}

static inline void against(
    const float *x_K, int64_t K, const float *m_KS, int64_t stride, int64_t count, float *out_S) {
    int64_t s = 0;
    for (; s + 3 * LANES < count; s += 4 * LANES) across(4, x_K, K, m_KS + s, stride, out_S + s);
    if (s + 2 * LANES < count)
        across(3, x_K, K, m_KS + s, stride, out_S + s);
    else if (s + LANES < count)
        across(2, x_K, K, m_KS + s, stride, out_S + s);
    else if (s < count)
        across(1, x_K, K, m_KS + s, stride, out_S + s);
}

/* The sum of w_s · m_s over slots, for one vector of columns. */
static inline vec along(const float *w_S, const float *m_SK, int64_t stride, int64_t count) {
    vec sum[4] = {all(0), all(0), all(0), all(0)};
    int64_t s = 0;
    for (; s + 4 <= count; s += 4) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sum[j] += all(w_S[s + j]) * at(m_SK + (s + j) * stride);
    }
    for (; s < count; s++) sum[0] += all(w_S[s]) * at(m_SK + s * stride);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

#endif
