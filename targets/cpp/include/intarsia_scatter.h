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
  static constexpr int64_t piece = 2048;   // columns that are added up in the nearest cache
  static constexpr int64_t narrow = 16;    // fewer columns than this are added where they lie
  static constexpr int64_t worth = 16384;  // elements that are worth more than one thread
};

// The terms of each row, in their order: `terms` from first[row] to first[row + 1] are numbers of rows of the source.
template <class I>
IM_FN void terms_of_rows(const IndexAdd& s, const I* index, int64_t* first, int64_t* terms) {
  for (int64_t r = 0; r <= s.rows; ++r) first[r] = 0;
  for (int64_t i = 0; i < s.count; ++i) ++first[index[i]];
  int64_t end = 0;
  for (int64_t r = 0; r < s.rows; ++r) first[r] = end += first[r];
  first[s.rows] = end;
  for (int64_t i = s.count - 1; i >= 0; --i) terms[--first[index[i]]] = i;
}

// One row of the result, read and written once. Alone: the factor is 1, which costs nothing then. Half types are added up as floats.
template <bool Alone, bool Streams, class T, class A>
IM_FN void index_add_row(const T* x, const T* source, int64_t pitch, const int64_t* terms, int64_t count, A alpha, T* out, int64_t width) {
  constexpr bool half = sizeof(T) < sizeof(A);
  constexpr int64_t step = 256;
  alignas(64) A sums[IndexAdd::piece];
  for (int64_t left = 0; left < width; left += IndexAdd::piece) {
    const int64_t length = index_min(IndexAdd::piece, width - left);
    const T* const old = x + left;
    T* const result = out + left;
    for (int64_t k = 0; k < count; ++k) {
      const T* const term = source + terms[k] * pitch + left;
      const T* const later = source + terms[k + 1] * pitch + left;
      for (int64_t c = 0; c < length; c += step) {
        const int64_t end = index_min(length, c + step);
        prefetch(later + c, end - c);
        if (k == 0) {
          #pragma omp simd
          for (int64_t j = c; j < end; ++j) sums[j] = A(old[j]) + (Alone ? A(term[j]) : A(term[j]) * alpha);
        } else {
          #pragma omp simd
          for (int64_t j = c; j < end; ++j) sums[j] = sums[j] + (Alone ? A(term[j]) : A(term[j]) * alpha);
        }
      }
    }
    if (count == 0 && Streams) {
      stream(result, old, length);
    } else if (count == 0) {
      #pragma omp simd
      for (int64_t j = 0; j < length; ++j) result[j] = old[j];
    } else if (!half && Streams) {
      stream(result, reinterpret_cast<const T*>(sums), length);
    } else {
      #pragma omp simd
      for (int64_t j = 0; j < length; ++j) result[j] = T(sums[j]);
    }
  }
}

// x.index_add(dim, index, source, alpha): 1 where a number lies outside the rows, and then nothing is written. Streams: the result goes
// past the caches.
template <bool Streams, class T, class I, class A>
int index_add(const IndexAdd& s, const T* x, const I* index, const T* source, A alpha, T* out) {
  bool outside = false;
  #pragma omp simd reduction(| : outside)
  for (int64_t i = 0; i < s.count; ++i) outside |= (index[i] < 0) | (index[i] >= s.rows);
  if (outside) return 1;
  const int64_t whole = s.rows * s.inner;
  if (s.outer * whole == 0) return 0;
  const bool spread = s.outer * (s.rows + s.count) * s.inner >= IndexAdd::worth;
  if (s.inner < IndexAdd::narrow && sizeof(T) == sizeof(A)) {
    #pragma omp parallel for schedule(static) if (spread)
    for (int64_t o = 0; o < s.outer; ++o) {
      T* const to = out + o * whole;
      if (out != x) __builtin_memcpy(to, x + o * whole, whole * sizeof(T));
      for (int64_t i = 0; i < s.count; ++i)
        for (int64_t c = 0; c < s.inner; ++c) {
          T& sum = to[index[i] * s.inner + c];
          sum = T(sum + source[(o * s.count + i) * s.inner + c] * alpha);
        }
    }
    return 0;
  }
  Scratch<int64_t> first(s.rows + 1), terms(s.count + 1);
  if (!first.data || !terms.data) return 0;
  terms_of_rows(s, index, first.data, terms.data);
  terms.data[s.count] = 0;  // what the last term asks for
  #pragma omp parallel if (spread)
  {
    #pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < s.outer * s.rows; ++r) {
      const int64_t row = r % s.rows, begin = first.data[row], count = first.data[row + 1] - begin;
      const T* const from = source + r / s.rows * s.count * s.inner;
      const T* const old = x + r * s.inner;
      T* const to = out + r * s.inner;
      const int64_t* const those = terms.data + begin;
      if (alpha == A(1)) index_add_row<true, Streams>(old, from, s.inner, those, count, alpha, to, s.inner);
      else index_add_row<false, Streams>(old, from, s.inner, those, count, alpha, to, s.inner);
    }
    if (Streams) streamed();
  }
  return 0;
}

}  // namespace intarsia
