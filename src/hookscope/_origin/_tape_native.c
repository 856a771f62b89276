/* What the tape and the forwards' buffers cost at each healthy step, without a line of Python: calls of torch on plain tensors and numbers
 * are noted, buffers that have changed are copied, gradients that arrive are kept.
 *
 * Whatever is not the common case is left to Python, which does the same: `call` then returns UNCOMMON and has done nothing. In a training
 * it is not the number of instructions that costs, but how much memory, cold by then, has to be touched.
 *
 * No torch headers, Python's limited API only.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

enum { DEEP = 4 }; /* lists within lists of arguments */

/* What `prepare` is given, in this order. */
enum { TENSOR, PARAMETER, PLAIN, MADE, HELD, CALL, KINDS, PROGRAMS, IS_PROGRAM, LEVEL, TRACING, DISPATCH, MODES, GRAD, FACTS };
static PyObject *facts[FACTS], *uncommon, *nothing;
static newfunc new_tuple;

enum { VERSION, LEAF, BYTES, DETACH, SHAPE, DTYPE, DEVICE, STRIDE, COPY, BACK, LAST, FILENAME, NAME, MODE, CPU, ITEM, NAMES };
static const char *const NAME_TEXTS[NAMES] = {"_version", "is_leaf", "nbytes",  "detach",  "shape",       "dtype",   "device",
                                              "stride",   "copy_",   "f_back",  "f_lasti", "co_filename", "co_name", "__torch_function__", "is_cpu", "item"};
static PyObject *names[NAMES];

typedef struct {
    PyObject_HEAD
    PyObject *known, *calls; /* id -> (reference, Made or None); the calls, the latest last */
    Py_ssize_t number, bytes, most_calls, most_bytes;
    unsigned long thread; /* in whose stack of modes the tape's mode is; 0: in none */
    char noting;
} Tape;

/* What is found while a call's arguments are gone through. */
typedef struct {
    Tape *tape;
    Py_ssize_t size;
    int tensors, common;
} Notes;

static PyObject *pack(PyObject *type, PyObject *fields) { /* a named tuple; takes the reference to `fields` */
    PyObject *args = fields ? PyTuple_Pack(1, fields) : NULL;
    PyObject *found = args ? new_tuple((PyTypeObject *)type, args, NULL) : NULL;
    Py_XDECREF(args);
    Py_XDECREF(fields);
    return found;
}

static int asked(int fact) { /* a number or a truth from torch; 1 where it cannot be had: then nothing is done here */
    PyObject *answer = PyObject_CallObject(facts[fact], NULL);
    int found = !answer ? 1 : answer == Py_None ? 0 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) PyErr_Clear();
    return found != 0;
}

/* ---- before a call ---- */

static PyObject *not_common(Notes *notes) {
    PyErr_Clear();
    notes->common = 0;
    return NULL;
}

static PyObject *known_as(Tape *tape, PyObject *tensor) { /* a new reference to its Made, or to None for what a model returned; NULL: unknown */
    PyObject *key = PyLong_FromVoidPtr(tensor), *entry = key ? PyDict_GetItemWithError(tape->known, key) : NULL, *found = NULL;
    Py_XDECREF(key);
    if (entry) {
        PyObject *target = PyObject_CallObject(PyTuple_GetItem(entry, 0), NULL);
        if (target == tensor) {
            found = PyTuple_GetItem(entry, 1);
            Py_INCREF(found);
        }
        Py_XDECREF(target);
    }
    return found;
}

static int is_old(Tape *tape, PyObject *made) { /* whether the call that made it may be gone when one is made that is noted now */
    Py_ssize_t call = PyLong_AsSsize_t(PyTuple_GetItem(made, 0)), half = tape->most_calls / 2, since = tape->number / half * half;
    PyObject *oldest = PyList_Size(tape->calls) ? PyList_GetItem(tape->calls, 0) : NULL;
    return call < since || (oldest && call < PyLong_AsSsize_t(PyTuple_GetItem(oldest, 0)));
}

static PyObject *keep_tensor(PyObject *tensor, Notes *notes) {
    PyObject *made = known_as(notes->tape, tensor);
    if (made && made != Py_None && !is_old(notes->tape, made)) return made;
    int root = made == Py_None;
    if (!made) {
        made = Py_None;
        Py_INCREF(made);
    }
    if (!root) {
        PyObject *bytes = PyObject_GetAttr(tensor, names[BYTES]);
        notes->size += bytes ? PyLong_AsSsize_t(bytes) : 0;
        Py_XDECREF(bytes);
    }
    PyObject *version = PyErr_Occurred() ? NULL : PyObject_GetAttr(tensor, names[VERSION]); /* none in inference mode: an error */
    PyObject *leaf = version ? PyObject_GetAttr(tensor, names[LEAF]) : NULL, *held = NULL;
    if (leaf == Py_True) { /* no graph behind it would be kept alive */
        Py_INCREF(tensor);
        held = tensor;
    } else if (leaf)
        held = PyObject_CallMethodObjArgs(tensor, names[DETACH], NULL);
    PyObject *fields = held ? PyTuple_Pack(5, held, version, root ? Py_True : Py_False, made, leaf == Py_True ? Py_False : Py_True) : NULL;
    Py_DECREF(made);
    Py_XDECREF(version);
    Py_XDECREF(leaf);
    Py_XDECREF(held);
    PyObject *found = fields ? pack(facts[HELD], fields) : NULL;
    return found ? found : not_common(notes);
}

static PyObject *keep(PyObject *value, Notes *notes, int depth) {
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (type == facts[TENSOR] || type == facts[PARAMETER]) {
        notes->tensors = 1;
        return keep_tensor(value, notes);
    }
    if (PySet_Contains(facts[PLAIN], type) == 1) {
        Py_INCREF(value);
        return value;
    }
    int list = PyList_CheckExact(value);
    if (depth == DEEP || !(list || PyTuple_CheckExact(value))) return not_common(notes);
    Py_ssize_t n = list ? PyList_Size(value) : PyTuple_Size(value);
    PyObject *kept = list ? PyList_New(n) : PyTuple_New(n);
    for (Py_ssize_t i = 0; kept && i < n; i++) {
        PyObject *part = keep(list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i), notes, depth + 1);
        if (!part || (list ? PyList_SetItem(kept, i, part) : PyTuple_SetItem(kept, i, part))) {
            Py_DECREF(kept);
            return not_common(notes);
        }
    }
    return kept ? kept : not_common(notes);
}

static PyObject *keep_named(PyObject *named, Notes *notes) {
    PyObject *kept = PyDict_New(), *key, *value;
    Py_ssize_t at = 0;
    while (kept && named != Py_None && PyDict_Next(named, &at, &key, &value)) {
        PyObject *part = keep(value, notes, 0);
        int failed = !part || PyDict_SetItem(kept, key, part);
        Py_XDECREF(part);
        if (failed) {
            Py_DECREF(kept);
            return not_common(notes);
        }
    }
    return kept ? kept : not_common(notes);
}

/* ---- after it ---- */

static int note_results(Tape *tape, PyObject *out, Py_ssize_t *count, int depth) {
    int is_tensor = (PyObject *)Py_TYPE(out) == facts[TENSOR] ? 1 : PyObject_IsInstance(out, facts[TENSOR]);
    if (is_tensor < 0) return -1;
    if (is_tensor) {
        PyObject *key = PyLong_FromVoidPtr(out), *reference = PyWeakref_NewRef(out, NULL);
        PyObject *made = pack(facts[MADE], Py_BuildValue("(nn)", tape->number, *count));
        PyObject *entry = key && reference && made ? PyTuple_Pack(2, reference, made) : NULL;
        int failed = entry ? PyDict_SetItem(tape->known, key, entry) : -1;
        Py_XDECREF(key);
        Py_XDECREF(reference);
        Py_XDECREF(made);
        Py_XDECREF(entry);
        ++*count;
        return failed;
    }
    int list = PyList_Check(out);
    if (depth == DEEP || !(list || PyTuple_Check(out))) return 0;
    for (Py_ssize_t i = 0, n = list ? PyList_Size(out) : PyTuple_Size(out); i < n; i++)
        if (note_results(tape, list ? PyList_GetItem(out, i) : PyTuple_GetItem(out, i), count, depth + 1)) return -1;
    return 0;
}

static PyObject *frame_here(void) {
    PyObject *frame = (PyObject *)PyThreadState_GetFrame(PyThreadState_Get());
    if (frame) return frame;
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *back_of(PyObject *frame) { /* takes the reference */
    PyObject *back = PyObject_GetAttr(frame, names[BACK]);
    Py_DECREF(frame);
    return back;
}

/* The innermost frame outside torch and hookscope: its code, and how far it is. */
static int find_place(PyObject **code, PyObject **at) {
    PyObject *frame = frame_here();
    while (frame && frame != Py_None) {
        PyObject *here = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame), *file = PyObject_GetAttr(here, names[FILENAME]);
        PyObject *program = file ? PyDict_GetItemWithError(facts[PROGRAMS], file) : NULL;
        if (program)
            Py_INCREF(program);
        else if (file && !PyErr_Occurred())
            program = PyObject_CallFunctionObjArgs(facts[IS_PROGRAM], file, NULL);
        Py_XDECREF(file);
        int found = program ? PyObject_IsTrue(program) : -1;
        Py_XDECREF(program);
        if (found > 0) {
            *code = here;
            *at = PyObject_GetAttr(frame, names[LAST]);
            Py_DECREF(frame);
            return *at ? 0 : -1;
        }
        Py_DECREF(here);
        if (found < 0) {
            Py_DECREF(frame);
            return -1;
        }
        frame = back_of(frame);
    }
    Py_XDECREF(frame);
    *code = *at = Py_None;
    Py_INCREF(Py_None);
    Py_INCREF(Py_None);
    return frame ? 0 : -1;
}

static int drop_oldest(Tape *tape) {
    while (tape->bytes > tape->most_bytes || PyList_Size(tape->calls) > tape->most_calls) {
        PyObject *oldest = PyList_GetItem(tape->calls, 0);
        Py_ssize_t size = oldest ? PyLong_AsSsize_t(PyTuple_GetItem(oldest, PyTuple_Size(oldest) - 1)) : -1;
        if (size < 0 || PyList_SetSlice(tape->calls, 0, 1, NULL)) return -1;
        tape->bytes -= size;
    }
    return 0;
}

static int note(Tape *tape, PyObject *func, PyObject *name, PyObject *args, PyObject *named, PyObject *grad, Py_ssize_t size, PyObject *out) {
    PyObject *code = NULL, *at = NULL;
    Py_ssize_t count = 0;
    if (note_results(tape, out, &count, 0)) return -1;
    if (!count) return 0;
    int failed = find_place(&code, &at);
    PyObject *call = failed ? NULL : pack(facts[CALL], Py_BuildValue("(nOOOOOOOOn)", tape->number, func, args, named, code, at, name, grad, nothing, size));
    failed = call ? PyList_Append(tape->calls, call) : -1;
    Py_XDECREF(code);
    Py_XDECREF(at);
    Py_XDECREF(call);
    if (failed) return -1;
    tape->number++;
    tape->bytes += size;
    return drop_oldest(tape);
}

PyDoc_STRVAR(call_doc, "call(func, args, kwargs)\n--\n\nCall it, and note that if it is to be noted; or do nothing and return UNCOMMON.");
static PyObject *tape_call(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    Tape *tape = (Tape *)self;
    if (n != 3 || !PyTuple_Check(given[1]) || !(given[2] == Py_None || PyDict_Check(given[2])))
        return PyErr_Format(PyExc_TypeError, "call() takes a function, a tuple and a dict or None");
    PyObject *func = given[0], *named = given[2] == Py_None ? NULL : given[2], *name = NULL;
    if (!tape->noting || tape->thread != PyThread_get_thread_ident()) return PyObject_Call(func, given[1], named);
    if (!(name = PyDict_GetItemWithError(facts[KINDS], func))) {
        PyErr_Clear();
        Py_INCREF(uncommon);
        return uncommon;
    }
    if (name == Py_None) return PyObject_Call(func, given[1], named); /* computes nothing */
    Notes notes = {tape, 0, 0, PyDict_Size(tape->known) <= 4 * tape->most_calls};
    if (!notes.common || asked(MODES) || asked(DISPATCH) || asked(TRACING) || asked(LEVEL)) {
        Py_INCREF(uncommon);
        return uncommon;
    }
    PyObject *args = keep(given[1], &notes, 0), *kwargs = args ? keep_named(given[2], &notes) : NULL, *out;
    PyObject *grad = kwargs && notes.tensors && notes.size <= tape->most_bytes ? PyObject_CallObject(facts[GRAD], NULL) : NULL;
    if (PyErr_Occurred()) PyErr_Clear();
    if (!notes.common) {
        out = uncommon;
        Py_INCREF(out);
    } else {
        Py_INCREF(name);
        out = PyObject_Call(func, given[1], named);
        if (out && grad && note(tape, func, name, args, kwargs, grad, notes.size, out)) { /* the tape may miss a call, the program may not */
            PyErr_Clear();
            tape->noting = 0;
        }
        Py_DECREF(name);
    }
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    Py_XDECREF(grad);
    return out;
}

/* ---- the type ---- */

static int tape_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    Tape *tape = (Tape *)self;
    if (!facts[TENSOR]) return PyErr_Format(PyExc_RuntimeError, "prepare() has not been called"), -1;
    if (kwargs || !PyArg_ParseTuple(args, "nn", &tape->most_calls, &tape->most_bytes)) return -1;
    Py_XDECREF(tape->known);
    Py_XDECREF(tape->calls);
    tape->known = PyDict_New();
    tape->calls = PyList_New(0);
    return tape->known && tape->calls ? 0 : -1;
}

static int tape_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Tape *)self)->known);
    Py_VISIT(((Tape *)self)->calls);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int tape_clear(PyObject *self) {
    Py_CLEAR(((Tape *)self)->known);
    Py_CLEAR(((Tape *)self)->calls);
    return 0;
}

static void tape_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tape_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"known", T_OBJECT_EX, offsetof(Tape, known), READONLY, NULL},
    {"calls", T_OBJECT_EX, offsetof(Tape, calls), READONLY, NULL},
    {"number", T_PYSSIZET, offsetof(Tape, number), 0, NULL},
    {"bytes", T_PYSSIZET, offsetof(Tape, bytes), 0, NULL},
    {"thread", T_ULONG, offsetof(Tape, thread), 0, NULL},
    {"noting", T_BOOL, offsetof(Tape, noting), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef tape_methods[] = {{"call", (PyCFunction)(void (*)(void))tape_call, METH_FASTCALL, call_doc}, {NULL, NULL, 0, NULL}};
static PyType_Slot tape_slots[] = {
    {Py_tp_doc, "Tape(most_calls, most_bytes)\n--\n\nThe calls that are noted, and what is known of tensors."},
    {Py_tp_init, (void *)tape_init},
    {Py_tp_traverse, (void *)tape_traverse},
    {Py_tp_clear, (void *)tape_clear},
    {Py_tp_dealloc, (void *)tape_dealloc},
    {Py_tp_members, members},
    {Py_tp_methods, tape_methods},
    {0, NULL},
};
static PyType_Spec tape_spec = {"hookscope._origin._tape_native.Tape", sizeof(Tape), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, tape_slots};

/* ---- what else a forward needs ---- */

PyDoc_STRVAR(within_doc, "within()\n--\n\nWhether a `__torch_function__` is running in this thread.");
static PyObject *within(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    PyObject *frame = frame_here();
    while (frame && frame != Py_None) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame), *name = PyObject_GetAttr(code, names[NAME]);
        int found = name == names[MODE] || (name && PyUnicode_Compare(name, names[MODE]) == 0);
        Py_DECREF(code);
        Py_XDECREF(name);
        if (found) {
            Py_DECREF(frame);
            Py_RETURN_TRUE;
        }
        frame = name ? back_of(frame) : NULL;
    }
    if (!frame) return NULL;
    Py_DECREF(frame);
    Py_RETURN_FALSE;
}

static int same(PyObject *a, PyObject *b, int name, int call) { /* 1 if this attribute of both is equal, 0 if not or if it cannot be had */
    PyObject *x = call ? PyObject_CallMethodObjArgs(a, names[name], NULL) : PyObject_GetAttr(a, names[name]);
    PyObject *y = x ? (call ? PyObject_CallMethodObjArgs(b, names[name], NULL) : PyObject_GetAttr(b, names[name])) : NULL;
    int found = y ? PyObject_RichCompareBool(x, y, Py_EQ) : 0;
    Py_XDECREF(x);
    Py_XDECREF(y);
    if (PyErr_Occurred()) PyErr_Clear();
    return found == 1;
}

/* Whether a buffer is as it was held, or is so now: (buffer, version, copy). */
static int renewed(PyObject *buffer, PyObject *all_held, Py_ssize_t i) {
    PyObject *held = PyList_GetItem(all_held, i), *copy, *version, *done, *fresh;
    if (!buffer || !held || held == Py_None || PyTuple_GetItem(held, 0) != buffer || !(version = PyObject_GetAttr(buffer, names[VERSION]))) return 0;
    int equal = PyObject_RichCompareBool(version, PyTuple_GetItem(held, 1), Py_EQ);
    copy = PyTuple_GetItem(held, 2);
    if (equal == 0 && PyLong_Check(copy)) { /* of no dimension: as a number */
        PyObject *cpu = PyObject_GetAttr(buffer, names[CPU]), *now = cpu == Py_True ? PyObject_CallMethodObjArgs(buffer, names[ITEM], NULL) : NULL;
        fresh = now && Py_TYPE(now) == Py_TYPE(copy) ? PyTuple_Pack(3, buffer, version, now) : NULL;
        equal = fresh && !PyList_SetItem(all_held, i, fresh);
        Py_XDECREF(cpu);
        Py_XDECREF(now);
    } else if (equal == 0 && copy != Py_None && same(copy, buffer, SHAPE, 0) && same(copy, buffer, DTYPE, 0) && same(copy, buffer, DEVICE, 0) &&
        same(copy, buffer, STRIDE, 1) && (done = PyObject_CallMethodObjArgs(copy, names[COPY], buffer, NULL))) {
        Py_DECREF(done);
        fresh = PyTuple_Pack(3, buffer, version, copy);
        equal = fresh && !PyList_SetItem(all_held, i, fresh);
    }
    Py_DECREF(version);
    return equal == 1;
}

PyDoc_STRVAR(renew_doc, "renew(slots, held)\n--\n\nBring the copies in `held` up to date; returns the places at which that takes more.");
static PyObject *renew(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    if (n != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1]) || PyList_Size(args[0]) != PyList_Size(args[1]))
        return PyErr_Format(PyExc_TypeError, "renew() takes two lists of one length");
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left && i < PyList_Size(args[0]); i++) {
        PyObject *slot = PyList_GetItem(args[0], i);
        if (renewed(PyDict_GetItem(PyTuple_GetItem(slot, 0), PyTuple_GetItem(slot, 1)), args[1], i)) continue;
        PyErr_Clear();
        PyObject *place = PyLong_FromSsize_t(i);
        if (!place || PyList_Append(left, place)) Py_CLEAR(left);
        Py_XDECREF(place);
    }
    return left;
}

static PyObject *kept_by(PyObject *self, PyObject *gradient) {
    if (gradient != Py_None && PyObject_SetItem(PyTuple_GetItem(self, 0), PyTuple_GetItem(self, 1), gradient)) return NULL;
    Py_RETURN_NONE;
}
static PyMethodDef keeping = {"keep", kept_by, METH_O, "Put a gradient, if there is one, where it belongs."};

PyDoc_STRVAR(keeper_doc, "keeper(gradients, key)\n--\n\nA function of a gradient that puts it there.");
static PyObject *keeper(PyObject *self, PyObject *args) {
    (void)self;
    if (PyTuple_Size(args) != 2) return PyErr_Format(PyExc_TypeError, "keeper() takes a dict and a key");
    return PyCFunction_NewEx(&keeping, args, NULL);
}

PyDoc_STRVAR(prepare_doc, "prepare(*facts)\n--\n\nSay what torch's names are, once, before anything else is asked.");
static PyObject *prepare(PyObject *self, PyObject *args) {
    (void)self;
    if (PyTuple_Size(args) != FACTS) return PyErr_Format(PyExc_TypeError, "prepare() takes %d facts, got %zd", FACTS, PyTuple_Size(args));
    for (int i = 0; i < FACTS; i++) {
        PyObject *old = facts[i];
        facts[i] = PyTuple_GetItem(args, i);
        Py_INCREF(facts[i]);
        Py_XDECREF(old);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, prepare_doc},
    {"within", within, METH_NOARGS, within_doc},
    {"renew", (PyCFunction)(void (*)(void))renew, METH_FASTCALL, renew_doc},
    {"keeper", keeper, METH_VARARGS, keeper_doc},
    {NULL, NULL, 0, NULL},
};

static int exec(PyObject *module) {
    for (int i = 0; i < NAMES; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(NAME_TEXTS[i]))) return -1;
    new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    if (!nothing) nothing = PyTuple_New(0);
    if (!uncommon) uncommon = PyObject_CallObject((PyObject *)&PyBaseObject_Type, NULL);
    PyObject *type = PyType_FromSpec(&tape_spec);
    if (!new_tuple || !nothing || !uncommon || !type) return -1;
    Py_INCREF(uncommon);
    return PyModule_AddObject(module, "Tape", type) || PyModule_AddObject(module, "UNCOMMON", uncommon) ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tape_native", "What is noted at each step.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tape_native(void) { return PyModuleDef_Init(&definition); }
