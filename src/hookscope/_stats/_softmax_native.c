/* How sharply each row of logits looks once it went through a softmax: its entropy and extremes, added up for each head.
 *
 * Logits are given, batch x heads x queries x keys floats in a row, or made here of queries and keys, in double: in float the products of
 * large ones would be off by more than the entropy is asked for. A logit at or below MASKED is one that may not be seen, as is what is not a
 * number; a row with an infinite one is left out. Entropy is log(sum e) - sum(e b) / sum(e) with b = logit - largest and e = exp(b), without
 * a logarithm of each weight; exp(-80) adds nothing, and is no slow subnormal.
 *
 * No torch headers, Python's limited API only. Needs the vectors of GCC or Clang; elsewhere torch operations do it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
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
enum { LANES = 16, HALF = 8, TOGETHER = 4 };
static const double MASKED = -32752.0, LOWEST = -80.0; /* half of what float16 can say: masks are -inf, a format's least number or -1e9 */

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef float Halves __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

/* A mask of these strides: none, floats that are added, or bytes that are 0 where a key may not be seen. */
typedef struct {
    const void *at;
    int64_t batch, head, query, key, is_bytes;
} Mask;

/* Floats of batch, heads and time, each with its stride, a row of numbers for each. */
typedef struct {
    const float *at;
    int64_t batch, head, time;
} Vectors;

typedef struct {
    Vectors query, key;        /* or null, and then */
    const float *logits;
    Mask mask;
    const unsigned char *keep; /* of batch x queries, or null */
    double *out, scale;        /* 8 x heads */
    int64_t batch, heads, groups, queries, keys, width, causal;
} Job;

ALWAYS Doubles all(double value) { return (Doubles){0} + value; }
ALWAYS Doubles pick(Longs which, Doubles yes, Doubles no) { return (Doubles)(((Longs)yes & which) | ((Longs)no & ~which)); }
ALWAYS Doubles load(const double *x) {
    Doubles found;
    memcpy(&found, x, sizeof found);
    return found;
}
ALWAYS int64_t padded(int64_t keys) { return (keys + LANES - 1) / LANES * LANES; }

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
        type x[HALF]; \
        memcpy(x, &lanes, sizeof x); \
        for (int width = HALF / 2; width; width /= 2) \
            for (int j = 0; j < width; j++) x[j] = expression; \
        return x[0]; \
    }
FOLD(sum_of, double, Doubles, x[j] + x[j + width])
FOLD(count_of, int64_t, Longs, x[j] + x[j + width])
FOLD(largest_of, double, Doubles, x[j] > x[j + width] ? x[j] : x[j + width])
FOLD(least_of, double, Doubles, x[j] < x[j + width] ? x[j] : x[j + width])

ALWAYS void add_row(const double *row, int64_t end, double *out, int64_t h) {
    Doubles high = all(-INFINITY), low = all(INFINITY), total[2] = {{0}}, dot[2] = {{0}};
    Longs seen = {0};
    for (int64_t i = 0; i < end; i += HALF) {
        Doubles x = load(row + i);
        Longs visible = (Longs)(x > MASKED);
        high = pick((Longs)(x > high), x, high);
        low = pick(visible & (Longs)(x < low), x, low);
        seen -= visible;
    }
    double top = largest_of(high), least = least_of(low);
    int64_t count = count_of(seen);
    if (!count || top == INFINITY) return;
    for (int64_t i = 0; i < end; i += LANES) {
        Doubles below[2];
        Halves narrow[2];
        Floats e;
        for (int k = 0; k < 2; k++) {
            below[k] = load(row + i + k * HALF) - top;
            below[k] = pick((Longs)(below[k] > LOWEST), below[k], all(LOWEST));
            narrow[k] = __builtin_convertvector(below[k], Halves);
        }
        memcpy(&e, narrow, sizeof e);
        e = exponential(e);
        memcpy(narrow, &e, sizeof e);
        for (int k = 0; k < 2; k++) {
            Doubles weight = __builtin_convertvector(narrow[k], Doubles);
            total[k] += weight;
            dot[k] += weight * below[k];
        }
    }
    double sum = sum_of(total[0] + total[1]), entropy = log(sum) - sum_of(dot[0] + dot[1]) / sum;
    out[VALID * h] += 1;
    out[ENTROPY * h] += entropy;
    out[LEAST * h] = entropy < out[LEAST * h] ? entropy : out[LEAST * h];
    out[MOST * h] = entropy > out[MOST * h] ? entropy : out[MOST * h];
    out[FREE * h] += count > 1;
    out[RELATIVE * h] += count > 1 ? entropy / log((double)count) : 0;
    out[LOGIT_MIN * h] = least < out[LOGIT_MIN * h] ? least : out[LOGIT_MIN * h];
    out[LOGIT_MAX * h] = top > out[LOGIT_MAX * h] ? top : out[LOGIT_MAX * h];
}

/* How many keys there are up to the last one that a mask lets a query see, one at least: with a causal one, half of all on average. */
ALWAYS int64_t seen_by(const Job *job, int64_t b, int64_t head, int64_t q) {
    const Mask *m = &job->mask;
    int64_t keys = job->causal && q + 1 < job->keys ? q + 1 : job->keys, at = b * m->batch + head * m->head + q * m->query;
    if (m->at && m->is_bytes)
        while (keys > 1 && !((const unsigned char *)m->at)[at + (keys - 1) * m->key]) keys--;
    else if (m->at)
        while (keys > 1 && ((const float *)m->at)[at + (keys - 1) * m->key] == -INFINITY) keys--;
    return keys;
}

/* The logits of some queries become what the softmax sees; what stands behind the last key is hidden. Returns how many count. */
ALWAYS int64_t hide(const Job *job, double *row, int64_t b, int64_t head, int64_t q) {
    const Mask *m = &job->mask;
    int64_t keys = seen_by(job, b, head, q), at = b * m->batch + head * m->head + q * m->query;
    if (m->at && m->is_bytes)
        for (int64_t i = 0; i < keys; i++) row[i] = ((const unsigned char *)m->at)[at + i * m->key] ? row[i] : -INFINITY;
    else if (m->at && m->key == 1)
        for (int64_t i = 0; i < keys; i++) row[i] += ((const float *)m->at)[at + i];
    else if (m->at)
        for (int64_t i = 0; i < keys; i++) row[i] += ((const float *)m->at)[at + i * m->key];
    for (int64_t i = keys; i < padded(keys); i++) row[i] = -INFINITY;
    return padded(keys);
}

/* Keys as doubles, one behind the other for each of the `width` numbers. */
ALWAYS void pack(const Job *job, int64_t b, int64_t group, double *packed) {
    int64_t apart = padded(job->keys);
    for (int64_t k = 0; k < apart; k++) {
        const float *from = job->key.at + b * job->key.batch + group * job->key.head + k * job->key.time;
        for (int64_t d = 0; d < job->width; d++) packed[d * apart + k] = k < job->keys ? from[d] : 0;
    }
}

/* `TOGETHER` rows of logits; a query that is none repeats the last one. */
ALWAYS void multiply(const Job *job, const double *packed, int64_t b, int64_t head, int64_t q, double *rows) {
    int64_t apart = padded(job->keys), last = job->queries - 1, end = 0;
    const float *from[TOGETHER];
    for (int t = 0; t < TOGETHER; t++) {
        int64_t one = q + t < last ? q + t : last, keys = seen_by(job, b, head, one);
        from[t] = job->query.at + b * job->query.batch + head * job->query.head + one * job->query.time;
        end = keys > end ? keys : end;
    }
    for (int64_t k = 0; k < end; k += LANES) {
        Doubles sum[TOGETHER][2] = {{{0}}};
        for (int64_t d = 0; d < job->width; d++) {
            Doubles one = load(packed + d * apart + k), other = load(packed + d * apart + k + HALF);
            for (int t = 0; t < TOGETHER; t++) {
                sum[t][0] += one * (double)from[t][d];
                sum[t][1] += other * (double)from[t][d];
            }
        }
        for (int t = 0; t < TOGETHER; t++)
            for (int j = 0; j < 2; j++) {
                sum[t][j] *= job->scale;
                memcpy(rows + t * apart + k + j * HALF, &sum[t][j], sizeof sum[t][j]);
            }
    }
}

ALWAYS void add_some(const Job *job, int64_t b, int64_t head, int64_t q, double *rows) {
    for (int64_t t = 0; t < TOGETHER && q + t < job->queries; t++)
        if (!job->keep || job->keep[b * job->queries + q + t]) {
            double *row = rows + t * padded(job->keys);
            add_row(row, hide(job, row, b, head, q + t), job->out + head, job->heads);
        }
}

ALWAYS void add_made(const Job *job, double *rows, double *packed) {
    int64_t sharing = job->heads / job->groups;
    for (int64_t b = 0; b < job->batch; b++)
        for (int64_t head = 0; head < job->heads; head++) {
            if (head % sharing == 0) pack(job, b, head / sharing, packed);
            for (int64_t q = 0; q < job->queries; q += TOGETHER) {
                multiply(job, packed, b, head, q, rows);
                add_some(job, b, head, q, rows);
            }
        }
}

ALWAYS void add_given(const Job *job, double *rows) {
    const float *from = job->logits;
    for (int64_t b = 0; b < job->batch; b++)
        for (int64_t head = 0; head < job->heads; head++)
            for (int64_t q = 0; q < job->queries; q++, from += job->keys)
                if (!job->keep || job->keep[b * job->queries + q]) {
                    for (int64_t k = 0; k < job->keys; k++) rows[k] = from[k];
                    add_row(rows, hide(job, rows, b, head, q), job->out + head, job->heads);
                }
}

ALWAYS void add_all(const Job *job, double *rows, double *packed) {
    if (packed)
        add_made(job, rows, packed);
    else
        add_given(job, rows);
}

static void add_generic(const Job *job, double *rows, double *packed) { add_all(job, rows, packed); }
#if HAS_X86
T512 static void add_avx512(const Job *job, double *rows, double *packed) { add_all(job, rows, packed); }
T256 static void add_avx2(const Job *job, double *rows, double *packed) { add_all(job, rows, packed); }
#endif
static void (*adder)(const Job *, double *, double *) = add_generic;

static PyObject *run(const Job *job) {
    int64_t width = job->query.at ? job->width : 0;
    if (job->batch < 0 || job->heads < 1 || job->groups < 1 || job->heads % job->groups || job->queries < 0 || job->keys < 1 || !job->out)
        return PyErr_Format(PyExc_ValueError, "null address, or a size below 1");
    if (job->batch > 0 && job->queries > 0 && !(job->logits || (job->query.at && job->key.at && width > 0)))
        return PyErr_Format(PyExc_ValueError, "null address, or a size below 1");
    double *rows = malloc((size_t)padded(job->keys) * (TOGETHER + (size_t)width) * sizeof(double));
    if (!rows) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    adder(job, rows, width ? rows + padded(job->keys) * TOGETHER : NULL);
    Py_END_ALLOW_THREADS
    free(rows);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(add_doc, "add(logits, mask, keep, batch, heads, queries, keys, out)\n--\n\nAdd the rows of batch * heads * queries * keys floats at "
                      "`logits` to 8 rows of doubles at `out`.\n`mask` (queries * keys floats that are added) and `keep` (batch * queries bytes) "
                      "may be 0. Addresses are trusted.");
static PyObject *add(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 8) return PyErr_Format(PyExc_TypeError, "add() takes 8 arguments, got %zd", nargs);
    Job job = {.logits = PyLong_AsVoidPtr(args[0]), .keep = PyLong_AsVoidPtr(args[2]), .out = PyLong_AsVoidPtr(args[7]), .groups = 1,
               .batch = PyLong_AsLongLong(args[3]), .heads = PyLong_AsLongLong(args[4]), .queries = PyLong_AsLongLong(args[5]),
               .keys = PyLong_AsLongLong(args[6])};
    job.mask = (Mask){PyLong_AsVoidPtr(args[1]), 0, 0, job.keys, 1, 0};
    return PyErr_Occurred() ? NULL : run(&job);
}

enum { NUMBERS = 24 };
PyDoc_STRVAR(attend_doc,
             "attend(query, key, mask, keep, out, batch, heads, groups, queries, keys, width, causal, is_bytes, *strides, scale)\n--\n\nAdd the rows "
             "of scale * query @ key, as add() does. Strides are in elements: batch, head and time of query and key, batch, head, query\nand key of the "
             "mask; it has floats that are added, or bytes that are 0 where a key may not be seen. `groups` heads of key are shared.");
static PyObject *attend(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != NUMBERS) return PyErr_Format(PyExc_TypeError, "attend() takes %d arguments, got %zd", NUMBERS, nargs);
    int64_t n[NUMBERS] = {0};
    for (int i = 5; i < NUMBERS - 1; i++) n[i] = PyLong_AsLongLong(args[i]);
    Job job = {.query = {PyLong_AsVoidPtr(args[0]), n[13], n[14], n[15]}, .key = {PyLong_AsVoidPtr(args[1]), n[16], n[17], n[18]},
               .mask = {PyLong_AsVoidPtr(args[2]), n[19], n[20], n[21], n[22], n[12]}, .keep = PyLong_AsVoidPtr(args[3]),
               .out = PyLong_AsVoidPtr(args[4]), .scale = PyFloat_AsDouble(args[NUMBERS - 1]), .batch = n[5], .heads = n[6], .groups = n[7],
               .queries = n[8], .keys = n[9], .width = n[10], .causal = n[11]};
    return PyErr_Occurred() ? NULL : run(&job);
}

static PyMethodDef methods[] = {{"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, add_doc},
                                {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL, attend_doc},
                                {NULL, NULL, 0, NULL}};
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
