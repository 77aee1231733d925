// Kernels as functions of Python's own, through its stable binary interface and without its headers: `targets/load.py` binds them.
#pragma once

#include <stdint.h>

namespace intarsia {

// What is called of Python; written by the loader before the first call.
struct Python {
  void* (*address)(void*);            // PyLong_AsVoidPtr
  void* (*number)(long);              // PyLong_FromLong
  void* (*error)();                   // PyErr_Occurred
  void* (*leave)();                   // PyEval_SaveThread
  void (*enter)(void*);               // PyEval_RestoreThread
  void (*raise)(void*, const char*);  // PyErr_SetString
  void* type_error;
};

}  // namespace intarsia

extern "C" {
intarsia::Python intarsia_python;
}

namespace intarsia {

// The arguments as words; false with an exception of Python's where they are not `count` numbers.
static inline bool read(void* const* args, intptr_t given, intptr_t count, void** words) {
  if (given != count) {
    intarsia_python.raise(intarsia_python.type_error, "another number of arguments than the kernel takes");
    return false;
  }
  bool unsure = false;
  for (intptr_t i = 0; i < count; ++i) {
    words[i] = intarsia_python.address(args[i]);
    unsure |= words[i] == nullptr;
  }
  return !unsure || !intarsia_python.error();
}

}  // namespace intarsia

#if defined(__clang__)
#define INTARSIA_CALLER __attribute__((no_sanitize("function")))  // pointers and int64_t are passed alike
#else
#define INTARSIA_CALLER
#endif

// Calls kernels of COUNT arguments: their address is what Python calls `self`. A quick kernel keeps the interpreter waiting.
#define INTARSIA_CALL(NAME, QUICK, COUNT, TYPES, WORDS)                                \
  extern "C" INTARSIA_CALLER void* NAME(void* self, void* const* args, intptr_t given) { \
    void* words[COUNT + 1];                                                            \
    if (!intarsia::read(args, given, COUNT, words)) return nullptr;                    \
    int (*const kernel) TYPES = (int (*) TYPES)intarsia_python.address(self);          \
    void* const state = QUICK ? nullptr : intarsia_python.leave();                     \
    const int code = kernel WORDS;                                                     \
    if (!QUICK) intarsia_python.enter(state);                                          \
    return intarsia_python.number(code);                                               \
  }
