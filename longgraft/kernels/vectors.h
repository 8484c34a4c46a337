// Vectors as wide as the machine's, the conversions between them and numbers, and buffers.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#if defined(__AVX2__) || defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

constexpr float LOG2_E = 1.44269504088896341f;

template <int L> struct VectorOf {
    typedef float Vector __attribute__((vector_size(4 * L)));
    typedef float Loose __attribute__((vector_size(4 * L), aligned(4), may_alias));      // at any address
    typedef int32_t Whole __attribute__((vector_size(4 * L)));
};

struct FreeDeleter { void operator()(void* p) const { std::free(p); } };

// A buffer of that many floats, 64 bytes aligned and kept per thread: a pass requests one hundreds of times.
template <int WHICH = 0> float* scratch(int64_t floats) {
    thread_local std::unique_ptr<float, FreeDeleter> kept;
    thread_local int64_t room = 0;
    if (floats > room) {
        const int64_t needed = (floats + 4095) / 4096 * 4096;
        kept.reset();
        room = 0;
        kept.reset(static_cast<float*>(std::aligned_alloc(64, needed * sizeof(float))));
        if (!kept) throw std::bad_alloc();
        room = needed;
    }
    return kept.get();
}

#if defined(__AVX512F__)
constexpr int64_t LANES = 16, MOST_ROWS = 12;       // a block's sums, a step's weights and a row's number: 27 registers
#define HELD(v) __asm__("" : "+v"(v))               // in a register: GCC would read it again for each row
#elif defined(LONGGRAFT_STAND_IN)
// Tests compile the code for AVX-512, its bfloat16 and AMX for any processor, without their instructions.
constexpr int64_t LANES = 16, MOST_ROWS = 12;
#define HELD(v)
#elif defined(__AVX__)
constexpr int64_t LANES = 8, MOST_ROWS = 6;
#define HELD(v)
#else
constexpr int64_t LANES = 4, MOST_ROWS = 12;
#define HELD(v)
#endif
constexpr int64_t VECTORS = 2, OUTPUTS = LANES * VECTORS;   // of a tile
typedef VectorOf<LANES>::Vector Sums;
typedef uint32_t Steps __attribute__((vector_size(4 * LANES), may_alias));
typedef VectorOf<LANES>::Loose Loose;
typedef uint16_t Bfloats __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef int8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

// a * b + c, rounded once where the machine can.  By name: whether a compiler contracts the expression depends on what is
// around it, and a row would not get the same bits from two loops.
inline Sums fused(Sums a, Sums b, Sums c) {
#if defined(LONGGRAFT_STAND_IN)
    return a * b + c;
#elif defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

// 2^x for x <= 0, within 2e-7 of it; 0 below 2^-126.  The polynomial is Cephes' exp2f.
inline Sums power_of_two(Sums x) {
    typedef VectorOf<LANES>::Whole Whole;
    const Whole vanishes = x < -126.0f;
    x = vanishes ? x * 0.0f : x;
    const Whole whole = __builtin_convertvector(x - 0.5f, Whole);
    const Sums rest = x - __builtin_convertvector(whole, Sums);
    Sums y = Sums{} + 1.535336188319500e-4f;
    for (const float next : {1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f,
                             2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f}) y = fused(y, rest, Sums{} + next);
    const Whole bits = (whole + 127) << 23;
    Sums scale;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return vanishes ? Sums{} : y * scale;
}

inline Sums absolute(Sums x) { return (Sums)((Steps)x & 0x7fffffffu); }
inline Sums all_lanes(float x) { return x - Sums{}; }
inline Sums lanes(const float* x) { return *reinterpret_cast<const Loose*>(x); }
inline Sums lanes(const uint16_t* x) {
    return (Sums)(__builtin_convertvector(*reinterpret_cast<const Bfloats*>(x), Steps) << 16);
}

inline Sums lanes(const int8_t* x) {
#if defined(__AVX512F__)        // GCC would convert one byte after another
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
#else
    return __builtin_convertvector(*reinterpret_cast<const Bytes*>(x), Sums);
#endif
}

// LANES numbers, each rounded to a bfloat16, the upper half of its lane: to the nearest, ties to even.
inline Steps bfloats(Sums x) {
    Steps bits = (Steps)x;
    bits += 0x7fffu + (bits >> 16 & 1u);
    return bits & 0xffff0000u;
}

inline float single(float x) { return x; }
inline float single(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
inline float single(uint16_t bfloat) {
    return single(static_cast<uint32_t>(bfloat) << 16);
}
inline void store(float x, float* y) { *y = x; }
inline void store(float x, uint16_t* y) {       // rounded to the nearest, ties to even
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    *y = x != x ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// One row's outputs [o, o + LANES) of all [out].
template <class T> inline void store_row(Sums sums, const T* bias, T* y, int64_t o, int64_t out) {
    if (std::is_same<T, float>::value && !bias && o + LANES <= out) {
        *reinterpret_cast<Loose*>(y + o) = sums;
        return;
    }
    for (int64_t t = 0; t < std::min(LANES, out - o); ++t)
        store(sums[t] + (bias ? single(bias[o + t]) : 0.0f), y + o + t);
}

// Bytes that a product reads ahead.  One row is multiplied nearly twice as fast with it: the processor itself does not
// look far enough ahead to keep its memory busy.
constexpr int64_t AHEAD = 4096;

// Bring the SIZE bytes that are so far ahead of an address into the cache.
template <int64_t SIZE> inline void prefetch(const void* from, int64_t ahead) {
    for (int64_t byte = 0; byte < SIZE; byte += 64) __builtin_prefetch(static_cast<const char*>(from) + ahead + byte);
}

}  // namespace
