/* How sharply each row of logits looks once it went through a softmax: its entropy and extremes, added up for each head, in one pass.
 *
 * Logits are batch x heads x queries x keys floats in a row; a mask of queries x keys floats may be added. A logit at or below MASKED is one
 * that may not be seen, as is what is not a number; a row with an infinite one is left out. Entropy is log(sum e) - sum(e b) / sum(e) with b = logit - largest and e = exp(b), without a logarithm of each weight;
 * exp(-80) adds nothing, and is no slow subnormal.
 *
 * No torch headers, Python's limited API only. Needs the vectors of GCC or Clang; elsewhere torch operations do it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__)
#error "the softmax kernel is written in the vector extensions of GCC and Clang"
#endif
#if defined(__x86_64__) || defined(__i386__)
#define HAS_X86 1
#define T512 __attribute__((target("avx512f,avx512vl,avx512dq,fma")))
#define T256 __attribute__((target("avx2,fma")))
#else
#define HAS_X86 0
#endif
#define ALWAYS static inline __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are handed to functions that are inlined, never called */

enum { VALID, ENTROPY, LEAST, MOST, FREE, RELATIVE, LOGIT_MIN, LOGIT_MAX };
enum { LANES = 16 };
static const float MASKED = -32752.0f, LOWEST = -80.0f; /* half of what float16 can say: masks are -inf, a format's least number or -1e9 */

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

typedef struct {
    const float *logits, *mask;
    const unsigned char *keep; /* of batch x queries, or null */
    double *out;               /* 8 x heads */
    int64_t batch, heads, queries, keys;
} Job;

ALWAYS Floats all(float value) { return (Floats){0} + value; }
ALWAYS Floats pick(Ints which, Floats yes, Floats no) { return (Floats)(((Ints)yes & which) | ((Ints)no & ~which)); }

ALWAYS Floats load(const float *x, int64_t n) {
    Floats found = all(-INFINITY);
    if (n >= LANES)
        memcpy(&found, x, sizeof found);
    else
        for (int64_t j = 0; j < n; j++) found[j] = x[j];
    return found;
}

ALWAYS Floats logits_at(const float *row, const float *mask, int64_t i, int64_t keys) {
    Floats found = load(row + i, keys - i);
    if (mask) {
        Floats more = all(0);
        if (keys - i >= LANES)
            memcpy(&more, mask + i, sizeof more);
        else
            for (int64_t j = 0; j < keys - i; j++) more[j] = mask[i + j];
        found += more;
    }
    return found;
}

/* exp of numbers from -80 to 0: 2 to a whole number, by its bits, times a polynomial on half an octave on either side of 0. */
ALWAYS Floats exponential(Floats x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: added, it leaves the nearest whole number in the last bits */
    Floats whole = x * 1.44269504f + magic;
    Ints bits = (Ints)whole;
    whole -= magic;
    Floats r = x - whole * 0.693145752f;
    r -= whole * 1.42860677e-6f;
    Floats p = r * (1.0f / 720) + (1.0f / 120);
    p = p * r + (1.0f / 24);
    p = p * r + (1.0f / 6);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (Floats)((Ints)p + ((bits - 0x4b400000) << 23));
}

/* Lanes into one, in halves: one after the other they would wait for each other. */
#define FOLD(name, type, vector, expression) \
    ALWAYS type name(vector lanes) { \
        type x[LANES]; \
        memcpy(x, &lanes, sizeof x); \
        for (int width = LANES / 2; width; width /= 2) \
            for (int j = 0; j < width; j++) x[j] = expression; \
        return x[0]; \
    }
FOLD(sum_of, float, Floats, x[j] + x[j + width])
FOLD(count_of, int32_t, Ints, x[j] + x[j + width])
FOLD(largest_of, float, Floats, x[j] > x[j + width] ? x[j] : x[j + width])
FOLD(least_of, float, Floats, x[j] < x[j + width] ? x[j] : x[j + width])

ALWAYS void add_row(const Job *job, const float *row, const float *mask, int64_t head) {
    int64_t keys = job->keys, h = job->heads;
    Floats high = all(-INFINITY), low = all(INFINITY), total = all(0), dot = all(0);
    Ints seen = {0};
    for (int64_t i = 0; i < keys; i += LANES) {
        Floats x = logits_at(row, mask, i, keys);
        Ints visible = (Ints)(x > MASKED);
        high = pick((Ints)(x > high), x, high);
        low = pick(visible & (Ints)(x < low), x, low);
        seen -= visible;
    }
    float top = largest_of(high), least = least_of(low);
    int64_t count = count_of(seen);
    if (!count || top == INFINITY) return;
    for (int64_t i = 0; i < keys; i += LANES) {
        Floats below = logits_at(row, mask, i, keys) - top;
        below = pick((Ints)(below > LOWEST), below, all(LOWEST));
        Floats e = exponential(below);
        total += e;
        dot += e * below;
    }
    double sum = sum_of(total), entropy = log(sum) - sum_of(dot) / sum, *out = job->out + head;
    out[VALID * h] += 1;
    out[ENTROPY * h] += entropy;
    out[LEAST * h] = entropy < out[LEAST * h] ? entropy : out[LEAST * h];
    out[MOST * h] = entropy > out[MOST * h] ? entropy : out[MOST * h];
    out[FREE * h] += count > 1;
    out[RELATIVE * h] += count > 1 ? entropy / log((double)count) : 0;
    out[LOGIT_MIN * h] = least < out[LOGIT_MIN * h] ? least : out[LOGIT_MIN * h];
    out[LOGIT_MAX * h] = top > out[LOGIT_MAX * h] ? top : out[LOGIT_MAX * h];
}

ALWAYS void add_all(const Job *job) {
    const float *row = job->logits;
    for (int64_t b = 0; b < job->batch; b++)
        for (int64_t head = 0; head < job->heads; head++)
            for (int64_t q = 0; q < job->queries; q++, row += job->keys)
                if (!job->keep || job->keep[b * job->queries + q]) add_row(job, row, job->mask ? job->mask + q * job->keys : 0, head);
}

static void add_generic(const Job *job) { add_all(job); }
#if HAS_X86
T512 static void add_avx512(const Job *job) { add_all(job); }
T256 static void add_avx2(const Job *job) { add_all(job); }
#endif
static void (*adder)(const Job *) = add_generic;

PyDoc_STRVAR(add_doc, "add(logits, mask, keep, batch, heads, queries, keys, out)\n--\n\nAdd the rows of batch * heads * queries * keys floats at "
                      "`logits` to 8 rows of doubles at `out`.\n`mask` (queries * keys floats that are added) and `keep` (batch * queries bytes) "
                      "may be 0. Addresses are trusted.");
static PyObject *add(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 8) return PyErr_Format(PyExc_TypeError, "add() takes 8 arguments, got %zd", nargs);
    Job job = {PyLong_AsVoidPtr(args[0]), PyLong_AsVoidPtr(args[1]), PyLong_AsVoidPtr(args[2]), PyLong_AsVoidPtr(args[7]),
               PyLong_AsLongLong(args[3]), PyLong_AsLongLong(args[4]), PyLong_AsLongLong(args[5]), PyLong_AsLongLong(args[6])};
    if (PyErr_Occurred()) return NULL;
    if (job.batch < 0 || job.heads < 1 || job.queries < 0 || job.keys < 1 || !job.out || (job.batch > 0 && job.queries > 0 && !job.logits))
        return PyErr_Format(PyExc_ValueError, "null address, or a size below 1");
    Py_BEGIN_ALLOW_THREADS
    adder(&job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, add_doc}, {NULL, NULL, 0, NULL}};
static int exec(PyObject *module) {
    (void)module;
#if HAS_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        adder = add_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        adder = add_avx2;
#endif
    return 0;
}
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_softmax_native", "The softmax kernel.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__softmax_native(void) { return PyModuleDef_Init(&definition); }
