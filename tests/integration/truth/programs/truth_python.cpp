// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
// An extension of Python that forgets a buffer in each call.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdlib>

static PyObject *parse_document(PyObject *, PyObject *size)
{
    void *tree = std::malloc(static_cast<size_t>(PyLong_AsLong(size)));

    if (!tree)
        return PyErr_NoMemory();
    *static_cast<void *volatile *>(tree) = tree;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"parse_document", parse_document, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "truth_python", nullptr, -1, methods, nullptr, nullptr, nullptr,
                             nullptr};

PyMODINIT_FUNC PyInit_truth_python(void)
{
    return PyModule_Create(&module);
}
