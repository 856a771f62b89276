/* What happens at a module's output and at its gradient in the usual case, without a single function of Python.
 *
 * Between two large operations of a training the caches are cold, and each Python function and object that is touched costs microseconds.
 * So the fields that hooks write are those of C structs here (`Shared`, `Called`, `Written`), which classes in Python extend, and two callables
 * (`Returned`, `Arrived`) do what `Activations.saw` and `Slot.saw_gradient` do, where one look tells that nothing interferes: anything else
 * they leave to Python, before they have done anything.
 *
 * No torch headers, Python's limited API only. Tensors are asked by attributes; the kernel of _stats is told by a capsule.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#ifdef _WIN32
#include <windows.h>
#endif

enum { MOST_DIMS = 16, MOST_PARTS = 8, RELEASE_GIL_FROM = 1 << 18 };

/* What the kernel of _stats is asked: its struct of this shape is FOR_HOOKS there. */
typedef struct {
    const char *x;
    int64_t n;
    int dtype;
} Floats;
typedef struct {
    void (*prepare)(PyObject *tensor_type);
    int (*floats_of)(PyObject *tensor, Floats *floats); /* -1: ask the tensor's attributes */
    void (*reduce_at)(const Floats *floats, double *out);
} Kernel;

/* ---- what is asked of torch; `prepare` is told it once ---- */

enum {
    DTYPE, IS_CPU, IS_NESTED, DATA_PTR, NUMEL, CONTIGUOUS, NEG, OFFSET, STRIDE, SHAPE, VERSION, BASE, GRAD_FN, HOOKS, REGISTER, BUSY,
    CALLED, TAPPED, BLAME, FAIL, SAW_GRADIENT, NAMES
};
static const char *const TEXTS[NAMES] = {
    "dtype",    "is_cpu",  "is_nested", "data_ptr",       "numel", "is_contiguous", "is_neg", "storage_offset", "stride", "shape",
    "_version", "_base",   "grad_fn",   "_backward_hooks", "_register_hook_dict", "busy",
    "called",   "tapped",  "blame",     "fail",           "saw_gradient"};
static PyObject *names[NAMES];
static const int64_t ITEMSIZE[4] = {4, 8, 2, 2};

enum { GRAD_ENABLED, FUNCTION_MODES, DISPATCH_MODES, GRAPH_TASK, LEVEL, QUESTIONS };
static PyObject *tensor_type, *ordered_dict, *dtypes[4], *questions[QUESTIONS];
static const Kernel *kernel;

static int64_t now(void) {
#ifdef _WIN32
    LARGE_INTEGER count, frequency;
    QueryPerformanceCounter(&count), QueryPerformanceFrequency(&frequency);
    return (int64_t)((double)count.QuadPart * 1e9 / (double)frequency.QuadPart);
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
#endif
}

/* ---- the fields ---- */

typedef struct {
    PyObject_HEAD
    char on, plain;
    int seq, blamed;
    unsigned long long lane;
    long long spent, last_version, viewed_version;
    PyObject *touched, *outputs, *gradients, *last_tensor, *last_slot, *viewed, *locator;
} Shared;

typedef struct {
    PyObject_HEAD
    char fired, is_linear;
    int calls;
    PyObject *first, *parts;
} Called;

typedef struct {
    PyObject_HEAD
    char follows, grad_written;
    int call, seq, forwards, seen, output_site, grad_site;
    unsigned long long output_at, grad_at, source_at;
    PyObject *owner, *output_row, *grad_row, *source_row, *followers;
} Written;

#define FIELD(OF, NAME, KIND, ACCESS) {#NAME, KIND, offsetof(OF, NAME), ACCESS, NULL}
static PyMemberDef shared_members[] = {
    FIELD(Shared, on, T_BOOL, 0),         FIELD(Shared, plain, T_BOOL, 0),        FIELD(Shared, viewed, T_OBJECT, 0),
    FIELD(Shared, seq, T_INT, 0),         FIELD(Shared, blamed, T_INT, 0),        FIELD(Shared, lane, T_ULONGLONG, 0),
    FIELD(Shared, spent, T_LONGLONG, 0),  FIELD(Shared, last_version, T_LONGLONG, 0), FIELD(Shared, viewed_version, T_LONGLONG, 0), FIELD(Shared, touched, T_OBJECT, 0),
    FIELD(Shared, outputs, T_OBJECT, 0),  FIELD(Shared, gradients, T_OBJECT, 0),  FIELD(Shared, last_tensor, T_OBJECT, 0),
    FIELD(Shared, last_slot, T_OBJECT, 0), FIELD(Shared, locator, T_OBJECT, 0),   {NULL, 0, 0, 0, NULL}};
static PyMemberDef called_members[] = {FIELD(Called, fired, T_BOOL, 0), FIELD(Called, is_linear, T_BOOL, 0), FIELD(Called, calls, T_INT, 0),
                                       FIELD(Called, first, T_OBJECT, 0), FIELD(Called, parts, T_OBJECT, 0), {NULL, 0, 0, 0, NULL}};
static PyMemberDef written_members[] = {
    FIELD(Written, call, T_INT, 0), FIELD(Written, seen, T_INT, 0), FIELD(Written, source_at, T_ULONGLONG, 0), FIELD(Written, follows, T_BOOL, 0),     FIELD(Written, grad_written, T_BOOL, 0), FIELD(Written, seq, T_INT, 0),
    FIELD(Written, forwards, T_INT, 0),     FIELD(Written, output_site, T_INT, 0),   FIELD(Written, grad_site, T_INT, 0),
    FIELD(Written, output_at, T_ULONGLONG, 0), FIELD(Written, grad_at, T_ULONGLONG, 0), FIELD(Written, owner, T_OBJECT, 0),
    FIELD(Written, output_row, T_OBJECT, 0), FIELD(Written, grad_row, T_OBJECT, 0),  FIELD(Written, source_row, T_OBJECT, 0),
    FIELD(Written, followers, T_OBJECT, 0), {NULL, 0, 0, 0, NULL}};

/* The callables: `Returned` sits behind the hook of a module, `Arrived` in the graph, a new one each time. */
typedef struct {
    PyObject_HEAD
    PyObject *tap, *shared, *otherwise;
} Returned;

typedef struct {
    PyObject_HEAD
    PyObject *slot;
    int forward;
} Arrived;

static PyObject *types[5];
enum { SHARED, CALLED_TYPE, WRITTEN, RETURNED, ARRIVED };

/* Where the objects lie that a struct holds. */
typedef struct {
    size_t at[7];
    int count;
} Held;
#define AT(OF, NAME) offsetof(OF, NAME)
static const Held HELD[5] = {
    {{AT(Shared, touched), AT(Shared, outputs), AT(Shared, gradients), AT(Shared, last_tensor), AT(Shared, last_slot), AT(Shared, viewed),
      AT(Shared, locator)}, 7},
    {{AT(Called, first), AT(Called, parts)}, 2},
    {{AT(Written, owner), AT(Written, output_row), AT(Written, grad_row), AT(Written, source_row), AT(Written, followers)}, 5},
    {{AT(Returned, tap), AT(Returned, shared), AT(Returned, otherwise)}, 3},
    {{AT(Arrived, slot)}, 1}};

static PyObject **place(PyObject *self, size_t at) { return (PyObject **)((char *)self + at); }
static int visit_all(PyObject *self, const Held *held, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < held->count; i++) Py_VISIT(*place(self, held->at[i]));
    return 0;
}
static int clear_all(PyObject *self, const Held *held) {
    for (int i = 0; i < held->count; i++) {
        PyObject **at = place(self, held->at[i]), *old = *at;
        *at = NULL;
        Py_XDECREF(old);
    }
    return 0;
}
static void end(PyObject *self, const Held *held) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_all(self, held);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}
#define LIFE(NAME, NUMBER)                                                                                   \
    static int NAME##_traverse(PyObject *self, visitproc visit, void *arg) { return visit_all(self, &HELD[NUMBER], visit, arg); } \
    static int NAME##_clear(PyObject *self) { return clear_all(self, &HELD[NUMBER]); }                       \
    static void NAME##_dealloc(PyObject *self) { end(self, &HELD[NUMBER]); }
LIFE(shared, SHARED)
LIFE(called, CALLED_TYPE)
LIFE(written, WRITTEN)
LIFE(returned, RETURNED)
LIFE(arrived, ARRIVED)

static void replace(PyObject **at, PyObject *by) { /* takes over the reference */
    PyObject *old = *at;
    *at = by;
    Py_XDECREF(old);
}
static int is_none(PyObject *object) { return !object || object == Py_None; }

/* ---- questions ---- */

/* The integer that an attribute is, or a method without arguments returns; -1 where there is none, and no error is left behind. */
static int64_t asked(PyObject *of, int name, int call) {
    PyObject *found = call ? PyObject_CallMethodObjArgs(of, names[name], NULL) : PyObject_GetAttr(of, names[name]);
    int64_t value = found ? PyLong_AsLongLong(found) : -1;
    Py_XDECREF(found);
    if (PyErr_Occurred()) PyErr_Clear();
    return value;
}

static int is_answered(int question, int64_t expected) { /* None is answered by a question about a level alone */
    PyObject *found = PyObject_CallNoArgs(questions[question]);
    int right = found && (question == LEVEL ? found == Py_None : PyLong_AsLongLong(found) == expected);
    Py_XDECREF(found);
    if (PyErr_Occurred()) PyErr_Clear();
    return right;
}
static int no_modes(void) { return is_answered(FUNCTION_MODES, 0) && is_answered(DISPATCH_MODES, 0); }
static int is_usual(void) { return is_answered(GRAD_ENABLED, 1) && no_modes() && is_answered(GRAPH_TASK, -1) && is_answered(LEVEL, 0); }

/* Whether elements that are not in the usual order fill a stretch of memory, each once: as is_dense of _stats. */
static int is_dense(PyObject *tensor) {
    int64_t strides[MOST_DIMS], sizes[MOST_DIMS], expected = 1;
    PyObject *stride = PyObject_CallMethodObjArgs(tensor, names[STRIDE], NULL), *shape = PyObject_GetAttr(tensor, names[SHAPE]);
    Py_ssize_t dims = 0, given = stride && shape && PyTuple_Check(stride) && PyTuple_Check(shape) ? PyTuple_Size(stride) : MOST_DIMS + 1;
    int dense = given <= MOST_DIMS && PyTuple_Size(shape) == given;
    for (Py_ssize_t i = 0; dense && i < given; i++) {
        int64_t size = PyLong_AsLongLong(PyTuple_GetItem(shape, i)), step = PyLong_AsLongLong(PyTuple_GetItem(stride, i));
        if (size == 1) continue;
        Py_ssize_t j = dims++;
        for (; j > 0 && strides[j - 1] > step; j--) strides[j] = strides[j - 1], sizes[j] = sizes[j - 1];
        strides[j] = step, sizes[j] = size;
    }
    for (Py_ssize_t i = 0; dense && i < dims; i++) dense = strides[i] == expected, expected *= sizes[i];
    Py_XDECREF(stride);
    Py_XDECREF(shape);
    if (PyErr_Occurred()) PyErr_Clear(), dense = 0;
    return dense;
}

/* Whether the kernel can read a tensor where it lies: as address_of of _stats, but for tensors without an element. */
static int is_readable(PyObject *tensor, Floats *floats) {
    if ((PyObject *)Py_TYPE(tensor) != tensor_type) return 0;
    int told = kernel->floats_of(tensor, floats);
    if (told >= 0) return told && asked(tensor, NEG, 1) == 0;
    PyObject *dtype = PyObject_GetAttr(tensor, names[DTYPE]);
    int code = 0;
    while (code < 4 && dtypes[code] != dtype) code++;
    if (dtype) Py_DECREF(dtype);
    else PyErr_Clear();
    if (code == 4 || asked(tensor, IS_CPU, 0) != 1 || asked(tensor, IS_NESTED, 0) != 0) return 0;
    int64_t pointer = asked(tensor, DATA_PTR, 1), n = asked(tensor, NUMEL, 1);
    if (pointer < 1 || n < 1 || asked(tensor, NEG, 1) != 0) return 0;
    if (asked(tensor, CONTIGUOUS, 1) != 1 && !is_dense(tensor)) return 0;
    *floats = (Floats){(const char *)(intptr_t)pointer, n, code};
    /* A freed one has its offset for an address; no heap lies so low that it might be mistaken for one without being asked. */
    return pointer >> 32 || pointer != asked(tensor, OFFSET, 1) * ITEMSIZE[code];
}

static void reduce(const Floats *floats, unsigned long long row) {
    PyThreadState *state = floats->n >= RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
    kernel->reduce_at(floats, (double *)(uintptr_t)row);
    if (state) PyEval_RestoreThread(state);
}

/* Tell the watch of what has gone wrong; it switches itself off, and the training goes on. What is no fault of it, an interrupt, stays. */
static void fail(Shared *shared) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace) PyException_SetTraceback(value, trace);
    PyObject *told = value ? PyObject_CallMethodObjArgs((PyObject *)shared, names[FAIL], value, NULL) : NULL;
    Py_XDECREF(told);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Call a method with these arguments, the first NULL ends them. */
static int call(PyObject *of, int name, PyObject *a, PyObject *b, PyObject *c, PyObject *d) {
    PyObject *found = PyObject_CallMethodObjArgs(of, names[name], a, b, c, d, NULL);
    Py_XDECREF(found);
    return found ? 0 : -1;
}

/* ---- a module has returned ---- */

/* As hook_gradient of _taps. The key is the hook itself: nobody else's number, and no number is taken from others. */
static int hook_gradient(PyObject *tensor, PyObject *node, Written *slot) {
    Arrived *hook = PyObject_GC_New(Arrived, (PyTypeObject *)types[ARRIVED]);
    if (!hook) return -1;
    hook->slot = (PyObject *)slot, Py_INCREF(slot);
    hook->forward = slot->forwards;
    PyObject_GC_Track(hook);
    PyObject *hooks = PyObject_GetAttr(tensor, names[HOOKS]);
    int failed = !hooks;
    if (hooks == Py_None) {
        Py_DECREF(hooks);
        hooks = PyObject_CallNoArgs(ordered_dict);
        failed = !hooks || PyObject_SetAttr(tensor, names[HOOKS], hooks) < 0 || call(node, REGISTER, tensor, NULL, NULL, NULL) < 0;
    }
    failed = failed || PyObject_SetItem(hooks, (PyObject *)hook, (PyObject *)hook) < 0;
    Py_XDECREF(hooks);
    Py_DECREF(hook);
    return failed ? -1 : 0;
}

static int can_follow(const Written *slot, const Written *source) {
    return (is_none(slot->output_row) || !is_none(source->output_row)) && (is_none(slot->grad_row) || !is_none(source->grad_row));
}

/* The slot that holds this tensor's stats: another one where a container returned its child's tensor. NULL if that failed. */
static Written *read_output(Shared *shared, Written *slot, PyObject *tensor, const Floats *floats, int64_t version) {
    Written *source = slot;
    int same = !is_none(shared->last_slot) && !is_none(shared->last_tensor) && PyWeakref_GetObject(shared->last_tensor) == tensor && shared->last_version == version;
    slot->seq = shared->seq++;
    slot->follows = (char)(same && can_follow(slot, (Written *)shared->last_slot));
    if (slot->follows) {
        source = (Written *)shared->last_slot;
        if (PyList_Append(source->followers, (PyObject *)slot) < 0) return NULL;
    } else {
        PyObject *reference = PyWeakref_NewRef(tensor, NULL);
        if (!reference) return NULL;
        if (!is_none(slot->output_row)) reduce(floats, slot->output_at);
        replace(&shared->last_tensor, reference);
        shared->last_version = version;
        Py_INCREF(slot);
        replace(&shared->last_slot, (PyObject *)slot);
    }
    if (slot->output_site >= 0 && !is_none(source->output_row)) {
        Py_INCREF(source->output_row);
        replace(&slot->source_row, source->output_row);
        slot->source_at = source->output_at;
        if (PyList_Append(shared->outputs, (PyObject *)slot) < 0) return NULL;
    }
    return source;
}

static int is_bad(const Written *slot) {
    const double *row = (const double *)(uintptr_t)slot->output_at;
    return row && (row[1] || row[2]);
}

/* One tensor that has been returned, and what is asked of it before anything is done. */
typedef struct {
    PyObject *tensor, *base; /* held */
    Written *slot;
    Floats floats;
    int64_t version;
} Part;

static int ask(Part *part, PyObject *tensor, PyObject *slot) {
    if ((PyObject *)Py_TYPE(tensor) != tensor_type || is_none(slot)) return 0;
    part->slot = (Written *)slot;
    if ((!is_none(part->slot->output_row) && !part->slot->output_at) || !is_readable(tensor, &part->floats)) return 0;
    if ((part->version = asked(tensor, VERSION, 0)) < 0) return 0;
    part->base = PyObject_GetAttr(tensor, names[BASE]);
    if (part->base && (part->base == Py_None || (PyObject *)Py_TYPE(part->base) == tensor_type)) {
        part->tensor = tensor, Py_INCREF(tensor), Py_INCREF(slot);
        return 1;
    }
    Py_XDECREF(part->base);
    PyErr_Clear();
    return 0;
}

/* As matrix_of: the tensor to hook, borrowed, and its node, which is None where there is no graph. */
static PyObject *hooked_of(const Called *tap, const Part *part, PyObject **node) {
    *node = PyObject_GetAttr(part->tensor, names[GRAD_FN]);
    if (!*node || !tap->is_linear || part->base == Py_None) return part->tensor;
    PyObject *of_base = PyObject_GetAttr(part->base, names[GRAD_FN]);
    if (of_base && of_base != Py_None && asked(part->base, NUMEL, 1) == part->floats.n) {
        replace(node, of_base);
        return part->base;
    }
    Py_XDECREF(of_base);
    return part->tensor;
}

static int tap_gradient(Returned *self, const Part *part) {
    PyObject *node, *hooked = hooked_of((Called *)self->tap, part, &node);
    int failed = !node || PyErr_Occurred();
    if (!failed && node != Py_None) {
        part->slot->grad_written = 0;
        failed = hook_gradient(hooked, node, part->slot) < 0;
        if (!failed && hooked == part->tensor && part->base != Py_None)
            failed = call(self->shared, TAPPED, self->tap, (PyObject *)part->slot, hooked, NULL) < 0;
    }
    Py_XDECREF(node);
    return failed ? -1 : 0;
}

static int fill(Returned *self, const Part *part, PyObject *args) {
    Written *slot = part->slot;
    slot->forwards++;
    if (PyList_Size(slot->followers) && PyList_SetSlice(slot->followers, 0, PyList_Size(slot->followers), NULL) < 0) return -1;
    Written *source = read_output((Shared *)self->shared, slot, part->tensor, &part->floats, part->version);
    if (!source || (source == slot && !is_none(slot->grad_row) && tap_gradient(self, part) < 0)) return -1;
    return is_bad(source) ? call(self->shared, BLAME, self->tap, (PyObject *)slot, args, part->tensor) : 0;
}

/* Of the view that was tapped last it is asked, as Views.called does, whether it has been written to. */
static int look_at_view(Shared *shared) {
    PyObject *view = is_none(shared->viewed) ? Py_None : PyWeakref_GetObject(shared->viewed);
    if (view == Py_None || ((PyObject *)Py_TYPE(view) == tensor_type && asked(view, VERSION, 0) == shared->viewed_version)) return 0;
    return call((PyObject *)shared, CALLED, NULL, NULL, NULL, NULL);
}

/* What of the output has a slot: `parts` of it, at most MOST_PARTS; 0 if it is anything unusual. */
static int parts_of(const Called *tap, PyObject *output, Part *parts) {
    if (!PyTuple_CheckExact(output)) return ask(parts, output, tap->first);
    Py_ssize_t size = PyTuple_Size(output);
    int count = 0;
    if (is_none(tap->parts) || PyTuple_Size(tap->parts) != size || size > MOST_PARTS) return 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *tensor = PyTuple_GetItem(output, i);
        if (tensor == Py_None) continue;
        if (!ask(&parts[count], tensor, PyTuple_GetItem(tap->parts, i))) {
            while (count--) Py_DECREF(parts[count].tensor), Py_DECREF(parts[count].base), Py_DECREF(parts[count].slot);
            return 0;
        }
        count++;
    }
    return count;
}

/* 1 if it was the usual case; else 0, and nothing has been done. */
static int saw(Returned *self, PyObject *args) {
    Shared *shared = (Shared *)self->shared;
    Called *tap = (Called *)self->tap;
    Py_ssize_t given = PyTuple_Size(args);
    if (!shared->on || tap->calls || shared->lane != PyThread_get_thread_ident() || given < 3 || !is_usual()) return 0;
    Part parts[MOST_PARTS];
    int64_t began = now();
    int count = parts_of(tap, PyTuple_GetItem(args, given - 1), parts);
    if (!count) return 0;
    int failed = look_at_view(shared) < 0 || PyList_Append(shared->touched, self->tap) < 0;
    tap->calls = 1, tap->fired = 1;
    for (int i = 0; i < count; i++) {
        failed = failed || fill(self, &parts[i], args) < 0;
        Py_DECREF(parts[i].tensor);
        Py_DECREF(parts[i].base);
        Py_DECREF(parts[i].slot);
    }
    if (failed) fail(shared);
    shared->spent += now() - began;
    return 1;
}

static PyObject *returned_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    Returned *hook = (Returned *)self;
    if (!kwargs && saw(hook, args)) {
        if (PyErr_Occurred()) return NULL; /* a warning of the watch that the program has made an error */
        Py_RETURN_NONE;
    }
    return PyObject_Call(hook->otherwise, args, kwargs);
}

static PyObject *returned_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *tap, *shared, *otherwise;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Returned() takes no keywords");
    if (!PyArg_ParseTuple(args, "O!O!O:Returned", types[CALLED_TYPE], &tap, types[SHARED], &shared, &otherwise)) return NULL;
    Returned *self = (Returned *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->tap = tap, self->shared = shared, self->otherwise = otherwise;
    Py_INCREF(tap), Py_INCREF(shared), Py_INCREF(otherwise);
    return (PyObject *)self;
}

/* ---- a gradient has arrived ---- */

static PyObject *arrived_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    Arrived *hook = (Arrived *)self;
    Written *slot = (Written *)hook->slot;
    Shared *shared = slot ? (Shared *)slot->owner : NULL;
    PyObject *grad = PyTuple_Size(args) == 1 ? PyTuple_GetItem(args, 0) : NULL;
    if (!grad) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a gradient hook takes the gradient alone");
    if (grad == Py_None || !shared || is_none((PyObject *)shared) || is_none(slot->grad_row)) Py_RETURN_NONE;
    /* As in saw_gradient: an earlier graph has its turn where forwards run ahead of their backwards. */
    if (!shared->on || (hook->forward != slot->forwards && hook->forward <= slot->seen)) Py_RETURN_NONE;
    int64_t began = now();
    Floats floats;
    int usual = shared->plain && slot->grad_at && no_modes();
    if (usual && !is_none(shared->locator)) usual = asked(shared->locator, BUSY, 0) == 0;
    if (!usual || !is_readable(grad, &floats)) {
        PyObject *forward = PyLong_FromLong(hook->forward);
        int failed = !forward || call((PyObject *)slot, SAW_GRADIENT, forward, grad, NULL, NULL) < 0;
        Py_XDECREF(forward);
        if (failed) return NULL;
        Py_RETURN_NONE;
    }
    slot->seen = hook->forward;
    reduce(&floats, slot->grad_at);
    if (!slot->grad_written) {
        slot->grad_written = 1;
        if (PyList_Append(shared->gradients, (PyObject *)slot) < 0) fail(shared);
    }
    shared->spent += now() - began;
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* ---- the end of a micro-batch ---- */

typedef struct {
    int32_t *site, *call, *seq;
    double *stats;
    Py_ssize_t count;
} Rows;

/* One row more; with `rows` not there yet it is only counted. 0 if its numbers are elsewhere than in this machine's memory. */
static int add_row(Rows *rows, const Written *slot, int site, unsigned long long at) {
    if (!at) return 0;
    if (rows->stats) {
        rows->site[rows->count] = site, rows->call[rows->count] = slot->call, rows->seq[rows->count] = slot->seq;
        memcpy(rows->stats + 8 * rows->count, (const double *)(uintptr_t)at, 8 * sizeof(double));
    }
    rows->count++;
    return 1;
}

static int add_rows(Rows *rows, PyObject *outputs, PyObject *gradients, Py_ssize_t *of_outputs) {
    rows->count = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(outputs); i++) {
        const Written *slot = (const Written *)PyList_GetItem(outputs, i);
        if (!add_row(rows, slot, slot->output_site, slot->source_at)) return 0;
    }
    *of_outputs = rows->count;
    for (Py_ssize_t i = 0; i < PyList_Size(gradients); i++) {
        const Written *slot = (const Written *)PyList_GetItem(gradients, i);
        if (slot->grad_site >= 0 && !add_row(rows, slot, slot->grad_site, slot->grad_at)) return 0;
        for (Py_ssize_t j = 0; j < PyList_Size(slot->followers); j++) {
            const Written *other = (const Written *)PyList_GetItem(slot->followers, j);
            if (other->grad_site >= 0 && !add_row(rows, other, other->grad_site, slot->grad_at)) return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(rows_doc,
             "rows(outputs, gradients)\n--\n\nThe rows of two lists of slots, those of outputs first: how many these are, then sites, calls and "
             "places in order as int32, one array after the other, then stats as 8 doubles each. None if some are not in this machine's memory.");
static PyObject *rows_of(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *outputs, *gradients;
    Py_ssize_t of_outputs = 0;
    Rows rows = {NULL, NULL, NULL, NULL, 0};
    if (!PyArg_ParseTuple(args, "O!O!:rows", &PyList_Type, &outputs, &PyList_Type, &gradients)) return NULL;
    if (!add_rows(&rows, outputs, gradients, &of_outputs)) Py_RETURN_NONE;
    PyObject *numbers = PyByteArray_FromStringAndSize(NULL, rows.count * 3 * (Py_ssize_t)sizeof(int32_t));
    PyObject *stats = PyByteArray_FromStringAndSize(NULL, rows.count * 8 * (Py_ssize_t)sizeof(double));
    if (numbers && stats) {
        rows.site = (int32_t *)PyByteArray_AsString(numbers), rows.call = rows.site + rows.count, rows.seq = rows.call + rows.count;
        rows.stats = (double *)PyByteArray_AsString(stats);
        add_rows(&rows, outputs, gradients, &of_outputs);
    }
    PyObject *found = numbers && stats ? Py_BuildValue("nOO", of_outputs, numbers, stats) : NULL;
    Py_XDECREF(numbers);
    Py_XDECREF(stats);
    return found;
}

/* ---- the module ---- */

PyDoc_STRVAR(prepare_doc,
             "prepare(tensor, ordered_dict, dtypes, questions, kernel)\n--\n\nTell what to ask: the types; four dtypes, in the order of the kernel's "
             "codes; is_grad_enabled, how many function and dispatch modes there are, the current graph task, the level of transforms; the capsule "
             "of the kernel.");
static PyObject *prepare(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *tensor, *ordered, *given, *asking, *capsule;
    if (!PyArg_ParseTuple(args, "OOO!O!O:prepare", &tensor, &ordered, &PyTuple_Type, &given, &PyTuple_Type, &asking, &capsule)) return NULL;
    if (PyTuple_Size(given) != 4 || PyTuple_Size(asking) != QUESTIONS)
        return PyErr_Format(PyExc_TypeError, "prepare() takes 4 dtypes and %d questions", QUESTIONS);
    if (!(kernel = PyCapsule_GetPointer(capsule, "hookscope._stats._native.for_hooks"))) return NULL;
    kernel->prepare(tensor);
    Py_INCREF(tensor), replace(&tensor_type, tensor);
    Py_INCREF(ordered), replace(&ordered_dict, ordered);
    for (int i = 0; i < 4; i++) Py_INCREF(PyTuple_GetItem(given, i)), replace(&dtypes[i], PyTuple_GetItem(given, i));
    for (int i = 0; i < QUESTIONS; i++) Py_INCREF(PyTuple_GetItem(asking, i)), replace(&questions[i], PyTuple_GetItem(asking, i));
    Py_RETURN_NONE;
}

#define SLOTS_OF(NAME, MEMBERS, ...)                                                                         \
    static PyType_Slot NAME##_slots[] = {{Py_tp_traverse, (void *)NAME##_traverse}, {Py_tp_clear, (void *)NAME##_clear}, \
                                         {Py_tp_dealloc, (void *)NAME##_dealloc},   {Py_tp_members, MEMBERS},            \
                                         __VA_ARGS__, {0, NULL}}
static PyMemberDef no_members[] = {{NULL, 0, 0, 0, NULL}};
SLOTS_OF(shared, shared_members, {Py_tp_doc, "What the hooks of one watch share."});
SLOTS_OF(called, called_members, {Py_tp_doc, "Where one hooked module stands."});
SLOTS_OF(written, written_members, {Py_tp_doc, "Where the stats of one tensor are written."});
SLOTS_OF(returned, no_members, {Py_tp_call, (void *)returned_call}, {Py_tp_new, (void *)returned_new},
         {Py_tp_doc, "Returned(tap, shared, otherwise): called when a module has returned; what is not usual is left to `otherwise`."});
SLOTS_OF(arrived, no_members, {Py_tp_call, (void *)arrived_call}, {Py_tp_doc, "Called with a gradient."});

enum { OPEN = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, EXTENDED = OPEN | Py_TPFLAGS_BASETYPE };
static PyType_Spec specs[5] = {{"hookscope._watch._native.Shared", sizeof(Shared), 0, EXTENDED, shared_slots},
                               {"hookscope._watch._native.Called", sizeof(Called), 0, EXTENDED, called_slots},
                               {"hookscope._watch._native.Written", sizeof(Written), 0, EXTENDED, written_slots},
                               {"hookscope._watch._native.Returned", sizeof(Returned), 0, OPEN, returned_slots},
                               {"hookscope._watch._native.Arrived", sizeof(Arrived), 0, OPEN, arrived_slots}};

static int exec(PyObject *module) {
    for (int i = 0; i < NAMES; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(TEXTS[i]))) return -1;
    for (int i = 0; i < 5; i++) {
        if (!types[i] && !(types[i] = PyType_FromSpec(&specs[i]))) return -1;
        Py_INCREF(types[i]);
        if (PyModule_AddObject(module, strrchr(specs[i].name, '.') + 1, types[i]) < 0) return -1;
    }
    return 0;
}
static PyMethodDef methods[] = {{"prepare", prepare, METH_VARARGS, prepare_doc}, {"rows", rows_of, METH_VARARGS, rows_doc}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The usual case of hooks.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
