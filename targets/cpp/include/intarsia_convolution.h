// Convolutions over channels-last images, and what follows them: out[pixel][column] = tail(sum over taps and channels, ...).
//
// dense_convolution sums a few pixels of a few blocks of output channels in registers over all taps and input channels. depthwise_convolution does
// the same with one weight a channel. Weights are packed by the caller: (blocks of 16 output channels, rows, columns, channels, 16), the
// last block padded with zeros, or (rows, columns, channels) for depthwise. `tail` is what happens to a sum on its way to memory.
#pragma once
#include "intarsia_tail.h"

namespace intarsia {

struct Convolution {
  int64_t images, height, width, channels;  // of the input
  int64_t out_height, out_width, out_channels;
  int64_t rows, columns, row_step, column_step, row_pad, column_pad, row_dilation, column_dilation;
  int64_t x_image, x_row, x_column, x_channel;  // strides in elements
};

constexpr int64_t block_columns = 16;                               // output channels of one block of packed weights
constexpr int block_vectors = block_columns / lanes;                // vectors that hold them

struct Taps {  // rows and columns of the window, values of a pixel, and their distances in memory
  int64_t rows, row_step, columns, column_step, depth, step;
  int64_t run = 128;  // products that are summed in registers before they are added to what came before
};

// sums[r][c] (+)= x[r][tap] * b[tap][c] for all taps in order; one function for all convolutions of a unit, which compiles sooner.
// A tap lies in blocks of 16 columns, which are b_pitch apart. `add`: to what is in sums. Runs of products are summed in registers and then
// added to sums, so that the rounding error does not grow with the number of channels: eager's libraries sum in such runs, too.
template <int Pixels, int Blocks>
[[gnu::noinline]] static void add_products(float* sums, const float* const* x, Taps taps, const float* b, int64_t b_pitch, bool add) {
  constexpr int vectors = Blocks * block_vectors;
  Floats local[Pixels][vectors] = {};
  const float* at[Pixels];
  #pragma GCC unroll 16
  for (int r = 0; r < Pixels; ++r) at[r] = x[r];
  int64_t left = taps.run;
  #pragma GCC unroll 1
  for (int64_t i = 0; i < taps.rows; ++i)
    #pragma GCC unroll 1
    for (int64_t j = 0; j < taps.columns; ++j) {
      int64_t place = i * taps.row_step + j * taps.column_step;
      #pragma GCC unroll 1
      for (int64_t from = 0; from < taps.depth; from += taps.run) {
        if (left <= 0) {
          set_aside<Pixels, vectors>(sums, vectors * lanes, local, add);
          add = true;
          left = taps.run;
          #pragma GCC unroll 16
          for (int r = 0; r < Pixels; ++r)
            #pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) local[r][v] = Floats{};
        }
        const int64_t count = index_min(taps.run, taps.depth - from);
        left -= count;
        #pragma GCC unroll 1
        for (int64_t k = 0; k < count; ++k, b += block_columns, place += taps.step) {
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
    }
  set_aside<Pixels, vectors>(sums, vectors * lanes, local, add);
}

// One instance of add_products.
using Products = void (*)(float* sums, const float* const* x, Taps taps, const float* b, int64_t b_pitch, bool add);
constexpr int64_t most_pixels = 16;

// The sums of `pixels` pixels of output from column `first` of row (image, row) on, `width` each; those past `count` mean nothing.
// Padding adds nothing, not even where a weight is infinite or NaN: sums of pixels that a tap finds outside are kept from it.
static void dense_block(const Convolution& s, Products products, int64_t pixels, int64_t width, const float* x, const float* weight,
                        float* sums, int64_t image, int64_t row, int64_t first, int64_t count) {
  const int64_t depth = s.rows * s.columns * s.channels, pitch = depth * block_columns;
  const int64_t top = row * s.row_step - s.row_pad, left = first * s.column_step - s.column_pad;
  const float* const origin = x + image * s.x_image + top * s.x_row + left * s.x_column;
  const int64_t right = left + (pixels - 1) * s.column_step + (s.columns - 1) * s.column_dilation;
  const bool inside = count == pixels && left >= 0 && right < s.width && top >= 0 && top + (s.rows - 1) * s.row_dilation < s.height;
  const float* at[most_pixels];
  if (inside) {
    for (int64_t r = 0; r < pixels; ++r) at[r] = origin + r * s.column_step * s.x_column;
    const Taps taps{s.rows, s.row_dilation * s.x_row, s.columns, s.column_dilation * s.x_column, s.channels, s.x_channel};
    products(sums, at, taps, weight, pitch, false);
  } else {
    bool add = false;
    for (int64_t i = 0; i < s.rows; ++i) {
      const int64_t y = top + i * s.row_dilation;
      if (y < 0 || y >= s.height) continue;
      for (int64_t j = 0; j < s.columns; ++j) {
        alignas(64) float kept[most_pixels * 4 * block_columns];
        int64_t outside[most_pixels], others = 0;
        for (int64_t r = 0; r < pixels; ++r) {
          const int64_t z = left + r * s.column_step + j * s.column_dilation, there = index_max(0, index_min(z, s.width - 1));
          at[r] = x + image * s.x_image + y * s.x_row + there * s.x_column;
          if (z != there && r < count) outside[others++] = r;
        }
        if (others == count) continue;
        for (int64_t o = 0; o < others; ++o)
          for (int64_t c = 0; c < width; ++c) kept[o * width + c] = add ? sums[outside[o] * width + c] : 0;
        const float* const w = weight + (i * s.columns + j) * s.channels * block_columns;
        products(sums, at, Taps{1, 0, 1, 0, s.channels, s.x_channel}, w, pitch, add);
        for (int64_t o = 0; o < others; ++o)
          for (int64_t c = 0; c < width; ++c) sums[outside[o] * width + c] = kept[o * width + c];
        add = true;
      }
    }
    if (!add)
      for (int64_t i = 0; i < pixels * width; ++i) sums[i] = 0;
  }
}

// The sums of `pixels` pixels and `together` blocks of output channels are in registers at a time, in `full`; the last blocks are summed by `rest`.
template <class O>
static void dense_convolution(const Convolution& s, const float* x, const float* weight, const Tail<O>& tail, int64_t pixels, int64_t together,
                              Products full, Products rest) {
  const int64_t depth = s.rows * s.columns * s.channels;
  const int64_t outputs = s.images * s.out_height * s.out_width;
  const int64_t per_row = (s.out_width + pixels - 1) / pixels, groups = s.images * s.out_height * per_row;
  const int64_t blocks = (s.out_channels + block_columns - 1) / block_columns, panels = (blocks + together - 1) / together;
  const int64_t threads = threads_for(outputs * depth * blocks * block_columns);
  // A chunk of pixels stays in the second cache while all weights pass; few pixels are one chunk, and threads share the weights instead.
  const int64_t in_cache = index_max(1, 65536 / index_max(1, pixels * s.column_step * s.row_step * s.channels));
  const bool by_weights = threads > 1 && panels >= 2 * threads && blocks * depth * block_columns > outputs * s.channels;
  const int64_t per_thread = by_weights ? groups : (groups + threads - 1) / threads;
  const int64_t chunk = index_max(1, index_min(in_cache, per_thread));
  const int64_t chunks = (groups + chunk - 1) / chunk, parts = by_weights ? threads : 1;
  const int64_t per_part = (panels + parts - 1) / parts;
  #pragma omp parallel if (threads > 1)
  {
    alignas(64) float sums[most_pixels * 4 * block_columns];
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < parts * chunks; ++task) {
      const int64_t part = task / chunks, start = task % chunks * chunk, stop = index_min(start + chunk, groups);
      for (int64_t panel = part * per_part; panel < index_min((part + 1) * per_part, panels); ++panel) {
        const int64_t column = panel * together * block_columns, width = index_min(together, blocks - panel * together) * block_columns;
        const float* const w = weight + column * depth;
        for (int64_t group = start; group < stop; ++group) {
          const int64_t line = group / per_row, first = group % per_row * pixels;
          const int64_t image = line / s.out_height, row = line % s.out_height, count = index_min(pixels, s.out_width - first);
          const Products products = panel == panels - 1 ? rest : full;
          dense_block(s, products, pixels, width, x, w, sums, image, row, first, count);
          const int64_t at = (line * s.out_width + first) * s.out_channels + column;
          tail.apply(tail, sums, width, at, column, count, index_min(width, s.out_channels - column));
        }
      }
    }
  }
}

IM_FN bool all_finite(const float* from, int64_t count) {
  float sum = 0;  // 0, or NaN
  #pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += from[i] * 0.0f;
  return sum == 0;
}

// The same for few input channels, in any layout: the rows that some rows of output read are copied channels-last with the padding around
// them, so that a row of the window is one run of memory and there are no edges.
template <class O>
static void few_channels_convolution(const Convolution& s, const float* x, const float* weight, const Tail<O>& tail, int64_t pixels,
                                     int64_t together, Products full, Products rest) {
  constexpr int64_t rows_together = 4;
  if ((s.row_pad | s.column_pad) != 0 && !all_finite(weight, round_up(s.out_channels, block_columns) * s.rows * s.columns * s.channels))
    return dense_convolution(s, x, weight, tail, pixels, together, full, rest);  // there padding adds nothing, not 0 times the weight
  const int64_t depth = s.rows * s.columns * s.channels, reach = (s.rows - 1) * s.row_dilation + 1;
  const int64_t per_row = (s.out_width + pixels - 1) / pixels, row_groups = (s.out_height + rows_together - 1) / rows_together;
  const int64_t width = (per_row * pixels - 1) * s.column_step + (s.columns - 1) * s.column_dilation + 1, pitch = width * s.channels;
  const int64_t blocks = (s.out_channels + block_columns - 1) / block_columns, panels = (blocks + together - 1) / together;
  const int64_t threads = threads_for(s.images * s.out_height * s.out_width * depth * blocks * block_columns);
  const int64_t first_there = index_min(width, s.column_pad), past = index_max(first_there, index_min(width, s.column_pad + s.width));
  const bool runs = s.column_dilation == 1;
  const Taps taps{s.rows, s.row_dilation * pitch, runs ? 1 : s.columns, s.column_dilation * s.channels, runs ? s.columns * s.channels : s.channels, 1};
  #pragma omp parallel if (threads > 1)
  {
    Scratch<float> memory(((rows_together - 1) * s.row_step + reach) * pitch);
    alignas(64) float sums[most_pixels * 4 * block_columns];
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < s.images * row_groups; ++task) {
      if (!memory.data) continue;
      const int64_t image = task / row_groups, row = task % row_groups * rows_together;
      const int64_t count = index_min(rows_together, s.out_height - row), top = row * s.row_step - s.row_pad;
      for (int64_t i = 0; i < (count - 1) * s.row_step + reach; ++i) {
        float* const to = memory.data + i * pitch;
        const bool there = top + i >= 0 && top + i < s.height;
        const int64_t from = there ? first_there : 0, stop = there ? past : 0;
        for (int64_t z = 0; z < from * s.channels; ++z) to[z] = 0;
        for (int64_t z = stop * s.channels; z < pitch; ++z) to[z] = 0;
        const float* const line = x + image * s.x_image + (top + i) * s.x_row;
        for (int64_t c = 0; c < s.channels; ++c)
          for (int64_t z = from; z < stop; ++z) to[z * s.channels + c] = line[(z - s.column_pad) * s.x_column + c * s.x_channel];
      }
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t column = panel * together * block_columns, filled = index_min(together, blocks - panel * together) * block_columns;
        for (int64_t i = 0; i < count; ++i)
          for (int64_t group = 0; group < per_row; ++group) {
            const float* at[most_pixels];
            for (int64_t r = 0; r < pixels; ++r)
              at[r] = memory.data + i * s.row_step * pitch + (group * pixels + r) * s.column_step * s.channels;
            (panel == panels - 1 ? rest : full)(sums, at, taps, weight + column * depth, depth * block_columns, false);
            const int64_t first = group * pixels, place = ((image * s.out_height + row + i) * s.out_width + first) * s.out_channels;
            tail.apply(tail, sums, filled, place + column, column, index_min(pixels, s.out_width - first),
                       index_min(filled, s.out_channels - column));
          }
      }
    }
  }
}

// The sums of one vector of channels, from c on, of `Pixels` pixels of a row of output, whose window begins at row `top` and column `left` of x.
// Inside: no column of the window is outside.
template <int Pixels, int Columns, int Step, bool Inside>
IM_FN void sum_channels(const Convolution& s, const float* x, const float* weight, const float* zeros, float* kept, int64_t kept_pitch,
                        int64_t image, int64_t top, int64_t left, int64_t c) {
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
  for (int r = 0; r < Pixels; ++r) store(kept + r * kept_pitch, sums[r]);
}

// The same for any number of pixels, of which those that a column of the window finds outside get nothing from it, whatever the weight.
[[gnu::noinline]] static void sum_channels_inside(const Convolution& s, const float* x, const float* weight, int64_t pixels, float* kept,
                                                  int64_t kept_pitch, int64_t image, int64_t top, int64_t left, int64_t c) {
  for (int64_t r = 0; r < pixels; ++r) {
    Floats sum{};
    for (int64_t i = index_max(0, -top); i < index_min(s.rows, s.height - top); ++i)
      for (int64_t j = 0; j < s.columns; ++j) {
        const int64_t z = left + r * s.column_step + j;
        if (z < 0 || z >= s.width) continue;
        sum = multiply_add(load(x + image * s.x_image + (top + i) * s.x_row + z * s.x_column + c), load(weight + (i * s.columns + j) * s.channels + c), sum);
      }
    store(kept + r * kept_pitch, sum);
  }
}

// The same for the vectors of channels that begin at first, first + lanes, ... below `stop`; the last once more where they fill no vector.
// `zeros`: what padding is read as; null where a weight is infinite or NaN.
template <int Pixels, int Columns, int Step>
[[gnu::noinline]] static void depthwise_block(const Convolution& s, const float* x, const float* weight, const float* zeros, float* kept,
                                              int64_t kept_pitch, int64_t image, int64_t top, int64_t left, int64_t first, int64_t stop) {
  const bool inside = left >= 0 && left + (Pixels - 1) * Step + Columns <= s.width;
  for (int64_t from = first; from < stop; from += lanes) {
    const int64_t c = index_min(from, s.channels - lanes);
    if (inside) sum_channels<Pixels, Columns, Step, true>(s, x, weight, zeros, kept + c - first, kept_pitch, image, top, left, c);
    else if (!zeros) sum_channels_inside(s, x, weight, Pixels, kept + c - first, kept_pitch, image, top, left, c);
    else sum_channels<Pixels, Columns, Step, false>(s, x, weight, zeros, kept + c - first, kept_pitch, image, top, left, c);
  }
}

using Depthwise = void (*)(const Convolution& s, const float* x, const float* weight, const float* zeros, float* kept, int64_t kept_pitch,
                           int64_t image, int64_t top, int64_t left, int64_t first, int64_t stop);

// Each channel by itself, at least `lanes` of them, by the depthwise_block of `pixels` pixels; no dilation.
template <class O>
static void depthwise_convolution(const Convolution& s, const float* x, const float* weight, const Tail<O>& tail, int64_t pixels, Depthwise block) {
  constexpr int64_t strip = 4 * lanes;  // channels whose weights stay in the first cache
  const int64_t lines = s.images * s.out_height, groups = (s.out_width + pixels - 1) / pixels;
  const int64_t threads = threads_for(lines * s.out_width * s.channels * s.rows * s.columns * 4);
  const float nothing[lanes] = {};
  const float* const zeros = s.column_pad == 0 || all_finite(weight, s.rows * s.columns * s.channels) ? nothing : nullptr;
  #pragma omp parallel for schedule(static) if (threads > 1)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t image = line / s.out_height, row = line % s.out_height, top = row * s.row_step - s.row_pad;
    alignas(64) float sums[most_pixels * 2 * strip];
    for (int64_t c0 = 0; c0 < s.channels; c0 += strip) {
      const int64_t c = index_min(c0, s.channels - lanes), stop = index_min(c0 + strip, s.channels);
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = group * pixels, count = index_min(pixels, s.out_width - first);
        block(s, x, weight, zeros, sums, strip, image, top, first * s.column_step - s.column_pad, c, stop);
        tail.apply(tail, sums, strip, (line * s.out_width + first) * s.channels + c, c, count, stop - c);
      }
    }
  }
}

IM_FN void store_exact(float* to, float value) { *to = value; }
IM_FN void store_exact(bf16* to, float value) { to->bits = static_cast<uint16_t>(bit_cast<uint32_t>(value) >> 16); }

// The largest of each window, NaN where it holds one, -inf where nothing of it is inside.
template <class T>
static void max_pool(Convolution s, const T* x, T* out) {
  const int64_t lines = s.images * s.out_height;
  const int64_t threads = threads_for(lines * s.out_width * s.channels * s.rows * s.columns * 4);
  #pragma omp parallel for schedule(static) if (threads > 1)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t image = line / s.out_height, top = line % s.out_height * s.row_step - s.row_pad;
    for (int64_t column = 0; column < s.out_width; ++column) {
      const int64_t left = column * s.column_step - s.column_pad;
      T* const to = out + (line * s.out_width + column) * s.channels;
      bool first = true;
      for (int64_t i = 0; i < s.rows; ++i) {
        const int64_t y = top + i * s.row_dilation;
        if (y < 0 || y >= s.height) continue;
        for (int64_t j = 0; j < s.columns; ++j) {
          const int64_t z = left + j * s.column_dilation;
          if (z < 0 || z >= s.width) continue;
          const T* const from = x + image * s.x_image + y * s.x_row + z * s.x_column;
          if (first) {
            #pragma omp simd
            for (int64_t c = 0; c < s.channels; ++c) to[c] = from[c];
          } else {
            #pragma omp simd
            for (int64_t c = 0; c < s.channels; ++c)
              store_exact(to + c, max(static_cast<float>(to[c]), static_cast<float>(from[c])));
          }
          first = false;
        }
      }
      if (first) {  // a window with dilation may have all of its columns in the padding
        #pragma omp simd
        for (int64_t c = 0; c < s.channels; ++c) store_exact(to + c, -__builtin_inff());
      }
    }
  }
}

}  // namespace intarsia
