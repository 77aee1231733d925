// Storage types of generated kernels: bf16 and f16 hold 16 bits, f8e4m3 and f8e5m2 8; all arithmetic happens in float.
// Conversions round to nearest even, keep infinities and signs, turn every NaN into a quiet NaN, and vectorise.
#pragma once
#include <stdint.h>  // and no other header: <cmath> alone would triple the time of compiling a small kernel

// always_inline: a call that is not inlined would keep the whole loop around it from being vectorised.
#define IM_FN static inline __attribute__((always_inline))
#define IM_FN_MEMBER inline __attribute__((always_inline))

namespace intarsia {

template <class To, class From>
IM_FN To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast between types of one size");
#if defined(__has_builtin)
#if __has_builtin(__builtin_bit_cast)
#define IM_HAS_BIT_CAST 1
#endif
#endif
#ifdef IM_HAS_BIT_CAST
  return __builtin_bit_cast(To, from);
#else
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
#endif
}

IM_FN uint16_t bf16_bits(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

IM_FN float bf16_value(uint16_t bits) { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Adding 0.5 puts the last bit of a subnormal half at the last bit of a float, so that the float unit rounds it.
IM_FN uint16_t f16_bits(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t out = magnitude < 0x38800000u ? subnormal : normal;
  out = magnitude >= 0x477ff000u ? 0x7c00u : out;
  out = magnitude > 0x7f800000u ? 0x7e00u : out;
  return static_cast<uint16_t>(sign | out);
}

IM_FN float f16_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const uint32_t special = magnitude + 0x70000000u;  // inf and NaN keep an all-ones exponent
  const float scaled = bit_cast<float>(magnitude) * 0x1p112f;
  return bit_cast<float>(sign | (magnitude >= 0x0f800000u ? special : bit_cast<uint32_t>(scaled)));
}

// Sign, 4 bits of exponent and 3 of mantissa: no infinities; `overflow` stands for all beyond 464: the largest number (0x7e) or NaN (0x7f).
IM_FN uint8_t f8e4m3_bits(float x, uint32_t overflow) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u) >> 20;
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  uint32_t out = magnitude < 0x3c800000u ? subnormal : normal;
  out = magnitude > 0x43e80000u ? overflow : out;
  out = magnitude > 0x7f800000u ? 0x7fu : out;
  return static_cast<uint8_t>((bits >> 24 & 0x80u) | out);
}

IM_FN float f8e4m3_value(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fu);
  const uint32_t scaled = bit_cast<uint32_t>(bit_cast<float>(magnitude << 20) * 0x1p120f);
  return bit_cast<float>(sign | (magnitude == 0x7fu ? 0x7fc00000u : scaled));
}

// Sign, 5 bits of exponent and 2 of mantissa: the upper half of an f16.
IM_FN uint8_t f8e5m2_bits(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - 0x38000000u) >> 21;
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0x1p7f) - 0x43000000u;
  uint32_t out = magnitude < 0x38800000u ? subnormal : normal;
  out = magnitude >= 0x47700000u ? 0x7cu : out;
  out = magnitude > 0x7f800000u ? 0x7fu : out;
  return static_cast<uint8_t>((bits >> 24 & 0x80u) | out);
}

IM_FN float f8e5m2_value(uint8_t bits) { return f16_value(static_cast<uint16_t>(static_cast<uint32_t>(bits) << 8)); }

// The copies are spelled out because gcc does not vectorise the assignment of a struct as a whole.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  IM_FN_MEMBER explicit bf16(float x) : bits(bf16_bits(x)) {}
  IM_FN_MEMBER bf16(const bf16& other) : bits(other.bits) {}
  IM_FN_MEMBER bf16& operator=(const bf16& other) { bits = other.bits; return *this; }
  IM_FN_MEMBER operator float() const { return bf16_value(bits); }
};

struct f16 {
  uint16_t bits;
  f16() = default;
  IM_FN_MEMBER explicit f16(float x) : bits(f16_bits(x)) {}
  IM_FN_MEMBER f16(const f16& other) : bits(other.bits) {}
  IM_FN_MEMBER f16& operator=(const f16& other) { bits = other.bits; return *this; }
  IM_FN_MEMBER operator float() const { return f16_value(bits); }
};

struct f8e4m3 {
  uint8_t bits;
  f8e4m3() = default;
  IM_FN_MEMBER f8e4m3(float x, uint32_t overflow) : bits(f8e4m3_bits(x, overflow)) {}
  IM_FN_MEMBER f8e4m3(const f8e4m3& other) : bits(other.bits) {}
  IM_FN_MEMBER f8e4m3& operator=(const f8e4m3& other) { bits = other.bits; return *this; }
  IM_FN_MEMBER operator float() const { return f8e4m3_value(bits); }
};

struct f8e5m2 {
  uint8_t bits;
  f8e5m2() = default;
  IM_FN_MEMBER explicit f8e5m2(float x) : bits(f8e5m2_bits(x)) {}
  IM_FN_MEMBER f8e5m2(const f8e5m2& other) : bits(other.bits) {}
  IM_FN_MEMBER f8e5m2& operator=(const f8e5m2& other) { bits = other.bits; return *this; }
  IM_FN_MEMBER operator float() const { return f8e5m2_value(bits); }
};

}  // namespace intarsia

namespace im = intarsia;
