#include "bindings/python_site.h"

#include <Python.h>
#include <frameobject.h>  // PyFrame_GetBack, in Python 3.10
#include <pthread.h>

#include <array>
#include <string>

#include "trace/flight_recorder.h"

namespace torch_ucc {
namespace {

constexpr int kFrames = 32;

std::string text_of(PyObject* unicode) {
  const char* const text = PyUnicode_AsUTF8(unicode);
  if (text == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return text;
}

std::string thread_text() {
  std::array<char, 16> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return std::string("thread ") + name.data();
}

// Called with the GIL.
std::string frames_text() {
  std::string text;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (int i = 0; frame != nullptr && i < kFrames; ++i) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    text += (text.empty() ? "" : "\n") + text_of(code->co_filename) + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " " +
            text_of(code->co_name);
    Py_DECREF(code);
    PyFrameObject* const outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return text;
}

}  // namespace

std::uint32_t python_site() {
  if (Py_IsInitialized() == 0) {
    return 0;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::string text = frames_text();
  PyGILState_Release(gil);
  return trace::recorder().add_site(text.empty() ? thread_text() : text);
}

}  // namespace torch_ucc
