// What happens to the sums of a contraction on their way to memory, and what the kernels of contractions share.
#pragma once
#include "intarsia_matmul.h"

namespace intarsia {

constexpr int64_t most_tensors = 8;  // that a tail reads

// `apply` takes `rows` rows of `count` sums, `pitch` apart, the first of which belongs to element `at` of the result and to its column `column`.
// Rows follow one another in the result.
template <class O>
struct Tail {
  void (*apply)(const Tail& tail, const float* sums, int64_t pitch, int64_t at, int64_t column, int64_t rows, int64_t count);
  O* out;
  int64_t columns;  // of the result
  const void* in[most_tensors];
};

// The `apply` of a step: Step::of(v, in, at, column) is the value that is stored for the sum v.
template <class Step, class O>
static void finish(const Tail<O>& given, const float* sums, int64_t pitch, int64_t at, int64_t column, int64_t rows, int64_t count) {
  const Tail<O> tail = given;  // a copy that no store can change
  for (int64_t r = 0; r < rows; ++r, at += tail.columns, sums += pitch) {
    int64_t c = 0;
    for (; c + lanes <= count; c += lanes) {  // whole vectors without the beginning and end of a loop
      #pragma omp simd
      for (int l = 0; l < lanes; ++l) tail.out[at + c + l] = O(Step::of(sums[c + l], tail.in, at + c + l, column + c + l));
    }
    for (; c < count; ++c) tail.out[at + c] = O(Step::of(sums[c], tail.in, at + c, column + c));
  }
}

constexpr int64_t serial_work = 1000000;  // multiplications that are not worth a second thread

IM_FN int64_t threads_for(int64_t work) { return work > serial_work ? max_threads() : 1; }

// sums (+)= local, rows of sums `pitch` apart.
template <int Rows, int Vectors>
IM_FN void set_aside(float* sums, int64_t pitch, const Floats (&local)[Rows][Vectors], bool add) {
  #pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
    #pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      float* const to = sums + r * pitch + v * lanes;
      store(to, add ? load(to) + local[r][v] : local[r][v]);
    }
}

}  // namespace intarsia
