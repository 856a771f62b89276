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
#include <immintrin.h>
#define HAS_X86 1
#define T512 __attribute__((target("avx512f,avx512vl,avx512dq,fma")))
#define T256 __attribute__((target("avx2,fma")))
#else
#define T512
#define T256
#define HAS_X86 0
#endif
#define ALWAYS static inline __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are handed to functions that are inlined, never called */

enum { N, NONFINITE, S1, S2, S3, S4, ABS, MIN, MAX, POSITIVE, ZERO, LARGE, ROWS };
enum { TINY_F32, TINY_F16, TINY_E4M3, OVER_E4M3, OVER_E5M2, OVER_F16, OVER_BF16, RANGES };
enum { AHEAD = 24, FURTHER = 256, BLOCK_ROWS = 128, BLOCK = 4096, FEW = 64, RELEASE_GIL_FROM = 16384 };
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

#define IS_ABOVE _MM_CMPINT_NLE
#define IS_EQUALS _MM_CMPINT_EQ
#define IS_BELOW _MM_CMPINT_LT
#define OP_ABOVE(b) > (b)
#define OP_EQUALS(b) == (b)
#define OP_BELOW(b) < (b)
#define BYTES 64
#define NAME(name) name##64
#define INLINE ALWAYS T512
#include "_units_native.c"
#undef BYTES
#undef NAME
#undef INLINE
#define BYTES 32
#define NAME(name) name##32
#define INLINE ALWAYS T256
#include "_units_native.c"
#undef BYTES
#undef NAME
#undef INLINE
#define BYTES 16
#define NAME(name) name##16
#define INLINE ALWAYS
#include "_units_native.c"
#undef BYTES
#undef NAME
#undef INLINE

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

/* Any shift near the values will do to begin with: the mean of the first few of each unit that are finite. */
static void start_shift(const float *x, int64_t outer, int64_t inner, int64_t units, double *shift) {
    int64_t some = inner < FEW ? inner : FEW, rows = FEW / some < outer ? FEW / some : outer;
    for (int64_t unit = 0; unit < units; unit++) {
        double sum = 0;
        int64_t n = 0;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < some; i++) {
                const float *v = x + (r * units + unit) * inner + i;
                if (magnitude(v) < INFINITE) sum += *v, n++;
            }
        shift[unit] = n ? sum / (double)n : 0;
    }
}

PyDoc_STRVAR(begin_doc, "begin(x, outer, units, inner, shift)\n--\n\nPut the mean of the first few values of each unit at `shift`.");
static PyObject *begin(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 5) return PyErr_Format(PyExc_TypeError, "begin() takes 5 arguments, got %zd", nargs);
    const float *x = PyLong_AsVoidPtr(args[0]);
    int64_t outer = PyLong_AsLongLong(args[1]), units = PyLong_AsLongLong(args[2]), inner = PyLong_AsLongLong(args[3]);
    double *shift = PyLong_AsVoidPtr(args[4]);
    if (PyErr_Occurred()) return NULL;
    if (outer < 1 || units < 1 || inner < 1 || !shift || !x) return PyErr_Format(PyExc_ValueError, "null address, or a size below 1");
    start_shift(x, outer, inner, units, shift);
    Py_RETURN_NONE;
}

/* Moves the shift to the mean, the sums to those of the central moments, where one unit's mean lies far from its shift; else nothing. */
static int move_shift(int64_t units, double far, double *shift, double *row) {
    int is_far = 0;
    double sum = 0;
    for (int64_t i = 0; i < units; i++) is_far |= row[S1 * units + i] * row[S1 * units + i] > far * far * row[N * units + i] * row[S2 * units + i];
    for (int64_t i = 0; i < units; i++) sum += row[S4 * units + i];
    if (!is_far || sum - sum != 0) return 0; /* beyond that, doubles themselves have overflowed */
    for (int64_t i = 0; i < units; i++, row++) {
        double n = row[N * units] > 1 ? row[N * units] : 1, s1 = row[S1 * units], s2 = row[S2 * units], s3 = row[S3 * units], off = s1 / n;
        double m2 = s2 - off * s1, m4 = row[S4 * units] - 4 * off * s3 + 6 * off * off * s2 - 3 * off * off * off * s1;
        row[S3 * units] = s3 - 3 * off * s2 + 2 * off * off * s1;
        row[S1 * units] = 0;
        row[S2 * units] = m2 > 0 ? m2 : 0;
        row[S4 * units] = m4 > 0 ? m4 : 0;
        shift[i] += off;
    }
    return 1;
}

PyDoc_STRVAR(recentre_doc, "recentre(units, far, shift, rows)\n--\n\nMove the shift to the mean if a mean lies `far` standard deviations from it.");
static PyObject *recentre(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 4) return PyErr_Format(PyExc_TypeError, "recentre() takes 4 arguments, got %zd", nargs);
    int64_t units = PyLong_AsLongLong(args[0]);
    double far = PyFloat_AsDouble(args[1]), *shift = PyLong_AsVoidPtr(args[2]), *rows = PyLong_AsVoidPtr(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (units < 1 || !shift || !rows) return PyErr_Format(PyExc_ValueError, "null address, or a size below 1");
    return PyBool_FromLong(move_shift(units, far, shift, rows));
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

/* ---- tensors of one form: asked here for what the interpreter would ask one at a time ---- */

enum { DTYPE, LAYOUT, SHAPE, IS_CPU, IS_NESTED, STRIDE, IS_NEG, DATA_PTR, NAMES };
static const char *const NAME_TEXTS[NAMES] = {"dtype", "layout", "shape", "is_cpu", "is_nested", "stride", "is_neg", "data_ptr"};
static PyObject *names[NAMES];

/* What a tensor has to be, a value for each name up to `STRIDE`, and where its units are to be added. */
typedef struct {
    PyObject_HEAD
    PyObject *type, *is[IS_NEG];
    int64_t outer, inner;
    Out out;
} Form;
static PyTypeObject *form_type;

static PyObject *asked(PyObject *tensor, int name) {
    return name >= STRIDE ? PyObject_CallMethodObjArgs(tensor, names[name], NULL) : PyObject_GetAttr(tensor, names[name]);
}

static int is_equal(PyObject *tensor, int name, PyObject *to) {
    PyObject *found = asked(tensor, name);
    int equal = found && PyObject_RichCompareBool(found, to, Py_EQ) == 1;
    Py_XDECREF(found);
    return equal;
}

/* The address of a tensor of this form; NULL for any other, with or without an error. */
static const float *address_of(const Form *form, PyObject *tensor) {
    if ((PyObject *)Py_TYPE(tensor) != form->type) return NULL;
    for (int name = 0; name < IS_NEG; name++)
        if (!is_equal(tensor, name, form->is[name])) return NULL;
    if (!is_equal(tensor, IS_NEG, Py_False)) return NULL;
    PyObject *found = asked(tensor, DATA_PTR);
    const float *x = found ? PyLong_AsVoidPtr(found) : NULL;
    Py_XDECREF(found);
    return x;
}

PyDoc_STRVAR(form_add_doc, "add(tensor)\n--\n\nAdd a tensor of this form and return the largest magnitude in it; None for any other.");
static PyObject *form_add(PyObject *self, PyObject *tensor) {
    Form *form = (Form *)self;
    const float *x = address_of(form, tensor);
    if (!x) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Out out = form->out;
    Py_BEGIN_ALLOW_THREADS
    level->reader(x, form->outer, form->inner, &out);
    Py_END_ALLOW_THREADS
    return PyFloat_FromDouble(out.absmax);
}

static void form_dealloc(PyObject *self) {
    Form *form = (Form *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(form->type);
    for (int name = 0; name < IS_NEG; name++) Py_XDECREF(form->is[name]);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(form_doc, "form(tensor, outer, units, inner, shift, rows, ranges)\n--\n\nWhat reads tensors of the type, dtype, shape and strides of this one: "
                       "outer * units * inner floats\nwithout gaps, added where add() would. Addresses are trusted.");
static PyObject *form(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs != 7) return PyErr_Format(PyExc_TypeError, "form() takes 7 arguments, got %zd", nargs);
    int64_t outer = PyLong_AsLongLong(args[1]), units = PyLong_AsLongLong(args[2]), inner = PyLong_AsLongLong(args[3]);
    Out out = {PyLong_AsVoidPtr(args[4]), PyLong_AsVoidPtr(args[5]), PyLong_AsVoidPtr(args[6]), 0, units};
    if (PyErr_Occurred()) return NULL;
    if (outer < 1 || units < 1 || inner < 1 || !out.shift || !out.row || !out.range)
        return PyErr_Format(PyExc_ValueError, "null address, or a size below 1");
    Form *made = PyObject_New(Form, form_type);
    if (!made) return NULL;
    made->type = (PyObject *)Py_TYPE(args[0]);
    Py_INCREF(made->type);
    made->outer = outer, made->inner = inner, made->out = out;
    memset(made->is, 0, sizeof made->is);
    for (int name = 0; name < IS_NEG; name++)
        if (!(made->is[name] = asked(args[0], name))) {
            Py_DECREF(made);
            return NULL;
        }
    return (PyObject *)made;
}

static PyMethodDef form_methods[] = {{"add", form_add, METH_O, form_add_doc}, {NULL, NULL, 0, NULL}};
static PyType_Slot form_slots[] = {{Py_tp_dealloc, (void *)form_dealloc}, {Py_tp_methods, form_methods}, {0, NULL}};
static PyType_Spec form_spec = {"hookscope._stats._units_native.Form", sizeof(Form), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, form_slots};

static PyMethodDef methods[] = {
    {"form", (PyCFunction)(void (*)(void))form, METH_FASTCALL, form_doc},
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, add_doc},
    {"begin", (PyCFunction)(void (*)(void))begin, METH_FASTCALL, begin_doc},
    {"recentre", (PyCFunction)(void (*)(void))recentre, METH_FASTCALL, recentre_doc},
    {"levels", list_levels, METH_NOARGS, levels_doc},
    {"use", use, METH_O, use_doc},
    {NULL, NULL, 0, NULL},
};
static int exec(PyObject *module) {
    (void)module;
    find_levels();
    for (int name = 0; name < NAMES; name++)
        if (!names[name] && !(names[name] = PyUnicode_InternFromString(NAME_TEXTS[name]))) return -1;
    if (!form_type && !(form_type = (PyTypeObject *)PyType_FromSpec(&form_spec))) return -1;
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
typedef uint32_t NAME(Words) __attribute__((vector_size(BYTES)));

typedef struct {
    NAME(Doubles) s1[2], s2[2], s3[2], s4[2], abs[2];
    NAME(Floats) min, max;
    NAME(Ints) positive, zero, tiny, tinier, least; /* tiny for e4m3 and float16, zero included; least magnitude but zero, less one, unsigned */
} NAME(Lanes);

INLINE void NAME(clear)(NAME(Lanes) *t) {
    memset(t, 0, sizeof *t);
    t->min = t->min + INFINITY;
    t->max = t->max - INFINITY;
    t->least = t->least - 1;
}

/* The lesser and the larger one, the second where one is not a number; one more where a comparison holds. */
#if BYTES == 64 && HAS_X86
#define WIDE(x) ((NAME(Doubles))_mm512_cvtps_pd(_mm256_loadu_ps(x)))
#define PLUS(sum, a, b) ((NAME(Doubles))_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(sum)))
#define FEWER(a, b) ((NAME(Floats))_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MORE(a, b) ((NAME(Floats))_mm512_max_ps((__m512)(a), (__m512)(b)))
#define LEAST(a, b) ((NAME(Ints))_mm512_min_epu32((__m512i)(a), (__m512i)(b)))
#define COUNT(total, a, relation, b) (total) = (NAME(Ints))_mm512_mask_sub_epi32((__m512i)(total), _mm512_cmp_epi32_mask((__m512i)(a), _mm512_set1_epi32(b), IS_##relation), (__m512i)(total), _mm512_set1_epi32(-1))
#elif BYTES == 32 && HAS_X86
#define WIDE(x) ((NAME(Doubles))_mm256_cvtps_pd(_mm_loadu_ps(x)))
#define PLUS(sum, a, b) ((NAME(Doubles))_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(sum)))
#define FEWER(a, b) ((NAME(Floats))_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MORE(a, b) ((NAME(Floats))_mm256_max_ps((__m256)(a), (__m256)(b)))
#define LEAST(a, b) ((NAME(Ints))_mm256_min_epu32((__m256i)(a), (__m256i)(b)))
#define COUNT(total, a, relation, b) (total) -= (NAME(Ints))((a) OP_##relation(b))
#else
INLINE NAME(Ints) NAME(chosen)(NAME(Ints) mask, NAME(Ints) yes, NAME(Ints) no) { return (yes & mask) | (no & ~mask); }
INLINE NAME(Doubles) NAME(wide)(const float *x) {
    NAME(Halves) half;
    memcpy(&half, x, sizeof half);
    return __builtin_convertvector(half, NAME(Doubles));
}
#define WIDE(x) NAME(wide)(x)
#define PLUS(sum, a, b) ((sum) + (a) * (b))
#define FEWER(a, b) ((NAME(Floats))NAME(chosen)((a) < (b), (NAME(Ints))(a), (NAME(Ints))(b)))
#define MORE(a, b) ((NAME(Floats))NAME(chosen)((a) > (b), (NAME(Ints))(a), (NAME(Ints))(b)))
#define LEAST(a, b) NAME(chosen)((NAME(Ints))((NAME(Words))(a) < (NAME(Words))(b)), (a), (b))
#define COUNT(total, a, relation, b) (total) -= (NAME(Ints))((a) OP_##relation(b))
#endif

INLINE void NAME(take_lanes)(const float *x, const NAME(Doubles) *shift, NAME(Lanes) *t) {
    NAME(Floats) f;
    memcpy(&f, x, sizeof f);
    NAME(Ints) bits = (NAME(Ints))f & 0x7fffffff;
    for (int h = 0; h < 2; h++) {
        NAME(Doubles) v = WIDE(x + h * HALF), d = v - shift[h], d2 = d * d;
        t->s1[h] += d;
        t->s2[h] += d2;
        t->s3[h] = PLUS(t->s3[h], d2, d);
        t->s4[h] = PLUS(t->s4[h], d2, d2);
        t->abs[h] += (NAME(Doubles))((NAME(Longs))v & INT64_MAX);
    }
    t->min = FEWER(f, t->min);
    t->max = MORE(f, t->max);
    COUNT(t->positive, (NAME(Ints))f, ABOVE, 0); /* as whole numbers, positive floats are those above 0 */
    COUNT(t->zero, bits, EQUALS, 0);
    COUNT(t->tiny, bits, BELOW, (int32_t)TINY[2]);
    COUNT(t->tinier, bits, BELOW, (int32_t)TINY[1]); /* at once: of numbers around 0.1, few blocks have none */
    t->least = LEAST(bits - 1, t->least);
}

INLINE void NAME(add_half)(double *row, NAME(Doubles) more) {
    NAME(Doubles) sum;
    memcpy(&sum, row, sizeof sum);
    sum += more;
    memcpy(row, &sum, sizeof sum);
}

INLINE void NAME(add_counts)(double *row, NAME(Ints) counts) {
    for (int j = 0; j < LANES; j++) row[j] += counts[j];
}

INLINE double NAME(count)(NAME(Ints) lanes) {
    int32_t sum = 0;
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

INLINE void NAME(add_ranges)(const NAME(Lanes) *t, Out *o) {
    o->range[TINY_E4M3] += NAME(count)(t->tiny - t->zero);
    o->range[TINY_F16] += NAME(count)(t->tinier - t->zero);
}

/* What few blocks have, counted in a second reading of those that do. */
typedef struct {
    NAME(Ints) large, over[4], subnormal; /* zero included */
} NAME(Rare);

INLINE int NAME(is_rare)(const NAME(Lanes) *t, double most) {
    int found = most >= 6;
    for (int j = 0; j < LANES; j++) found |= (uint32_t)t->least[j] < TINY[0] - 1;
    return found;
}

INLINE void NAME(take_rare)(const float *x, NAME(Rare) *r) {
    NAME(Ints) bits;
    memcpy(&bits, x, sizeof bits);
    bits &= 0x7fffffff;
    COUNT(r->large, bits, ABOVE, (int32_t)SIX - 1);
    COUNT(r->subnormal, bits, BELOW, (int32_t)TINY[0]);
    for (int k = 0; k < 4; k++) COUNT(r->over[k], bits, ABOVE, (int32_t)OVER[k]);
}

INLINE void NAME(add_rare_ranges)(const NAME(Rare) *r, const NAME(Lanes) *t, Out *o) {
    o->range[TINY_F32] += NAME(count)(r->subnormal - t->zero);
    for (int k = 0; k < 4; k++) o->range[OVER_E4M3 + k] += NAME(count)(r->over[k]);
}

/* Each lane is a unit of its own. */
INLINE void NAME(flush_columns)(const NAME(Lanes) *t, int64_t unit, double n, Out *o) {
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
    NAME(add_ranges)(t, o);
}

INLINE double NAME(total)(NAME(Doubles) lanes) {
    double part[HALF];
    memcpy(part, &lanes, sizeof part);
    for (int width = HALF / 2; width; width /= 2)
        for (int j = 0; j < width; j++) part[j] += part[j + width];
    return part[0];
}

/* All lanes are of one unit. */
INLINE void NAME(flush_runs)(const NAME(Lanes) *t, int64_t unit, double n, Out *o) {
    int64_t u = o->units;
    double *row = o->row + unit;
    float min = t->min[0], max = t->max[0];
    for (int j = 1; j < LANES; j++) {
        min = t->min[j] < min ? t->min[j] : min;
        max = t->max[j] > max ? t->max[j] : max;
    }
    row[N * u] += n;
    row[S1 * u] += NAME(total)(t->s1[0] + t->s1[1]);
    row[S2 * u] += NAME(total)(t->s2[0] + t->s2[1]);
    row[S3 * u] += NAME(total)(t->s3[0] + t->s3[1]);
    row[S4 * u] += NAME(total)(t->s4[0] + t->s4[1]);
    row[ABS * u] += NAME(total)(t->abs[0] + t->abs[1]);
    row[MIN * u] = min < row[MIN * u] ? min : row[MIN * u];
    row[MAX * u] = max > row[MAX * u] ? max : row[MAX * u];
    row[POSITIVE * u] += NAME(count)(t->positive);
    row[ZERO * u] += NAME(count)(t->zero);
    NAME(add_ranges)(t, o);
}

INLINE int NAME(is_finite)(const NAME(Lanes) *t) {
    NAME(Doubles) nothing = (t->s2[0] - t->s2[0]) + (t->s2[1] - t->s2[1]);
    return NAME(total)(nothing) == 0;
}

INLINE double NAME(largest)(const NAME(Lanes) *t) {
    double most = 0;
    for (int j = 0; j < LANES; j++) {
        most = t->max[j] > most ? t->max[j] : most;
        most = -t->min[j] > most ? -t->min[j] : most;
    }
    return most;
}

/* Features last: one vector of columns down a block of rows. */
INLINE void NAME(columns)(const float *x, int64_t rows, int64_t unit, Out *o) {
    NAME(Lanes) t;
    NAME(Doubles) shift[2];
    NAME(clear)(&t);
    memcpy(shift, o->shift + unit, sizeof shift);
    for (int64_t i = 0; i < rows; i++) {
        /* Rows lie too far apart for the processor to guess the next ones: 2.5 times as fast on memory that is not in cache. */
        __builtin_prefetch(i + AHEAD < rows ? x + (i + AHEAD) * o->units : x + (i + AHEAD - rows) * o->units + LANES);
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
    if (!NAME(is_rare)(&t, most)) return;
    NAME(Rare) rare = {{0}};
    for (int64_t i = 0; i < rows; i++) NAME(take_rare)(x + i * o->units, &rare);
    NAME(add_counts)(o->row + LARGE * o->units + unit, rare.large);
    NAME(add_rare_ranges)(&rare, &t, o);
}

INLINE void NAME(read_last)(const float *x, int64_t outer, Out *o) {
    for (int64_t from = 0; from < outer; from += BLOCK_ROWS) {
        int64_t rows = outer - from < BLOCK_ROWS ? outer - from : BLOCK_ROWS, unit = 0;
        const float *block = x + from * o->units;
        for (; unit + LANES <= o->units; unit += LANES) NAME(columns)(block + unit, rows, unit, o);
        for (; unit < o->units; unit++)
            for (int64_t i = 0; i < rows; i++) take(block + i * o->units + unit, unit, o);
    }
}

/* Channels in the middle: runs of `inner` numbers of one unit, `apart` from each other. */
INLINE void NAME(runs)(const float *x, int64_t count, int64_t inner, int64_t apart, int64_t unit, Out *o) {
    NAME(Lanes) t;
    NAME(Doubles) shift[2] = {{0}, {0}};
    int64_t even = inner - inner % LANES;
    NAME(clear)(&t);
    for (int h = 0; h < 2; h++) shift[h] = shift[h] + o->shift[unit];
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < even; i += LANES) {
            __builtin_prefetch(x + r * apart + i + FURTHER); /* an address past the end is no error */
            NAME(take_lanes)(x + r * apart + i, shift, &t);
        }
    int finite = NAME(is_finite)(&t);
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = finite ? even : 0; i < inner; i++) take(x + r * apart + i, unit, o);
    if (!finite || !even) return;
    NAME(flush_runs)(&t, unit, (double)(count * even), o);
    double most = NAME(largest)(&t);
    o->absmax = most > o->absmax ? most : o->absmax;
    if (!NAME(is_rare)(&t, most)) return;
    NAME(Rare) rare = {{0}};
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < even; i += LANES) NAME(take_rare)(x + r * apart + i, &rare);
    o->row[LARGE * o->units + unit] += NAME(count)(rare.large);
    NAME(add_rare_ranges)(&rare, &t, o);
}

INLINE void NAME(read_middle)(const float *x, int64_t outer, int64_t inner, Out *o) {
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

INLINE void NAME(read_all)(const float *x, int64_t outer, int64_t inner, Out *o) {
    if (inner == 1)
        NAME(read_last)(x, outer, o);
    else
        NAME(read_middle)(x, outer, inner, o);
}
#undef WIDE
#undef PLUS
#undef FEWER
#undef MORE
#undef LEAST
#undef COUNT
#endif
