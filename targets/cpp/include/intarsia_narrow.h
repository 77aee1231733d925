// Products with a weight of narrow numbers, x @ (float(w) * scale).T: it comes from memory once, where it lies and in its own type. A panel of it at
// a time is widened into the second cache, and all rows of x pass by.
#pragma once
#include "intarsia_linear.h"

namespace intarsia {

constexpr int64_t widened_at_once = 256;  // numbers of each column, in the first cache

// The panel of `count` columns of the weight from `w` on: to[i * panel_columns + c] = float(w[c][i]) * scale[c]. What is behind them is not read.
template <class W>
IM_FN void widen_panel(const W* w, const float* scale, int64_t inner, int64_t count, float* to) {
  alignas(64) float rows[panel_columns * widened_at_once];
  for (int64_t from = 0; from < inner; from += widened_at_once) {
    const int64_t size = index_min(widened_at_once, inner - from);
    for (int64_t c = 0; c < panel_columns; ++c) {
      float* const row = rows + c * widened_at_once;
      const W* const given = w + index_min(c, count - 1) * inner + from;
      const float factor = c >= count ? 0.0f : scale ? scale[c] : 1.0f;
      #pragma omp simd
      for (int64_t i = 0; i < size; ++i) row[i] = float(given[i]) * factor;
    }
    transpose(rows, widened_at_once, panel_columns, to + from * panel_columns, panel_columns, size);
  }
}

// `finish` is what follows the sums, as in `linear`.
template <class W>
static void narrow_linear(const Linear& s, const float* x, const W* w, const float* scale, const Behind<float>& behind, Finish<float> finish,
                          Tile<float> low, Tile<float> tall) {
  const int64_t panels = (s.outer + panel_columns - 1) / panel_columns;
  const int64_t threads = s.rows * s.inner * s.outer > worth_threads ? max_threads() : 1;
  const bool apart = s.rows > 4 && s.inner * sizeof(float) % same_places == 0;
  const int64_t pitch = apart ? s.inner + 64 / sizeof(float) : s.inner;
  Scratch<float> copied(apart ? s.rows * pitch : 0);
  if (!copied.data) return;
  #pragma omp parallel if (threads > 1)
  {
    const float* rows = x;
    if (apart) {
      #pragma omp for schedule(static)
      for (int64_t r = 0; r < s.rows; ++r) __builtin_memcpy(copied.data + r * pitch, x + r * s.inner, s.inner * sizeof(float));
      rows = copied.data;
    }
    Scratch<float> panel(s.inner * panel_columns);
    alignas(64) float sums[most_rows * panel_columns];
    #pragma omp for schedule(static)
    for (int64_t p = 0; p < panels; ++p) {
      if (!panel.data) continue;
      const int64_t column = p * panel_columns, count = index_min(panel_columns, s.outer - column);
      widen_panel(w + column * s.inner, scale ? scale + column : nullptr, s.inner, count, panel.data);
      for (int64_t t = 0; t < s.tiles; ++t) {
        const bool is_tall = t < s.tall;
        const int64_t row = t * s.height + index_min(t, s.tall);
        (is_tall ? tall : low)(rows + row * pitch, pitch, panel.data, s.inner, sums);
        finish(behind, sums, row * s.outer + column, column, s.height + is_tall, count, s.outer);
      }
    }
  }
}

}  // namespace intarsia
