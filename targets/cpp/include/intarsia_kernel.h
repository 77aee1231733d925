// What generated kernels need beside arithmetic: index division, random numbers, scratch memory, reductions that keep NaN.
#pragma once
#include "intarsia_math.h"

#if defined(__AVX512F__)
#define IM_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define IM_VECTOR_BYTES 32
#else
#define IM_VECTOR_BYTES 16
#endif

namespace intarsia {

// Indices by numbers of which a program's own may be zero: 0 then, instead of a signal that ends the process.
IM_FN int64_t quotient(int64_t a, int64_t b) { return b != 0 ? a / b : 0; }
IM_FN int64_t remainder(int64_t a, int64_t b) { return b != 0 ? a % b : 0; }

// Python's // and % on indices that may be negative.
IM_FN int64_t index_div(int64_t a, int64_t b) {
  return quotient(a, b) - ((remainder(a, b) != 0) & ((a < 0) != (b < 0)));
}
IM_FN int64_t index_mod(int64_t a, int64_t b) { return a - index_div(a, b) * b; }
IM_FN int64_t index_min(int64_t a, int64_t b) { return a < b ? a : b; }
IM_FN int64_t index_max(int64_t a, int64_t b) { return a > b ? a : b; }

// Random numbers: Philox4x32-10 (Salmon and others, 2011). Word n of a stream is part n % 4 of block n / 4.
IM_FN int32_t philox(int64_t seed, int64_t number) {
  const uint64_t counter = static_cast<uint64_t>(number) >> 2;
  uint32_t a = static_cast<uint32_t>(counter), b = static_cast<uint32_t>(counter >> 32), c = 0, d = 0;
  uint32_t left = static_cast<uint32_t>(seed), right = static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * a, second = uint64_t{0xCD9E8D57u} * c;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ left;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ right;
    d = static_cast<uint32_t>(first);
    left += 0x9E3779B9u;
    right += 0xBB67AE85u;
  }
  const uint32_t low = (number & 1) != 0 ? b : a, high = (number & 1) != 0 ? d : c;
  return static_cast<int32_t>((number & 2) != 0 ? high : low);
}

// The member that a block belongs to: the first one of `count` that ends behind it.
template <typename Member>
inline const Member& member_of(const Member* members, int64_t count, int64_t block) {
  int64_t low = 0;
  for (int64_t high = count - 1; low < high;) {
    const int64_t middle = (low + high) / 2;
    if (block < members[middle].end) high = middle; else low = middle + 1;
  }
  return members[low];
}

// A bool in memory, read as the byte that it is: loops over loaded bools vectorise only so.
IM_FN bool truth(const bool& x) { return reinterpret_cast<const uint8_t&>(x) != 0; }
// Sums of bools are bytes. Without this, they would become bools on the way in, which gcc 12 loses in lanes beyond 64.
IM_FN bool truth(const uint8_t& x) { return x != 0; }
// A bool written, as a byte for the same reason.
IM_FN void put(bool& to, bool x) { reinterpret_cast<uint8_t&>(to) = x ? 1 : 0; }
IM_FN void put(uint8_t& to, bool x) { to = x ? 1 : 0; }

// Ask for what will be read in no order, which the processor cannot foresee. The memory need not exist.
template <class T>
IM_FN void prefetch(const T* from, int64_t count) {
  constexpr int line = 64 / sizeof(T);
  for (int64_t k = 0; k < count; k += line) __builtin_prefetch(from + k);
}

// Write `count` elements past the caches, of which they would take the place of what is needed sooner. streamed() waits for these writes.
template <class T>
IM_FN void stream(T* to, const T* from, int64_t count) {
  int64_t k = 0;
#if defined(__SSE2__) && defined(__GNUC__)
  constexpr int N = IM_VECTOR_BYTES / sizeof(T);
  typedef long long Lanes __attribute__((vector_size(IM_VECTOR_BYTES)));
  for (; k < count && reinterpret_cast<uintptr_t>(to + k) % IM_VECTOR_BYTES != 0; ++k) to[k] = from[k];
  for (; k + N <= count; k += N) {
    Lanes x;
    __builtin_memcpy(&x, from + k, IM_VECTOR_BYTES);
    Lanes* const there = reinterpret_cast<Lanes*>(to + k);
#if defined(__clang__)
    __builtin_nontemporal_store(x, there);
#elif IM_VECTOR_BYTES == 64
    __builtin_ia32_movntdq512(there, x);
#elif IM_VECTOR_BYTES == 32
    __builtin_ia32_movntdq256(there, x);
#else
    __builtin_ia32_movntdq(there, x);
#endif
  }
#endif
  for (; k < count; ++k) to[k] = from[k];
}
IM_FN void streamed() {
#if defined(__SSE2__) && defined(__GNUC__)
  __builtin_ia32_sfence();
#endif
}

// How often memory was lacking in the kernels of this unit. A kernel compares the number with that from before: what it computed meanwhile, or
// what another one did, is not to be used.
static int shortages = 0;
constexpr int lacked_memory = 2;
IM_FN int shortages_so_far() { return __atomic_load_n(&shortages, __ATOMIC_RELAXED); }
IM_FN int lacked(int before) { return shortages_so_far() != before ? lacked_memory : 0; }

// Scratch memory too large for the stack, aligned to a cache line; null, and counted, where there is not that much.
template <class T>
struct Scratch {
  T* data;
  explicit Scratch(int64_t count) : data(static_cast<T*>(__builtin_malloc(count * sizeof(T) + 64))), raw(data) {
    if (!raw) __atomic_fetch_add(&shortages, 1, __ATOMIC_RELAXED);
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(data) + 63) & ~uintptr_t(63));  // null stays null
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

// How a running reduction joins, and what it starts from; on numbers and on vectors of them.
struct Sum {
  template <class T> static IM_FN_MEMBER T join(T a, T b) { return a + b; }
  template <class T> static IM_FN_MEMBER T first(T) { return T(0); }
};
struct Product {
  template <class T> static IM_FN_MEMBER T join(T a, T b) { return a * b; }
  template <class T> static IM_FN_MEMBER T first(T) { return T(1); }
};
struct Largest {  // NaN stays
  template <class T> static IM_FN_MEMBER T join(T a, T b) { return b != b ? b : b > a ? b : a; }
  template <class T> static IM_FN_MEMBER auto keeps(T a, T b) { return (b <= a) | (a != a); }  // a comes first
  template <class T> static IM_FN_MEMBER T first(T carry) { return carry; }
};
struct Smallest {
  template <class T> static IM_FN_MEMBER T join(T a, T b) { return b != b ? b : b < a ? b : a; }
  template <class T> static IM_FN_MEMBER auto keeps(T a, T b) { return (b >= a) | (a != a); }
  template <class T> static IM_FN_MEMBER T first(T carry) { return carry; }
};

// values[i] becomes `carry` joined with values[0..i]; returns the last. In registers: each vector joins itself, moved up by 1, 2, 4 ...
// elements, then what came before it, so that the chain from vector to vector is one operation long.
template <class Join, class T>
IM_FN T scan(T* values, int64_t count, T carry) {
  int64_t done = 0;
#if defined(__GNUC__) && !defined(__clang__)
  constexpr int N = IM_VECTOR_BYTES / sizeof(T);
  typedef T Lanes __attribute__((vector_size(IM_VECTOR_BYTES)));
  typedef decltype(Lanes{} == Lanes{}) Places;
  constexpr int steps = N == 16 ? 4 : N == 8 ? 3 : N == 4 ? 2 : 1;
  Places moved[steps], last;
  Lanes first, before;
  for (int k = 0; k < N; ++k) {
    for (int s = 0; s < steps; ++s) moved[s][k] = k < (1 << s) ? N : k - (1 << s);
    last[k] = N - 1;
    first[k] = Join::first(carry);
    before[k] = carry;
  }
  for (; done + N <= count; done += N) {
    Lanes x;
    __builtin_memcpy(&x, values + done, IM_VECTOR_BYTES);
    for (int s = 0; s < steps; ++s) x = Join::join(__builtin_shuffle(x, first, moved[s]), x);
    const Lanes result = Join::join(before, x);
    before = Join::join(before, __builtin_shuffle(x, last));
    __builtin_memcpy(values + done, &result, IM_VECTOR_BYTES);
  }
  carry = before[0];
#endif
  for (; done < count; ++done) values[done] = carry = Join::join(carry, values[done]);
  return carry;
}

// argmax or argmin of columns: best[c] and best_at[c] joined with the rows `at`, `at` + 1 ... of values[row * pitch + c]. A few rows at a
// time, with the number of the row among these in lanes as wide as the values.
template <class Join, class T>
IM_FN void arg_rows(const T* values, int64_t pitch, int64_t rows, int64_t at, T* best, int64_t* best_at, int64_t lanes) {
  constexpr int64_t several = 16;
  for (int64_t first = 0; first < rows; first += several) {
    const T* const block = values + first * pitch;
    const int64_t count = index_min(several, rows - first);
    int64_t c = 0;
#if defined(__GNUC__) && !defined(__clang__)
    constexpr int N = IM_VECTOR_BYTES / sizeof(T);
    typedef T Lanes __attribute__((vector_size(IM_VECTOR_BYTES)));
    typedef decltype(Lanes{} == Lanes{}) Places;
    for (; c + N <= lanes; c += N) {
      Lanes a, x;
      Places from = Places{} - 1, here = Places{};
      __builtin_memcpy(&a, best + c, IM_VECTOR_BYTES);
      for (int64_t r = 0; r < count; ++r, here += 1) {
        __builtin_memcpy(&x, block + r * pitch + c, IM_VECTOR_BYTES);
        const Places keep = Join::keeps(a, x);
        a = keep ? a : x;
        from = keep ? from : here;
      }
      __builtin_memcpy(best + c, &a, IM_VECTOR_BYTES);
      #pragma omp simd
      for (int k = 0; k < N; ++k) best_at[c + k] = from[k] < 0 ? best_at[c + k] : at + first + from[k];
    }
#endif
    for (; c < lanes; ++c)
      for (int64_t r = 0; r < count; ++r)
        if (!Join::keeps(best[c], block[r * pitch + c])) { best[c] = block[r * pitch + c]; best_at[c] = at + first + r; }
  }
}

// to[j * to_pitch + i] = from[i * from_pitch + j] for i < rows, j < columns: whole blocks in registers, the rest one by one.
// A block of N rows is transposed by interleaving row k with row k + N/2, log2(N) times.
template <class T>
IM_FN void transpose(const T* from, int64_t from_pitch, int64_t rows, T* to, int64_t to_pitch, int64_t columns) {
  int64_t whole_rows = 0, whole_columns = 0;
#if defined(__GNUC__) && !defined(__clang__)
  constexpr int bytes = IM_VECTOR_BYTES, N = bytes / sizeof(T);
  typedef T Lanes __attribute__((vector_size(bytes)));
  typedef decltype(Lanes{} == Lanes{}) Places;
  Places low, high;
  for (int k = 0; k < N; ++k) {
    low[k] = k / 2 + (k % 2) * N;
    high[k] = low[k] + N / 2;
  }
  whole_rows = rows / N * N;
  whole_columns = columns / N * N;
  for (int64_t i = 0; i < whole_rows; i += N)
    for (int64_t j = 0; j < whole_columns; j += N) {
      Lanes row[N], mixed[N];
      for (int k = 0; k < N; ++k) __builtin_memcpy(&row[k], from + (i + k) * from_pitch + j, bytes);
      for (int step = N; step > 1; step /= 2) {
        for (int k = 0; k < N / 2; ++k) {
          mixed[2 * k] = __builtin_shuffle(row[k], row[k + N / 2], low);
          mixed[2 * k + 1] = __builtin_shuffle(row[k], row[k + N / 2], high);
        }
        for (int k = 0; k < N; ++k) row[k] = mixed[k];
      }
      for (int k = 0; k < N; ++k) __builtin_memcpy(to + (j + k) * to_pitch + i, &row[k], bytes);
    }
#endif
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j) to[j * to_pitch + i] = from[i * from_pitch + j];
}

}  // namespace intarsia

// Lanes of a vectorised max or min are joined by the same NaN-keeping functions. `initializer` starts each lane at the running
// value, which is neutral for max and min.
#pragma omp declare reduction(im_max : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t, bool : omp_out = intarsia::max(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(im_min : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t, bool : omp_out = intarsia::min(omp_out, omp_in)) initializer(omp_priv = omp_orig)
