// Convolutions over channels-last images, and what follows them: out[pixel][column] = tail(sum over taps and channels, ...).
//
// dense_convolution sums a few pixels of a few blocks of output channels in registers over all taps and input channels. depthwise_convolution does
// the same with one weight a channel. Weights are packed by the caller: (blocks of 16 output channels, rows, columns, channels, 16), the
// last block padded with zeros, or (rows, columns, channels) for depthwise. `tail` is what happens to a sum on its way to memory.
#pragma once
#include "intarsia_matmul.h"
#ifdef _OPENMP
extern "C" int omp_get_max_threads() noexcept;
#endif

namespace intarsia {

struct Convolution {
  int64_t images, height, width, channels;  // of the input
  int64_t out_height, out_width, out_channels;
  int64_t rows, columns, row_step, column_step, row_pad, column_pad, row_dilation, column_dilation;
  int64_t x_image, x_row, x_column, x_channel;  // strides in elements
};

constexpr int64_t block_columns = 16;                               // output channels of one block of packed weights
constexpr int block_vectors = block_columns / lanes;                // vectors that hold them
constexpr int64_t serial_work = 1000000;                            // multiplications that are not worth a second thread

IM_FN int64_t threads_for(int64_t work) {
#ifdef _OPENMP
  return work > serial_work ? omp_get_max_threads() : 1;
#else
  (void)work;
  return 1;
#endif
}

struct Taps {  // rows and columns of the window, values of a pixel, and their distances in memory
  int64_t rows, row_step, columns, column_step, depth, step;
};

// sums[r][c] (+)= x[r][tap] * b[tap][c] for all taps in order; one function for all convolutions of a unit, which compiles sooner.
// A tap lies in blocks of 16 columns, which are b_pitch apart. `add`: to what is in sums.
template <int Pixels, int Blocks>
[[gnu::noinline]] static void add_products(float* sums, const float* const* x, Taps taps, const float* b, int64_t b_pitch, bool add) {
  constexpr int vectors = Blocks * block_vectors;
  Floats local[Pixels][vectors];
  const float* at[Pixels];
  #pragma GCC unroll 16
  for (int r = 0; r < Pixels; ++r) {
    at[r] = x[r];
    #pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) local[r][v] = add ? load(sums + (r * vectors + v) * lanes) : Floats{};
  }
  #pragma GCC unroll 1
  for (int64_t i = 0; i < taps.rows; ++i)
    #pragma GCC unroll 1
    for (int64_t j = 0; j < taps.columns; ++j) {
      int64_t place = i * taps.row_step + j * taps.column_step;
      #pragma GCC unroll 1
      for (int64_t k = 0; k < taps.depth; ++k, b += block_columns, place += taps.step) {
        Floats row[vectors];
        #pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) row[v] = load(b + (v / block_vectors) * b_pitch + v % block_vectors * lanes);
        #pragma GCC unroll 16
        for (int r = 0; r < Pixels; ++r) {
          const Floats factor = at[r][place] - Floats{};  // the value in all lanes: x - 0 is x, x + 0 is an instruction
          #pragma GCC unroll 8
          for (int v = 0; v < vectors; ++v) local[r][v] = multiply_add(factor, row[v], local[r][v]);
        }
      }
    }
  #pragma GCC unroll 16
  for (int r = 0; r < Pixels; ++r)
    #pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(sums + (r * vectors + v) * lanes, local[r][v]);
}

// The sums of `Pixels` pixels of output from column `first` of row (image, row) on; those past `count` mean nothing.
template <int Pixels, int Blocks>
[[gnu::noinline]] static void dense_block(const Convolution& s, const float* x, const float* weight, const float* zeros, float* patch,
                                          float* sums, int64_t image, int64_t row, int64_t first, int64_t count) {
  const int64_t depth = s.rows * s.columns * s.channels, pitch = depth * block_columns;
  const int64_t top = row * s.row_step - s.row_pad, left = first * s.column_step - s.column_pad;
  const float* const origin = x + image * s.x_image + top * s.x_row + left * s.x_column;
  const int64_t right = left + (Pixels - 1) * s.column_step + (s.columns - 1) * s.column_dilation;
  const bool inside = count == Pixels && left >= 0 && right < s.width && top >= 0 && top + (s.rows - 1) * s.row_dilation < s.height;
  const float* at[Pixels];
  if (inside) {
    for (int r = 0; r < Pixels; ++r) at[r] = origin + r * s.column_step * s.x_column;
    const Taps taps{s.rows, s.row_dilation * s.x_row, s.columns, s.column_dilation * s.x_column, s.channels, s.x_channel};
    add_products<Pixels, Blocks>(sums, at, taps, weight, pitch, false);
  } else if (s.channels < 8) {  // few channels: one row of values a pixel, with zeros for what lies outside
    for (int r = 0; r < Pixels; ++r) {
      at[r] = patch + r * depth;
      for (int64_t i = 0; i < s.rows; ++i)
        for (int64_t j = 0; j < s.columns; ++j) {
          const int64_t y = top + i * s.row_dilation, z = left + r * s.column_step + j * s.column_dilation;
          const bool there = r < count && y >= 0 && y < s.height && z >= 0 && z < s.width;
          float* const to = patch + r * depth + (i * s.columns + j) * s.channels;
          const float* const from = x + image * s.x_image + y * s.x_row + z * s.x_column;
          for (int64_t c = 0; c < s.channels; ++c) to[c] = there ? from[c * s.x_channel] : 0.0f;
        }
    }
    add_products<Pixels, Blocks>(sums, at, Taps{1, 0, 1, 0, depth, 1}, weight, pitch, false);
  } else {
    bool add = false;
    for (int64_t i = 0; i < s.rows; ++i) {
      const int64_t y = top + i * s.row_dilation;
      if (y < 0 || y >= s.height) continue;
      for (int64_t j = 0; j < s.columns; ++j, add = true) {
        for (int r = 0; r < Pixels; ++r) {
          const int64_t z = left + r * s.column_step + j * s.column_dilation;
          at[r] = r < count && z >= 0 && z < s.width ? x + image * s.x_image + y * s.x_row + z * s.x_column : zeros;
        }
        const float* const w = weight + (i * s.columns + j) * s.channels * block_columns;
        add_products<Pixels, Blocks>(sums, at, Taps{1, 0, 1, 0, s.channels, 1}, w, pitch, add);
      }
    }
    if (!add)
      for (int64_t i = 0; i < Pixels * Blocks * block_columns; ++i) sums[i] = 0;
  }
}

// Pixels x Blocks sums are in registers at a time; the last blocks, if they are fewer, are `Last`.
template <int Pixels, int Blocks, int Last, class Tail>
static void dense_convolution(Convolution s, const float* x, const float* weight, float* out, const Tail& tail) {
  const int64_t depth = s.rows * s.columns * s.channels;
  const int64_t pixels = s.images * s.out_height * s.out_width;
  const int64_t per_row = (s.out_width + Pixels - 1) / Pixels, groups = s.images * s.out_height * per_row;
  const int64_t blocks = (s.out_channels + block_columns - 1) / block_columns, panels = (blocks + Blocks - 1) / Blocks;
  const int64_t threads = threads_for(pixels * depth * blocks * block_columns);
  // A chunk of pixels stays in the second cache while all weights pass; few pixels are one chunk, and threads share the weights instead.
  const int64_t in_cache = index_max(1, 65536 / index_max(1, Pixels * s.column_step * s.row_step * s.channels));
  const bool by_weights = threads > 1 && panels >= 2 * threads && blocks * depth * block_columns > pixels * s.channels;
  const int64_t per_thread = by_weights ? groups : (groups + threads - 1) / threads;
  int64_t chunk = index_max(1, index_min(in_cache, per_thread));
  const int64_t chunks = (groups + chunk - 1) / chunk, parts = by_weights ? threads : 1;
  const int64_t per_part = (panels + parts - 1) / parts;
  #pragma omp parallel if (threads > 1)
  {
    Scratch<float> memory(s.channels < 8 ? 16 + Pixels * depth : s.channels);
    float *const zeros = memory.data, *const patch = zeros + 16;
    for (int64_t c = 0; c < s.channels; ++c) zeros[c] = 0;
    alignas(64) float sums[Pixels * Blocks * block_columns];
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < parts * chunks; ++task) {
      const int64_t part = task / chunks, start = task % chunks * chunk, stop = index_min(start + chunk, groups);
      for (int64_t panel = part * per_part; panel < index_min((part + 1) * per_part, panels); ++panel) {
        const int64_t column = panel * Blocks * block_columns;
        const float* const w = weight + column * depth;
        for (int64_t group = start; group < stop; ++group) {
          const int64_t line = group / per_row, first = group % per_row * Pixels;
          const int64_t image = line / s.out_height, row = line % s.out_height, count = index_min(Pixels, s.out_width - first);
          const bool last = Last != Blocks && panel == panels - 1;
          if (last) dense_block<Pixels, Last>(s, x, w, zeros, patch, sums, image, row, first, count);
          else dense_block<Pixels, Blocks>(s, x, w, zeros, patch, sums, image, row, first, count);
          const int64_t filled = index_min(Blocks * block_columns, s.out_channels - column);
          const int64_t sums_pitch = (last ? Last : Blocks) * block_columns;
          int64_t at = (line * s.out_width + first) * s.out_channels + column;
          for (int64_t r = 0; r < count; ++r, at += s.out_channels) {
            const float* const from = sums + r * sums_pitch;
            #pragma omp simd
            for (int64_t c = 0; c < filled; ++c) out[at + c] = tail(from[c], at + c, column + c);
          }
        }
      }
    }
  }
}

// The sums of one vector of channels, from c on, of `Pixels` pixels of a row of output, whose window begins at row `top` and column `left` of x.
// Inside: no column of the window is outside.
template <int Pixels, int Columns, int Step, bool Inside>
[[gnu::noinline]] static void depthwise_block(const Convolution& s, const float* x, const float* weight, const float* zeros,
                                              float* kept, int64_t image, int64_t top, int64_t left, int64_t c) {
  constexpr int window = (Pixels - 1) * Step + Columns;  // input pixels of one row that `Pixels` outputs read
  Floats sums[Pixels] = {};
  for (int64_t i = 0; i < s.rows; ++i) {
    const int64_t y = top + i;
    if (y < 0 || y >= s.height) continue;
    const float* const from = x + image * s.x_image + y * s.x_row + left * s.x_column + c;
    const float* const w = weight + i * Columns * s.channels + c;
    Floats seen[window];
    #pragma GCC unroll 32
    for (int z = 0; z < window; ++z)
      seen[z] = load(Inside || (left + z >= 0 && left + z < s.width) ? from + z * s.x_column : zeros);
    #pragma GCC unroll 8
    for (int j = 0; j < Columns; ++j) {
      const Floats factor = load(w + j * s.channels);
      #pragma GCC unroll 16
      for (int r = 0; r < Pixels; ++r) sums[r] = multiply_add(seen[r * Step + j], factor, sums[r]);
    }
  }
  #pragma GCC unroll 16
  for (int r = 0; r < Pixels; ++r) store(kept + r * lanes, sums[r]);
}

// Each channel by itself, at least `lanes` of them. Columns and Step are the width of the window and its step; no dilation.
template <int Pixels, int Columns, int Step, class Tail>
static void depthwise_convolution(Convolution s, const float* x, const float* weight, float* out, const Tail& tail) {
  constexpr int window = (Pixels - 1) * Step + Columns;
  constexpr int64_t strip = 4 * lanes;  // channels whose weights stay in the first cache
  const int64_t lines = s.images * s.out_height, groups = (s.out_width + Pixels - 1) / Pixels;
  const int64_t threads = threads_for(lines * s.out_width * s.channels * s.rows * s.columns * 4);
  float zeros[lanes] = {};
  #pragma omp parallel for schedule(static) if (threads > 1)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t image = line / s.out_height, row = line % s.out_height, top = row * s.row_step - s.row_pad;
    for (int64_t c0 = 0; c0 < s.channels; c0 += strip)
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = group * Pixels, count = index_min(Pixels, s.out_width - first);
        const int64_t left = first * Step - s.column_pad;
        const bool inside = left >= 0 && left + window <= s.width;
        for (int64_t from = c0; from < index_min(c0 + strip, s.channels); from += lanes) {
          const int64_t c = index_min(from, s.channels - lanes);  // the last channels once more where they fill no vector
          alignas(64) float sums[Pixels * lanes];
          if (inside) depthwise_block<Pixels, Columns, Step, true>(s, x, weight, zeros, sums, image, top, left, c);
          else depthwise_block<Pixels, Columns, Step, false>(s, x, weight, zeros, sums, image, top, left, c);
          int64_t at = (line * s.out_width + first) * s.channels + c;
          for (int64_t r = 0; r < count; ++r, at += s.channels) {
            const float* const from = sums + r * lanes;
            #pragma omp simd
            for (int l = 0; l < lanes; ++l) out[at + l] = tail(from[l], at + l, c + l);
          }
        }
      }
  }
}

// The largest of each window, NaN where it holds one; no column of the window lies wholly outside.
static void max_pool(Convolution s, const float* x, float* out) {
  const int64_t lines = s.images * s.out_height;
  const int64_t threads = threads_for(lines * s.out_width * s.channels * s.rows * s.columns * 4);
  #pragma omp parallel for schedule(static) if (threads > 1)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t image = line / s.out_height, top = line % s.out_height * s.row_step - s.row_pad;
    for (int64_t column = 0; column < s.out_width; ++column) {
      const int64_t left = column * s.column_step - s.column_pad;
      float* const to = out + (line * s.out_width + column) * s.channels;
      bool first = true;
      for (int64_t i = 0; i < s.rows; ++i) {
        const int64_t y = top + i * s.row_dilation;
        if (y < 0 || y >= s.height) continue;
        for (int64_t j = 0; j < s.columns; ++j) {
          const int64_t z = left + j * s.column_dilation;
          if (z < 0 || z >= s.width) continue;
          const float* const from = x + image * s.x_image + y * s.x_row + z * s.x_column;
          if (first) {
            #pragma omp simd
            for (int64_t c = 0; c < s.channels; ++c) to[c] = from[c];
          } else {
            #pragma omp simd
            for (int64_t c = 0; c < s.channels; ++c) to[c] = max(to[c], from[c]);
          }
          first = false;
        }
      }
    }
  }
}

}  // namespace intarsia
