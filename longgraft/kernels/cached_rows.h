// Rows of a cache of keys or values: how new ones are written, and how those of bytes are read.
//
// A row of bytes is a head's numbers as int8, and behind them the scale of each group of 32 numbers, a bfloat16.  It is
// rounded once, when it is written; whatever moves rows takes them as they are.  `runtime/byte_rows.py` does the same
// for layers that are not compiled, and is what tests compare this with.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "vectors.h"

namespace {

constexpr int64_t SCALED = 32;              // numbers of a row of bytes that have one scale
constexpr float MOST_CODE = 127.0f;
constexpr float WHOLE = 12582912.0f;        // 1.5 * 2^23: added to a small number, it leaves a whole one in the low bits

#if defined(__AVX512BF16__) || defined(LONGGRAFT_STAND_IN)
constexpr bool PAIRED_BFLOATS = true;
#else
constexpr bool PAIRED_BFLOATS = false;
#endif

// The numbers of a cached row as attention reads them.  Those of bytes become what the processor multiplies best.
template <class K> struct CachedRow { typedef K Number; };
template <> struct CachedRow<int8_t> {
    typedef std::conditional<PAIRED_BFLOATS, uint16_t, float>::type Number;
};

// n rows of numbers, `apart` numbers from one to the next.
template <class N> struct NumberRows {
    const N* first;
    int64_t apart;
};

template <class T, class K> inline void write_row(const T* from, int64_t size, K* row) {
    for (int64_t i = 0; i < size; ++i) store(single(from[i]), row + i);
}

// size: a multiple of the lanes.  A group with NaN or an infinite number has the scale NaN.
template <class T> void write_row(const T* from, int64_t size, int8_t* row) {
    for (int64_t first = 0; first < size; first += SCALED) {
        const int64_t end = std::min(size, first + SCALED);
        Sums most = {}, wrong = {};
        for (int64_t d = first; d < end; d += LANES) {
            const Sums some = absolute(lanes(from + d));
            most = some > most ? some : most;
            wrong += some * 0.0f;
        }
        float largest = 0.0f, zero = 0.0f;
        for (int64_t t = 0; t < LANES; ++t) {
            largest = std::max(largest, most[t]);
            zero += wrong[t];
        }
        uint16_t scale;
        store(largest / MOST_CODE + zero, &scale);
        __builtin_memcpy(row + size + first / SCALED * sizeof scale, &scale, sizeof scale);
        const bool usable = single(scale) >= std::numeric_limits<float>::min();     // else all codes are 0
        const Sums divisor = Sums{} + (usable ? single(scale) : std::numeric_limits<float>::infinity());
        for (int64_t d = first; d < end; d += LANES)
            *reinterpret_cast<Bytes*>(row + d) =
                __builtin_convertvector((Steps)(lanes(from + d) / divisor + WHOLE) & 0xffu, Bytes);
    }
}

inline void put_numbers(Sums some, float* to) { *reinterpret_cast<Loose*>(to) = some; }
inline void put_numbers(Sums some, uint16_t* to) {
#if defined(__AVX512BF16__)
    *reinterpret_cast<Bfloats*>(to) = (Bfloats)_mm512_cvtneps_pbh(some);
#else
    *reinterpret_cast<Bfloats*>(to) = __builtin_convertvector(bfloats(some) >> 16, Bfloats);
#endif
}

// Codes of a group with its scale -> n numbers, a multiple of the lanes.
template <class N> inline void read_group(const int8_t* codes, Sums scale, int64_t n, N* to) {
    for (int64_t d = 0; d < n; d += LANES) put_numbers(lanes(codes + d) * scale, to + d);
}
#if defined(__AVX512BF16__)
inline void read_group(const int8_t* codes, Sums scale, int64_t n, uint16_t* to) {
    if (n == SCALED)
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(lanes(codes + LANES) * scale, lanes(codes) * scale));
    else put_numbers(lanes(codes) * scale, to);
}
#endif

// A row of bytes -> its numbers.
template <class N> inline void read_row(const int8_t* row, int64_t size, N* to) {
    for (int64_t first = 0; first < size; first += SCALED) {
        uint16_t scale;
        __builtin_memcpy(&scale, row + size + first / SCALED * sizeof scale, sizeof scale);
        read_group(row + first, all_lanes(single(scale)), std::min(SCALED, size - first), to + first);
    }
}

// n rows from an address on, as numbers: those of bytes are written to `room` [n, size], others are where they are.
template <class K> inline NumberRows<K> numbers_of(const K* rows, int64_t apart, int64_t, int64_t, K*) {
    return {rows, apart};
}
template <class N> NumberRows<N> numbers_of(const int8_t* rows, int64_t apart, int64_t n, int64_t size, N* room) {
    for (int64_t r = 0; r < n; ++r) read_row(rows + r * apart, size, room + r * size);
    return {room, size};
}

}  // namespace
