// Convolutions, and their gradients, on images as eager has them, channel after channel: those with one filter a channel, those with windows of one pixel.
// Nothing depends on the number of threads.
//
// With one filter a channel: a task is a vector of channels and some images. Its planes are turned so that a pixel is one vector, with a
// border of zeros around the image; sums of a few pixels, or of a few taps of the window, are in registers.
#pragma once
#include "intarsia_tail.h"

namespace intarsia {

struct Depthwise {
  int64_t images, channels, rows, columns, out_rows, out_columns, down, right, above, left;  // steps, then zeros around the image

  IM_FN_MEMBER int64_t pixels() const { return rows * columns; }
  IM_FN_MEMBER int64_t out_pixels() const { return out_rows * out_columns; }
  IM_FN_MEMBER int64_t blocks() const { return (channels + lanes - 1) / lanes; }
};

// An image with a border: `rows` by `columns` vectors, the image begins at (above, left).
struct Bordered {
  int64_t rows, columns, above, left;
  IM_FN_MEMBER int64_t size() const { return rows * columns * lanes; }
};

constexpr int turned_pixels = 8;  // sums of pixels that are in registers at a time: as many products are under way
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int tap_sums = 28;  // sums of taps that are in registers at a time
#else
constexpr int tap_sums = 12;
#endif

// `count` planes of `pixels` become vectors; lanes without a channel are 0.
IM_FN void turn_planes(const float* from, int64_t count, int64_t pixels, float* to) {
  if (count < lanes)
    for (int64_t i = 0; i < pixels * lanes; ++i) to[i] = 0;
  transpose(from, pixels, count, to, int64_t(lanes), pixels);
}

// Planes as a bordered image; `turned` has room for a plane of vectors.
IM_FN void bordered(const float* from, int64_t count, int64_t rows, int64_t columns, const Bordered& b, float* turned, float* to) {
  turn_planes(from, count, rows * columns, turned);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      store(to + ((b.above + i) * b.columns + b.left + j) * lanes, load(turned + (i * columns + j) * lanes));
}

// The weights of some channels: a vector a tap.
IM_FN void turn_taps(const float* weight, int64_t count, int64_t taps, float* to) {
  for (int64_t t = 0; t < taps; ++t)
    for (int64_t c = 0; c < lanes; ++c) to[t * lanes + c] = c < count ? weight[c * taps + t] : 0.0f;
}

// Pixels [0, Pixels) of a row, `apart` vectors from one to the next: to = sum over taps of weight * from. The taps of a row of the window lie
// `tap` vectors apart, those of a column `line`; neighbouring pixels read `step` vectors apart.
template <int Pixels>
IM_FN void sum_pixels(const float* from, int64_t step, int64_t line, int64_t tap, int64_t taps_down, int64_t taps_across, const float* weight,
                      int64_t weight_line, int64_t weight_tap, float* to, int64_t apart) {
  Floats sums[Pixels]{};
  for (int64_t a = 0; a < taps_down; ++a)
    for (int64_t b = 0; b < taps_across; ++b) {
      const Floats w = load(weight + (a * weight_line + b * weight_tap) * lanes);
      const float* const at = from + (a * line + b * tap) * lanes;
      for (int p = 0; p < Pixels; ++p) sums[p] = multiply_add(load(at + p * step * lanes), w, sums[p]);
    }
  for (int p = 0; p < Pixels; ++p) store(to + p * apart * lanes, sums[p]);
}

IM_FN void sum_row(int64_t pixels, const float* from, int64_t step, int64_t line, int64_t tap, int64_t taps_down, int64_t taps_across,
                   const float* weight, int64_t weight_line, int64_t weight_tap, float* to, int64_t apart) {
  int64_t j = 0;
  for (; j + turned_pixels <= pixels; j += turned_pixels)
    sum_pixels<turned_pixels>(from + j * step * lanes, step, line, tap, taps_down, taps_across, weight, weight_line, weight_tap,
                              to + j * apart * lanes, apart);
  for (; j + 4 <= pixels; j += 4)
    sum_pixels<4>(from + j * step * lanes, step, line, tap, taps_down, taps_across, weight, weight_line, weight_tap, to + j * apart * lanes, apart);
  for (; j < pixels; ++j)
    sum_pixels<1>(from + j * step * lanes, step, line, tap, taps_down, taps_across, weight, weight_line, weight_tap, to + j * apart * lanes, apart);
}

// sums[t] += sum over the pixels of the result of gradient * what tap t of rows [first, first + Rows) of the window sees.
template <int Rows, int High, int Wide>
IM_FN void add_taps(const Depthwise& s, const Bordered& b, const float* x, const float* gradient, int first, float* sums) {
  Floats found[Rows][Wide];
  for (int a = 0; a < Rows; ++a)
    for (int k = 0; k < Wide; ++k) found[a][k] = load(sums + ((first + a) * Wide + k) * lanes);
  for (int64_t i = 0; i < s.out_rows; ++i) {
    const float* from = x + (i * s.down + first) * b.columns * lanes;
    const float* g = gradient + i * s.out_columns * lanes;
    for (int64_t j = 0; j < s.out_columns; ++j, g += lanes, from += s.right * lanes) {
      const Floats factor = load(g);
      for (int a = 0; a < Rows; ++a)
        for (int k = 0; k < Wide; ++k) found[a][k] = multiply_add(factor, load(from + (a * b.columns + k) * lanes), found[a][k]);
    }
  }
  for (int a = 0; a < Rows; ++a)
    for (int k = 0; k < Wide; ++k) store(sums + ((first + a) * Wide + k) * lanes, found[a][k]);
}

template <int First, int High, int Wide>
IM_FN void add_all_taps(const Depthwise& s, const Bordered& b, const float* x, const float* gradient, float* sums) {
  constexpr int fit = tap_sums / Wide < 1 ? 1 : tap_sums / Wide, here = High - First < fit ? High - First : fit;
  add_taps<here, High, Wide>(s, b, x, gradient, First, sums);
  if constexpr (First + here < High) add_all_taps<First + here, High, Wide>(s, b, x, gradient, sums);
}

// The image with the zeros that windows reach into.
template <int High, int Wide>
IM_FN Bordered seen_by_windows(const Depthwise& s) {
  return {index_max((s.out_rows - 1) * s.down + High, s.above + s.rows), index_max((s.out_columns - 1) * s.right + Wide, s.left + s.columns),
          s.above, s.left};
}

template <int High, int Wide>
static void depthwise(const Depthwise& s, const float* x, const float* weight, float* out) {
  const Bordered b = seen_by_windows<High, Wide>(s);
  const int64_t blocks = s.blocks(), work = s.images * s.channels * s.out_pixels() * High * Wide;
  #pragma omp parallel if (work > 400000)
  {
    Scratch<float> memory(b.size() + index_max(s.pixels(), s.out_pixels()) * lanes + High * Wide * lanes);
    float* const image = memory.data;
    float* const turned = image + b.size();
    float* const taps = turned + index_max(s.pixels(), s.out_pixels()) * lanes;
    if (image)
      for (int64_t i = 0; i < b.size(); ++i) image[i] = 0;
    #pragma omp for schedule(static) collapse(2)
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t n = 0; n < s.images; ++n) {
        if (!image) continue;
        const int64_t first = block * lanes, count = index_min(lanes, s.channels - first);
        turn_taps(weight + first * High * Wide, count, High * Wide, taps);
        bordered(x + (n * s.channels + first) * s.pixels(), count, s.rows, s.columns, b, turned, image);
        for (int64_t i = 0; i < s.out_rows; ++i)
          sum_row(s.out_columns, image + i * s.down * b.columns * lanes, s.right, b.columns, 1, High, Wide, taps, Wide, 1,
                  turned + i * s.out_columns * lanes, 1);
        transpose(turned, int64_t(lanes), s.out_pixels(), out + (n * s.channels + first) * s.out_pixels(), s.out_pixels(), count);
      }
  }
}

// The gradient of the image: each pixel gathers from the windows that hold it, which lie side by side for pixels a step apart.
template <int High, int Wide>
IM_FN void gather_gradient(const Depthwise& s, const Bordered& g, const float* gradient, const float* taps, float* to) {
  for (int64_t i = 0; i < s.rows; ++i) {
    const int64_t down = i + s.above, a = down % s.down;
    const int64_t taps_down = a < High ? (High - 1 - a) / s.down + 1 : 0;
    const float* const line = gradient + (down / s.down + g.above) * g.columns * lanes;
    for (int64_t j = 0; j < index_min(s.right, s.columns); ++j) {
      const int64_t across = j + s.left, b = across % s.right;
      const int64_t taps_across = b < Wide ? (Wide - 1 - b) / s.right + 1 : 0;
      sum_row((s.columns - 1 - j) / s.right + 1, line + (across / s.right + g.left) * lanes, 1, -g.columns, -1, taps_down, taps_across,
              taps + (a * Wide + b) * lanes, s.down * Wide, s.right, to + (i * s.columns + j) * lanes, s.right);
    }
  }
}

constexpr int64_t whole_blocks = 16;  // vectors of channels from which on one task takes all images

// Both gradients; a null pointer stands for one that is not wanted.
template <int High, int Wide>
static void depthwise_gradients(const Depthwise& s, const float* gradient, const float* x, const float* weight, float* of_x, float* of_weight) {
  const Bordered b = seen_by_windows<High, Wide>(s);
  const int64_t above = (High - 1) / s.down, left = (Wide - 1) / s.right;
  const Bordered g{above + index_max((s.rows - 1 + s.above) / s.down + 1, s.out_rows), left + index_max((s.columns - 1 + s.left) / s.right + 1, s.out_columns),
                   above, left};
  const int64_t blocks = s.blocks(), most = index_max(s.pixels(), s.out_pixels()) * lanes, taps_size = High * Wide * lanes;
  const int64_t parts = blocks < whole_blocks ? index_min(s.images, whole_blocks) : 1, work = s.images * s.channels * s.out_pixels() * High * Wide;
  Scratch<float> sums(of_weight ? parts * blocks * taps_size : 0);
  if (!sums.data) return;
  #pragma omp parallel if (work > 200000)
  {
    Scratch<float> memory(b.size() + g.size() + 2 * most + taps_size);
    float* const image = memory.data;
    float* const around = image + b.size();
    float* const turned = around + g.size();
    float* const other = turned + most;
    float* const taps = other + most;
    if (image)
      for (int64_t i = 0; i < b.size() + g.size(); ++i) image[i] = 0;
    #pragma omp for schedule(static) collapse(2)
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t part = 0; part < parts; ++part) {
        if (!image) continue;
        const int64_t first = block * lanes, count = index_min(lanes, s.channels - first);
        float* const found = sums.data + (part * blocks + block) * taps_size;
        turn_taps(weight + first * High * Wide, count, High * Wide, taps);
        if (of_weight)
          for (int64_t t = 0; t < taps_size; ++t) found[t] = 0;
        for (int64_t n = s.images * part / parts; n < s.images * (part + 1) / parts; ++n) {
          const int64_t plane = n * s.channels + first;
          bordered(gradient + plane * s.out_pixels(), count, s.out_rows, s.out_columns, g, turned, around);
          if (of_weight) {
            bordered(x + plane * s.pixels(), count, s.rows, s.columns, b, other, image);
            add_all_taps<0, High, Wide>(s, b, image, turned, found);
          }
          if (of_x) {
            gather_gradient<High, Wide>(s, g, around, taps, other);
            transpose(other, int64_t(lanes), s.pixels(), of_x + plane * s.pixels(), s.pixels(), count);
          }
        }
      }
  }
  if (!of_weight) return;
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t t = 0; t < High * Wide; ++t) {
      float total = 0;
      for (int64_t part = 0; part < parts; ++part) total += sums.data[(part * blocks + c / lanes) * taps_size + t * lanes + c % lanes];
      of_weight[c * High * Wide + t] = total;
    }
}

// Windows of one pixel: products whose columns are pixels. A task is a panel of columns and some rows of the result. What the columns are of is
// copied into a panel, of all images in one row, so that images of a few pixels fill vectors, too; the other factor is read where it lies.

struct Points {
  int64_t images, inputs, outputs, pixels;
  IM_FN_MEMBER int64_t columns() const { return images * pixels; }
};

constexpr int64_t points_depth = 256;      // products that are summed in registers at a time
constexpr int64_t most_point_rows = 12;    // of a block of sums
constexpr int64_t least_task_rows = 24;    // of a task, so that copying its panel is a small part
constexpr int64_t few_pixels = 64;         // of images that are joined for a sum over pixels

// A factor that is read where it lies: element (r, k) is at[r * row + k * step].
struct PointFactor {
  const float* at;
  int64_t row, step;
  IM_FN_MEMBER PointFactor below(int64_t r, int64_t k) const { return {at + r * row + k * step, row, step}; }
};

// sums[r][c] (+)= sum over k of a[r][k] * b[k][c], rows of b a panel apart, those of sums `pitch`.
template <int Count, int Vectors>
IM_FN void point_block(const PointFactor& a, const float* b, float* sums, int64_t pitch, int64_t depth, bool add) {
  Floats local[Count][Vectors] = {};
  #pragma GCC unroll 1
  for (int64_t k = 0; k < depth; ++k) {
    Floats given[Vectors];
    #pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) given[v] = load(b + k * panel + v * lanes);
    #pragma GCC unroll 12
    for (int r = 0; r < Count; ++r) {
      const Floats factor = a.at[r * a.row + k * a.step] - Floats{};  // the value in all lanes
      #pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) local[r][v] = multiply_add(factor, given[v], local[r][v]);
    }
  }
  set_aside<Count, Vectors>(sums, pitch, local, add);
}

template <int Vectors>
[[gnu::noinline]] static void point_rows(PointFactor a, const float* b, float* sums, int64_t pitch, int64_t rows, int64_t depth, bool add) {
  constexpr int tall = Vectors < panel_vectors ? most_point_rows : block_rows;  // products under way hide the time that one takes
  int64_t r = 0;
  for (; r + tall <= rows; r += tall) point_block<tall, Vectors>(a.below(r, 0), b, sums + r * pitch, pitch, depth, add);
  if (tall > 6 && r + 6 <= rows) point_block<6, Vectors>(a.below(r, 0), b, sums + r * pitch, pitch, depth, add), r += 6;
  if (r + 4 <= rows) point_block<4, Vectors>(a.below(r, 0), b, sums + r * pitch, pitch, depth, add), r += 4;
  if (r + 2 <= rows) point_block<2, Vectors>(a.below(r, 0), b, sums + r * pitch, pitch, depth, add), r += 2;
  if (r < rows) point_block<1, Vectors>(a.below(r, 0), b, sums + r * pitch, pitch, depth, add);
}

// For the first `columns` of a panel.
IM_FN void add_points(const PointFactor& a, const float* b, float* sums, int64_t pitch, int64_t rows, int64_t columns, int64_t depth, bool add) {
  if (columns <= lanes) point_rows<1>(a, b, sums, pitch, rows, depth, add);
  else if (columns <= 2 * lanes) point_rows<2>(a, b, sums, pitch, rows, depth, add);
  else point_rows<panel_vectors>(a, b, sums, pitch, rows, depth, add);
}

// Does something with every run of columns [first, first + count) that lies in one image: image, its first pixel, the run's first column, its size.
template <class Do>
IM_FN void for_runs(int64_t pixels, int64_t first, int64_t count, const Do& act) {
  for (int64_t c = 0; c < count;) {
    const int64_t image = (first + c) / pixels, pixel = (first + c) % pixels, size = index_min(count - c, pixels - pixel);
    act(image, pixel, c, size);
    c += size;
  }
}

// to = from + more; sums are never -0, and -0 leaves every number as it is.
IM_FN void copy_run(const float* from, float* to, int64_t count, float more) {
  int64_t p = 0;
  for (; p + lanes <= count; p += lanes) store(to + p, load(from + p) + more);
  for (; p < count; ++p) to[p] = from[p] + more;
}

// to[k][c]: channel k at column first + c of the images.
IM_FN void copy_columns(const float* from, int64_t channels, int64_t pixels, int64_t first, int64_t count, float* to) {
  if (count < panel)
    for (int64_t i = 0; i < channels * panel; ++i) to[i] = 0;
  if (pixels == 1) return transpose(from + first * channels, channels, count, to, int64_t(panel), channels);
  for_runs(pixels, first, count, [&](int64_t image, int64_t pixel, int64_t c, int64_t size) {
    const float* line = from + image * channels * pixels + pixel;
    float* row = to + c;
    for (int64_t k = 0; k < channels; ++k, line += pixels, row += panel) {
      int64_t p = 0;
      for (; p + lanes <= size; p += lanes) store(row + p, load(line + p));
      for (; p < size; ++p) row[p] = line[p];
    }
  });
}

IM_FN int64_t row_parts(int64_t rows, int64_t panels, int64_t threads) {
  return threads == 1 ? 1 : index_max(1, index_min((4 * threads + panels - 1) / panels, rows / least_task_rows));
}

// out[n][r][p] = bias[r] + sum over k of a[r][k] * x[n][k][p].
[[gnu::noinline]] static void points_product(int64_t images, int64_t pixels, int64_t rows, int64_t depth, const PointFactor& a, const float* x,
                                             const float* bias, float* out) {
  const int64_t columns = images * pixels, panels = (columns + panel - 1) / panel, threads = threads_for(columns * rows * depth);
  const int64_t parts = row_parts(rows, panels, threads);
  #pragma omp parallel if (threads > 1)
  {
    Scratch<float> memory(depth * panel);
    alignas(64) float sums[most_point_rows * panel];
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < panels * parts; ++task) {
      if (!memory.data) continue;
      const int64_t first = task / parts * panel, count = index_min(panel, columns - first), part = task % parts;
      copy_columns(x, depth, pixels, first, count, memory.data);
      const bool whole = count == panel && first % pixels + panel <= pixels;  // of one image: its sums can go where they belong
      float* const there = whole && depth <= points_depth && !bias ? out + first / pixels * rows * pixels + first % pixels : nullptr;
      for (int64_t r = rows * part / parts, stop = rows * (part + 1) / parts, next; r < stop; r = next) {
        next = index_min(stop, r + most_point_rows);
        if (there) {
          add_points(a.below(r, 0), memory.data, there + r * pixels, pixels, next - r, count, depth, false);
          continue;
        }
        for (int64_t k = 0; k < depth; k += points_depth)
          add_points(a.below(r, k), memory.data + k * panel, sums, panel, next - r, count, index_min(points_depth, depth - k), k > 0);
        if (pixels == 1) {  // one after another, not one in each row
          for (int64_t c = 0; c < count; ++c)
            for (int64_t i = r; i < next; ++i) out[(first + c) * rows + i] = sums[(i - r) * panel + c] + (bias ? bias[i] : 0.0f);
          continue;
        }
        for_runs(pixels, first, count, [&](int64_t image, int64_t pixel, int64_t c, int64_t size) {
          for (int64_t i = r; i < next; ++i) {
            float* const to = out + (image * rows + i) * pixels + pixel;
            const float* const from = sums + (i - r) * panel + c;
            const float more = bias ? bias[i] : 0.0f;
            copy_run(from, to, size, more);
          }
        });
      }
    }
  }
}

static void points(const Points& s, const float* x, const float* weight, const float* bias, float* out) {
  points_product(s.images, s.pixels, s.outputs, s.inputs, PointFactor{weight, s.inputs, 1}, x, bias, out);
}

// to[o][i] = sum over images and pixels of gradient[o] * x[i].
[[gnu::noinline]] static void points_of_weight(const Points& s, const float* gradient, const float* x, float* to) {
  const int64_t panels = (s.inputs + panel - 1) / panel, threads = threads_for(s.columns() * s.inputs * s.outputs);
  const int64_t parts = row_parts(s.outputs, panels, threads), most = (s.outputs + parts - 1) / parts;
  const bool joins = s.pixels < few_pixels && s.pixels > 1;  // a copy of the gradient has its images in one row
  const int64_t together = s.pixels < few_pixels ? index_max(1, points_depth / s.pixels) : 1;
  const int64_t deep = index_min(points_depth, s.pixels < few_pixels ? together * s.pixels : s.pixels);
  #pragma omp parallel if (threads > 1)
  {
    Scratch<float> memory((deep + most) * panel + (joins ? most * deep : 0));
    float* const turned = memory.data;
    float* const sums = turned + deep * panel;
    float* const joined = sums + most * panel;
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < panels * parts; ++task) {
      if (!memory.data) continue;
      const int64_t i = task / parts * panel, count = index_min(panel, s.inputs - i), part = task % parts;
      const int64_t o = s.outputs * part / parts, rows = s.outputs * (part + 1) / parts - o;
      const bool whole = count == panel;
      float* const there = whole ? to + o * s.inputs + i : sums;
      const int64_t pitch = whole ? s.inputs : int64_t(panel);
      if (!whole)
        for (int64_t k = 0; k < deep * panel; ++k) turned[k] = 0;
      for (int64_t n = 0; n < s.images; n += together)
        for (int64_t p = 0; p < s.pixels; p += deep) {
          const int64_t several = index_min(together, s.images - n), size = index_min(deep, s.pixels - p), depth = several * size;
          PointFactor a{gradient + (n * s.outputs + o) * s.pixels + p, s.pixels, 1};
          for (int64_t m = 0; m < several; ++m)
            transpose(x + ((n + m) * s.inputs + i) * s.pixels + p, s.pixels, count, turned + m * size * panel, int64_t(panel), size);
          if (joins) {
            for (int64_t m = 0; m < several; ++m)
              for (int64_t r = 0; r < rows; ++r)
                copy_run(a.at + (m * s.outputs + r) * s.pixels, joined + r * deep + m * size, size, -0.0f);
            a = PointFactor{joined, deep, 1};
          } else if (s.pixels == 1) {
            a = PointFactor{a.at, 1, s.outputs};
          }
          add_points(a, turned, there, pitch, rows, count, depth, n + p > 0);
        }
      for (int64_t r = 0; r < rows && !whole; ++r) __builtin_memcpy(to + (o + r) * s.inputs + i, sums + r * panel, count * sizeof(float));
    }
  }
}

// Gradients; a null pointer stands for one that is not wanted.
static void points_gradients(const Points& s, const float* gradient, const float* x, const float* weight, float* of_x, float* of_weight, float* of_bias) {
  if (of_x) points_product(s.images, s.pixels, s.inputs, s.outputs, PointFactor{weight, 1, s.inputs}, gradient, nullptr, of_x);
  if (of_weight) points_of_weight(s, gradient, x, of_weight);
  if (!of_bias) return;
  for (int64_t o = 0; o < s.outputs; ++o) {
    Floats sums{};
    float rest = 0;
    for (int64_t n = 0; n < s.images; ++n) {
      const float* const line = gradient + (n * s.outputs + o) * s.pixels;
      int64_t p = 0;
      for (; p + lanes <= s.pixels; p += lanes) sums += load(line + p);
      for (; p < s.pixels; ++p) rest += line[p];
    }
    of_bias[o] = sum(sums) + rest;
  }
}

}  // namespace intarsia
