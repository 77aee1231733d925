// Products of a few rows with a matrix that is read once, where it lies: what decoding is made of. The limit is the time that
// the matrix takes to come from memory, so nothing is packed and all rows of x use what was loaded.
#pragma once
#include "intarsia_matmul.h"

namespace intarsia {

// `inner` elements of a matrix at `from` as floats: what one vector load of the matrix gives.
template <class T> struct Loaded;
template <> struct Loaded<float> {
  static constexpr int parts = 1;  // vectors of floats that one load gives
  IM_FN_MEMBER static void load(const float* from, Floats* to) { to[0] = intarsia::load(from); }
};
// Two neighbours share 32 bits: the even ones are the low halves, the odd ones the high halves. Rows of x are taken apart in the same way.
template <> struct Loaded<bf16> {
  static constexpr int parts = 2;
  typedef uint32_t Words __attribute__((vector_size(lanes * 4)));
  typedef uint32_t LooseWords __attribute__((vector_size(lanes * 4), aligned(2), may_alias));
  IM_FN_MEMBER static void load(const bf16* from, Floats* to) {
    const Words both = *reinterpret_cast<const LooseWords*>(from);
    to[0] = (Floats)(both << 16);
    to[1] = (Floats)(both & 0xffff0000u);
  }
};

constexpr int64_t ahead = 512;  // bytes: how far in front of the loads memory is asked for

// out[r][c] = sum over i of x[r][i] * w[c][i], for `Rows` rows of x and `Columns` rows of w, w_pitch elements apart. x is float without gaps,
// taken apart as `Loaded<T>` does.
template <class T, int Rows, int Columns>
IM_FN void dot_block(const float* x, const T* w, int64_t w_pitch, int64_t inner, float (&out)[Rows][Columns]) {
  constexpr int parts = Loaded<T>::parts, step = lanes * parts;
  Floats sums[Rows][Columns] = {};
  int64_t i = 0;
  for (; i + step <= inner; i += step) {
    Floats given[Columns][parts];
    for (int c = 0; c < Columns; ++c) {
      __builtin_prefetch(reinterpret_cast<const char*>(w + c * w_pitch + i) + ahead);
      Loaded<T>::load(w + c * w_pitch + i, given[c]);
    }
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < parts; ++p) {
        const Floats factor = load(x + r * inner + i + p * lanes);
        for (int c = 0; c < Columns; ++c) sums[r][c] = multiply_add(factor, given[c][p], sums[r][c]);
      }
  }
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c) {
      out[r][c] = sum(sums[r][c]);
      for (int64_t k = i; k < inner; ++k) out[r][c] += x[r * inner + k] * float(w[c * w_pitch + k]);
    }
}

// Rows of w that are read side by side: as many sums as registers hold with what was loaded, and no more streams than memory serves well.
template <class T, int Rows>
constexpr int side_by_side() {
  const int few = lanes >= 16 ? 4 : 2;
  return Rows == 2 || (Rows == 1 && sizeof(T) == 4) ? 2 * few : few;
}

// out[r][j] = sum over i of x[r][i] * w[j][i] + bias[j], for r < Rows and j < outer; all without gaps. bias may be null.
template <int Rows, class T>
static __attribute__((noinline)) void rows_product(const T* x, const T* w, const T* bias, T* out, int64_t inner, int64_t outer) {
  constexpr int parts = Loaded<T>::parts, step = lanes * parts, columns = side_by_side<T, Rows>();
  Scratch<float> memory(parts > 1 ? Rows * inner : 0);
  if (!memory.data) return;
  const float* rows = reinterpret_cast<const float*>(x);
  if (parts > 1) {
    const int64_t whole = inner / step * step;
    for (int r = 0; r < Rows; ++r) {
      const T* const from = x + r * inner;
      float* const to = memory.data + r * inner;
      for (int64_t i = 0; i < whole; i += step)
        for (int l = 0; l < lanes; ++l)
          for (int p = 0; p < parts; ++p) to[i + p * lanes + l] = float(from[i + l * parts + p]);
      for (int64_t i = whole; i < inner; ++i) to[i] = float(from[i]);
    }
    rows = memory.data;
  }
  // Row b of each of `columns` parts of w at a time: every part is read from its start to its end, as the processor foresees.
  const int64_t part = outer / columns;
  #pragma omp parallel for schedule(static) if (inner * outer > 32768)
  for (int64_t b = 0; b < part; ++b) {
    float sums[Rows][columns];
    dot_block<T, Rows, columns>(rows, w + b * inner, part * inner, inner, sums);
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < columns; ++c) {
        const int64_t j = c * part + b;
        out[r * outer + j] = T(bias ? sums[r][c] + float(bias[j]) : sums[r][c]);
      }
  }
  for (int64_t j = part * columns; j < outer; ++j) {
    float sums[Rows][1];
    dot_block<T, Rows, 1>(rows, w + j * inner, inner, inner, sums);
    for (int r = 0; r < Rows; ++r) out[r * outer + j] = T(bias ? sums[r][0] + float(bias[j]) : sums[r][0]);
  }
}

}  // namespace intarsia
