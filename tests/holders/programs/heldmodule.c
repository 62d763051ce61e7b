// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A module of CPython whose objects are held by a variable of its own, by a dictionary that it is given, or by nobody.
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <string.h>

#define COUNT 3000
#define SIZE 700

extern PyObject *kept[COUNT];   // not static: what is never read would not be stored
PyObject *kept[COUNT];

static PyObject *made(void) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, SIZE);
    if (bytes)
        memset(PyBytes_AsString(bytes), 1, SIZE);
    return bytes;
}

static PyObject *kept_by_a_module(PyObject *self, PyObject *arguments) {
    (void)self, (void)arguments;
    for (int i = 0; i < COUNT; i++)
        kept[i] = made();
    Py_RETURN_NONE;
}

static PyObject *kept_by_a_dict(PyObject *self, PyObject *dictionary) {
    (void)self;
    for (int i = 0; i < COUNT; i++) {
        PyObject *key = PyLong_FromLong(i), *value = made();
        if (!key || !value || PyDict_SetItem(dictionary, key, value))
            return NULL;
        Py_DECREF(key);
        Py_DECREF(value);
    }
    Py_RETURN_NONE;
}

static PyObject *lost_reference(PyObject *self, PyObject *arguments) {
    (void)self, (void)arguments;
    for (int i = 0; i < COUNT; i++)
        if (!made())   // nobody gives it back
            return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"kept_by_a_module", kept_by_a_module, METH_NOARGS, NULL},
    {"kept_by_a_dict", kept_by_a_dict, METH_O, NULL},
    {"lost_reference", lost_reference, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "held", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_held(void) { return PyModule_Create(&definition); }
