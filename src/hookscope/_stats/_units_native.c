/* Moments of each unit of a float32 tensor, added to rows that are kept: one pass over memory, for every unit at once.
 *
 * The tensor is outer x units x inner numbers in a row: channels in the middle (N, C, H*W), features last (N*T, D, 1). A block is read as
 * if it were all finite, a vector at a time; the sum of its squares is finite exactly if it was. Otherwise the block, still in cache, is
 * read again one by one. Differences from the unit's shift are taken in double, where the fourth power of a float can neither overflow
 * nor vanish. Comparisons that count look at bits, never at values: with torch.set_flush_denormal(True) a subnormal compares equal to zero.
 *
 * The part on vectors includes itself, once for each width of them.
 *
 * No torch headers, Python's limited API only. Needs the vectors of GCC or Clang; elsewhere torch operations do it.
 */
#ifndef BYTES
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__)
#error "the unit kernel is written in the vector extensions of GCC and Clang"
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

enum { N, NONFINITE, S1, S2, S3, S4, ABS, MIN, MAX, POSITIVE, ZERO, LARGE, ROWS };
enum { TINY_F32, TINY_F16, TINY_E4M3, OVER_E4M3, OVER_E5M2, OVER_F16, OVER_BF16, RANGES };
enum { AHEAD = 12, BLOCK_ROWS = 256, BLOCK = 4096, RELEASE_GIL_FROM = 16384 };
static const uint32_t INFINITE = 0x7f800000u, SIX = 0x40c00000u;
static const uint32_t TINY[3] = {0x00800000u, 0x38800000u, 0x3c800000u};             /* 2^-126, 2^-14, 2^-6: smallest normal numbers */
static const uint32_t OVER[4] = {0x43e00000u, 0x47600000u, 0x477fe000u, 0x7f7f0000u}; /* 448, 57344, 65504, 3.39e38: largest ones */

/* Where to add to: `row[k * units + unit]`, and the ranges of the whole tensor. */
typedef struct {
    const double *shift;
    double *row, *range, absmax;
    int64_t units;
} Out;

ALWAYS uint32_t magnitude(const float *x) {
    uint32_t bits;
    memcpy(&bits, x, 4);
    return bits & 0x7fffffffu;
}

/* ---- one by one: the ends of runs, and blocks that are not finite ---- */

ALWAYS void take(const float *x, int64_t unit, Out *o) {
    uint32_t bits = magnitude(x);
    double *row = o->row + unit;
    int64_t u = o->units;
    if (bits >= INFINITE) {
        row[NONFINITE * u] += 1;
        return;
    }
    double v = *x, d = v - o->shift[unit], d2 = d * d;
    row[N * u] += 1;
    row[S1 * u] += d;
    row[S2 * u] += d2;
    row[S3 * u] += d2 * d;
    row[S4 * u] += d2 * d2;
    row[ABS * u] += fabs(v);
    row[MIN * u] = v < row[MIN * u] ? v : row[MIN * u];
    row[MAX * u] = v > row[MAX * u] ? v : row[MAX * u];
    row[POSITIVE * u] += v > 0;
    row[ZERO * u] += bits == 0;
    row[LARGE * u] += bits >= SIX;
    for (int k = 0; k < 3; k++) o->range[TINY_F32 + k] += bits && bits < TINY[k];
    for (int k = 0; k < 4; k++) o->range[OVER_E4M3 + k] += bits > OVER[k];
    o->absmax = fabs(v) > o->absmax ? fabs(v) : o->absmax;
}

ALWAYS void count_over(const float *x, int64_t n, Out *o) {
    int64_t over[4] = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) over[k] += magnitude(x + i) > OVER[k];
    for (int k = 0; k < 4; k++) o->range[OVER_E4M3 + k] += (double)over[k];
}

#define BYTES 64
#define NAME(name) name##64
#include "_units_native.c"
#undef BYTES
#undef NAME
#define BYTES 32
#define NAME(name) name##32
#include "_units_native.c"
#undef BYTES
#undef NAME
#define BYTES 16
#define NAME(name) name##16
#include "_units_native.c"
#undef BYTES
#undef NAME

typedef void (*Reader)(const float *x, int64_t outer, int64_t inner, Out *o);
static void read_generic(const float *x, int64_t outer, int64_t inner, Out *o) { read_all16(x, outer, inner, o); }
#if HAS_X86
T512 static void read_avx512(const float *x, int64_t outer, int64_t inner, Out *o) { read_all64(x, outer, inner, o); }
T256 static void read_avx2(const float *x, int64_t outer, int64_t inner, Out *o) { read_all32(x, outer, inner, o); }
#endif

typedef struct {
    const char *name;
    Reader reader;
} Level;
static Level levels[3], *level;
static int level_count;

static void find_levels(void) {
    level_count = 0;
#if HAS_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        levels[level_count++] = (Level){"avx512", read_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) levels[level_count++] = (Level){"avx2", read_avx2};
#endif
    levels[level_count++] = (Level){"generic", read_generic};
    level = &levels[0];
}

PyDoc_STRVAR(add_doc,
             "add(x, outer, units, inner, shift, rows, ranges)\n--\n\nAdd the units of outer * units * inner floats at `x` to 12 rows of doubles "
             "at `rows`\nand 7 doubles at `ranges`, with differences from `shift`; return the largest magnitude. Addresses are trusted.");
static PyObject *add(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 7) return PyErr_Format(PyExc_TypeError, "add() takes 7 arguments, got %zd", nargs);
    const float *x = PyLong_AsVoidPtr(args[0]);
    int64_t outer = PyLong_AsLongLong(args[1]), units = PyLong_AsLongLong(args[2]), inner = PyLong_AsLongLong(args[3]);
    Out o = {PyLong_AsVoidPtr(args[4]), PyLong_AsVoidPtr(args[5]), PyLong_AsVoidPtr(args[6]), 0, units};
    if (PyErr_Occurred()) return NULL;
    if (outer < 0 || units < 1 || inner < 1 || !o.shift || !o.row || !o.range || (outer && !x))
        return PyErr_Format(PyExc_ValueError, "null address, or a size below 1");
    if (outer * units * inner >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        level->reader(x, outer, inner, &o);
        Py_END_ALLOW_THREADS
    } else {
        level->reader(x, outer, inner, &o);
    }
    return PyFloat_FromDouble(o.absmax);
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
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, add_doc},
    {"levels", list_levels, METH_NOARGS, levels_doc},
    {"use", use, METH_O, use_doc},
    {NULL, NULL, 0, NULL},
};
static int exec(PyObject *module) {
    (void)module;
    find_levels();
    return 0;
}
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_units_native", "The unit kernel.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__units_native(void) { return PyModuleDef_Init(&definition); }
#else /* ---- vectors of BYTES: a lane for each float, doubles in two halves ---- */
#undef LANES
#undef HALF
#define LANES (BYTES / 4)
#define HALF (BYTES / 8)

typedef double NAME(Doubles) __attribute__((vector_size(BYTES)));
typedef int64_t NAME(Longs) __attribute__((vector_size(BYTES)));
typedef float NAME(Halves) __attribute__((vector_size(BYTES / 2)));
typedef float NAME(Floats) __attribute__((vector_size(BYTES)));
typedef int32_t NAME(Ints) __attribute__((vector_size(BYTES)));

typedef struct {
    NAME(Doubles) s1[2], s2[2], s3[2], s4[2], abs[2];
    NAME(Floats) min, max;
    NAME(Ints) positive, zero, large, tiny[3];
} NAME(Lanes);

ALWAYS void NAME(clear)(NAME(Lanes) *t) {
    memset(t, 0, sizeof *t);
    t->min = t->min + INFINITY;
    t->max = t->max - INFINITY;
}

ALWAYS NAME(Floats) NAME(chosen)(NAME(Ints) mask, NAME(Floats) yes, NAME(Floats) no) { return (NAME(Floats))(((NAME(Ints))yes & mask) | ((NAME(Ints))no & ~mask)); }

ALWAYS void NAME(take_lanes)(const float *x, const NAME(Doubles) *shift, NAME(Lanes) *t) {
    NAME(Floats) f;
    memcpy(&f, x, sizeof f);
    NAME(Ints) bits = (NAME(Ints))f & 0x7fffffff;
    for (int h = 0; h < 2; h++) {
        NAME(Halves) half;
        memcpy(&half, x + h * HALF, sizeof half);
        NAME(Doubles) v = __builtin_convertvector(half, NAME(Doubles)), d = v - shift[h], d2 = d * d;
        t->s1[h] += d;
        t->s2[h] += d2;
        t->s3[h] += d2 * d;
        t->s4[h] += d2 * d2;
        t->abs[h] += (NAME(Doubles))((NAME(Longs))v & INT64_MAX);
    }
    t->min = NAME(chosen)(f < t->min, f, t->min);
    t->max = NAME(chosen)(f > t->max, f, t->max);
    t->positive -= (NAME(Ints))((NAME(Ints))f > 0); /* as whole numbers, positive floats are those above 0 */
    t->zero -= (NAME(Ints))(bits == 0);
    t->large -= (NAME(Ints))(bits >= (int32_t)SIX);
    for (int k = 0; k < 3; k++) t->tiny[k] -= (NAME(Ints))(bits < (int32_t)TINY[k]);
}

ALWAYS void NAME(add_half)(double *row, NAME(Doubles) more) {
    NAME(Doubles) sum;
    memcpy(&sum, row, sizeof sum);
    sum += more;
    memcpy(row, &sum, sizeof sum);
}

ALWAYS void NAME(add_counts)(double *row, NAME(Ints) counts) {
    for (int j = 0; j < LANES; j++) row[j] += counts[j];
}

ALWAYS void NAME(add_ranges)(const NAME(Lanes) *t, Out *o) {
    for (int k = 0; k < 3; k++) {
        NAME(Ints) counts = t->tiny[k] - t->zero;
        int64_t sum = 0;
        for (int j = 0; j < LANES; j++) sum += counts[j];
        o->range[TINY_F32 + k] += (double)sum;
    }
}

/* Each lane is a unit of its own. */
ALWAYS void NAME(flush_columns)(const NAME(Lanes) *t, int64_t unit, double n, Out *o) {
    int64_t u = o->units;
    double *row = o->row + unit;
    for (int h = 0; h < 2; h++) {
        double *half = row + h * HALF;
        NAME(add_half)(half + N * u, (NAME(Doubles)){0} + n);
        NAME(add_half)(half + S1 * u, t->s1[h]);
        NAME(add_half)(half + S2 * u, t->s2[h]);
        NAME(add_half)(half + S3 * u, t->s3[h]);
        NAME(add_half)(half + S4 * u, t->s4[h]);
        NAME(add_half)(half + ABS * u, t->abs[h]);
    }
    for (int j = 0; j < LANES; j++) {
        row[MIN * u + j] = t->min[j] < row[MIN * u + j] ? t->min[j] : row[MIN * u + j];
        row[MAX * u + j] = t->max[j] > row[MAX * u + j] ? t->max[j] : row[MAX * u + j];
    }
    NAME(add_counts)(row + POSITIVE * u, t->positive);
    NAME(add_counts)(row + ZERO * u, t->zero);
    NAME(add_counts)(row + LARGE * u, t->large);
    NAME(add_ranges)(t, o);
}

/* All lanes are of one unit. */
ALWAYS void NAME(flush_runs)(const NAME(Lanes) *t, int64_t unit, double n, Out *o) {
    int64_t u = o->units;
    double *row = o->row + unit;
    row[N * u] += n;
    for (int j = 0; j < LANES; j++) {
        row[S1 * u] += t->s1[j / HALF][j % HALF];
        row[S2 * u] += t->s2[j / HALF][j % HALF];
        row[S3 * u] += t->s3[j / HALF][j % HALF];
        row[S4 * u] += t->s4[j / HALF][j % HALF];
        row[ABS * u] += t->abs[j / HALF][j % HALF];
        row[MIN * u] = t->min[j] < row[MIN * u] ? t->min[j] : row[MIN * u];
        row[MAX * u] = t->max[j] > row[MAX * u] ? t->max[j] : row[MAX * u];
        row[POSITIVE * u] += t->positive[j];
        row[ZERO * u] += t->zero[j];
        row[LARGE * u] += t->large[j];
    }
    NAME(add_ranges)(t, o);
}

ALWAYS int NAME(is_finite)(const NAME(Lanes) *t) {
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += t->s2[j / HALF][j % HALF] - t->s2[j / HALF][j % HALF];
    return sum == 0;
}

ALWAYS double NAME(largest)(const NAME(Lanes) *t) {
    double most = 0;
    for (int j = 0; j < LANES; j++) {
        most = t->max[j] > most ? t->max[j] : most;
        most = -t->min[j] > most ? -t->min[j] : most;
    }
    return most;
}

/* Features last: one vector of columns down a block of rows. */
ALWAYS void NAME(columns)(const float *x, int64_t rows, int64_t unit, Out *o) {
    NAME(Lanes) t;
    NAME(Doubles) shift[2];
    NAME(clear)(&t);
    memcpy(shift, o->shift + unit, sizeof shift);
    for (int64_t i = 0; i < rows; i++) {
        /* Rows lie too far apart for the processor to guess the next ones: 2.5 times as fast on memory that is not in cache. */
        __builtin_prefetch(x + (i + AHEAD < rows ? i + AHEAD : i) * o->units);
        NAME(take_lanes)(x + i * o->units, shift, &t);
    }
    if (!NAME(is_finite)(&t)) {
        for (int64_t i = 0; i < rows; i++)
            for (int j = 0; j < LANES; j++) take(x + i * o->units + j, unit + j, o);
        return;
    }
    NAME(flush_columns)(&t, unit, (double)rows, o);
    double most = NAME(largest)(&t);
    o->absmax = most > o->absmax ? most : o->absmax;
    if (most > 448)
        for (int64_t i = 0; i < rows; i++) count_over(x + i * o->units, LANES, o);
}

ALWAYS void NAME(read_last)(const float *x, int64_t outer, Out *o) {
    for (int64_t from = 0; from < outer; from += BLOCK_ROWS) {
        int64_t rows = outer - from < BLOCK_ROWS ? outer - from : BLOCK_ROWS, unit = 0;
        const float *block = x + from * o->units;
        for (; unit + LANES <= o->units; unit += LANES) NAME(columns)(block + unit, rows, unit, o);
        for (; unit < o->units; unit++)
            for (int64_t i = 0; i < rows; i++) take(block + i * o->units + unit, unit, o);
    }
}

/* Channels in the middle: runs of `inner` numbers of one unit, `apart` from each other. */
ALWAYS void NAME(runs)(const float *x, int64_t count, int64_t inner, int64_t apart, int64_t unit, Out *o) {
    NAME(Lanes) t;
    NAME(Doubles) shift[2] = {{0}, {0}};
    int64_t even = inner - inner % LANES;
    NAME(clear)(&t);
    for (int h = 0; h < 2; h++) shift[h] = shift[h] + o->shift[unit];
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < even; i += LANES) NAME(take_lanes)(x + r * apart + i, shift, &t);
    int finite = NAME(is_finite)(&t);
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = finite ? even : 0; i < inner; i++) take(x + r * apart + i, unit, o);
    if (!finite || !even) return;
    NAME(flush_runs)(&t, unit, (double)(count * even), o);
    double most = NAME(largest)(&t);
    o->absmax = most > o->absmax ? most : o->absmax;
    if (most > 448)
        for (int64_t r = 0; r < count; r++) count_over(x + r * apart, even, o);
}

ALWAYS void NAME(read_middle)(const float *x, int64_t outer, int64_t inner, Out *o) {
    int64_t apart = o->units * inner, at_once = inner < BLOCK ? BLOCK / inner : 1;
    for (int64_t unit = 0; unit < o->units; unit++)
        for (int64_t from = 0; from < outer; from += at_once) {
            int64_t count = outer - from < at_once ? outer - from : at_once;
            for (int64_t i = 0; i < inner; i += BLOCK * 16) { /* whole numbers in a lane stay far below 2^31 */
                int64_t length = inner - i < BLOCK * 16 ? inner - i : BLOCK * 16;
                NAME(runs)(x + from * apart + unit * inner + i, count, length, apart, unit, o);
            }
        }
}

ALWAYS void NAME(read_all)(const float *x, int64_t outer, int64_t inner, Out *o) {
    if (inner == 1)
        NAME(read_last)(x, outer, o);
    else
        NAME(read_middle)(x, outer, inner, o);
}
#endif
