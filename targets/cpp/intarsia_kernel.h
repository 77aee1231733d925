// What generated kernels need beside arithmetic: index division, scratch memory, reductions that keep NaN.
#pragma once
#include "intarsia_math.h"

namespace intarsia {

// Python's // and % on indices that may be negative.
IM_FN int64_t index_div(int64_t a, int64_t b) { return a / b - ((a % b != 0) & ((a < 0) != (b < 0))); }
IM_FN int64_t index_mod(int64_t a, int64_t b) { return a - index_div(a, b) * b; }
IM_FN int64_t index_min(int64_t a, int64_t b) { return a < b ? a : b; }
IM_FN int64_t index_max(int64_t a, int64_t b) { return a > b ? a : b; }

// Scratch memory too large for the stack, aligned to a cache line.
template <class T>
struct Scratch {
  T* data;
  explicit Scratch(int64_t count) : data(static_cast<T*>(__builtin_malloc(count * sizeof(T) + 64))), raw(data) {
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(data) + 63) & ~uintptr_t(63));
  }
  ~Scratch() { __builtin_free(raw); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  T* raw;
};

// argmax and argmin: NaN wins, then the better value, then the first position.
template <class T>
IM_FN bool arg_max_wins(T value, int64_t at, T best, int64_t best_at) {
  return ((value != value) & (best == best)) | (value > best) |
         (((value == best) | ((value != value) & (best != best))) & (at < best_at));
}
template <class T>
IM_FN bool arg_min_wins(T value, int64_t at, T best, int64_t best_at) {
  return ((value != value) & (best == best)) | (value < best) |
         (((value == best) | ((value != value) & (best != best))) & (at < best_at));
}

}  // namespace intarsia

// Lanes of a vectorised max or min are joined by the same NaN-keeping functions. `initializer` starts each lane at the running
// value, which is neutral for max and min.
#pragma omp declare reduction(im_max : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t : omp_out = intarsia::max(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(im_min : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t : omp_out = intarsia::min(omp_out, omp_in)) initializer(omp_priv = omp_orig)
