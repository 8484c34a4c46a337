// Products, norms and attention of a pass: the large operands (weights, keys, values) are read once.
// Compiled for the machine it runs on; the compiler splits vectors wider than the machine's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

#include "parallel.h"
#if defined(__AVX2__) || defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

constexpr float LOG2_E = 1.44269504088896341f;

template <int L> struct Of {
    typedef float Vector __attribute__((vector_size(4 * L)));
    typedef float Loose __attribute__((vector_size(4 * L), aligned(4), may_alias));      // at any address
    typedef int32_t Whole __attribute__((vector_size(4 * L)));
};

struct Free { void operator()(void* p) const { std::free(p); } };

// A buffer of that many floats, 64 bytes aligned and kept per thread: a pass requests one hundreds of times.
template <int WHICH = 0> float* scratch(int64_t floats) {
    thread_local std::unique_ptr<float, Free> kept;
    thread_local int64_t room = 0;
    if (floats > room) {
        room = (floats + 4095) / 4096 * 4096;
        kept.reset(static_cast<float*>(std::aligned_alloc(64, room * sizeof(float))));
        if (!kept) std::abort();
    }
    return kept.get();
}

// A product.  Outputs are the lanes: weights lie packed tile by tile, step by step, so that a tile is read from one
// address on, and what a row has at a step is one number for all lanes.  A step is four bytes: a float, two bfloat16.
// Each output is one sum over the steps in their order, whatever the number of rows, blocks and threads.

#if defined(__AVX512F__)
constexpr int64_t LANES = 16, MOST_ROWS = 12;       // a block's sums, a step's weights and a row's number: 27 registers
#define HELD(v) __asm__("" : "+v"(v))               // in a register: GCC would read it again for each row
#elif defined(__AVX__)
constexpr int64_t LANES = 8, MOST_ROWS = 6;
#define HELD(v)
#else
constexpr int64_t LANES = 4, MOST_ROWS = 12;
#define HELD(v)
#endif
constexpr int64_t VECTORS = 2, OUTPUTS = LANES * VECTORS;   // of a tile
typedef Of<LANES>::Vector Sums;
typedef uint32_t Steps __attribute__((vector_size(4 * LANES), may_alias));
typedef Of<LANES>::Loose Loose;
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

// a * b + c, rounded once where the machine can.  By name: whether a compiler contracts the expression depends on what is
// around it, and a row would not get the same bits from two loops.
inline Sums fused(Sums a, Sums b, Sums c) {
#if defined(__AVX512F__)
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
    typedef Of<LANES>::Whole Whole;
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

inline Sums lanes(const float* x) { return *reinterpret_cast<const Loose*>(x); }
inline Sums lanes(const uint16_t* x) {
    return (Sums)(__builtin_convertvector(*reinterpret_cast<const Halves*>(x), Steps) << 16);
}

inline float single(float x) { return x; }
inline float single(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
inline void store(float x, float* y) { *y = x; }
inline void store(float x, uint16_t* y) {       // rounded to the nearest, ties to even
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    *y = x != x ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// One row's outputs [o, o + LANES) of all [out].
template <class T> inline void give(Sums sums, const T* bias, T* y, int64_t o, int64_t out) {
    if (std::is_same<T, float>::value && !bias && o + LANES <= out) {
        *reinterpret_cast<Loose*>(y + o) = sums;
        return;
    }
    for (int64_t t = 0; t < std::min(LANES, out - o); ++t)
        store(sums[t] + (bias ? single(bias[o + t]) : 0.0f), y + o + t);
}

template <class T> inline Sums step(Sums sum, Steps weights, Steps row);
template <> inline Sums step<float>(Sums sum, Steps weights, Steps row) {
    return fused((Sums)weights, (Sums)row, sum);
}
template <> inline Sums step<uint16_t>(Sums sum, Steps weights, Steps row) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)row);
#else
    sum = fused((Sums)(weights << 16), (Sums)(row << 16), sum);
    return fused((Sums)(weights & 0xffff0000u), (Sums)(row & 0xffff0000u), sum);
#endif
}

// R rows [steps, R] of one tile [steps, OUTPUTS] -> sums [R, OUTPUTS].  fetch: bring the next tile nearer meanwhile.
template <class T, int R>
void tile(const uint32_t* rows, const uint32_t* weights, int64_t steps, bool fetch, Sums* sums) {
    Sums own[R][VECTORS] = {};
    const int64_t next = fetch ? steps * OUTPUTS : 0;
    for (int64_t i = 0; i < steps; ++i, weights += OUTPUTS, rows += R) {
        Steps weight[VECTORS];
        for (int64_t v = 0; v < VECTORS; ++v) {
            if (next) __builtin_prefetch(weights + next + v * LANES, 0, 2);
            weight[v] = reinterpret_cast<const Steps*>(weights)[v];
            HELD(weight[v]);
        }
        for (int64_t r = 0; r < R; ++r) {
            Steps row = Steps{} + rows[r];
            HELD(row);
            for (int64_t v = 0; v < VECTORS; ++v) own[r][v] = step<T>(own[r][v], weight[v], row);
        }
    }
    // One by one: a copy of the whole would keep them in memory throughout.
    for (int64_t r = 0; r < R; ++r)
        for (int64_t v = 0; v < VECTORS; ++v) sums[r * VECTORS + v] = own[r][v];
}

typedef void (*Tile)(const uint32_t*, const uint32_t*, int64_t, bool, Sums*);
template <class T, int... R> Tile tile_of(int64_t rows, std::integer_sequence<int, R...>) {
    static const Tile all[] = {tile<T, R + 1>...};
    return all[rows - 1];
}

template <class T>
void product(const T* x, const uint32_t* packed, const T* bias, T* y, int64_t n, int64_t in, int64_t out, int threads) {
    constexpr int64_t A_STEP = 4 / sizeof(T);       // inputs
    const int64_t steps = (in + A_STEP - 1) / A_STEP, blocks = (n + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t most = (n + blocks - 1) / blocks;             // rows of a block, evenly
    uint32_t* const turned = reinterpret_cast<uint32_t*>(scratch(n * steps));   // block by block [steps, rows]
    for (int64_t r = 0; r < n; ++r) {
        const int64_t first = r / most * most, rows = std::min(most, n - first);
        uint32_t* const to = turned + first * steps + (r - first);
        for (int64_t i = 0; i < steps; ++i) {
            T both[A_STEP] = {};
            for (int64_t k = 0; k < A_STEP && i * A_STEP + k < in; ++k) both[k] = x[r * in + i * A_STEP + k];
            __builtin_memcpy(to + i * rows, both, sizeof both);
        }
    }
    parallel::loop((out + OUTPUTS - 1) / OUTPUTS, threads, [&](int64_t tile) {
        const int64_t o = tile * OUTPUTS;
        for (int64_t first = 0; first < n; first += most) {
            Sums sums[MOST_ROWS * VECTORS];
            const int64_t rows = std::min(most, n - first);
            // One or two rows wait for memory in any case, and the hardware reads ahead for them.
            tile_of<T>(rows, std::make_integer_sequence<int, MOST_ROWS>())(
                turned + first * steps, packed + o * steps, steps, n > 2 && first + rows == n, sums);
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t v = 0; v < VECTORS; ++v)
                    give(sums[r * VECTORS + v], bias, y + (first + r) * out, o + v * LANES, out);
        }
    });
}

// A product with integers.  A weight's codes have 4, 5, 6 or 8 bits, and each GROUP inputs of an output have one scale and
// maybe one low: weight = scale * (code - zero) - low.  A row is rounded to bytes by itself, each SPAN inputs by their
// own scale.  Sums of codes are exact, so that their order is free; the groups are summed in theirs.

constexpr int64_t SPAN = 32;                    // inputs of a row that have one scale
#if defined(__AVX512F__)
constexpr int64_t INTEGER_ROWS = 12;            // of a block
constexpr int UNROLLED = 12;                    // rows whose sums stay in registers
#else
constexpr int64_t INTEGER_ROWS = 24;
constexpr int UNROLLED = 1;
#endif
typedef int32_t Integers __attribute__((vector_size(4 * LANES), may_alias));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

// A row's sums over a group, from a start: codes of BITS bits (4, 5, 6 or 8) of each lane times the row's bytes (-127 to
// 127), four a step.
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
// Two products are summed at once, in 16 bits, which hold the sums of several steps.  Codes of eight bits would not fit:
// they are centred, and the row takes their sign.
template <int BITS> struct Group {
    static constexpr int CENTRE = BITS == 8 ? 128 : 0;
    static constexpr int STEPS_HELD = BITS == 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
    Integers sum;
    Pairs pairs = {};
    int held = 0;

    explicit Group(int32_t start) : sum(Integers{} + start) {}
    void add(Steps codes, Integers row) {
        Pairs products;
        if constexpr (BITS == 8) {
            const Pairs centred = (Pairs)(codes ^ 0x80808080u);
            products = WIDE(maddubs_epi16)(WIDE(abs_epi8)(centred), with_sign_of((Pairs)row, centred));
        } else {
            products = WIDE(maddubs_epi16)((Pairs)codes, (Pairs)row);
        }
        pairs = held ? WIDE(add_epi16)(pairs, products) : products;
        if (++held == STEPS_HELD) flush();
    }
    void flush() {
        sum += (Integers)WIDE(madd_epi16)(pairs, WIDE(set1_epi16)(1));
        held = 0;
    }
    Integers whole() {
        if (held) flush();
        return sum;
    }
};
#else
template <int BITS> struct Group {
    static constexpr int CENTRE = 0;
    Integers sum;

    explicit Group(int32_t start) : sum(Integers{} + start) {}
    void add(Steps codes, Integers row) {
#if defined(__AVX512VNNI__)
        sum = (Integers)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)row);
#elif defined(__AVXVNNI__)
        sum = (Integers)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)row);
#else
        for (int byte = 0; byte < 32; byte += 8) sum += (Integers)(codes >> byte & 0xff) * (row << (24 - byte) >> 24);
#endif
    }
    Integers whole() const { return sum; }
};
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
    Integers all[VECTORS];
    for (int64_t v = 0; v < VECTORS; ++v) {
        const Sums scaled = own[v] * over;
        const Sums half = (Sums)(((Steps)scaled & 0x80000000u) | 0x3f000000u);      // away from zero
        all[v] = __builtin_convertvector(scaled + half, Integers);
        const Bytes bytes = __builtin_convertvector(all[v], Bytes);
        __builtin_memcpy(codes + v * LANES, &bytes, sizeof bytes);
    }
    const int32_t* const each = reinterpret_cast<const int32_t*>(all);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < SPAN / 2; ++i) sums[0] += each[i];
    for (int64_t i = SPAN / 2; i < SPAN; ++i) sums[1] += each[i];
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
                T some[SPAN] = {};
                std::copy_n(x + (first + r) * in + span * SPAN, std::min(SPAN, in - span * SPAN), some);
                int32_t halves[2];
                scales[at] = rounded(some, codes + at * SPAN, halves);
                for (int64_t half = 0; half < 2; ++half)
                    sums[(first * spans + span * rows) * 2 + half * rows + r] = halves[half];
            }
    });
    return all;
}

// A linear module's weight and bias, [out, in] and [out], as the kernels read them.
struct Weight {
    const void* data;           // tiles of floats or bfloat16 as in `tile`, or codes
    const float *scales, *lows; // [tiles, groups, LANES], of codes; lows may be null
    const void* bias;           // of the dtype of rows; may be null
    int64_t in, out, group, bits, zero;     // group: 0 for no codes; bits: of a code
};

// A group's codes, four a step, from its bytes: whole ones, or nibbles, of which a byte holds those of two steps, and the
// upper bits of all steps in one vector, step by step from the lowest.
template <int GROUP, int BITS> inline void unpack_group(const Steps* packed, Steps* codes) {
    constexpr int STEPS = GROUP / 4, UPPER = BITS - 4;
    for (int s = 0; s < STEPS; ++s) {
        if constexpr (BITS == 8) {
            codes[s] = packed[s];
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

// One block of rows, for weights whose groups have GROUP inputs.
struct RowBlock {
    const int8_t* codes;        // [spans, rows, SPAN]
    const float* scales;        // [spans, rows]
    const int32_t* starts;      // [groups, rows]: what the codes' zero adds to the sum of a group
    const float* totals;        // [groups, rows]: the sum of a group's numbers, which its low is multiplied with
    int64_t groups, rows;
};

// A block of rows and one tile of outputs -> sums [rows].  codes: [groups, GROUP * BITS / 32, LANES, 4], as of
// `unpack_group`.  R: the number of rows where the loop over them is unrolled, else 0.
template <int GROUP, int BITS, int R>
void integer_tile(const RowBlock& block, const uint8_t* codes, const float* scales, const float* lows, Sums* sums) {
    constexpr int STEPS = GROUP / 4, PARTS = SPAN / GROUP;
    const int64_t rows = R ? R : block.rows;
    Sums own[R ? R : INTEGER_ROWS];
    for (int64_t r = 0; r < rows; ++r) own[r] = Sums{};
    const int32_t* starts = block.starts;
    const float* totals = block.totals;
    for (int64_t g = 0; g < block.groups; ++g, codes += GROUP * LANES * BITS / 8, starts += rows, totals += rows) {
        Steps weight[STEPS];
        unpack_group<GROUP, BITS>(reinterpret_cast<const Steps*>(codes), weight);
        const Sums scale = lanes(scales + g * LANES), low = lows ? lanes(lows + g * LANES) : Sums{};
        const int8_t* row = block.codes + g / PARTS * rows * SPAN + g % PARTS * GROUP;
        const float* const row_scales = block.scales + g / PARTS * rows;
#if defined(__AVX512F__)
#pragma GCC unroll 12
#endif
        for (int64_t r = 0; r < rows; ++r) {
            Group<BITS> sum(starts[r]);
            for (int s = 0; s < STEPS; ++s) {
                int32_t four;
                __builtin_memcpy(&four, row + r * SPAN + s * 4, sizeof four);
                sum.add(weight[s], Integers{} + four);
            }
            own[r] = fused(__builtin_convertvector(sum.whole(), Sums), scale * row_scales[r], own[r]);
            if (lows) own[r] = fused(-low, Sums{} + totals[r], own[r]);
        }
    }
    for (int64_t r = 0; r < rows; ++r) sums[r] = own[r];
}

typedef void (*IntegerTile)(const RowBlock&, const uint8_t*, const float*, const float*, Sums*);
template <int GROUP, int BITS, int... R> IntegerTile integer_tile_of(int64_t rows, std::integer_sequence<int, R...>) {
    static const IntegerTile all[] = {integer_tile<GROUP, BITS, R>...};
    return all[rows < static_cast<int64_t>(sizeof...(R)) ? rows : 0];
}

template <class T> void integer_product(const RoundedRows& x, const Weight& w, T* y, int threads) {
    const int64_t groups = x.spans * SPAN / w.group, parts = SPAN / w.group, bytes = w.group * w.bits / 8;
    const int64_t centre = w.bits == 8 ? Group<8>::CENTRE : 0;
    int32_t* const starts = reinterpret_cast<int32_t*>(scratch<5>(2 * x.n * groups));
    float* const totals = reinterpret_cast<float*>(starts + x.n * groups);
    x.blocks([&](int64_t first, int64_t rows) {
        for (int64_t g = 0; g < groups; ++g)
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t span = first * x.spans + g / parts * rows, at = first * groups + g * rows + r;
                const int32_t* const halves = x.sums + span * 2 + r;
                const int32_t sum = parts == 1 ? halves[0] + halves[rows] : halves[g % 2 * rows];
                starts[at] = static_cast<int32_t>(centre - w.zero) * sum;
                totals[at] = x.scales[span + r] * static_cast<float>(sum);
            }
    });
    const auto tile_for = [&](int64_t rows) {
        const auto all = std::make_integer_sequence<int, UNROLLED + 1>();
        if (w.group == 16) return w.bits == 6 ? integer_tile_of<16, 6>(rows, all) : integer_tile_of<16, 8>(rows, all);
        if (w.bits == 4) return integer_tile_of<32, 4>(rows, all);
        return w.bits == 5 ? integer_tile_of<32, 5>(rows, all) : integer_tile_of<32, 8>(rows, all);
    };
    parallel::loop((w.out + LANES - 1) / LANES, threads, [&](int64_t index) {
        const int64_t o = index * LANES;
        x.blocks([&](int64_t first, int64_t rows) {
            Sums tile[INTEGER_ROWS];
            const RowBlock block{x.codes + first * x.spans * SPAN, x.scales + first * x.spans, starts + first * groups,
                                 totals + first * groups, groups, rows};
            tile_for(rows)(block, static_cast<const uint8_t*>(w.data) + o * groups * bytes, w.scales + o * groups,
                           w.lows ? w.lows + o * groups : nullptr, tile);
            for (int64_t r = 0; r < rows; ++r)
                give(tile[r], static_cast<const T*>(w.bias), y + (first + r) * w.out, o, w.out);
        });
    });
}

// y_i [n, out_i] = x [n, in] w_i^T + bias_i, of several weights.
template <class T>
void products(const T* x, int64_t n, std::initializer_list<std::pair<const Weight*, T*>> all, int threads) {
    RoundedRows rows{};
    for (const auto& [w, y] : all) {
        if (!w->group) {
            product(x, static_cast<const uint32_t*>(w->data), static_cast<const T*>(w->bias), y, n, w->in, w->out,
                    threads);
            continue;
        }
        if (!rows.codes) rows = rounded_rows(x, n, w->in);
        integer_product(rows, *w, y, threads);
    }
}

// GGUF blocks (ggml-common.h of llama.cpp) -> codes, scales and lows.  A row of a file's tensor is a run of blocks.

inline float half_at(const uint8_t* at) {
    uint16_t half;
    __builtin_memcpy(&half, at, sizeof half);
    const uint32_t bits = (half & 0x7fffu) << 13 | ((half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u);
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    if (bits < 0x7f800000u) x *= 0x1p112f;      // the exponents' biases differ by 112; halves below 2^-14 become exact
    return half & 0x8000u ? -x : x;
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
inline void unpack_k(const uint8_t* block, const uint8_t* high, const uint8_t* packed, uint8_t* codes, float* scales,
                     float* lows) {
    const uint8_t* const six = block + 4;       // scales and lows of six bits each, in 12 bytes
    for (int64_t g = 0; g < 8; ++g) {
        const int scale = g < 4 ? six[g] & 63 : (six[g + 4] & 15) | six[g - 4] >> 6 << 4;
        const int low = g < 4 ? six[g + 4] & 63 : six[g + 4] >> 4 | six[g] >> 6 << 4;
        scales[g] = half_at(block) * static_cast<float>(scale);
        lows[g] = half_at(block + 2) * static_cast<float>(low);
    }
    for (int64_t pair = 0; pair < 4; ++pair) unpack_nibbles(packed + pair * 32, 32, codes + pair * 64);
    for (int64_t i = 0; high && i < 256; ++i) codes[i] |= (high[i % 32] >> i / 32 & 1) << 4;
}

inline void unpack_q6_k(const uint8_t* block, uint8_t* codes, float* scales) {
    for (int64_t i = 0; i < 256; ++i) {
        const int64_t part = i / 128, at = i % 128;
        const uint8_t low = block[part * 64 + at % 64] >> at / 64 * 4 & 15;
        codes[i] = low | (block[128 + part * 32 + at % 32] >> at / 32 * 2 & 3) << 4;
    }
    for (int64_t g = 0; g < 16; ++g)
        scales[g] = half_at(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + g]));
}

// type: ggml's number.
inline void unpack_block(int64_t type, const uint8_t* block, uint8_t* codes, float* scales, float* lows) {
    if (type == 12) return unpack_k(block, nullptr, block + 16, codes, scales, lows);           // Q4_K
    if (type == 13) return unpack_k(block, block + 16, block + 48, codes, scales, lows);        // Q5_K
    if (type == 14) return unpack_q6_k(block, codes, scales);                                   // Q6_K
    *scales = half_at(block);
    if (type == 3 || type == 7) *lows = -half_at(block + 2);
    switch (type) {
        case 2: return unpack_nibbles(block + 2, 16, codes);                // Q4_0
        case 3: return unpack_nibbles(block + 4, 16, codes);                // Q4_1
        case 6: return unpack_fives(block + 2, block + 6, codes);           // Q5_0
        case 7: return unpack_fives(block + 4, block + 8, codes);           // Q5_1
        case 8: for (int64_t i = 0; i < 32; ++i) codes[i] = block[2 + i] ^ 128;        // Q8_0: signed bytes
    }
}

// Rows of blocks -> the tiles of `Weight`, whose codes, scales and lows are written.
void pack_blocks(const Weight& w, int64_t type, const uint8_t* raw, int64_t rows, int64_t row_bytes,
                 int64_t block_size, int64_t block_bytes, int threads) {
    const int64_t groups = w.in / w.group, inside = block_size / w.group, half = w.group / 2, upper = w.bits - 4;
    uint8_t* const data = static_cast<uint8_t*>(const_cast<void*>(w.data));
    parallel::loop((rows + LANES - 1) / LANES, threads, [&](int64_t tile) {
        const int64_t first = tile * LANES;
        for (int64_t lane = 0; lane < std::min(LANES, rows - first); ++lane)
            for (int64_t g = 0; g < groups; g += inside) {
                uint8_t codes[256];
                float scales[16], lows[16];
                unpack_block(type, raw + (first + lane) * row_bytes + g / inside * block_bytes, codes, scales, lows);
                for (int64_t i = 0; i < inside; ++i) {
                    const int64_t at = (first / LANES * groups + g + i) * LANES;
                    const_cast<float*>(w.scales)[at + lane] = scales[i];
                    if (w.lows) const_cast<float*>(w.lows)[at + lane] = lows[i];
                    uint8_t* const to = data + at * w.group * w.bits / 8 + lane * 4;       // a step's bytes
                    const auto byte = [&](int64_t step, int64_t k) -> uint8_t& { return to[step * LANES * 4 + k % 4]; };
                    const uint8_t* const own = codes + i * w.group;
                    for (int64_t k = 0; k < w.group && w.bits == 8; ++k) byte(k / 4, k) = own[k];
                    for (int64_t k = 0; k < half && w.bits < 8; ++k)
                        byte(k / 4, k) = (own[k] & 15) | (own[half + k] & 15) << 4;
                    for (int64_t k = 0; k < w.group && 4 < w.bits && w.bits < 8; ++k)
                        byte(half / 4, k) |= (own[k] >> 4) << (k / 4 * upper);
                }
            }
    });
}

// Attention, summed in float32.  What a row gets is the same bits in any pass: its columns stand at their positions, in
// chunks that begin at fixed ones, and a score, a sum of weights and a mix of values each have one order.  An ancestor
// in a tree, whose column is elsewhere, is put in the place of its position.

constexpr int64_t CHUNK = 512;                  // positions whose weights have one largest score
constexpr int64_t ROOM = CHUNK + OUTPUTS;       // scores are written by tiles
constexpr int64_t TOGETHER = 4;                 // blocks of rows that read a chunk while it is near
constexpr int PACK = MOST_ROWS / 3;             // rows whose values are mixed together
constexpr float HIDDEN = -1e30f;                // the score of what a row does not see

// Rows of one pass, which columns they see, and strides.  The rows of one key head follow query head by query head.
template <class T, class K> struct Attention {
    typedef K Cached;           // the numbers of keys and values
    const T* q;
    const K *k, *v;
    T* out;                     // [n, H, D]
    const int64_t* first;       // [n] the first position that a row sees
    const int32_t* order;       // [n, slots] the own column at position prefix + slot, -1 for none; null for a chain
    int64_t heads, group, rows, size, prefix, slots, own;
    int64_t q_head, q_row, k_head, k_row, v_head, v_row;        // strides
    float scale;

    int64_t all() const { return group * rows; }
    int64_t block() const {     // rows whose scores are computed together, evenly
        const int64_t blocks = (all() + MOST_ROWS - 1) / MOST_ROWS;
        return (all() + blocks - 1) / blocks;
    }
    int64_t shared() const { return order ? prefix : prefix + rows; }       // columns that stand at their positions
    int64_t end(int64_t row) const { return order ? prefix + slots : prefix + row + 1; }
    int64_t state() const { return 2 * LANES + size; }      // floats: the largest score, the sum of weights, the mix
    // The own column of a row at a position from `shared` on.
    int64_t column(int64_t row, int64_t position) const { return order[row * slots + position - prefix]; }
};

// Of two vectors some lanes, each number of which is below LANES for a and from LANES on for b.
template <int (*LANE)(int), int... J> inline Sums picked(Sums a, Sums b, std::integer_sequence<int, J...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, LANE(J)...);
#else
    return __builtin_shuffle(a, b, Of<LANES>::Whole{LANE(J)...});
#endif
}
template <int (*LANE)(int)> inline Sums picked(Sums a, Sums b) {
    return picked<LANE>(a, b, std::make_integer_sequence<int, LANES>());
}
// In each four lanes: the first or last two of a and b in turns, one by one or two by two.
template <int LAST> constexpr int ones(int j) { return j / 4 * 4 + 2 * LAST + j % 4 / 2 + j % 2 * LANES; }
template <int LAST> constexpr int twos(int j) { return j / 4 * 4 + 2 * LAST + j % 2 + j % 4 / 2 * LANES; }
// Every second four lanes, first those of a.
template <int ODD> constexpr int fours(int j) {
    return (j % (LANES / 2) / 4 * 2 + ODD) * 4 + j % 4 + (j < LANES / 2 ? 0 : LANES);
}

// Columns [first, last) of at most OUTPUTS, rows of [.., size], turned into a tile [size, OUTPUTS].
template <class T> void turn(const T* columns, int64_t apart, int64_t first, int64_t last, int64_t size, float* tile) {
    constexpr int FOURS = LANES / 4;
    for (int64_t v = 0; v < OUTPUTS && first + v < last; v += LANES)
        for (int64_t d = 0; d < size; d += LANES) {
            Sums some[FOURS][4];        // after the first step: in each four lanes one number of four columns
            for (int64_t f = 0; f < FOURS; ++f) {
                Sums own[4];
                for (int64_t t = 0; t < 4; ++t)
                    own[t] = lanes(columns + std::min(first + v + f * 4 + t, last - 1) * apart + d);
                const Sums a = picked<ones<0>>(own[0], own[1]), b = picked<ones<0>>(own[2], own[3]);
                const Sums c = picked<ones<1>>(own[0], own[1]), e = picked<ones<1>>(own[2], own[3]);
                some[f][0] = picked<twos<0>>(a, b);
                some[f][1] = picked<twos<1>>(a, b);
                some[f][2] = picked<twos<0>>(c, e);
                some[f][3] = picked<twos<1>>(c, e);
            }
            for (int64_t t = 0; t < 4; ++t) {
                Sums out[FOURS];
                if constexpr (FOURS == 1) {
                    out[0] = some[0][t];
                } else if constexpr (FOURS == 2) {
                    out[0] = picked<fours<0>>(some[0][t], some[1][t]);
                    out[1] = picked<fours<1>>(some[0][t], some[1][t]);
                } else {
                    const Sums even = picked<fours<0>>(some[0][t], some[1][t]);
                    const Sums odd = picked<fours<1>>(some[0][t], some[1][t]);
                    const Sums more = picked<fours<0>>(some[2][t], some[3][t]);
                    const Sums rest = picked<fours<1>>(some[2][t], some[3][t]);
                    out[0] = picked<fours<0>>(even, more);
                    out[1] = picked<fours<0>>(odd, rest);
                    out[2] = picked<fours<1>>(even, more);
                    out[3] = picked<fours<1>>(odd, rest);
                }
                for (int64_t f = 0; f < FOURS; ++f)
                    *reinterpret_cast<Loose*>(tile + (d + f * 4 + t) * OUTPUTS + v) = out[f];
            }
        }
}

// mix [R, size] += weights [R, n] values [n, size], V vectors at once; rows of weights are ROOM apart.
template <int R, int V, class A>
inline void mixed(const A& a, const float* weights, const typename A::Cached* value, int64_t n, float* mix) {
    Sums own[R][V];
    for (int64_t r = 0; r < R; ++r)
        for (int64_t i = 0; i < V; ++i) own[r][i] = *reinterpret_cast<Loose*>(mix + r * a.state() + i * LANES);
    for (int64_t c = 0; c < n; ++c, value += a.v_row) {
        Sums column[V];
        for (int64_t i = 0; i < V; ++i) {
            column[i] = lanes(value + i * LANES);
            HELD(column[i]);
        }
        for (int64_t r = 0; r < R; ++r) {
            Sums weight = Sums{} + weights[r * ROOM + c];
            HELD(weight);
            for (int64_t i = 0; i < V; ++i) own[r][i] = fused(weight, column[i], own[r][i]);
        }
    }
    for (int64_t r = 0; r < R; ++r)
        for (int64_t i = 0; i < V; ++i) *reinterpret_cast<Loose*>(mix + r * a.state() + i * LANES) = own[r][i];
}
template <class A, int R>
void mix(const A& a, const float* weights, const typename A::Cached* value, int64_t n, float* state) {
    float* const mix = state + 2 * LANES;
    int64_t d = 0;
    for (; d + 4 * LANES <= a.size; d += 4 * LANES) mixed<R, 4>(a, weights, value + d, n, mix + d);
    for (; d < a.size; d += LANES) mixed<R, 1>(a, weights, value + d, n, mix + d);
}
template <class A> using Mix = void (*)(const A&, const float*, const typename A::Cached*, int64_t, float*);
template <class A, int... R> Mix<A> mix_of(int64_t rows, std::integer_sequence<int, R...>) {
    static const Mix<A> all[] = {mix<A, R + 1>...};
    return all[rows - 1];
}

// Softmax of one row's scores [n] in place -> its state.  n: a multiple of the lanes.
__attribute__((noinline)) void soften(float* scores, int64_t n, int64_t size, float* state) {
    Sums most = Sums{} + HIDDEN, total = {};
    for (int64_t p = 0; p < n; p += LANES) {
        const Sums some = *reinterpret_cast<const Loose*>(scores + p);
        most = some > most ? some : most;
    }
    float largest = HIDDEN;
    for (int64_t t = 0; t < LANES; ++t) largest = std::max(largest, most[t]);
    for (int64_t p = 0; p < n; p += LANES) {
        Loose& some = *reinterpret_cast<Loose*>(scores + p);
        some = largest > HIDDEN ? power_of_two(some - largest) : Sums{};
        total += some;
    }
    *reinterpret_cast<Loose*>(state) = Sums{} + largest;
    *reinterpret_cast<Loose*>(state + LANES) = total;
    std::fill_n(state + 2 * LANES, size, 0.0f);
}

// Rows [from, to) of a key head over one chunk -> their states.  q: blocks of rows [size, rows], scaled.
template <class A>
void read(const A& a, int64_t head, const float* q, int64_t from, int64_t to, int64_t chunk, float* states) {
    typedef typename A::Cached K;
    float* const weights = scratch<1>((to - from) * ROOM + OUTPUTS * a.size);
    float* const tile = weights + (to - from) * ROOM;
    const K *const keys = a.k + head * a.k_head, *const values = a.v + head * a.v_head;
    const int64_t begin = chunk * CHUNK, stop = begin + CHUNK;
    int64_t first = stop, end = begin;
    for (int64_t r = from; r < to; ++r) {
        first = std::min(first, a.first[r % a.rows]);
        end = std::max(end, std::min(stop, a.end(r % a.rows)));
    }
    const int64_t start = begin + std::max<int64_t>(0, first - begin) / LANES * LANES;
    const int64_t shared = std::max(start, std::min(end, a.shared())), own = std::max(begin, a.shared());
    // Scores with columns [c, last), handed over as [rows, OUTPUTS] from row r on.
    const auto scored = [&](int64_t c, int64_t last, auto&& take) {
        for (int64_t next = c + OUTPUTS; next < std::min(c + 2 * OUTPUTS, last); ++next)
            for (int64_t d = 0; d < a.size; d += 64 / sizeof(K)) __builtin_prefetch(keys + next * a.k_row + d, 0, 2);
        turn(keys, a.k_row, c, last, a.size, tile);
        for (int64_t r = from; r < to; r += a.block()) {
            Sums sums[MOST_ROWS * VECTORS];
            const int64_t rows = std::min(a.block(), to - r);
            tile_of<float>(rows, std::make_integer_sequence<int, MOST_ROWS>())(
                reinterpret_cast<const uint32_t*>(q + r * a.size), reinterpret_cast<const uint32_t*>(tile), a.size,
                false, sums);
            for (int64_t i = 0; i < rows; ++i) take(r + i, reinterpret_cast<const float*>(sums + i * VECTORS));
        }
    };
    const auto mine = [&](int64_t r) { return weights + (r - from) * ROOM - begin; };      // by position
    for (int64_t c = start; c < shared; c += OUTPUTS)
        scored(c, shared, [&](int64_t r, const float* sums) { std::copy_n(sums, OUTPUTS, mine(r) + c); });
    const int64_t full = begin + (end - begin + LANES - 1) / LANES * LANES;
    for (int64_t r = from; r < to; ++r) {
        std::fill(mine(r) + shared, mine(r) + std::max(shared, full), HIDDEN);
        std::fill(mine(r) + start, mine(r) + std::max(start, std::min(a.first[r % a.rows], shared)), HIDDEN);
        std::fill(mine(r) + std::max(start, std::min(a.end(r % a.rows), shared)), mine(r) + shared, HIDDEN);
    }
    for (int64_t j = 0; own < end && j < a.own; j += OUTPUTS)
        scored(a.prefix + j, a.prefix + a.own, [&](int64_t r, const float* sums) {
            for (int64_t p = own; p < end; ++p)
                if (const int64_t column = a.column(r % a.rows, p) - j; 0 <= column && column < OUTPUTS)
                    mine(r)[p] = sums[column];
        });
    for (int64_t r = from; r < to; ++r)
        soften(mine(r) + start, std::max<int64_t>(0, full - start), a.size, states + (r - from) * a.state());
    for (int64_t r = from; r < to; r += PACK) {
        const int64_t rows = std::min<int64_t>(PACK, to - r);
        mix_of<A>(rows, std::make_integer_sequence<int, PACK>())(
            a, mine(r) + start, values + start * a.v_row, shared - start, states + (r - from) * a.state());
    }
    for (int64_t r = from; r < to; ++r)
        for (int64_t p = own; p < end; ++p)
            if (const int64_t column = a.column(r % a.rows, p); column >= 0)
                mix<A, 1>(a, mine(r) + p, values + (a.prefix + column) * a.v_row, 1, states + (r - from) * a.state());
}

// A row's state over some chunks, and over the next one -> over both.  Compiled once: it rounds one way.
__attribute__((noinline)) void merge(int64_t floats, float* state, const float* next) {
    if (next[0] <= HIDDEN) return;
    const Sums both = lanes(state) > lanes(next) ? lanes(state) : lanes(next);
    const Sums mine = power_of_two(lanes(state) - both), theirs = power_of_two(lanes(next) - both);
    *reinterpret_cast<Loose*>(state) = both;
    for (int64_t d = LANES; d < floats; d += LANES)
        *reinterpret_cast<Loose*>(state + d) = fused(lanes(state + d), mine, lanes(next + d) * theirs);
}

template <class T, class K> void attend(const Attention<T, K>& a, int threads) {
    const int64_t together = TOGETHER * a.block(), groups = (a.all() + together - 1) / together;
    int64_t lowest = a.prefix + a.own, last = 0;
    for (int64_t i = 0; i < a.rows; ++i) {
        lowest = std::min(lowest, a.first[i]);
        last = std::max(last, a.end(i));
    }
    const int64_t from = lowest / CHUNK, chunks = (last + CHUNK - 1) / CHUNK - from;
    // Where there are few rows, threads read chunks of their own, and their states are merged afterwards.
    const int64_t parts = a.heads * groups < 4 * threads ? chunks : 1;
    float* const turned = scratch(a.heads * a.all() * (a.size + parts * a.state()));
    float* const states = turned + a.heads * a.all() * a.size;      // [heads, parts, all, state]
    for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t r = 0; r < a.all(); ++r) {
            const int64_t block = r / a.block() * a.block(), rows = std::min(a.block(), a.all() - block);
            const T* const q = a.q + (head * a.group + r / a.rows) * a.q_head + r % a.rows * a.q_row;
            float* const to = turned + (head * a.all() + block) * a.size + (r - block);
            for (int64_t d = 0; d < a.size; ++d) to[d * rows] = single(q[d]) * (a.scale * LOG2_E);
        }
    parallel::loop(a.heads * groups * parts, threads, [&](int64_t task) {
        const int64_t part = task % parts, first = task / parts % groups * together, head = task / parts / groups;
        const int64_t end = std::min(a.all(), first + together);
        float* const state = states + ((head * parts + part) * a.all() + first) * a.state();
        for (int64_t c = parts > 1 ? part : 0; c < (parts > 1 ? part + 1 : chunks); ++c) {
            float* const to = parts > 1 || c == 0 ? state : scratch<2>((end - first) * a.state());
            read(a, head, turned + head * a.all() * a.size, first, end, from + c, to);
            for (int64_t r = 0; to != state && r < end - first; ++r)
                merge(a.state(), state + r * a.state(), to + r * a.state());
        }
    });
    for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t r = 0; r < a.all(); ++r) {
            float* const state = states + (head * parts * a.all() + r) * a.state();
            for (int64_t part = 1; part < parts; ++part) merge(a.state(), state, state + part * a.all() * a.state());
            float sum = 0.0f;
            for (int64_t t = 0; t < LANES; ++t) sum += state[LANES + t];
            T* const out = a.out + (r % a.rows * a.heads * a.group + head * a.group + r / a.rows) * a.size;
            for (int64_t d = 0; d < a.size; ++d) store(sum > 0.0f ? state[2 * LANES + d] / sum : 0.0f, out + d);
        }
}

// A root-mean-square norm.  weight: of the dtype of rows, null for no norm; plus: added to the weight; rounds: a normed
// number is rounded to that dtype before it is multiplied with the weight.
struct Norm {
    const void* weight;
    float epsilon, plus;
    int rounds;
};

template <class T>
void normed(const T* x, const Norm& norm, T* y, int64_t n, int64_t size, int threads) {
    const T* const weight = static_cast<const T*>(norm.weight);
    parallel::loop(n, n >= 64 ? threads : 1, [&](int64_t r) {
        const T *const from = x + r * size;
        T* const to = y + r * size;
        const int64_t whole = size / LANES * LANES;
        Sums part = {};
        for (int64_t i = 0; i < whole; i += LANES) part = fused(lanes(from + i), lanes(from + i), part);
        float squares = 0.0f;
        for (int64_t t = 0; t < LANES; ++t) squares += part[t];
        for (int64_t i = whole; i < size; ++i) squares += single(from[i]) * single(from[i]);
        const float share = 1.0f / std::sqrt(squares / static_cast<float>(size) + norm.epsilon);
        for (int64_t i = 0; i < size; ++i) {
            float own = single(from[i]) * share;
            if (norm.rounds) {
                T narrow;
                store(own, &narrow);
                own = single(narrow);
            }
            store((single(weight[i]) + norm.plus) * own, to + i);
        }
    });
}

// A decoder layer of the common form.  after_attention and after_gate may be none.
struct Layer {
    Weight q, k, v, o, gate, up, down;
    Norm before_attention, of_q, of_k, after_attention, before_gate, after_gate;
    int64_t heads, kv_heads, size, tanh;        // tanh: the gate's activation is gelu by tanh, else silu
    float scale;
};

// e^-x for x >= 0
inline Sums decayed(Sums x) { return power_of_two(x * -LOG2_E); }
inline Sums absolute(Sums x) { return (Sums)((Steps)x & 0x7fffffffu); }
inline Sums silu(Sums x) {
    const Sums e = decayed(absolute(x));
    return x * (x < 0.0f ? e : Sums{} + 1.0f) / (1.0f + e);
}
inline Sums gelu(Sums x) {
    const Sums inner = 0.7978845608028654f * (x + 0.044715f * x * x * x), e = decayed(2.0f * absolute(inner));
    const Sums tanh = (1.0f - e) / (1.0f + e);
    return 0.5f * x * (1.0f + (inner < 0.0f ? -tanh : tanh));
}

// gate = activation(gate) * up, over [count]
template <class T> void gated(T* gate, const T* up, int64_t count, bool tanh, int threads) {
    parallel::loop((count + LANES - 1) / LANES, count >= 1 << 16 ? threads : 1, [&](int64_t vector) {
        const int64_t i = vector * LANES;
        const int64_t some = std::min(LANES, count - i);
        T both[2][LANES] = {};
        std::copy_n(gate + i, some, both[0]);
        std::copy_n(up + i, some, both[1]);
        const Sums x = lanes(both[0]), y = (tanh ? gelu(x) : silu(x)) * lanes(both[1]);
        for (int64_t t = 0; t < some; ++t) store(y[t], gate + i + t);
    });
}

// x [n, heads, size], rotated by halves in place.
template <class T> void rotate(T* x, const T* cos, const T* sin, int64_t n, int64_t heads, int64_t size) {
    for (int64_t r = 0; r < n * heads; ++r, x += size) {
        const T *const c = cos + r / heads * size, *const s = sin + r / heads * size;
        for (int64_t i = 0, j = size / 2; i < size / 2; ++i, ++j) {
            const float low = single(x[i]), high = single(x[j]);
            store(low * single(c[i]) - high * single(s[i]), x + i);
            store(high * single(c[j]) + low * single(s[j]), x + j);
        }
    }
}

// New rows of one sequence in a pass, behind its prefix, and its cache's buffers with their strides; first, order: as of
// `Attention`.
struct Part {
    void *keys, *values;
    const int64_t* first;
    const int32_t* order;
    int64_t rows, prefix, slots, own, k_head, k_row, v_head, v_row;
};

template <class T, class K>
void layer(const Layer& w, const void* given, void* result, const void* cos, const void* sin, void* queries,
           const Part* parts, int64_t count, int threads) {
    const T* const x = static_cast<const T*>(given);
    T* const y = static_cast<T*>(result);
    int64_t n = 0;
    for (int64_t part = 0; part < count; ++part) n += parts[part].rows;
    const int64_t hidden = w.q.in, wide = w.heads * w.size, narrow = w.kv_heads * w.size;
    T* const states = reinterpret_cast<T*>(scratch<4>((n * (hidden + 2 * wide + 2 * narrow + 2 * w.gate.out) + 64)));
    T *const attended = states + n * hidden, *const k = attended + n * wide, *const v = k + n * narrow;
    T *const gate = v + n * narrow, *const up = gate + n * w.gate.out;
    T* const q = queries ? static_cast<T*>(queries) : up + n * w.gate.out;
    normed(x, w.before_attention, states, n, hidden, threads);
    products<T>(states, n, {{&w.q, q}, {&w.k, k}, {&w.v, v}}, threads);
    if (w.of_q.weight) normed(q, w.of_q, q, n * w.heads, w.size, threads);
    if (w.of_k.weight) normed(k, w.of_k, k, n * w.kv_heads, w.size, threads);
    rotate(q, static_cast<const T*>(cos), static_cast<const T*>(sin), n, w.heads, w.size);
    rotate(k, static_cast<const T*>(cos), static_cast<const T*>(sin), n, w.kv_heads, w.size);
    for (int64_t part = 0, row = 0; part < count; row += parts[part++].rows) {
        const Part& p = parts[part];
        K *const keys = static_cast<K*>(p.keys), *const values = static_cast<K*>(p.values);
        for (int64_t r = 0; r < p.rows; ++r)
            for (int64_t head = 0; head < w.kv_heads; ++head) {
                const int64_t from = (row + r) * narrow + head * w.size, to = p.prefix + r;
                for (int64_t i = 0; i < w.size; ++i) {
                    store(single(k[from + i]), keys + head * p.k_head + to * p.k_row + i);
                    store(single(v[from + i]), values + head * p.v_head + to * p.v_row + i);
                }
            }
        attend(Attention<T, K>{q + row * wide, keys, values, attended + row * wide, p.first, p.order, w.kv_heads,
                               w.heads / w.kv_heads, p.rows, w.size, p.prefix, p.slots, p.own, w.size, wide, p.k_head,
                               p.k_row, p.v_head, p.v_row, w.scale}, threads);
    }
    // The residual: y = x + (norm of) what is in `states`.
    const auto add = [&](const T* before, const Norm& after) {
        if (after.weight) normed(states, after, states, n, hidden, threads);
        for (int64_t i = 0; i < n * hidden; ++i) store(single(before[i]) + single(states[i]), y + i);
    };
    products<T>(attended, n, {{&w.o, states}}, threads);
    add(x, w.after_attention);
    normed(y, w.before_gate, states, n, hidden, threads);
    products<T>(states, n, {{&w.gate, gate}, {&w.up, up}}, threads);
    gated(gate, up, n * w.gate.out, w.tanh, threads);
    products<T>(gate, n, {{&w.down, states}}, threads);
    add(y, w.after_gate);
}

}  // namespace

extern "C" {

// Bytes of the structures that Python mirrors.
void longgraft_sizes(int64_t* sizes) {
    sizes[0] = sizeof(Weight);
    sizes[1] = sizeof(Norm);
    sizes[2] = sizeof(Layer);
    sizes[3] = sizeof(Part);
}
int64_t longgraft_lanes() { return LANES; }
int64_t longgraft_outputs() { return OUTPUTS; }

// y [n, out] = x [n, in] weight^T + bias; half: x, bias, y and a weight that has no codes are bfloat16.
void longgraft_product(const void* x, const Weight* weight, void* y, int64_t n, int half, int threads) {
    if (half) products(static_cast<const uint16_t*>(x), n, {{weight, static_cast<uint16_t*>(y)}}, threads);
    else products(static_cast<const float*>(x), n, {{weight, static_cast<float*>(y)}}, threads);
}

// Rows of a GGUF file's blocks, as ggml numbers their type, into a weight's tiles from its first on.
void longgraft_pack_blocks(const Weight* weight, int64_t type, const uint8_t* raw, int64_t rows, int64_t row_bytes,
                           int64_t block_size, int64_t block_bytes, int threads) {
    pack_blocks(*weight, type, raw, rows, row_bytes, block_size, block_bytes, threads);
}

// y [n, size] = (weight + plus) [size] * x / sqrt(mean(x^2) + epsilon), row by row; all contiguous.
void longgraft_norm(const void* x, const Norm* norm, void* y, int64_t n, int64_t size, int half) {
    if (half) normed(static_cast<const uint16_t*>(x), *norm, static_cast<uint16_t*>(y), n, size, 1);
    else normed(static_cast<const float*>(x), *norm, static_cast<float*>(y), n, size, 1);
}

// A decoder layer over n new tokens: x [n, hidden] -> y [n, hidden].  cos, sin [n, size] of x's dtype; queries: null, or
// room for the rotated ones [n, heads, size]; parts: the sequences whose tokens these are, one after another; their keys
// and values are written to the buffers [kv heads, capacity, size] from the prefix on.
void longgraft_layer(const Layer* of, const void* x, void* y, const void* cos, const void* sin, void* queries,
                     const Part* parts, int64_t count, int half, int half_cache, int threads) {
    const auto run = half ? layer<uint16_t, uint16_t> : half_cache ? layer<float, uint16_t> : layer<float, float>;
    run(*of, x, y, cos, sin, queries, parts, count, threads);
}

// sizes: heads, group, rows, size (a multiple of the lanes), prefix, slots, own columns, then six strides; half: all are
// bfloat16; half_cache: k and v are.
void longgraft_attention(const void* q, const void* k, const void* v, void* out, const int64_t* first,
                        const int32_t* order, const int64_t* sizes, float scale, int half, int half_cache,
                        int threads) {
    const auto run = [&](auto type, auto cached) {
        typedef decltype(type) T;
        typedef decltype(cached) K;
        attend(Attention<T, K>{static_cast<const T*>(q), static_cast<const K*>(k), static_cast<const K*>(v),
                               static_cast<T*>(out), first, order, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                               sizes[5], sizes[6], sizes[7], sizes[8], sizes[9], sizes[10], sizes[11], sizes[12], scale},
               threads);
    };
    if (half) run(uint16_t{}, uint16_t{});
    else if (half_cache) run(float{}, uint16_t{});
    else run(float{}, float{});
}

}
