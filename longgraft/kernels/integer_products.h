// Products with weights in blocks of integers.
//
// A row is rounded to bytes by itself, each SPAN inputs by their own scale.  Sums of codes are exact, so that their order
// is free; the groups are summed in order, whatever the number of rows.

#pragma once

#include <cstring>
#include <initializer_list>
#include <utility>

#include "integer_weights.h"
#include "parallel.h"
#include "row_blocks.h"
#include "tiled_products.h"
#include "vectors.h"

namespace {

#if defined(__AVX512F__)
constexpr int64_t INTEGER_ROWS = 12;            // of a block
constexpr int UNROLLED = 12;                    // rows whose sums stay in registers
#else
constexpr int64_t INTEGER_ROWS = 24;
constexpr int UNROLLED = 1;
#endif

// The bytes of a row at one step, for all lanes.
inline Integers step_of(const int8_t* row) {
    int32_t four;
    __builtin_memcpy(&four, row, sizeof four);
    return Integers{} + four;
}

// A row's sums over a group: codes of BITS bits (4, 5, 6 or 8) of each lane times the row's bytes (-127 to 127), four a
// step.
#if defined(SUMS_OF_PAIRS)
#if defined(__AVX512F__)
#define WIDE(operation) _mm512_##operation
typedef __m512i Pairs;
inline Pairs with_sign_of(Pairs x, Pairs sign) {
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(sign), _mm512_setzero_si512(), x);
}
#else
#define WIDE(operation) _mm256_##operation
typedef __m256i Pairs;
inline Pairs with_sign_of(Pairs x, Pairs sign) { return _mm256_sign_epi8(x, sign); }
#endif

// Two products of each lane are summed at once.  Codes of eight bits are centred, and the row takes their sign: 16 bits
// would not hold the sum otherwise.
template <int64_t BITS> inline Pairs pairs(Steps codes, const int8_t* row) {
    if constexpr (BITS == 8)
        return WIDE(maddubs_epi16)(WIDE(abs_epi8)((Pairs)codes), with_sign_of((Pairs)step_of(row), (Pairs)codes));
    else
        return WIDE(maddubs_epi16)((Pairs)codes, (Pairs)step_of(row));
}

template <int64_t BITS, int64_t STEPS> inline Integers group_sum(const Steps* codes, const int8_t* row, int32_t start) {
    constexpr int64_t MOST = BITS == 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;     // steps whose sums 16 bits hold
    constexpr int64_t HELD = std::min(MOST, STEPS);
    Integers sum = Integers{} + start;
    for (int64_t first = 0; first < STEPS; first += HELD) {
        Pairs held = pairs<BITS>(codes[first], row + first * 4);
        for (int64_t s = first + 1; s < first + HELD; ++s)
            held = WIDE(add_epi16)(held, pairs<BITS>(codes[s], row + s * 4));
        sum += (Integers)WIDE(madd_epi16)(held, WIDE(set1_epi16)(1));
    }
    return sum;
}
#else
template <int64_t BITS, int64_t STEPS> inline Integers group_sum(const Steps* codes, const int8_t* row, int32_t start) {
    Integers sum = Integers{} + start;
    for (int64_t s = 0; s < STEPS; ++s) {
        const Integers four = step_of(row + s * 4);
#if defined(__AVX512VNNI__)
        sum = (Integers)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes[s], (__m512i)four);
#elif defined(__AVXVNNI__)
        sum = (Integers)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes[s], (__m256i)four);
#else
        for (int byte = 0; byte < 32; byte += 8)
            sum += (Integers)(codes[s] >> byte & 0xff) * (four << (24 - byte) >> 24);
#endif
    }
    return sum;
}
#endif

// Rows in bytes, rounded once for all weights that they are multiplied with.  They lie in blocks of at most `block` rows,
// so that a tile reads what it needs of a block from one address on.
struct RoundedRows {
    const int8_t* codes;        // of each block [spans, rows, SPAN]
    const float* scales;        // of each block [spans, rows]
    const int32_t* sums;        // of each block [spans, 2, rows]: of each 16 codes
    int64_t n, spans, block;
    bool tiled;                 // whether the tile unit multiplies them

    // Calls body(first, rows) for each block.
    template <class Body> void blocks(const Body& body) const {
        for (int64_t first = 0; first < n; first += block) body(first, std::min(block, n - first));
    }
};

// SPAN numbers -> their codes, the sums of each half, and the scale.
template <class T> float rounded(const T* some, int8_t* codes, int32_t* sums) {
    constexpr int64_t VECTORS = SPAN / LANES;
    Sums own[VECTORS];
    int32_t bits[SPAN], most = 0;       // sizes of floats are in the order of their bits, and have a fast maximum
    for (int64_t v = 0; v < VECTORS; ++v) own[v] = lanes(some + v * LANES);
    __builtin_memcpy(bits, own, sizeof bits);
    for (int64_t i = 0; i < SPAN; ++i) most = std::max(most, bits[i] & 0x7fffffff);
    float largest;
    __builtin_memcpy(&largest, &most, sizeof largest);
    const float over = largest > 0.0f ? 127.0f / largest : 0.0f;
    int32_t all[SPAN];
    for (int64_t v = 0; v < VECTORS; ++v) {
        const Sums scaled = own[v] * over;
        const Sums half = (Sums)(((Steps)scaled & 0x80000000u) | 0x3f000000u);      // away from zero
        const Integers whole = __builtin_convertvector(scaled + half, Integers);
        __builtin_memcpy(all + v * LANES, &whole, sizeof whole);
    }
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < SPAN; ++i) codes[i] = static_cast<int8_t>(all[i]);
    for (int64_t i = 0; i < SPAN / 2; ++i) sums[0] += all[i];
    for (int64_t i = SPAN / 2; i < SPAN; ++i) sums[1] += all[i];
    return largest / 127.0f;
}

// Kept until this thread's next call.
template <class T> RoundedRows rounded_rows(const T* x, int64_t n, int64_t in) {
#if defined(TILES)
    const bool tiled = n >= TILED_FROM && tiles_allowed();
    const int64_t most = tiled ? TILED_ROWS : INTEGER_ROWS;
#else
    constexpr bool tiled = false;
    constexpr int64_t most = INTEGER_ROWS;
#endif
    const int64_t spans = (in + SPAN - 1) / SPAN, blocks = (n + most - 1) / most;
    float* const scales = scratch<3>(n * spans * (3 + SPAN / 4));
    int32_t* const sums = reinterpret_cast<int32_t*>(scales + n * spans);
    int8_t* const codes = reinterpret_cast<int8_t*>(sums + n * spans * 2);
    const RoundedRows all{codes, scales, sums, n, spans, (n + blocks - 1) / blocks, tiled};
    all.blocks([&](int64_t first, int64_t rows) {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t span = 0; span < spans; ++span) {
                const int64_t at = first * spans + span * rows + r;
                const T* const some = x + (first + r) * in + span * SPAN;
                int32_t halves[2];
                if (in < (span + 1) * SPAN) {
                    T padded[SPAN] = {};
                    std::copy_n(some, in - span * SPAN, padded);
                    scales[at] = rounded(padded, codes + at * SPAN, halves);
                } else {
                    scales[at] = rounded(some, codes + at * SPAN, halves);
                }
                for (int64_t half = 0; half < 2; ++half)
                    sums[(first * spans + span * rows) * 2 + half * rows + r] = halves[half];
            }
    });
    return all;
}

// A block of rows and one tile of outputs -> sums [rows].  R: the number of rows where the loop over them is unrolled,
// else 0.
template <int64_t TYPE, int R> void integer_tile(const RowBlock& block, const Weight& w, int64_t tile, Sums* sums) {
    constexpr Form FORM = form_of(TYPE);
    constexpr int64_t STEPS = FORM.group / 4, PARTS = SPAN / FORM.group;
    constexpr int64_t CODE_BYTES = FORM.group * FORM.bits * LANES / 8;          // of a group
    constexpr int64_t SHARE_BYTES = FORM.groups * (FORM.lows ? 2 : 1) * LANES;  // of a block
    const int64_t rows = R ? R : block.rows, blocks = (w.in + SPAN - 1) / SPAN * PARTS / FORM.groups;
    const int32_t* starts = block.starts;
    const float* totals = block.totals;
    const Steps* codes = static_cast<const Steps*>(w.data) + tile * blocks * FORM.groups * FORM.group * FORM.bits / 32;
    Sums own[R ? R : INTEGER_ROWS];
    for (int64_t r = 0; r < rows; ++r) own[r] = Sums{};
    for (int64_t b = 0; b < blocks; ++b) {
        const BlockScales<TYPE> scales(w, tile * blocks + b);
        if constexpr (FORM.groups > 1) prefetch<SHARE_BYTES>(w.shares + (tile * blocks + b) * SHARE_BYTES,
                                                            AHEAD / (FORM.groups * CODE_BYTES) * SHARE_BYTES);
        for (int64_t i = 0; i < FORM.groups; ++i) {
            const int64_t g = b * FORM.groups + i;
            Steps weight[STEPS];
            prefetch<CODE_BYTES>(codes, AHEAD);
            unpack_group<TYPE>(codes, weight);
            codes += FORM.group * FORM.bits / 32;
            const Sums scale = scales.scale(i), low = scales.low(i);
            __asm__ volatile("" ::: "memory");      // or GCC sums two groups at once, and their codes spill
            const int8_t* const row = block.codes + g / PARTS * rows * SPAN + g % PARTS * FORM.group;
            const float* const row_scales = block.scales + g / PARTS * rows;
#if defined(__AVX512F__)
#pragma GCC unroll 12
#endif
            for (int64_t r = 0; r < rows; ++r) {
                const Integers sum = group_sum<FORM.width(), STEPS>(weight, row + r * SPAN, starts[r]);
                own[r] = fused(__builtin_convertvector(sum, Sums), scale * row_scales[r], own[r]);
                if constexpr (FORM.lows) own[r] = fused(-low, all_lanes(totals[r]), own[r]);
            }
            starts += rows;
            totals += rows;
        }
    }
    for (int64_t r = 0; r < rows; ++r) sums[r] = own[r];
}

typedef void (*IntegerTile)(const RowBlock&, const Weight&, int64_t, Sums*);
template <int64_t TYPE, int... R> IntegerTile integer_tile_of(int64_t rows, std::integer_sequence<int, R...>) {
    static const IntegerTile all[] = {integer_tile<TYPE, R>...};
    return all[rows < static_cast<int64_t>(sizeof...(R)) ? rows : 0];
}

#if defined(TILES)
constexpr int64_t MOST_BLOCK = TILED_ROWS;      // rows

template <int64_t TYPE> void tiled_block(const RowBlock& block, const Weight& w, int64_t tile, Sums* sums) {
    const TileScope scope(shapes_of(block.rows));
    tiled_outputs<TYPE>(block, w, tile, sums);
}
#else
constexpr int64_t MOST_BLOCK = INTEGER_ROWS;
#endif

template <class T> void integer_product(const RoundedRows& x, const Weight& w, T* y, int threads) {
    const Form form = form_of(w.type);
    const int64_t parts = SPAN / form.group, groups = x.spans * parts;
    const int32_t start = static_cast<int32_t>((form.width() == 8 ? CENTRE : 0) - form.zero);
    int32_t* const starts = reinterpret_cast<int32_t*>(scratch<5>(2 * x.n * groups));
    float* const totals = reinterpret_cast<float*>(starts + x.n * groups);
    x.blocks([&](int64_t first, int64_t rows) {
        int64_t at = first * groups;
        for (int64_t span = 0; span < x.spans; ++span) {
            const int32_t* const halves = x.sums + (first * x.spans + span * rows) * 2;
            const float* const scales = x.scales + first * x.spans + span * rows;
            for (int64_t part = 0; part < parts; ++part)
                for (int64_t r = 0; r < rows; ++r, ++at) {
                    const int32_t sum = parts == 1 ? halves[r] + halves[rows + r] : halves[part * rows + r];
                    starts[at] = start * sum;
                    if (form.lows) totals[at] = scales[r] * static_cast<float>(sum);
                }
        }
    });
    parallel::loop((w.out + LANES - 1) / LANES, threads, [&](int64_t tile) {
        x.blocks([&](int64_t first, int64_t rows) {
            Sums sums[MOST_BLOCK];
            // A store waits for its line, and those of successive rows lie far apart: a core of a Xeon with AVX-512 read
            // prompts of 2,048 tokens 1.4 times as fast with it.
            for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(y + (first + r) * w.out + tile * LANES, 1);
            const RowBlock block{x.codes + first * x.spans * SPAN, x.scales + first * x.spans, starts + first * groups,
                                 totals + first * groups, rows};
            with_type(w.type, [&](auto type) {
                constexpr int64_t TYPE = decltype(type)::value;
#if defined(TILES)
                if (x.tiled) return tiled_block<TYPE>;
#endif
                return integer_tile_of<TYPE>(rows, std::make_integer_sequence<int, UNROLLED + 1>());
            })(block, w, tile, sums);
            for (int64_t r = 0; r < rows; ++r)
                store_row(sums[r], static_cast<const T*>(w.bias), y + (first + r) * w.out, tile * LANES, w.out);
        });
    });
}

}  // namespace
