/* The reduction kernel: one pass over a dense run of floats, eight doubles out (count nan inf zeros sum sumsq min max).
 *
 * Every element is widened to double before it is summed or squared: a float's square is exact in double and can neither
 * overflow nor underflow, so there is no compensation and no error to bound but double's own. The run is taken in blocks. A block is
 * first read as if it were all finite; its sum of squares is finite exactly when that was true (or, for float64, when nothing overflowed).
 * Otherwise the block, still in cache, is read again with masks. Comparisons that count look at bits, never at values:
 * with torch.set_flush_denormal(True) a subnormal compares equal to zero.
 *
 * No torch headers, Python's limited API only: one binary serves every Python from 3.10 and every torch.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define HAS_X86 1
#include <immintrin.h>
#define T512 __attribute__((target("avx512f")))
#define T256 __attribute__((target("avx2,fma,f16c")))
#else
#define HAS_X86 0
#endif
#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_NEON 1
#include <arm_neon.h>
#else
#define HAS_NEON 0
#endif
#if defined(_MSC_VER)
#define ALWAYS static __forceinline
#else
#define ALWAYS static inline __attribute__((always_inline))
#endif

enum { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, DTYPES };
enum { BLOCK = 8192, AHEAD = 512 /* elements */, CHANGES = 2048, RELEASE_GIL_FROM = 16384 };

typedef struct {
    double nan, inf, zeros, sum, sumsq, min, max;
} Totals;

/* Reads n elements from x; with masked == 0 the result is right only if every element is finite. */
typedef void (*BlockReader)(const void *x, int64_t n, int masked, Totals *t);

ALWAYS double least(double a, double b) { return b < a ? b : a; }
ALWAYS double greatest(double a, double b) { return b > a ? b : a; }

/* ---- one element at a time: the ends of blocks, and every machine without a vector path of its own ---- */

ALWAYS double load_f32(const void *x, int64_t i) { return ((const float *)x)[i]; }
ALWAYS double load_f64(const void *x, int64_t i) { return ((const double *)x)[i]; }
ALWAYS double from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
ALWAYS double load_bf16(const void *x, int64_t i) { return from_bits((uint32_t)((const uint16_t *)x)[i] << 16); }
ALWAYS double load_f16(const void *x, int64_t i) {
    uint32_t half = ((const uint16_t *)x)[i], sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u) return from_bits(sign | ((rest << 13) + (112u << 23)));
    double subnormal = rest * (1.0 / 16777216.0);
    return sign ? -subnormal : subnormal;
}
ALWAYS int zero_f32(const void *x, int64_t i) {
    uint32_t bits;
    memcpy(&bits, (const char *)x + 4 * i, 4);
    return bits << 1 == 0;
}
ALWAYS int zero_f64(const void *x, int64_t i) {
    uint64_t bits;
    memcpy(&bits, (const char *)x + 8 * i, 8);
    return bits << 1 == 0;
}
ALWAYS int zero_16(const void *x, int64_t i) { return (uint16_t)(((const uint16_t *)x)[i] << 1) == 0; }

/* Eight independent lanes: no lane waits for another's addition, and compilers turn them into vectors. */
#define SCALAR_READER(NAME, LOAD, ZERO)                                                                      \
    ALWAYS void take_##NAME(const void *x, int64_t i, int masked, Totals *t) {                               \
        double v = LOAD(x, i);                                                                               \
        t->zeros += ZERO(x, i);                                                                              \
        t->min = least(t->min, v);                                                                           \
        t->max = greatest(t->max, v);                                                                        \
        if (masked) {                                                                                        \
            int nan = v != v, finite = v - v == 0;                                                           \
            t->nan += nan;                                                                                   \
            t->inf += !finite && !nan;                                                                       \
            v = finite ? v : 0.0;                                                                            \
        }                                                                                                    \
        t->sum += v;                                                                                         \
        t->sumsq += v * v;                                                                                   \
    }                                                                                                        \
    static void NAME##_generic(const void *x, int64_t n, int masked, Totals *t) {                            \
        double sum[8] = {0}, sumsq[8] = {0}, lo[8], hi[8];                                                   \
        int64_t i = 0, zeros = 0;                                                                            \
        for (int j = 0; j < 8; j++) lo[j] = INFINITY, hi[j] = -INFINITY;                                     \
        for (; !masked && i + 8 <= n; i += 8)                                                                \
            for (int j = 0; j < 8; j++) {                                                                    \
                double v = LOAD(x, i + j);                                                                   \
                zeros += ZERO(x, i + j);                                                                     \
                sum[j] += v, sumsq[j] += v * v;                                                              \
                lo[j] = least(lo[j], v), hi[j] = greatest(hi[j], v);                                         \
            }                                                                                                \
        for (int j = 0; j < 8; j++) {                                                                        \
            t->sum += sum[j], t->sumsq += sumsq[j];                                                          \
            t->min = least(t->min, lo[j]), t->max = greatest(t->max, hi[j]);                                 \
        }                                                                                                    \
        t->zeros += (double)zeros;                                                                           \
        for (; i < n; i++) take_##NAME(x, i, masked, t);                                                     \
    }

SCALAR_READER(f32, load_f32, zero_f32)
SCALAR_READER(f64, load_f64, zero_f64)
SCALAR_READER(f16, load_f16, zero_16)
SCALAR_READER(bf16, load_bf16, zero_16)

static const BlockReader GENERIC[DTYPES] = {f32_generic, f64_generic, f16_generic, bf16_generic};

#if HAS_X86 || HAS_NEON
/* The vector readers share one shape: full vectors into lane accumulators, lanes into the totals, the last few elements one by one. */
#define VECTOR_READER(NAME, ISA, TARGET, ELEMENT, WIDTH, ACC, LOAD)                                          \
    TARGET static void NAME##_##ISA(const void *x, int64_t n, int masked, Totals *t) {                       \
        const ELEMENT *p = x;                                                                                \
        ACC a = ACC##_start();                                                                               \
        int64_t i = 0;                                                                                       \
        if (masked)                                                                                          \
            for (; i + WIDTH <= n; i += WIDTH) ACC##_take(&a, LOAD(p + i), 1);                               \
        else                                                                                                 \
            for (; i + WIDTH <= n; i += WIDTH) ACC##_take(&a, LOAD(p + i), 0);                               \
        ACC##_fold(&a, t);                                                                                   \
        for (; i < n; i++) take_##NAME(x, i, masked, t);                                                     \
    }
#endif

#if HAS_X86
/* ---- AVX-512: sixteen floats or eight doubles ---- */

typedef struct {
    __m512d sum[2], sumsq[2];
    __m512 lo, hi;
    __m512i nan, inf, zeros;
} F512;

T512 ALWAYS F512 F512_start(void) {
    __m512d d = _mm512_setzero_pd();
    __m512i c = _mm512_setzero_si512();
    F512 a = {{d, d}, {d, d}, _mm512_set1_ps(INFINITY), _mm512_set1_ps(-INFINITY), c, c, c};
    return a;
}
T512 ALWAYS void F512_sum(F512 *a, __m512d low, __m512d high) {
    a->sum[0] = _mm512_add_pd(a->sum[0], low);
    a->sum[1] = _mm512_add_pd(a->sum[1], high);
    a->sumsq[0] = _mm512_fmadd_pd(low, low, a->sumsq[0]);
    a->sumsq[1] = _mm512_fmadd_pd(high, high, a->sumsq[1]);
}
T512 ALWAYS void F512_take(F512 *a, __m512 v, int masked) {
    const __m512i one = _mm512_set1_epi32(1), magnitude = _mm512_set1_epi32(0x7fffffff), infinity = _mm512_set1_epi32(0x7f800000);
    __m512i bits = _mm512_castps_si512(v);
    a->zeros = _mm512_mask_add_epi32(a->zeros, _mm512_testn_epi32_mask(bits, magnitude), a->zeros, one);
    a->lo = _mm512_min_ps(v, a->lo); /* of a NaN and a number, min and max yield the second operand */
    a->hi = _mm512_max_ps(v, a->hi);
    if (masked) {
        bits = _mm512_and_si512(bits, magnitude);
        a->nan = _mm512_mask_add_epi32(a->nan, _mm512_cmpgt_epi32_mask(bits, infinity), a->nan, one);
        a->inf = _mm512_mask_add_epi32(a->inf, _mm512_cmpeq_epi32_mask(bits, infinity), a->inf, one);
        v = _mm512_maskz_mov_ps(_mm512_cmplt_epi32_mask(bits, infinity), v);
    }
    F512_sum(a, _mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1))));
}
/* Finite floats in memory: to widen them from there spares the port that shuffles, which is the one that is busy. */
T512 ALWAYS void F512_take_clean(F512 *a, const float *p) {
    __m512 v = _mm512_loadu_ps(p);
    const __m512i one = _mm512_set1_epi32(1), magnitude = _mm512_set1_epi32(0x7fffffff);
    a->zeros = _mm512_mask_add_epi32(a->zeros, _mm512_testn_epi32_mask(_mm512_castps_si512(v), magnitude), a->zeros, one);
    a->lo = _mm512_min_ps(v, a->lo);
    a->hi = _mm512_max_ps(v, a->hi);
    F512_sum(a, _mm512_cvtps_pd(_mm256_loadu_ps(p)), _mm512_cvtps_pd(_mm256_loadu_ps(p + 8)));
}
T512 ALWAYS void F512_fold(const F512 *a, Totals *t) {
    t->nan += _mm512_reduce_add_epi32(a->nan);
    t->inf += _mm512_reduce_add_epi32(a->inf);
    t->zeros += _mm512_reduce_add_epi32(a->zeros);
    t->sum += _mm512_reduce_add_pd(_mm512_add_pd(a->sum[0], a->sum[1]));
    t->sumsq += _mm512_reduce_add_pd(_mm512_add_pd(a->sumsq[0], a->sumsq[1]));
    t->min = least(t->min, _mm512_reduce_min_ps(a->lo));
    t->max = greatest(t->max, _mm512_reduce_max_ps(a->hi));
}

typedef struct {
    __m512d sum, sumsq, lo, hi;
    __m512i nan, inf, zeros;
} D512;

T512 ALWAYS D512 D512_start(void) {
    __m512d d = _mm512_setzero_pd();
    __m512i c = _mm512_setzero_si512();
    D512 a = {d, d, _mm512_set1_pd(INFINITY), _mm512_set1_pd(-INFINITY), c, c, c};
    return a;
}
T512 ALWAYS void D512_take(D512 *a, __m512d v, int masked) {
    const __m512i one = _mm512_set1_epi64(1), magnitude = _mm512_set1_epi64(0x7fffffffffffffffLL);
    const __m512i infinity = _mm512_set1_epi64(0x7ff0000000000000LL);
    __m512i bits = _mm512_castpd_si512(v);
    a->zeros = _mm512_mask_add_epi64(a->zeros, _mm512_testn_epi64_mask(bits, magnitude), a->zeros, one);
    a->lo = _mm512_min_pd(v, a->lo);
    a->hi = _mm512_max_pd(v, a->hi);
    if (masked) {
        bits = _mm512_and_si512(bits, magnitude);
        a->nan = _mm512_mask_add_epi64(a->nan, _mm512_cmpgt_epi64_mask(bits, infinity), a->nan, one);
        a->inf = _mm512_mask_add_epi64(a->inf, _mm512_cmpeq_epi64_mask(bits, infinity), a->inf, one);
        v = _mm512_maskz_mov_pd(_mm512_cmplt_epi64_mask(bits, infinity), v);
    }
    a->sum = _mm512_add_pd(a->sum, v);
    a->sumsq = _mm512_fmadd_pd(v, v, a->sumsq);
}
T512 ALWAYS void D512_fold(const D512 *a, Totals *t) {
    t->nan += (double)_mm512_reduce_add_epi64(a->nan);
    t->inf += (double)_mm512_reduce_add_epi64(a->inf);
    t->zeros += (double)_mm512_reduce_add_epi64(a->zeros);
    t->sum += _mm512_reduce_add_pd(a->sum);
    t->sumsq += _mm512_reduce_add_pd(a->sumsq);
    t->min = least(t->min, _mm512_reduce_min_pd(a->lo));
    t->max = greatest(t->max, _mm512_reduce_max_pd(a->hi));
}

#define LOAD512_f16(P) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(P)))
#define LOAD512_bf16(P) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(P))), 16))
T512 static void f32_avx512(const void *x, int64_t n, int masked, Totals *t) {
    const float *p = x;
    F512 a = F512_start();
    int64_t i = 0;
    if (masked)
        for (; i + 16 <= n; i += 16) F512_take(&a, _mm512_loadu_ps(p + i), 1);
    else
        for (; i + 16 <= n; i += 16) {
            _mm_prefetch((const char *)(p + i + AHEAD), _MM_HINT_T0);
            F512_take_clean(&a, p + i);
        }
    F512_fold(&a, t);
    for (; i < n; i++) take_f32(x, i, masked, t);
}
VECTOR_READER(f64, avx512, T512, double, 8, D512, _mm512_loadu_pd)
VECTOR_READER(f16, avx512, T512, uint16_t, 16, F512, LOAD512_f16)
VECTOR_READER(bf16, avx512, T512, uint16_t, 16, F512, LOAD512_bf16)
static const BlockReader AVX512[DTYPES] = {f32_avx512, f64_avx512, f16_avx512, bf16_avx512};

/* ---- AVX2 with FMA and F16C: eight floats or four doubles; a comparison yields -1 where it holds ---- */

typedef struct {
    __m256d sum[2], sumsq[2];
    __m256 lo, hi;
    __m256i nan, inf, zeros;
} F256;

T256 ALWAYS F256 F256_start(void) {
    __m256d d = _mm256_setzero_pd();
    __m256i c = _mm256_setzero_si256();
    F256 a = {{d, d}, {d, d}, _mm256_set1_ps(INFINITY), _mm256_set1_ps(-INFINITY), c, c, c};
    return a;
}
T256 ALWAYS void F256_take(F256 *a, __m256 v, int masked) {
    const __m256i infinity = _mm256_set1_epi32(0x7f800000);
    __m256i bits = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    a->zeros = _mm256_sub_epi32(a->zeros, _mm256_cmpeq_epi32(bits, _mm256_setzero_si256()));
    a->lo = _mm256_min_ps(v, a->lo);
    a->hi = _mm256_max_ps(v, a->hi);
    if (masked) {
        a->nan = _mm256_sub_epi32(a->nan, _mm256_cmpgt_epi32(bits, infinity));
        a->inf = _mm256_sub_epi32(a->inf, _mm256_cmpeq_epi32(bits, infinity));
        v = _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(infinity, bits)));
    }
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    a->sum[0] = _mm256_add_pd(a->sum[0], low);
    a->sum[1] = _mm256_add_pd(a->sum[1], high);
    a->sumsq[0] = _mm256_fmadd_pd(low, low, a->sumsq[0]);
    a->sumsq[1] = _mm256_fmadd_pd(high, high, a->sumsq[1]);
}
T256 ALWAYS void fold_lanes(const __m256d *sum, const __m256d *sumsq, Totals *t) {
    double s[4], q[4];
    _mm256_storeu_pd(s, *sum);
    _mm256_storeu_pd(q, *sumsq);
    t->sum += (s[0] + s[1]) + (s[2] + s[3]);
    t->sumsq += (q[0] + q[1]) + (q[2] + q[3]);
}
T256 ALWAYS void F256_fold(const F256 *a, Totals *t) {
    float lo[8], hi[8];
    int32_t nan[8], inf[8], zeros[8];
    __m256d sum = _mm256_add_pd(a->sum[0], a->sum[1]), sumsq = _mm256_add_pd(a->sumsq[0], a->sumsq[1]);
    fold_lanes(&sum, &sumsq, t);
    _mm256_storeu_ps(lo, a->lo);
    _mm256_storeu_ps(hi, a->hi);
    _mm256_storeu_si256((void *)nan, a->nan);
    _mm256_storeu_si256((void *)inf, a->inf);
    _mm256_storeu_si256((void *)zeros, a->zeros);
    for (int j = 0; j < 8; j++) {
        t->nan += nan[j], t->inf += inf[j], t->zeros += zeros[j];
        t->min = least(t->min, lo[j]), t->max = greatest(t->max, hi[j]);
    }
}

typedef struct {
    __m256d sum, sumsq, lo, hi;
    __m256i nan, inf, zeros;
} D256;

T256 ALWAYS D256 D256_start(void) {
    __m256d d = _mm256_setzero_pd();
    __m256i c = _mm256_setzero_si256();
    D256 a = {d, d, _mm256_set1_pd(INFINITY), _mm256_set1_pd(-INFINITY), c, c, c};
    return a;
}
T256 ALWAYS void D256_take(D256 *a, __m256d v, int masked) {
    const __m256i infinity = _mm256_set1_epi64x(0x7ff0000000000000LL);
    __m256i bits = _mm256_and_si256(_mm256_castpd_si256(v), _mm256_set1_epi64x(0x7fffffffffffffffLL));
    a->zeros = _mm256_sub_epi64(a->zeros, _mm256_cmpeq_epi64(bits, _mm256_setzero_si256()));
    a->lo = _mm256_min_pd(v, a->lo);
    a->hi = _mm256_max_pd(v, a->hi);
    if (masked) {
        a->nan = _mm256_sub_epi64(a->nan, _mm256_cmpgt_epi64(bits, infinity));
        a->inf = _mm256_sub_epi64(a->inf, _mm256_cmpeq_epi64(bits, infinity));
        v = _mm256_and_pd(v, _mm256_castsi256_pd(_mm256_cmpgt_epi64(infinity, bits)));
    }
    a->sum = _mm256_add_pd(a->sum, v);
    a->sumsq = _mm256_fmadd_pd(v, v, a->sumsq);
}
T256 ALWAYS void D256_fold(const D256 *a, Totals *t) {
    double lo[4], hi[4];
    int64_t nan[4], inf[4], zeros[4];
    fold_lanes(&a->sum, &a->sumsq, t);
    _mm256_storeu_pd(lo, a->lo);
    _mm256_storeu_pd(hi, a->hi);
    _mm256_storeu_si256((void *)nan, a->nan);
    _mm256_storeu_si256((void *)inf, a->inf);
    _mm256_storeu_si256((void *)zeros, a->zeros);
    for (int j = 0; j < 4; j++) {
        t->nan += (double)nan[j], t->inf += (double)inf[j], t->zeros += (double)zeros[j];
        t->min = least(t->min, lo[j]), t->max = greatest(t->max, hi[j]);
    }
}

#define LOAD256_f16(P) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(P)))
#define LOAD256_bf16(P) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(P))), 16))
VECTOR_READER(f32, avx2, T256, float, 8, F256, _mm256_loadu_ps)
VECTOR_READER(f64, avx2, T256, double, 4, D256, _mm256_loadu_pd)
VECTOR_READER(f16, avx2, T256, uint16_t, 8, F256, LOAD256_f16)
VECTOR_READER(bf16, avx2, T256, uint16_t, 8, F256, LOAD256_bf16)
static const BlockReader AVX2[DTYPES] = {f32_avx2, f64_avx2, f16_avx2, bf16_avx2};
#endif

#if HAS_NEON
/* ---- NEON, which every 64-bit ARM has: four floats or two doubles; a comparison yields -1 where it holds ---- */

typedef struct {
    float64x2_t sum[2], sumsq[2];
    float32x4_t lo, hi;
    uint32x4_t nan, inf, zeros;
} F128;

ALWAYS F128 F128_start(void) {
    float64x2_t d = vdupq_n_f64(0);
    uint32x4_t c = vdupq_n_u32(0);
    F128 a = {{d, d}, {d, d}, vdupq_n_f32(INFINITY), vdupq_n_f32(-INFINITY), c, c, c};
    return a;
}
ALWAYS void F128_take(F128 *a, float32x4_t v, int masked) {
    const uint32x4_t infinity = vdupq_n_u32(0x7f800000);
    uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7fffffff));
    float32x4_t lo = v, hi = v;
    a->zeros = vsubq_u32(a->zeros, vceqzq_u32(bits));
    if (masked) { /* vminq would pass a NaN on, and vminnmq a signalling one */
        uint32x4_t nan = vcgtq_u32(bits, infinity);
        a->nan = vsubq_u32(a->nan, nan);
        a->inf = vsubq_u32(a->inf, vceqq_u32(bits, infinity));
        lo = vbslq_f32(nan, vdupq_n_f32(INFINITY), v), hi = vbslq_f32(nan, vdupq_n_f32(-INFINITY), v);
        v = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vcltq_u32(bits, infinity)));
    }
    a->lo = vminq_f32(a->lo, lo);
    a->hi = vmaxq_f32(a->hi, hi);
    float64x2_t low = vcvt_f64_f32(vget_low_f32(v)), high = vcvt_high_f64_f32(v);
    a->sum[0] = vaddq_f64(a->sum[0], low);
    a->sum[1] = vaddq_f64(a->sum[1], high);
    a->sumsq[0] = vfmaq_f64(a->sumsq[0], low, low);
    a->sumsq[1] = vfmaq_f64(a->sumsq[1], high, high);
}
ALWAYS void F128_fold(const F128 *a, Totals *t) {
    t->nan += vaddvq_u32(a->nan), t->inf += vaddvq_u32(a->inf), t->zeros += vaddvq_u32(a->zeros);
    t->sum += vaddvq_f64(vaddq_f64(a->sum[0], a->sum[1]));
    t->sumsq += vaddvq_f64(vaddq_f64(a->sumsq[0], a->sumsq[1]));
    t->min = least(t->min, vminvq_f32(a->lo)), t->max = greatest(t->max, vmaxvq_f32(a->hi));
}

typedef struct {
    float64x2_t sum, sumsq, lo, hi;
    uint64x2_t nan, inf, zeros;
} D128;

ALWAYS D128 D128_start(void) {
    float64x2_t d = vdupq_n_f64(0);
    uint64x2_t c = vdupq_n_u64(0);
    D128 a = {d, d, vdupq_n_f64(INFINITY), vdupq_n_f64(-INFINITY), c, c, c};
    return a;
}
ALWAYS void D128_take(D128 *a, float64x2_t v, int masked) {
    const uint64x2_t infinity = vdupq_n_u64(0x7ff0000000000000ULL);
    uint64x2_t bits = vandq_u64(vreinterpretq_u64_f64(v), vdupq_n_u64(0x7fffffffffffffffULL));
    float64x2_t lo = v, hi = v;
    a->zeros = vsubq_u64(a->zeros, vceqzq_u64(bits));
    if (masked) {
        uint64x2_t nan = vcgtq_u64(bits, infinity);
        a->nan = vsubq_u64(a->nan, nan);
        a->inf = vsubq_u64(a->inf, vceqq_u64(bits, infinity));
        lo = vbslq_f64(nan, vdupq_n_f64(INFINITY), v), hi = vbslq_f64(nan, vdupq_n_f64(-INFINITY), v);
        v = vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(v), vcltq_u64(bits, infinity)));
    }
    a->lo = vminq_f64(a->lo, lo);
    a->hi = vmaxq_f64(a->hi, hi);
    a->sum = vaddq_f64(a->sum, v);
    a->sumsq = vfmaq_f64(a->sumsq, v, v);
}
ALWAYS void D128_fold(const D128 *a, Totals *t) {
    t->nan += (double)vaddvq_u64(a->nan), t->inf += (double)vaddvq_u64(a->inf), t->zeros += (double)vaddvq_u64(a->zeros);
    t->sum += vaddvq_f64(a->sum);
    t->sumsq += vaddvq_f64(a->sumsq);
    t->min = least(t->min, vminvq_f64(a->lo)), t->max = greatest(t->max, vmaxvq_f64(a->hi));
}

#define LOAD128_f16(P) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(P)))
#define LOAD128_bf16(P) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(P), 16))
VECTOR_READER(f32, neon, , float, 4, F128, vld1q_f32)
VECTOR_READER(f64, neon, , double, 2, D128, vld1q_f64)
VECTOR_READER(f16, neon, , uint16_t, 4, F128, LOAD128_f16)
VECTOR_READER(bf16, neon, , uint16_t, 4, F128, LOAD128_bf16)
static const BlockReader NEON[DTYPES] = {f32_neon, f64_neon, f16_neon, bf16_neon};
#endif

/* ---- counts by binary exponent, of a block that is in cache ----
 *
 * Bin 150 + k counts the finite elements with 2**k <= |x| < 2**(k + 1), k from -149, the smallest float32, to 127. Bin 0 counts what is
 * smaller and bin 278 what is larger, which only float64 holds; then come the counts of zeros, NaN and Inf. The exponent field of an
 * element is its place in a table; four tables, because neighbours often have the same exponent and an increment waits for the one before.
 * Only where the field is all zeros or all ones the block is read again: for zeros and subnormals, for Inf and NaN.
 */

enum { LOWEST = 150, BINS = 279, ZEROS = BINS, NANS, INFS, SLOTS, TABLES = 4, FIELDS = 288 };

typedef struct {
    int64_t field[TABLES][FIELDS];
    int64_t slots[SLOTS];
} Exponents;

typedef void (*ExponentReader)(const void *x, int64_t n, Exponents *e);
typedef void (*ExponentFold)(Exponents *e);

ALWAYS int log2_of(uint64_t mantissa) {
    int k = -1;
    for (; mantissa; mantissa >>= 1) k++;
    return k;
}

/* A float64 has more exponents than there are bins: its field is the bin itself, zero counted as bin 0, Inf and NaN as the last field. */
ALWAYS int clamped(int field) {
    int bin = field - 1023 + LOWEST;
    bin = bin < 0 ? 0 : bin;
    bin = bin < BINS ? bin : BINS - 1;
    return bin + (FIELDS - BINS) * (field == 0x7ff); /* without a branch, which half a tensor of Inf would mislead */
}

#define EXPONENT_READER(NAME, BITS, MANTISSA, FIELD, ONES, SUBNORMAL)                                        \
    static void NAME##_again(const BITS *p, int64_t n, int64_t odd, Exponents *e) {                          \
        const BITS magnitude = (BITS)~(BITS)0 >> 1, infinity = (BITS)(magnitude >> MANTISSA << MANTISSA);    \
        int64_t zeros = 0, nans = 0, infs = 0;                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            BITS bits = p[i] & magnitude;                                                                    \
            zeros += bits == 0, nans += bits > infinity, infs += bits == infinity;                           \
        }                                                                                                    \
        e->slots[ZEROS] += zeros, e->slots[NANS] += nans, e->slots[INFS] += infs;                            \
        if (odd == zeros + nans + infs) return;                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            BITS bits = p[i] & magnitude;                                                                    \
            if (bits && bits >> MANTISSA == 0) e->slots[SUBNORMAL]++;                                        \
        }                                                                                                    \
    }                                                                                                        \
    static void NAME##_exponents(const void *x, int64_t n, Exponents *e) {                                   \
        const BITS *p = x;                                                                                   \
        int64_t i = 0, odd = 0;                                                                              \
        for (int t = 0; t < TABLES; t++) odd -= e->field[t][0] + e->field[t][ONES];                          \
        for (; i + TABLES <= n; i += TABLES)                                                                 \
            for (int t = 0; t < TABLES; t++) e->field[t][FIELD(p[i + t])]++;                                 \
        for (; i < n; i++) e->field[0][FIELD(p[i])]++;                                                       \
        for (int t = 0; t < TABLES; t++) odd += e->field[t][0] + e->field[t][ONES];                          \
        if (odd) NAME##_again(p, n, odd, e);                                                                 \
    }

#define FIELD_f32(B) ((B) >> 23 & 0xff)
#define FIELD_bf16(B) ((B) >> 7 & 0xff)
#define FIELD_f16(B) ((B) >> 10 & 0x1f)
#define FIELD_f64(B) clamped((int)((B) >> 52 & 0x7ff))
EXPONENT_READER(f32, uint32_t, 23, FIELD_f32, 0xff, LOWEST - 149 + log2_of(bits))
EXPONENT_READER(bf16, uint16_t, 7, FIELD_bf16, 0xff, LOWEST - 133 + log2_of(bits))
EXPONENT_READER(f16, uint16_t, 10, FIELD_f16, 0x1f, LOWEST - 24 + log2_of(bits))
EXPONENT_READER(f64, uint64_t, 52, FIELD_f64, FIELDS - 1, 0) /* its bin 0 is found by subtraction, in the end */

/* From fields to bins. What was read again is in its slot already; of a float64 in field 0 that is all but the small normal numbers. */
static void fold_fields(Exponents *e, int ones, int shift) {
    for (int t = 0; t < TABLES; t++)
        for (int f = 1; f < ones; f++) e->slots[shift + f] += e->field[t][f];
}
static void fold_f32(Exponents *e) { fold_fields(e, 0xff, LOWEST - 127); } /* bfloat16 has the same exponents */
static void fold_f16(Exponents *e) { fold_fields(e, 0x1f, LOWEST - 15); }
static void fold_f64(Exponents *e) {
    int64_t low = 0;
    fold_fields(e, BINS, 0);
    for (int t = 0; t < TABLES; t++) low += e->field[t][0];
    e->slots[0] = low - e->slots[ZEROS];
}

static const ExponentReader EXPONENTS[DTYPES] = {f32_exponents, f64_exponents, f16_exponents, bf16_exponents};
static const ExponentFold FOLDS[DTYPES] = {fold_f32, fold_f64, fold_f16, fold_f32};

/* ---- the sum of squares of a block of float32 alone, in float32: not finite where an element is not, or a square too large ---- */

#define SQUARES(ISA, TARGET)                                                                                 \
    TARGET static float squares_##ISA(const float *x, int64_t n) {                                           \
        float lanes[64] = {0}, all = 0;                                                                      \
        int64_t i = 0;                                                                                       \
        for (; i + 64 <= n; i += 64) {                                                                       \
            for (int j = 0; j < 64; j += 16) PREFETCH(x + i + j + AHEAD);                                    \
            for (int j = 0; j < 64; j++) lanes[j] += x[i + j] * x[i + j];                                    \
        }                                                                                                    \
        for (; i < n; i++) all += x[i] * x[i];                                                               \
        for (int j = 0; j < 64; j++) all += lanes[j];                                                        \
        return all;                                                                                          \
    }
#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(P) __builtin_prefetch(P)
#else
#define PREFETCH(P) (void)(P)
#endif
SQUARES(generic, )
#if HAS_X86
SQUARES(avx2, T256)
SQUARES(avx512, T512)
#endif

/* ---- the run as a whole ---- */

static const int64_t ITEMSIZE[DTYPES] = {4, 8, 2, 2};

static const Totals EMPTY_TOTALS = {0, 0, 0, 0, 0, INFINITY, -INFINITY};

static void add_totals(Totals *all, const Totals *block) {
    all->nan += block->nan, all->inf += block->inf, all->zeros += block->zeros;
    all->sum += block->sum, all->sumsq += block->sumsq;
    all->min = least(all->min, block->min), all->max = greatest(all->max, block->max);
}

static Totals read_all(BlockReader reader, const char *x, int64_t n, int64_t itemsize) {
    Totals all = EMPTY_TOTALS;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t length = n - i < BLOCK ? n - i : BLOCK;
        Totals block = EMPTY_TOTALS;
        reader(x + i * itemsize, length, 0, &block);
        if (!(block.sumsq - block.sumsq == 0)) {
            block = EMPTY_TOTALS;
            reader(x + i * itemsize, length, 1, &block);
        }
        add_totals(&all, &block);
    }
    return all;
}

/* ---- Python ---- */

typedef struct {
    const char *name;
    const BlockReader *readers;
    float (*squares)(const float *x, int64_t n);
} Level;

static Level levels[3]; /* usable on this machine, fastest first */
static int level_count;
static const Level *level;

static void find_levels(void) {
    level_count = 0;
#if HAS_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) levels[level_count++] = (Level){"avx512", AVX512, squares_avx512};
    /* F16C cannot be asked for by name in older compilers; no processor has AVX2 and FMA without it. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) levels[level_count++] = (Level){"avx2", AVX2, squares_avx2};
#endif
#if HAS_NEON
    levels[level_count++] = (Level){"neon", NEON, squares_generic};
#endif
    levels[level_count++] = (Level){"generic", GENERIC, squares_generic};
    level = &levels[0];
}

PyDoc_STRVAR(reduce_doc,
             "reduce(pointer, n, dtype, out, repeats)\n--\n\nWrite the stats of n elements at `pointer`, counted `repeats` times, "
             "as 8 doubles at `out`.\n\ndtype: 0 float32, 1 float64, 2 float16, 3 bfloat16. Addresses are trusted.");
static PyObject *reduce(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 5) return PyErr_Format(PyExc_TypeError, "reduce() takes 5 arguments, got %zd", nargs);
    const char *x = PyLong_AsVoidPtr(args[0]);
    int64_t n = PyLong_AsLongLong(args[1]);
    long dtype = PyLong_AsLong(args[2]);
    double *out = PyLong_AsVoidPtr(args[3]);
    double repeats = (double)PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred()) return NULL;
    if (dtype < 0 || dtype >= DTYPES) return PyErr_Format(PyExc_ValueError, "dtype %ld: choose 0 to %d", dtype, DTYPES - 1);
    if (n < 0 || !out || (n && !x)) return PyErr_Format(PyExc_ValueError, "null address, or n = %lld below 0", (long long)n);

    Totals t;
    BlockReader reader = level->readers[dtype];
    if (n >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        t = read_all(reader, x, n, ITEMSIZE[dtype]);
        Py_END_ALLOW_THREADS
    } else {
        t = read_all(reader, x, n, ITEMSIZE[dtype]);
    }
    double row[8] = {(double)n * repeats, t.nan * repeats,   t.inf * repeats, t.zeros * repeats,
                     t.sum * repeats,     t.sumsq * repeats, t.min,           t.max};
    memcpy(out, row, sizeof row);
    Py_RETURN_NONE;
}

static void write_row(double *out, const Totals *t, double n) {
    double row[8] = {n, t->nan, t->inf, t->zeros, t->sum, t->sumsq, t->min, t->max};
    memcpy(out, row, sizeof row);
}

/* ---- many tensors in one call, and what an update changed ---- */

typedef struct {
    const char *x;
    int64_t n;           /* elements to reduce: of the tensor, or, for a change, of the sample */
    int64_t run, stride; /* the sample: so many elements in a row, and from one run to the next */
    char *sample;        /* written after the reduction, or, for a change, what was there before */
    int dtype, change;
} Job;

static void gather(const Job *job) {
    int64_t size = ITEMSIZE[job->dtype], length = job->run * size;
    char *to = job->sample;
    if (job->run == job->stride) {
        memcpy(to, job->x, (size_t)(job->n / job->run * length));
        return;
    }
    for (int64_t i = 0; i + job->run <= job->n; i += job->stride, to += length) {
        PREFETCH(job->x + (i + 16 * job->stride) * size);
        memcpy(to, job->x + i * size, (size_t)length);
    }
}

/* Differences in float, of doubles in double: a change of halves need not be a half. */
static void subtract(const Job *job, int64_t at, int64_t before, int64_t length, float *f, double *d) {
    const void *x = job->x, *y = job->sample;
    switch (job->dtype) {
    case FLOAT32:
        for (int64_t j = 0; j < length; j++) f[j] = ((const float *)x)[at + j] - ((const float *)y)[before + j];
        break;
    case FLOAT64:
        for (int64_t j = 0; j < length; j++) d[j] = ((const double *)x)[at + j] - ((const double *)y)[before + j];
        break;
    case FLOAT16:
        for (int64_t j = 0; j < length; j++) f[j] = (float)load_f16(x, at + j) - (float)load_f16(y, before + j);
        break;
    default:
        for (int64_t j = 0; j < length; j++) f[j] = (float)load_bf16(x, at + j) - (float)load_bf16(y, before + j);
    }
}

/* The usual sample, of float32 in runs of eight: each run is a line of memory of its own, which is fetched while others are at work. */
enum { EIGHT = 8, RUNS = CHANGES / EIGHT, RUNS_AHEAD = 24 };
static Totals read_change_of_eights(const Level *with, const Job *job) {
    Totals all = EMPTY_TOTALS;
    float change[CHANGES];
    const float *x = (const float *)job->x, *before = (const float *)job->sample;
    for (int64_t run = 0, runs = job->n / EIGHT; run < runs; run += RUNS) {
        int64_t count = runs - run < RUNS ? runs - run : RUNS;
        for (int64_t i = 0; i < count; i++) {
            const float *now = x + (run + i) * job->stride, *then = before + (run + i) * EIGHT;
            PREFETCH(now + RUNS_AHEAD * job->stride);
            for (int j = 0; j < EIGHT; j++) change[i * EIGHT + j] = now[j] - then[j];
        }
        Totals block = read_all(with->readers[FLOAT32], (const char *)change, count * EIGHT, ITEMSIZE[FLOAT32]);
        add_totals(&all, &block);
    }
    return all;
}

static Totals read_change(const Level *with, const Job *job) {
    if (job->dtype == FLOAT32 && job->run == EIGHT && job->n % EIGHT == 0) return read_change_of_eights(with, job);
    Totals all = EMPTY_TOTALS;
    union {
        float f[CHANGES];
        double d[CHANGES];
    } change;
    int dtype = job->dtype == FLOAT64 ? FLOAT64 : FLOAT32;
    int64_t filled = 0;
    for (int64_t i = 0; i < job->n;) { /* i counts the elements of the sample */
        int64_t in_run = i % job->run, length = job->run - in_run, room = CHANGES - filled;
        if (length > room) length = room;
        if (length > job->n - i) length = job->n - i;
        subtract(job, i / job->run * job->stride + in_run, i, length, change.f + filled, change.d + filled);
        filled += length, i += length;
        if (filled == CHANGES || i == job->n) {
            Totals block = read_all(with->readers[dtype], (const char *)&change, filled, ITEMSIZE[dtype]);
            add_totals(&all, &block);
            filled = 0;
        }
    }
    return all;
}

static void do_jobs(const Level *with, const Job *jobs, Py_ssize_t count, double *out) {
    for (const Job *job = jobs; job < jobs + count; job++, out += 8) {
        Totals t = job->change ? read_change(with, job) : read_all(with->readers[job->dtype], job->x, job->n, ITEMSIZE[job->dtype]);
        write_row(out, &t, (double)job->n);
        if (!job->change && job->sample) gather(job);
    }
}

PyDoc_STRVAR(reduce_many_doc,
             "reduce_many(jobs, out)\n--\n\nReduce many tensors into rows of 8 doubles at `out`. `jobs` is a flat list of seven integers for each: "
             "dtype, pointer, n, run, stride, sample, change.\n\nA sample is `run` elements from each `stride`, all of them whole. With change == 0 "
             "as reduce(), and where sample is not 0 it is then written there. With change == 1 the stats are of what has changed since in "
             "a sample of n elements. Returns how many elements are NaN or Inf, and the sum of squares of all others. Addresses are trusted.");
enum { JOB_FIELDS = 7 };
static PyObject *reduce_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 2) return PyErr_Format(PyExc_TypeError, "reduce_many() takes 2 arguments, got %zd", nargs);
    PyObject *list = args[0];
    double *out = PyLong_AsVoidPtr(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (!PyList_Check(list) || PyList_Size(list) % JOB_FIELDS)
        return PyErr_Format(PyExc_TypeError, "reduce_many() takes a flat list of %d integers a tensor", JOB_FIELDS);
    Py_ssize_t count = PyList_Size(list) / JOB_FIELDS;
    int64_t elements = 0;
    Job *jobs = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *jobs);
    if (!jobs) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t field[JOB_FIELDS];
        for (int j = 0; j < JOB_FIELDS; j++) field[j] = PyLong_AsLongLong(PyList_GetItem(list, i * JOB_FIELDS + j));
        Job job = {(const char *)(intptr_t)field[1], field[2],      field[3],     field[4],
                   (char *)(intptr_t)field[5],       (int)field[0], field[6] != 0};
        int wrong = field[0] < 0 || field[0] >= DTYPES || job.n < 0 || !out || (job.n && !job.x) || job.run < 1 || job.stride < job.run;
        if (PyErr_Occurred() || wrong || (job.change && !job.sample)) {
            PyMem_Free(jobs);
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "job %zd has an unknown dtype, a null address or n below 0", i);
        }
        jobs[i] = job;
        elements += job.n;
    }
    const Level *with = level;
    if (elements >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        do_jobs(with, jobs, count, out);
        Py_END_ALLOW_THREADS
    } else {
        do_jobs(with, jobs, count, out);
    }
    PyMem_Free(jobs);
    double bad = 0, squares = 0;
    for (Py_ssize_t i = 0; i < count; i++) bad += out[8 * i + 1] + out[8 * i + 2], squares += out[8 * i + 5];
    return Py_BuildValue("dd", bad, squares);
}

/* The same, and the exponents of each block while it is in cache; with `stats` null the exponents alone. */
static void read_exponents(BlockReader reader, long dtype, const char *x, int64_t n, Totals *stats, Exponents *e) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t length = n - i < BLOCK ? n - i : BLOCK;
        const char *block = x + i * ITEMSIZE[dtype];
        if (stats) {
            Totals t = read_all(reader, block, length, ITEMSIZE[dtype]);
            add_totals(stats, &t);
        }
        EXPONENTS[dtype](block, length, e);
    }
    FOLDS[dtype](e);
}

PyDoc_STRVAR(exponents_doc,
             "exponents(pointer, n, dtype, bins, out, repeats)\n--\n\nAdd the counts by binary exponent of n elements at `pointer`, each "
             "`repeats` times, to the 282 int64 at `bins`;\nwhere `out` is not 0, write their stats as 8 doubles there, as reduce() does.");
static PyObject *exponents(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 6) return PyErr_Format(PyExc_TypeError, "exponents() takes 6 arguments, got %zd", nargs);
    const char *x = PyLong_AsVoidPtr(args[0]);
    int64_t n = PyLong_AsLongLong(args[1]);
    long dtype = PyLong_AsLong(args[2]);
    int64_t *bins = PyLong_AsVoidPtr(args[3]);
    double *out = PyLong_AsVoidPtr(args[4]);
    int64_t repeats = PyLong_AsLongLong(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (dtype < 0 || dtype >= DTYPES) return PyErr_Format(PyExc_ValueError, "dtype %ld: choose 0 to %d", dtype, DTYPES - 1);
    if (n < 0 || !bins || (n && !x)) return PyErr_Format(PyExc_ValueError, "null address, or n = %lld below 0", (long long)n);

    Exponents e;
    Totals t = EMPTY_TOTALS, *wanted = out ? &t : NULL;
    BlockReader reader = level->readers[dtype];
    memset(&e, 0, sizeof e);
    if (n >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        read_exponents(reader, dtype, x, n, wanted, &e);
        Py_END_ALLOW_THREADS
    } else {
        read_exponents(reader, dtype, x, n, wanted, &e);
    }
    for (int i = 0; i < SLOTS; i++) bins[i] += e.slots[i] * repeats;
    if (out) {
        double by = (double)repeats, row[8] = {n * by, t.nan * by, t.inf * by, t.zeros * by, t.sum * by, t.sumsq * by, t.min, t.max};
        memcpy(out, row, sizeof row);
    }
    Py_RETURN_NONE;
}

/* ---- parameters and their gradients, asked for what the interpreter would ask one at a time ---- */

enum { NAME_GRAD, NAME_VERSION, NAME_DTYPE, NAME_IS_CPU, NAME_IS_NESTED, NAME_DATA_PTR, NAME_NUMEL, NAME_CONTIGUOUS, NAME_NEG, NAME_OFFSET, NAMES };
static const char *const NAME_TEXTS[NAMES] = {"grad",     "_version", "dtype",         "is_cpu", "is_nested",
                                              "data_ptr", "numel",    "is_contiguous", "is_neg", "storage_offset"};
static PyObject *names[NAMES];

/* The integer that an attribute is, or a method without arguments returns; -1 where there is none, and no error is left behind. */
static int64_t asked(PyObject *of, int name, int call) {
    PyObject *found = call ? PyObject_CallMethodObjArgs(of, names[name], NULL) : PyObject_GetAttr(of, names[name]);
    int64_t value = found ? PyLong_AsLongLong(found) : -1;
    Py_XDECREF(found);
    if (PyErr_Occurred()) PyErr_Clear();
    return value;
}

/* What DLPack's exchange protocol tells of a tensor (https://dmlc.github.io/dlpack, version 1): all that is asked here of most, without a
 * Python object made for each answer. Absent in older versions of torch. */
typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Facts;
typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *previous, *allocate, *managed_from, *managed_to;
    int (*facts)(void *tensor, Facts *out);
} Exchange;
enum { ON_CPU = 1, A_FLOAT = 2, A_BFLOAT = 4 };

static PyObject *tensor_type; /* that `exchange` is of */
static const Exchange *exchange;

static void find_exchange(PyObject *type) {
    if (type == tensor_type) return;
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    exchange = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    if (exchange && (exchange->version.major != 1 || !exchange->facts)) exchange = NULL;
    PyErr_Clear();
    Py_XDECREF(capsule); /* what it leads to lives as long as the process */
    Py_INCREF(type);
    Py_XDECREF(tensor_type);
    tensor_type = type;
}

/* 1 and the facts; 0 where they cannot be told so, and no error is left behind. */
static int facts_of(PyObject *tensor, Facts *facts) {
    if (!exchange) return 0;
    if (exchange->facts(tensor, facts) == 0) return 1;
    PyErr_Clear();
    return 0;
}

static int is_contiguous(const Facts *facts) {
    int64_t next = 1;
    for (int32_t i = facts->ndim - 1; facts->strides && i >= 0; i--) {
        if (facts->shape[i] != 1 && facts->strides[i] != next) return 0;
        next *= facts->shape[i];
    }
    return 1;
}

PyDoc_STRVAR(marks_doc,
             "marks(parameters, out)\n--\n\nWrite four integers for each of a list of parameters at `out`: the identity and the version of its "
             "gradient (0 and -1 if it has none), its own version, its address.");
static void mark(PyObject *parameter, PyObject *grad, int64_t *out) {
    out[0] = grad == Py_None ? 0 : (int64_t)(intptr_t)grad;
    out[1] = grad == Py_None ? -1 : asked(grad, NAME_VERSION, 0);
    Facts facts;
    out[2] = asked(parameter, NAME_VERSION, 0);
    out[3] = facts_of(parameter, &facts) && facts.data ? (int64_t)((intptr_t)facts.data + facts.byte_offset) : asked(parameter, NAME_DATA_PTR, 1);
}
static PyObject *marks(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 2 || !PyList_Check(args[0])) return PyErr_Format(PyExc_TypeError, "marks() takes a list and an address");
    int64_t *out = PyLong_AsVoidPtr(args[1]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t count = PyList_Size(args[0]);
    for (Py_ssize_t i = 0; i < count; i++, out += 4) {
        PyObject *parameter = PyList_GetItem(args[0], i), *grad = PyObject_GetAttr(parameter, names[NAME_GRAD]);
        if (!grad) return NULL;
        mark(parameter, grad, out);
        Py_DECREF(grad);
    }
    Py_RETURN_NONE;
}

typedef struct {
    const char *x;
    int64_t n;
    int dtype;
} Floats;

/* Whether these are facts of floats that the kernel reads, at least one, in this machine's memory. */
static int is_of_floats(const Facts *facts, Floats *floats) {
    int is_float = facts->dtype.code == A_FLOAT, bits = facts->dtype.bits, dtype = bits == 32 ? FLOAT32 : bits == 64 ? FLOAT64 : FLOAT16;
    if (facts->dtype.code == A_BFLOAT && bits == 16) is_float = 1, dtype = BFLOAT16;
    if (!is_float || (bits != 16 && bits != 32 && bits != 64) || facts->device.type != ON_CPU || !facts->data) return 0;
    int64_t n = 1;
    for (int32_t i = 0; i < facts->ndim; i++) n *= facts->shape[i];
    floats->x = (const char *)facts->data + facts->byte_offset, floats->n = n, floats->dtype = dtype;
    return n > 0;
}

/* ---- for hooks in C, by a capsule; the caller holds on to the tensor ---- */

enum { MOST_DIMS = 16 };
/* Whether elements in another order fill a stretch of memory, each once: as is_dense of _plain.py. */
static int is_dense(const Facts *facts) {
    int64_t strides[MOST_DIMS], sizes[MOST_DIMS], expected = 1;
    int32_t dims = 0;
    for (int32_t i = 0; i < facts->ndim; i++) {
        if (facts->shape[i] == 1) continue;
        if (dims == MOST_DIMS) return 0;
        int32_t j = dims++;
        for (; j > 0 && strides[j - 1] > facts->strides[i]; j--) strides[j] = strides[j - 1], sizes[j] = sizes[j - 1];
        strides[j] = facts->strides[i], sizes[j] = facts->shape[i];
    }
    for (int32_t i = 0; i < dims; i++) {
        if (strides[i] != expected) return 0;
        expected *= sizes[i];
    }
    return 1;
}

/* 1 if the kernel can read the tensor where it lies, unless that stands for its negative; 0 if not; -1 if that cannot be told so. */
static int floats_of(PyObject *tensor, Floats *floats) {
    Facts facts;
    if (!facts_of(tensor, &facts)) return -1;
    return is_of_floats(&facts, floats) && (is_contiguous(&facts) || is_dense(&facts));
}

static void reduce_at(const Floats *floats, double *out) {
    Totals t = read_all(level->readers[floats->dtype], floats->x, floats->n, ITEMSIZE[floats->dtype]);
    write_row(out, &t, (double)floats->n);
}

static const struct {
    void (*prepare)(PyObject *tensor_type);
    int (*floats_of)(PyObject *tensor, Floats *floats);
    void (*reduce_at)(const Floats *floats, double *out);
} FOR_HOOKS = {find_exchange, floats_of, reduce_at};

/* Whether the kernel can read the tensor where it lies: as address_of in _reduce.py, but contiguous. For its squares alone (with `sums` 0)
 * less is asked: those of a view that stands for its negative are those of what lies there. */
static int readable(PyObject *tensor, PyObject *type, PyObject *codes, int sums, Job *job) {
    if ((PyObject *)Py_TYPE(tensor) != type) return 0;
    Facts facts;
    if (facts_of(tensor, &facts)) {
        Floats floats;
        if (!is_of_floats(&facts, &floats) || !is_contiguous(&facts) || (sums && asked(tensor, NAME_NEG, 1) != 0)) return 0;
        Job read = {floats.x, floats.n, 1, 1, NULL, floats.dtype, 0};
        *job = read;
        return 1;
    }
    PyObject *dtype = PyObject_GetAttr(tensor, names[NAME_DTYPE]);
    PyObject *code = dtype ? PyDict_GetItem(codes, dtype) : NULL;
    Py_XDECREF(dtype);
    if (!code || asked(tensor, NAME_IS_CPU, 0) != 1) return 0;
    int64_t pointer = asked(tensor, NAME_DATA_PTR, 1), n = asked(tensor, NAME_NUMEL, 1);
    if (n < 1 || pointer < 1 || asked(tensor, NAME_CONTIGUOUS, 1) != 1) return 0;
    if (sums && (asked(tensor, NAME_IS_NESTED, 0) != 0 || asked(tensor, NAME_NEG, 1) != 0)) return 0;
    Job read = {(const char *)(intptr_t)pointer, n, 1, 1, NULL, (int)PyLong_AsLong(code), 0};
    *job = read;
    /* A freed one has its offset for an address; no heap lies so low that it might be mistaken for one without being asked. */
    return pointer >> 32 || pointer != asked(tensor, NAME_OFFSET, 1) * ITEMSIZE[job->dtype];
}

PyDoc_STRVAR(repeat_doc,
             "repeat(parameters, type, jobs, out, change)\n--\n\nAs reduce_many() for a list of parameters and an address of seven int64 for each: dtype, "
             "pointer, n, run, stride, sample, elements of the sample. None, and nothing is written, if one of them has another address or number "
             "of elements by now.");
static int is_as_it_was(PyObject *parameter, const int64_t *job) {
    Facts facts;
    Floats floats;
    if (facts_of(parameter, &facts))
        return is_of_floats(&facts, &floats) && floats.dtype == job[0] && (intptr_t)floats.x == job[1] && floats.n == job[2];
    return asked(parameter, NAME_DATA_PTR, 1) == job[1] && asked(parameter, NAME_NUMEL, 1) == job[2];
}
static PyObject *repeat(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 5 || !PyList_Check(args[0])) return PyErr_Format(PyExc_TypeError, "repeat() takes a list, a type, two addresses and an int");
    const int64_t(*given)[JOB_FIELDS] = PyLong_AsVoidPtr(args[2]);
    double *out = PyLong_AsVoidPtr(args[3]);
    int change = PyLong_AsLong(args[4]) != 0;
    find_exchange(args[1]);
    Py_ssize_t count = PyList_Size(args[0]);
    if (PyErr_Occurred()) return NULL;
    Job *jobs = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *jobs);
    if (!jobs) return PyErr_NoMemory();
    int64_t elements = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *parameter = PyList_GetItem(args[0], i);
        const int64_t *f = given[i];
        if (!is_as_it_was(parameter, f)) {
            PyMem_Free(jobs);
            Py_RETURN_NONE;
        }
        jobs[i] = (Job){(const char *)(intptr_t)f[1], change ? f[6] : f[2], f[3], f[4], (char *)(intptr_t)f[5], (int)f[0], change};
        elements += jobs[i].n;
    }
    PyThreadState *state = elements >= RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
    do_jobs(level, jobs, count, out);
    if (state) PyEval_RestoreThread(state);
    PyMem_Free(jobs);
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(gradients_doc,
             "gradients(parameters, type, codes, out)\n--\n\nReduce the gradients of a list of parameters into rows of 8 doubles at `out`, one "
             "each. Returns the places of those that are of no tensor of this type, of no dtype in `codes`, or not contiguous: their rows are not "
             "written, as are not those of parameters without a gradient; how many elements are NaN or Inf; the sum of squares of all others.");
static PyObject *gradients(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 4 || !PyList_Check(args[0])) return PyErr_Format(PyExc_TypeError, "gradients() takes a list, a type, a dict and an address");
    double *out = PyLong_AsVoidPtr(args[3]);
    if (PyErr_Occurred()) return NULL;
    find_exchange(args[1]);
    Py_ssize_t count = PyList_Size(args[0]), found = 0;
    PyObject *refused = PyList_New(0);
    Job *jobs = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *jobs);
    PyObject **held = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *held);
    Py_ssize_t *places = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *places);
    int failed = !refused || !jobs || !held || !places;
    int64_t elements = 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        PyObject *grad = PyObject_GetAttr(PyList_GetItem(args[0], i), names[NAME_GRAD]);
        if (!grad) {
            failed = 1;
        } else if (grad != Py_None && readable(grad, args[1], args[2], 1, &jobs[found])) {
            elements += jobs[found].n;
            places[found] = i;
            held[found++] = grad; /* so that its memory lives until it is read */
            continue;
        } else if (grad != Py_None) {
            PyObject *place = PyLong_FromSsize_t(i);
            failed = !place || PyList_Append(refused, place) < 0;
            Py_XDECREF(place);
        }
        Py_XDECREF(grad);
    }
    double bad = 0, squares = 0;
    if (!failed) {
        const Level *with = level;
        PyThreadState *state = elements >= RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
        for (Py_ssize_t i = 0; i < found; i++) {
            double *row = out + 8 * places[i];
            do_jobs(with, &jobs[i], 1, row);
            bad += row[1] + row[2], squares += row[5];
        }
        if (state) PyEval_RestoreThread(state);
    }
    for (Py_ssize_t i = 0; i < found; i++) Py_DECREF(held[i]);
    PyMem_Free(jobs), PyMem_Free(held), PyMem_Free(places);
    PyObject *result = failed ? NULL : Py_BuildValue("Odd", refused, bad, squares);
    Py_XDECREF(refused);
    return result ? result : PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

/* Of a block that is all finite, what is wanted of it takes half the time in float32; any other is read again in full. */
static void glance_at(const Level *with, const Job *job, double *bad, double *squares) {
    for (int64_t i = 0; i < job->n; i += BLOCK) {
        int64_t length = job->n - i < BLOCK ? job->n - i : BLOCK;
        const char *block = job->x + i * ITEMSIZE[job->dtype];
        float quick = job->dtype == FLOAT32 ? with->squares((const float *)block, length) : INFINITY;
        if (quick - quick == 0) {
            *squares += quick;
        } else {
            Totals t = read_all(with->readers[job->dtype], block, length, ITEMSIZE[job->dtype]);
            *bad += t.nan + t.inf, *squares += t.sumsq;
        }
    }
}

/* From the last to the first: the optimizer begins with the first, and finds in the cache what was read last. */
PyDoc_STRVAR(glance_doc,
             "glance(references, type, codes, marks)\n--\n\nOf the parameters that a list of weak references leads to: write what marks() does, and "
             "return how many elements of their gradients are NaN or Inf, the sum of squares of all others (squares below 1e-38 may count as 0), and "
             "how many gradients gradients() would refuse. None if a parameter is gone.");
static PyObject *glance(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 4 || !PyList_Check(args[0])) return PyErr_Format(PyExc_TypeError, "glance() takes a list, a type, a dict and an address");
    int64_t *out = PyLong_AsVoidPtr(args[3]);
    if (PyErr_Occurred()) return NULL;
    find_exchange(args[1]);
    Py_ssize_t count = PyList_Size(args[0]), found = 0, refused = 0;
    Job *jobs = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *jobs);
    PyObject **held = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *held);
    int failed = !jobs || !held, gone = 0;
    for (Py_ssize_t i = count - 1; !failed && !gone && i >= 0; i--) {
        PyObject *parameter = PyObject_CallNoArgs(PyList_GetItem(args[0], i));
        gone = parameter == Py_None;
        PyObject *grad = parameter && !gone ? PyObject_GetAttr(parameter, names[NAME_GRAD]) : NULL;
        failed = !grad && !gone;
        if (grad) mark(parameter, grad, out + 4 * i);
        Py_XDECREF(parameter);
        if (grad && grad != Py_None && readable(grad, args[1], args[2], 0, &jobs[found])) {
            held[found++] = grad; /* so that its memory lives until it is read */
            continue;
        }
        refused += grad && grad != Py_None;
        Py_XDECREF(grad);
    }
    double bad = 0, squares = 0;
    if (!failed && !gone) {
        const Level *with = level;
        PyThreadState *state = PyEval_SaveThread();
#if HAS_X86
        unsigned mode = _mm_getcsr();
        _mm_setcsr(mode | 0x8040); /* tiny squares count as 0, where they would take a hundred times as long */
#endif
        for (Py_ssize_t i = 0; i < found; i++) glance_at(with, &jobs[i], &bad, &squares);
#if HAS_X86
        _mm_setcsr(mode);
#endif
        PyEval_RestoreThread(state);
    }
    for (Py_ssize_t i = 0; i < found; i++) Py_DECREF(held[i]);
    PyMem_Free(jobs), PyMem_Free(held);
    if (gone) Py_RETURN_NONE;
    if (failed) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return Py_BuildValue("ddn", bad, squares, refused);
}

PyDoc_STRVAR(read_doc,
             "read(tensor, type, codes, out)\n--\n\nReduce a tensor of this type, of a dtype in `codes` and contiguous, into 8 doubles at "
             "`out`; False, and nothing is written, if it is no such tensor.");
static PyObject *read_tensor(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 4) return PyErr_Format(PyExc_TypeError, "read() takes 4 arguments, got %zd", nargs);
    double *out = PyLong_AsVoidPtr(args[3]);
    if (PyErr_Occurred()) return NULL;
    find_exchange(args[1]);
    Job job;
    if (!readable(args[0], args[1], args[2], 1, &job)) Py_RETURN_FALSE;
    PyThreadState *state = job.n >= RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
    do_jobs(level, &job, 1, out);
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(levels_doc, "levels()\n--\n\nThe instruction sets usable here, fastest first.");
static PyObject *list_levels(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *names = PyTuple_New(level_count);
    for (int i = 0; names && i < level_count; i++) {
        PyObject *name = PyUnicode_FromString(levels[i].name);
        if (!name || PyTuple_SetItem(names, i, name) < 0) {
            Py_DECREF(names);
            return NULL;
        }
    }
    return names;
}

PyDoc_STRVAR(level_doc, "level()\n--\n\nThe instruction set in use.");
static PyObject *current_level(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyUnicode_FromString(level->name);
}

PyDoc_STRVAR(use_doc, "use(name)\n--\n\nUse the instruction set of that name, one of levels(), from now on.");
static PyObject *use(PyObject *self, PyObject *name) {
    (void)self;
    if (!PyUnicode_Check(name)) return PyErr_Format(PyExc_TypeError, "use() takes a name, one of levels()");
    for (int i = 0; i < level_count; i++)
        if (PyUnicode_CompareWithASCIIString(name, levels[i].name) == 0) {
            level = &levels[i];
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "%R: choose one of levels()", name);
}

static PyMethodDef methods[] = {
    {"reduce", (PyCFunction)(void (*)(void))reduce, METH_FASTCALL, reduce_doc},
    {"reduce_many", (PyCFunction)(void (*)(void))reduce_many, METH_FASTCALL, reduce_many_doc},
    {"repeat", (PyCFunction)(void (*)(void))repeat, METH_FASTCALL, repeat_doc},
    {"exponents", (PyCFunction)(void (*)(void))exponents, METH_FASTCALL, exponents_doc},
    {"marks", (PyCFunction)(void (*)(void))marks, METH_FASTCALL, marks_doc},
    {"gradients", (PyCFunction)(void (*)(void))gradients, METH_FASTCALL, gradients_doc},
    {"glance", (PyCFunction)(void (*)(void))glance, METH_FASTCALL, glance_doc},
    {"read", (PyCFunction)(void (*)(void))read_tensor, METH_FASTCALL, read_doc},
    {"levels", list_levels, METH_NOARGS, levels_doc},
    {"level", current_level, METH_NOARGS, level_doc},
    {"use", use, METH_O, use_doc},
    {NULL, NULL, 0, NULL},
};
static int exec(PyObject *module) {
    find_levels();
    for (int i = 0; i < NAMES; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(NAME_TEXTS[i]))) return -1;
    return PyModule_AddObject(module, "for_hooks", PyCapsule_New((void *)&FOR_HOOKS, "hookscope._stats._native.for_hooks", NULL));
}
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The reduction kernel.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
