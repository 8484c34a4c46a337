// Products with weights in blocks of integers: a GGUF file's blocks, or weights rounded to bytes.
//
// A tile has LANES outputs, one in each lane of a vector.  The inputs of an output come in groups that share a scale:
// weight = scale * (code - zero) - low.  A row is rounded to bytes by itself, each SPAN inputs by their own scale.  Sums
// of codes are exact, so that their order is free; the groups are summed in order, whatever the number of rows.

#pragma once

#include <cstring>
#include <initializer_list>
#include <utility>

#include "parallel.h"
#include "vectors.h"

namespace {

// How a type of weights is stored.
struct Form {
    int64_t group, bits, zero;      // inputs of a group; bits of a code; the code of 0
    int64_t groups;                 // groups of a block; where there are several, each has a share of the block's scale
    bool lows;                      // whether groups have a low
};

constexpr int64_t FLOATS = 0, INT8 = 24;        // ggml's numbers, as all types are named here

constexpr Form form_of(int64_t type) {
    switch (type) {
        case 2: return {32, 4, 8, 1, false};        // Q4_0
        case 3: return {32, 4, 0, 1, true};         // Q4_1
        case 6: return {32, 5, 16, 1, false};       // Q5_0
        case 7: return {32, 5, 0, 1, true};         // Q5_1
        case 8: return {32, 8, 128, 1, false};      // Q8_0
        case 12: return {32, 4, 0, 8, true};        // Q4_K
        case 13: return {32, 5, 0, 8, true};        // Q5_K
        case 14: return {16, 6, 32, 16, false};     // Q6_K
        default: return {32, 8, 128, 1, false};     // INT8, whose scales are floats and not halves
    }
}

// body(type) with the type as a constant of the compiler.
template <class Body> auto with_type(int64_t type, const Body& body) {
    switch (type) {
        case 2: return body(std::integral_constant<int64_t, 2>());
        case 3: return body(std::integral_constant<int64_t, 3>());
        case 6: return body(std::integral_constant<int64_t, 6>());
        case 7: return body(std::integral_constant<int64_t, 7>());
        case 8: return body(std::integral_constant<int64_t, 8>());
        case 12: return body(std::integral_constant<int64_t, 12>());
        case 13: return body(std::integral_constant<int64_t, 13>());
        case 14: return body(std::integral_constant<int64_t, 14>());
        default: return body(std::integral_constant<int64_t, INT8>());
    }
}

// A linear module's weight and bias, [out, in] and [out], as the kernels read them.
struct Weight {
    const void* data;       // tiles of floats or bfloat16 as in `tile`, or codes as in `unpack_group`
    const void* scales;     // of codes: [tiles, blocks, 1 or 2, LANES] halves (floats for INT8), the second for lows
    const uint8_t* shares;  // [tiles, blocks, 1 or 2, groups of a block, LANES]; null where a block is one group
    const void* bias;       // of the dtype of rows; may be null
    int64_t in, out, type;
};

constexpr int64_t SPAN = 32;                    // inputs of a row that have one scale
#if defined(__AVX512F__)
constexpr int64_t INTEGER_ROWS = 12;            // of a block
constexpr int UNROLLED = 12;                    // rows whose sums stay in registers
#else
constexpr int64_t INTEGER_ROWS = 24;
constexpr int UNROLLED = 1;
#endif
typedef int32_t Integers __attribute__((vector_size(4 * LANES), may_alias));

// The bytes of a row at one step, for all lanes.
inline Integers step_of(const int8_t* row) {
    int32_t four;
    __builtin_memcpy(&four, row, sizeof four);
    return Integers{} + four;
}

// A row's sums over a group: codes of BITS bits (4, 5, 6 or 8) of each lane times the row's bytes (-127 to 127), four a
// step.  CENTRE: what is subtracted from codes of eight bits first.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__) \
    && defined(__AVX512F__) == defined(__AVX512BW__)
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
constexpr int CENTRE = 128;

// Two products of each lane are summed at once.  Codes of eight bits are centred, and the row takes their sign: 16 bits
// would not hold the sum otherwise.
template <int64_t BITS> inline Pairs pairs(Steps codes, const int8_t* row) {
    if constexpr (BITS == 8)
        return WIDE(maddubs_epi16)(WIDE(abs_epi8)((Pairs)codes), with_sign_of((Pairs)step_of(row), (Pairs)codes));
    else
        return WIDE(maddubs_epi16)((Pairs)codes, (Pairs)step_of(row));
}

template <int64_t BITS, int64_t STEPS> inline Integers group_sum(const Steps* codes, const int8_t* row, int32_t start) {
    constexpr int64_t HELD = BITS == 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;     // steps whose sums 16 bits hold
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
constexpr int CENTRE = 0;

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
    const int64_t spans = (in + SPAN - 1) / SPAN, blocks = (n + INTEGER_ROWS - 1) / INTEGER_ROWS;
    float* const scales = scratch<3>(n * spans * (3 + SPAN / 4));
    int32_t* const sums = reinterpret_cast<int32_t*>(scales + n * spans);
    int8_t* const codes = reinterpret_cast<int8_t*>(sums + n * spans * 2);
    const RoundedRows all{codes, scales, sums, n, spans, (n + blocks - 1) / blocks};
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

inline float float_of_half(uint16_t half) {
    const uint32_t bits = (half & 0x7fffu) << 13 | ((half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u);
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    if (bits < 0x7f800000u) x *= 0x1p112f;      // the exponents' biases differ by 112; halves below 2^-14 become exact
    return half & 0x8000u ? -x : x;
}

inline Sums floats_of_halves(const uint16_t* halves) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
#else
    Sums floats;
    for (int64_t t = 0; t < LANES; ++t) floats[t] = float_of_half(halves[t]);
    return floats;
#endif
}

// The scales and lows of one block of a tile, group by group.
template <int64_t TYPE> class BlockScales {
    static constexpr Form FORM = form_of(TYPE);
    static constexpr int64_t KINDS = FORM.lows ? 2 : 1;
    Sums scale_, low_ = {};
    const uint8_t* shares_;

    static Sums floats(const uint8_t* shares) {
        constexpr bool SIGNED = TYPE == 14;
#if defined(__AVX512F__)
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(shares));
        return _mm512_cvtepi32_ps(SIGNED ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(shares));
        return _mm256_cvtepi32_ps(SIGNED ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
        Sums floats;
        for (int64_t t = 0; t < LANES; ++t) floats[t] = SIGNED ? static_cast<int8_t>(shares[t]) : shares[t];
        return floats;
#endif
    }

public:
    // block: among all of the weight's, tile by tile.
    BlockScales(const Weight& w, int64_t block) : shares_(w.shares + block * KINDS * FORM.groups * LANES) {
        if constexpr (TYPE == INT8) {
            scale_ = lanes(static_cast<const float*>(w.scales) + block * LANES);
        } else {
            const uint16_t* const halves = static_cast<const uint16_t*>(w.scales) + block * KINDS * LANES;
            scale_ = floats_of_halves(halves);
            if constexpr (FORM.lows) low_ = floats_of_halves(halves + LANES);
        }
    }
    Sums scale(int64_t group) const {
        if constexpr (FORM.groups == 1) return scale_;
        else return scale_ * floats(shares_ + group * LANES);
    }
    Sums low(int64_t group) const {
        if constexpr (!FORM.lows || FORM.groups == 1) return low_;
        else return low_ * floats(shares_ + (FORM.groups + group) * LANES);
    }
};

// A group's codes, four a step, from its bytes: whole ones, or nibbles, of which a byte holds those of two steps, and the
// upper bits of all steps in one vector, step by step from the lowest.
// data: [groups, GROUP * BITS / 32, LANES, 4].
template <int64_t GROUP, int64_t BITS> inline void unpack_group(const Steps* packed, Steps* codes) {
    constexpr int STEPS = GROUP / 4, UPPER = BITS - 4;
    for (int s = 0; s < STEPS; ++s) {
        if constexpr (BITS == 8) {
            codes[s] = CENTRE ? packed[s] ^ 0x80808080u : packed[s];
        } else {
            codes[s] = packed[s % (STEPS / 2)] >> (s < STEPS / 2 ? 0 : 4) & 0x0f0f0f0fu;
            if constexpr (UPPER > 0) {
                const int at = s * UPPER;
                const Steps upper = packed[STEPS / 2];
                codes[s] |= (at < 4 ? upper << (4 - at) : upper >> (at - 4)) & (UPPER == 1 ? 0x10101010u : 0x30303030u);
            }
        }
        HELD(codes[s]);
    }
}

// One block of rows, as weights of one type are multiplied with them.
struct RowBlock {
    const int8_t* codes;        // [spans, rows, SPAN]
    const float* scales;        // [spans, rows]
    const int32_t* starts;      // [groups, rows]: what the codes' zero adds to the sum of a group
    const float* totals;        // [groups, rows]: the sum of a group's numbers, which its low is multiplied with
    int64_t rows;
};

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
            unpack_group<FORM.group, FORM.bits>(codes, weight);
            codes += FORM.group * FORM.bits / 32;
            const Sums scale = scales.scale(i), low = scales.low(i);
            __asm__ volatile("" ::: "memory");      // or GCC sums two groups at once, and their codes spill
            const int8_t* const row = block.codes + g / PARTS * rows * SPAN + g % PARTS * FORM.group;
            const float* const row_scales = block.scales + g / PARTS * rows;
#if defined(__AVX512F__)
#pragma GCC unroll 12
#endif
            for (int64_t r = 0; r < rows; ++r) {
                const Integers sum = group_sum<FORM.bits, STEPS>(weight, row + r * SPAN, starts[r]);
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

template <class T> void integer_product(const RoundedRows& x, const Weight& w, T* y, int threads) {
    const Form form = form_of(w.type);
    const int64_t parts = SPAN / form.group, groups = x.spans * parts;
    const int32_t start = static_cast<int32_t>((form.bits == 8 ? CENTRE : 0) - form.zero);
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
            Sums sums[INTEGER_ROWS];
            // A store waits for its line, and those of successive rows lie far apart: a core of a Xeon with AVX-512 read
            // prompts of 2,048 tokens 1.4 times as fast with it.
            for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(y + (first + r) * w.out + tile * LANES, 1);
            const RowBlock block{x.codes + first * x.spans * SPAN, x.scales + first * x.spans, starts + first * groups,
                                 totals + first * groups, rows};
            with_type(w.type, [&](auto type) {
                return integer_tile_of<decltype(type)::value>(rows, std::make_integer_sequence<int, UNROLLED + 1>());
            })(block, w, tile, sums);
            for (int64_t r = 0; r < rows; ++r)
                store_row(sums[r], static_cast<const T*>(w.bias), y + (first + r) * w.out, tile * LANES, w.out);
        });
    });
}

// Rows `ids` [n] of a weight in integers -> floats [n, in].
void integer_rows(const Weight& w, const int64_t* ids, int64_t n, float* y) {
    with_type(w.type, [&](auto type) {
        constexpr Form FORM = form_of(decltype(type)::value);
        const int64_t blocks = (w.in + SPAN - 1) / SPAN * SPAN / FORM.group / FORM.groups;
        for (int64_t i = 0; i < n; ++i)
            for (int64_t b = 0; b < blocks; ++b) {
                const int64_t block = ids[i] / LANES * blocks + b, lane = ids[i] % LANES;
                const BlockScales<decltype(type)::value> scales(w, block);
                for (int64_t g = 0; g < FORM.groups; ++g) {
                    Steps codes[FORM.group / 4];
                    unpack_group<FORM.group, FORM.bits>(
                        static_cast<const Steps*>(w.data) + (block * FORM.groups + g) * FORM.group * FORM.bits / 32,
                        codes);
                    const float scale = scales.scale(g)[lane], low = scales.low(g)[lane];
                    const int64_t first = (b * FORM.groups + g) * FORM.group;
                    for (int64_t k = 0; k < std::min(FORM.group, w.in - first); ++k) {
                        const int32_t code = (codes[k / 4][lane] >> k % 4 * 8 & 255) ^ (FORM.bits == 8 ? CENTRE : 0);
                        y[i * w.in + first + k] = scale * static_cast<float>(code - FORM.zero) - low;
                    }
                }
            }
    });
}

// A block of a GGUF file (ggml-common.h of llama.cpp), unpacked.  scale, low: halves; shares of each group.
struct Block {
    uint8_t codes[256], shares[2][16];
    uint16_t scale, low;
};

inline uint16_t half_at(const uint8_t* at) {
    uint16_t half;
    __builtin_memcpy(&half, at, sizeof half);
    return half;
}

inline void unpack_nibbles(const uint8_t* packed, int64_t bytes, uint8_t* codes) {      // low halves, then high ones
    for (int64_t i = 0; i < bytes; ++i) {
        codes[i] = packed[i] & 15;
        codes[bytes + i] = packed[i] >> 4;
    }
}

// 16 bytes of nibbles, each code with a fifth bit from `high` [4].
inline void unpack_fives(const uint8_t* high, const uint8_t* packed, uint8_t* codes) {
    unpack_nibbles(packed, 16, codes);
    for (int64_t i = 0; i < 32; ++i) codes[i] |= (high[i / 8] >> i % 8 & 1) << 4;
}

// Q4_K and Q5_K: 8 groups of 32.  high: null, or [32] bytes, of which bit g is the fifth bit of group g.
inline void unpack_k(const uint8_t* raw, const uint8_t* high, const uint8_t* packed, Block& block) {
    const uint8_t* const six = raw + 4;         // shares of six bits, in 12 bytes
    for (int64_t g = 0; g < 8; ++g) {
        block.shares[0][g] = g < 4 ? six[g] & 63 : (six[g + 4] & 15) | six[g - 4] >> 6 << 4;
        block.shares[1][g] = g < 4 ? six[g + 4] & 63 : six[g + 4] >> 4 | six[g] >> 6 << 4;
    }
    block.scale = half_at(raw);
    block.low = half_at(raw + 2);
    for (int64_t pair = 0; pair < 4; ++pair) unpack_nibbles(packed + pair * 32, 32, block.codes + pair * 64);
    for (int64_t i = 0; high && i < 256; ++i) block.codes[i] |= (high[i % 32] >> i / 32 & 1) << 4;
}

inline void unpack_q6_k(const uint8_t* raw, Block& block) {
    for (int64_t i = 0; i < 256; ++i) {
        const int64_t part = i / 128, at = i % 128;
        const uint8_t low = raw[part * 64 + at % 64] >> at / 64 * 4 & 15;
        block.codes[i] = low | (raw[128 + part * 32 + at % 32] >> at / 32 * 2 & 3) << 4;
    }
    std::copy_n(raw + 192, 16, block.shares[0]);
    block.scale = half_at(raw + 208);
}

inline void unpack_block(int64_t type, const uint8_t* raw, Block& block) {
    if (type == 12) return unpack_k(raw, nullptr, raw + 16, block);             // Q4_K
    if (type == 13) return unpack_k(raw, raw + 16, raw + 48, block);            // Q5_K
    if (type == 14) return unpack_q6_k(raw, block);                             // Q6_K
    block.scale = half_at(raw);
    if (type == 3 || type == 7) block.low = half_at(raw + 2) ^ 0x8000u;         // the file's are added
    switch (type) {
        case 2: return unpack_nibbles(raw + 2, 16, block.codes);                // Q4_0
        case 3: return unpack_nibbles(raw + 4, 16, block.codes);                // Q4_1
        case 6: return unpack_fives(raw + 2, raw + 6, block.codes);             // Q5_0
        case 7: return unpack_fives(raw + 4, raw + 8, block.codes);             // Q5_1
        case 8: for (int64_t i = 0; i < 32; ++i) block.codes[i] = raw[2 + i] ^ 128;        // Q8_0: signed bytes
    }
}

// Rows of a file's blocks [rows, row_bytes] -> the tiles of a weight, from its first on.
void pack_blocks(const Weight& w, const uint8_t* raw, int64_t rows, int64_t row_bytes, int threads) {
    const Form form = form_of(w.type);
    const int64_t inputs = form.group * form.groups, blocks = w.in / inputs, bytes = row_bytes / blocks;
    const int64_t kinds = form.lows ? 2 : 1, half = form.group / 2, upper = form.bits - 4;
    uint8_t* const data = static_cast<uint8_t*>(const_cast<void*>(w.data));
    uint16_t* const scales = static_cast<uint16_t*>(const_cast<void*>(w.scales));
    uint8_t* const shares = const_cast<uint8_t*>(w.shares);
    parallel::loop((rows + LANES - 1) / LANES, threads, [&](int64_t tile) {
        const int64_t first = tile * LANES;
        for (int64_t lane = 0; lane < std::min(LANES, rows - first); ++lane)
            for (int64_t b = 0; b < blocks; ++b) {
                Block block;
                unpack_block(w.type, raw + (first + lane) * row_bytes + b * bytes, block);
                const int64_t at = tile * blocks + b;
                for (int64_t kind = 0; kind < kinds; ++kind) {
                    scales[(at * kinds + kind) * LANES + lane] = kind ? block.low : block.scale;
                    for (int64_t g = 0; shares && g < form.groups; ++g)
                        shares[((at * kinds + kind) * form.groups + g) * LANES + lane] = block.shares[kind][g];
                }
                for (int64_t g = 0; g < form.groups; ++g) {
                    uint8_t* const to = data + (at * form.groups + g) * LANES * form.group * form.bits / 8 + lane * 4;
                    const auto byte = [&](int64_t step, int64_t k) -> uint8_t& { return to[step * LANES * 4 + k % 4]; };
                    const uint8_t* const own = block.codes + g * form.group;
                    for (int64_t k = 0; k < form.group && form.bits == 8; ++k) byte(k / 4, k) = own[k];
                    for (int64_t k = 0; k < half && form.bits < 8; ++k)
                        byte(k / 4, k) = (own[k] & 15) | (own[half + k] & 15) << 4;
                    for (int64_t k = 0; k < form.group && 4 < form.bits && form.bits < 8; ++k)
                        byte(half / 4, k) |= (own[k] >> 4) << (k / 4 * upper);
                }
            }
    });
}

}  // namespace
