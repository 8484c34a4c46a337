// Weights in blocks of integers: a GGUF file's blocks, or weights rounded to bytes.
//
// A tile has LANES outputs, one in each lane of a vector.  The inputs of an output come in groups that share a scale:
// weight = scale * (code - zero) - low.

#pragma once

#include <cstring>
#include <type_traits>

#include "parallel.h"
#include "vectors.h"

namespace {

// How a type of weights is stored.
struct Form {
    int64_t group, bits, zero;      // inputs of a group; bits of a code; the code of 0
    int64_t groups;                 // groups of a block; where there are several, each has a share of the block's scale
    bool lows;                      // whether groups have a low
    const int8_t* values = nullptr; // what codes of four bits stand for; null: for themselves

    // Bits of a code that is multiplied.
    constexpr int64_t width() const { return values || bits == 8 ? 8 : bits < 4 ? 4 : bits; }
};

constexpr int64_t FLOATS = 0, INT8 = 24, MXFP4 = 39;        // ggml's numbers, as all types are named here

alignas(16) constexpr int8_t UNEVEN[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(16) constexpr int8_t FOUR_BIT_FLOATS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr Form form_of(int64_t type) {
    switch (type) {
        case 2: return {32, 4, 8, 1, false};        // Q4_0
        case 3: return {32, 4, 0, 1, true};         // Q4_1
        case 6: return {32, 5, 16, 1, false};       // Q5_0
        case 7: return {32, 5, 0, 1, true};         // Q5_1
        case 8: return {32, 8, 128, 1, false};      // Q8_0
        case 10: return {16, 2, 0, 16, true};       // Q2_K
        case 11: return {16, 4, 4, 16, false};      // Q3_K, whose codes of three bits are kept in four
        case 12: return {32, 4, 0, 8, true};        // Q4_K
        case 13: return {32, 5, 0, 8, true};        // Q5_K
        case 14: return {16, 6, 32, 16, false};     // Q6_K
        case 20: return {32, 4, 128, 1, false, UNEVEN};             // IQ4_NL
        case 23: return {32, 4, 128, 8, false, UNEVEN};             // IQ4_XS
        case MXFP4: return {32, 4, 128, 1, false, FOUR_BIT_FLOATS};
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
        case 10: return body(std::integral_constant<int64_t, 10>());
        case 11: return body(std::integral_constant<int64_t, 11>());
        case 12: return body(std::integral_constant<int64_t, 12>());
        case 13: return body(std::integral_constant<int64_t, 13>());
        case 14: return body(std::integral_constant<int64_t, 14>());
        case 20: return body(std::integral_constant<int64_t, 20>());
        case 23: return body(std::integral_constant<int64_t, 23>());
        case MXFP4: return body(std::integral_constant<int64_t, MXFP4>());
        default: return body(std::integral_constant<int64_t, INT8>());
    }
}

// A linear module's weight and bias, [out, in] and [out], as the kernels read them.
struct Weight {
    const void* data;       // tiles of floats or bfloat16 as in `tile`, or codes as in `unpack_group`
    const void* scales;     // of codes: [tiles, blocks, 1 or 2, LANES] halves (floats for INT8, bfloat16 for MXFP4), the
                            // second for lows
    const uint8_t* shares;  // [tiles, blocks, 1 or 2, groups of a block, LANES]; null where a block is one group
    const void* bias;       // of the dtype of rows; may be null
    int64_t in, out, type;
};

constexpr int64_t SPAN = 32;                    // inputs of a row that have one scale
typedef int32_t Integers __attribute__((vector_size(4 * LANES), may_alias));


// Processors with AVX2 and without VNNI sum pairs of products in 16 bits, which only centred codes of eight bits fit.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__) \
    && defined(__AVX512F__) == defined(__AVX512BW__)
#define SUMS_OF_PAIRS
constexpr int CENTRE = 128;     // what is subtracted from codes of eight bits first
#else
constexpr int CENTRE = 0;
#endif

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
        constexpr bool SIGNED = TYPE == 11 || TYPE == 14 || TYPE == 23;
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
        } else if constexpr (TYPE == MXFP4) {
            scale_ = lanes(static_cast<const uint16_t*>(w.scales) + block * LANES);
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

// What codes of four bits stand for, as bytes that are counted from -128, or from 0 where they are centred.
template <int64_t TYPE> inline Steps values_of(Steps codes) {
    constexpr const int8_t* VALUES = form_of(TYPE).values;
    constexpr uint32_t FIRST = CENTRE ? 0 : 0x80808080u;
#if defined(__AVX512BW__)
    const __m512i values = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(VALUES)));
    return (Steps)_mm512_shuffle_epi8(values, (__m512i)codes) ^ FIRST;
#elif defined(__AVX2__)
    const __m256i values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(VALUES)));
    return (Steps)_mm256_shuffle_epi8(values, (__m256i)codes) ^ FIRST;
#else
    uint8_t bytes[sizeof codes];
    __builtin_memcpy(bytes, &codes, sizeof codes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(VALUES[byte]);
    __builtin_memcpy(&codes, bytes, sizeof codes);
    return codes ^ FIRST;
#endif
}

// A group's codes, four a step, from its bytes: whole ones; or pairs of bits, of which a byte holds those of four steps; or
// nibbles, of which a byte holds those of two, and the upper bits of all steps in one vector, step by step from the lowest.
// data: [groups, group * bits / 32, LANES, 4].
template <int64_t TYPE> inline void unpack_group(const Steps* packed, Steps* codes) {
    constexpr Form FORM = form_of(TYPE);
    constexpr int STEPS = FORM.group / 4, UPPER = FORM.bits - 4;
    for (int s = 0; s < STEPS; ++s) {
        if constexpr (FORM.bits == 8) {
            codes[s] = CENTRE ? packed[s] ^ 0x80808080u : packed[s];
        } else if constexpr (FORM.bits == 2) {
            codes[s] = packed[s % (STEPS / 4)] >> (s / (STEPS / 4) * 2) & 0x03030303u;
        } else {
            codes[s] = packed[s % (STEPS / 2)] >> (s < STEPS / 2 ? 0 : 4) & 0x0f0f0f0fu;
            if constexpr (UPPER > 0) {
                const int at = s * UPPER;
                const Steps upper = packed[STEPS / 2];
                codes[s] |= (at < 4 ? upper << (4 - at) : upper >> (at - 4)) & (UPPER == 1 ? 0x10101010u : 0x30303030u);
            }
            if constexpr (FORM.values != nullptr) codes[s] = values_of<TYPE>(codes[s]);
        }
        HELD(codes[s]);
    }
}

// Rows `ids` [n] of a weight in integers -> floats [n, in].
void integer_rows(const Weight& w, const int64_t* ids, int64_t n, float* y) {
    with_type(w.type, [&](auto type) {
        constexpr int64_t TYPE = decltype(type)::value;
        constexpr Form FORM = form_of(TYPE);
        const int64_t blocks = (w.in + SPAN - 1) / SPAN * SPAN / FORM.group / FORM.groups;
        for (int64_t i = 0; i < n; ++i)
            for (int64_t b = 0; b < blocks; ++b) {
                const int64_t block = ids[i] / LANES * blocks + b, lane = ids[i] % LANES;
                const BlockScales<TYPE> scales(w, block);
                for (int64_t g = 0; g < FORM.groups; ++g) {
                    Steps codes[FORM.group / 4];
                    unpack_group<TYPE>(
                        static_cast<const Steps*>(w.data) + (block * FORM.groups + g) * FORM.group * FORM.bits / 32,
                        codes);
                    const float scale = scales.scale(g)[lane], low = scales.low(g)[lane];
                    const int64_t first = (b * FORM.groups + g) * FORM.group;
                    for (int64_t k = 0; k < std::min(FORM.group, w.in - first); ++k) {
                        const int32_t code = (codes[k / 4][lane] >> k % 4 * 8 & 255) ^ (FORM.width() == 8 ? CENTRE : 0);
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

// Pairs of bits: code i of each 128 is in byte i % 32 of 32.
inline uint8_t pair_of(const uint8_t* packed, int64_t i) { return packed[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

inline void unpack_q2_k(const uint8_t* raw, Block& block) {
    for (int64_t g = 0; g < 16; ++g) {
        block.shares[0][g] = raw[g] & 15;
        block.shares[1][g] = raw[g] >> 4;
    }
    for (int64_t i = 0; i < 256; ++i) block.codes[i] = pair_of(raw + 16, i);
    block.scale = half_at(raw + 80);
    block.low = half_at(raw + 82);
}

inline void unpack_q3_k(const uint8_t* raw, Block& block) {
    for (int64_t i = 0; i < 256; ++i) block.codes[i] = pair_of(raw + 32, i) | (raw[i % 32] >> i / 32 & 1) << 2;
    const uint8_t* const six = raw + 96;        // shares of six bits, in 12 bytes
    for (int64_t g = 0; g < 16; ++g) {
        const uint8_t low = six[g % 8] >> g / 8 * 4 & 15, high = six[8 + g % 4] >> g / 4 * 2 & 3;
        block.shares[0][g] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    block.scale = half_at(raw + 108);
}

inline void unpack_iq4_xs(const uint8_t* raw, Block& block) {
    const uint16_t high = half_at(raw + 2);     // the upper two bits of each share
    for (int64_t g = 0; g < 8; ++g) {
        const int64_t low = raw[4 + g / 2] >> g % 2 * 4 & 15;
        block.shares[0][g] = static_cast<uint8_t>((low | (high >> 2 * g & 3) << 4) - 32);
        unpack_nibbles(raw + 8 + g * 16, 16, block.codes + g * 32);
    }
    block.scale = half_at(raw);
}

// The scale is the exponent of a float, and values are doubled: the bits of its half as a bfloat16.
inline void unpack_mxfp4(const uint8_t* raw, Block& block) {
    block.scale = static_cast<uint16_t>(raw[0] < 2 ? 0x20 << raw[0] : (raw[0] - 1) << 7);
    unpack_nibbles(raw + 1, 16, block.codes);
}

inline void unpack_block(int64_t type, const uint8_t* raw, Block& block) {
    if (type == 10) return unpack_q2_k(raw, block);
    if (type == 11) return unpack_q3_k(raw, block);
    if (type == 23) return unpack_iq4_xs(raw, block);
    if (type == MXFP4) return unpack_mxfp4(raw, block);
    if (type == 12) return unpack_k(raw, nullptr, raw + 16, block);             // Q4_K
    if (type == 13) return unpack_k(raw, raw + 16, raw + 48, block);            // Q5_K
    if (type == 14) return unpack_q6_k(raw, block);                             // Q6_K
    block.scale = half_at(raw);
    if (type == 3 || type == 7) block.low = half_at(raw + 2) ^ 0x8000u;         // the file's are added
    switch (type) {
        case 2: return unpack_nibbles(raw + 2, 16, block.codes);                // Q4_0
        case 20: return unpack_nibbles(raw + 2, 16, block.codes);               // IQ4_NL
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
    const int64_t quarter = form.group / 16;      // steps whose pairs of bits lie apart
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
                    for (int64_t k = 0; k < form.group && form.bits == 2; ++k)
                        byte(k / 4 % quarter, k) |= own[k] << k / 4 / quarter * 2;
                    for (int64_t k = 0; k < half && 2 < form.bits && form.bits < 8; ++k)
                        byte(k / 4, k) = (own[k] & 15) | (own[half + k] & 15) << 4;
                    for (int64_t k = 0; k < form.group && 4 < form.bits && form.bits < 8; ++k)
                        byte(half / 4, k) |= (own[k] >> 4) << (k / 4 * upper);
                }
            }
    });
}

}  // namespace
