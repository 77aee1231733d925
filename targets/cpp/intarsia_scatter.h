// Adding rows where numbers say. Every element of the result gets its terms in their order, however many threads there are.
#pragma once
#include "intarsia_kernel.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace intarsia {

// Sizes of x[outer][rows][inner], source[outer][count][inner] and the result, which has those of x.
struct IndexAdd {
  int64_t outer, rows, count, inner;
  static constexpr int64_t block = 128;  // columns at a time: those of all rows stay in a cache while the source passes by
  static constexpr int64_t ahead = 12;   // rows of the source that are asked for early
  static constexpr int64_t worth = 16384;  // elements that are worth more than one thread
};

// The part of the result in rows [from, to) and columns [left, right).
template <class T, class I>
IM_FN void index_add_part(const IndexAdd& s, const T* x, const I* index, const T* source, T alpha, T* out, int64_t from, int64_t to,
                          int64_t left, int64_t right) {
  if (out != x)
    for (int64_t r = from; r < to; ++r) {
      #pragma omp simd
      for (int64_t c = left; c < right; ++c) out[r * s.inner + c] = x[r * s.inner + c];
    }
  for (int64_t i = 0; i < s.count; ++i) {
    if (index[i] < from || index[i] >= to) continue;
    const T* const terms = source + i * s.inner;
    T* const row = out + index[i] * s.inner;
    prefetch(terms + IndexAdd::ahead * s.inner + left, right - left);
    #pragma omp simd
    for (int64_t c = left; c < right; ++c) row[c] = row[c] + terms[c] * alpha;
  }
}

// x.index_add(dim, index, source, alpha): 1 where a number lies outside the rows, and then nothing is written.
template <class T, class I>
int index_add(const IndexAdd& s, const T* x, const I* index, const T* source, T alpha, T* out) {
  bool outside = false;
  #pragma omp simd reduction(| : outside)
  for (int64_t i = 0; i < s.count; ++i) outside |= (index[i] < 0) | (index[i] >= s.rows);
  if (outside) return 1;
  if (s.outer * s.rows * s.inner == 0) return 0;
#ifdef _OPENMP
  const int64_t threads = s.outer * (s.rows + s.count) * s.inner >= IndexAdd::worth ? omp_get_max_threads() : 1;
#else
  const int64_t threads = 1;
#endif
  // Columns are divided, or rows where there are few columns: all threads read the numbers, none the same row of the source.
  const bool by_columns = s.outer * s.inner >= threads * IndexAdd::block;
  const int64_t width = by_columns ? IndexAdd::block : s.inner, height = by_columns ? s.rows : (s.rows + threads - 1) / threads;
  #pragma omp parallel for collapse(3) schedule(static) num_threads(threads)
  for (int64_t o = 0; o < s.outer; ++o)
    for (int64_t from = 0; from < s.rows; from += height)
      for (int64_t left = 0; left < s.inner; left += width)
        index_add_part(s, x + o * s.rows * s.inner, index, source + o * s.count * s.inner, alpha, out + o * s.rows * s.inner, from,
                       index_min(s.rows, from + height), left, index_min(s.inner, left + width));
  return 0;
}

}  // namespace intarsia
