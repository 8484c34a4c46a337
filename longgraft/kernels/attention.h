// Attention of new rows over a prefix and a tree, summed in float32.
//
// What a row gets is the same bits in any pass: its columns stand at their positions, in chunks that begin at fixed
// ones, and a score, a sum of weights and a mix of values each have one order.  An ancestor in a tree, whose column is
// elsewhere, is put in the place of its position.  A hidden position has the weight zero, which changes no sum.
//
// Keys and values of bfloat16 are multiplied by the processor's own instruction where it has one: it adds the products
// of two pairs of bfloat16 to a float.  Queries and weights are rounded to bfloat16 for it, and positions are mixed in
// pairs that begin at even ones.  Elsewhere, and for floats, all products are of floats.  Processors with a tile unit
// compute scores and mixes of bfloat16 on it (`TiledRows`).
//
// Rows of bytes become bfloat16 or floats a few at a time, once for all rows of queries, and stay in the first cache.

#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "cached_rows.h"
#include "parallel.h"
#include "tiles.h"
#include "vectors.h"

namespace {

constexpr int64_t CHUNK = 512;                  // positions whose weights have one largest score
constexpr int64_t ROOM = CHUNK + OUTPUTS;       // scores are written by tiles
constexpr int64_t TOGETHER = 6;                 // most blocks of rows that read a chunk while it is near
constexpr int64_t MIXED = 64;                   // positions whose values stay in the first cache, for all rows
constexpr float HIDDEN = -1e30f;                // the score of what a row does not see

// Whether numbers of this type are multiplied in pairs.
template <class K> constexpr bool PAIRED = std::is_same<K, uint16_t>::value && PAIRED_BFLOATS;

// Rows of one pass, which columns they see, and strides.  The rows of one key head are those of its query heads, which
// follow one another for each row of the pass.
template <class T, class K> struct Attention {
    typedef T Query;            // the numbers of queries and results
    typedef K Cached;           // of the cache's rows of keys and values
    typedef typename CachedRow<K>::Number Number;       // of keys and values
    static constexpr bool PAIRS = PAIRED<Number>;
    typedef typename std::conditional<PAIRS, uint16_t, float>::type Product;        // type of queries and weights
    static constexpr int64_t PER_STEP = 4 / sizeof(Product);                        // of a head's numbers
    const T* q;
    const K *k, *v;
    T* out;                     // [n, H, D]
    const int64_t* first;       // [n] the first position that a row sees
    const int32_t* order;       // [n, slots] the own column at position prefix + slot, -1 for none; null for a chain
    int64_t heads, group, rows, size, prefix, slots, own;
    int64_t q_head, q_row, k_head, k_row, v_head, v_row;        // strides
    float scale;

    int64_t all() const { return group * rows; }                // rows of a key head
    int64_t row(int64_t r) const { return r / group; }          // of the pass
    int64_t steps() const { return size / PER_STEP; }           // of a score; a step is four bytes
    int64_t block(int64_t most) const {     // rows whose scores are computed together, evenly
        const int64_t blocks = (all() + most - 1) / most;
        return (all() + blocks - 1) / blocks;
    }
    int64_t shared() const { return order ? prefix : prefix + rows; }       // columns that stand at their positions
    int64_t end(int64_t row) const { return order ? prefix + slots : prefix + row + 1; }
    int64_t state() const { return 2 * LANES + size; }      // floats: the largest score, the sum of weights, the mix
    // The own column of a row at a position from `shared` on.
    int64_t column(int64_t row, int64_t position) const { return order[row * slots + position - prefix]; }
    // The value that a row sees at a position, or null.  values: of the columns from `from` on
    const Number* value(NumberRows<Number> values, int64_t from, int64_t row, int64_t position) const {
        if (position < shared()) return values.first + (position - from) * values.apart;
        const int64_t own_column = position < end(row) ? column(row, position) : -1;
        return own_column < 0 ? nullptr : values.first + (prefix + own_column - from) * values.apart;
    }
    // Where a mix has its number d: pairs of two rows lie in the order in which the processor interleaves them.
    int64_t place(int64_t d) const {
        if (!PAIRS || d / OUTPUTS * OUTPUTS + OUTPUTS > size) return d;
        return d / OUTPUTS * OUTPUTS + d % 8 / 4 * LANES + d % OUTPUTS / 8 * 4 + d % 4;
    }
};

// Of two vectors some lanes, each number of which is below LANES for a and from LANES on for b.
template <int (*LANE)(int), int... J> inline Sums picked(Sums a, Sums b, std::integer_sequence<int, J...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, LANE(J)...);
#else
    return __builtin_shuffle(a, b, VectorOf<LANES>::Whole{LANE(J)...});
#endif
}
template <int (*LANE)(int)> inline Sums picked(Sums a, Sums b) {
    return picked<LANE>(a, b, std::make_integer_sequence<int, LANES>());
}
// In each four lanes: the first or last two of a and b in turns, one by one or two by two.
template <int LAST> constexpr int interleave_1(int j) { return j / 4 * 4 + 2 * LAST + j % 4 / 2 + j % 2 * LANES; }
template <int LAST> constexpr int interleave_2(int j) { return j / 4 * 4 + 2 * LAST + j % 2 + j % 4 / 2 * LANES; }
// Every second four lanes, first those of a.
template <int ODD> constexpr int interleave_4(int j) {
    return (j % (LANES / 2) / 4 * 2 + ODD) * 4 + j % 4 + (j < LANES / 2 ? 0 : LANES);
}

// LANES steps of a column from step d on, zeros behind its last one.
template <bool PAIRS, class K> inline Sums steps_of(const K* column, int64_t d, int64_t steps) {
    if constexpr (!PAIRS) {
        return lanes(column + d);
    } else {
        const float* const from = reinterpret_cast<const float*>(column) + d;
        if (d + LANES <= steps) return lanes(from);
        Sums some = {};
        __builtin_memcpy(&some, from, (steps - d) * sizeof(float));
        return some;
    }
}

// The first OUTPUTS of some columns, turned into a tile [steps, OUTPUTS].
template <bool PAIRS, class K>
void turn(NumberRows<K> columns, int64_t count, int64_t steps, float* tile) {
    constexpr int FOURS = LANES / 4;
    for (int64_t v = 0; v < std::min(OUTPUTS, count); v += LANES)
        for (int64_t d = 0; d < steps; d += LANES) {
            Sums some[FOURS][4];        // after the first step: in each four lanes one number of four columns
            for (int64_t f = 0; f < FOURS; ++f) {
                Sums own[4];
                for (int64_t t = 0; t < 4; ++t) {
                    const int64_t column = std::min(v + f * 4 + t, count - 1);
                    own[t] = steps_of<PAIRS>(columns.first + column * columns.apart, d, steps);
                }
                const Sums a = picked<interleave_1<0>>(own[0], own[1]), b = picked<interleave_1<0>>(own[2], own[3]);
                const Sums c = picked<interleave_1<1>>(own[0], own[1]), e = picked<interleave_1<1>>(own[2], own[3]);
                some[f][0] = picked<interleave_2<0>>(a, b);
                some[f][1] = picked<interleave_2<1>>(a, b);
                some[f][2] = picked<interleave_2<0>>(c, e);
                some[f][3] = picked<interleave_2<1>>(c, e);
            }
            for (int64_t t = 0; t < 4; ++t) {
                Sums out[FOURS];
                if constexpr (FOURS == 1) {
                    out[0] = some[0][t];
                } else if constexpr (FOURS == 2) {
                    out[0] = picked<interleave_4<0>>(some[0][t], some[1][t]);
                    out[1] = picked<interleave_4<1>>(some[0][t], some[1][t]);
                } else {
                    const Sums even = picked<interleave_4<0>>(some[0][t], some[1][t]);
                    const Sums odd = picked<interleave_4<1>>(some[0][t], some[1][t]);
                    const Sums more = picked<interleave_4<0>>(some[2][t], some[3][t]);
                    const Sums rest = picked<interleave_4<1>>(some[2][t], some[3][t]);
                    out[0] = picked<interleave_4<0>>(even, more);
                    out[1] = picked<interleave_4<0>>(odd, rest);
                    out[2] = picked<interleave_4<1>>(even, more);
                    out[3] = picked<interleave_4<1>>(odd, rest);
                }
                for (int64_t f = 0; f < FOURS; ++f)
                    *reinterpret_cast<Loose*>(tile + (d + f * 4 + t) * OUTPUTS + v) = out[f];
            }
        }
}

// V vectors of the values of a step: of one position, or of two that are next to each other.  V is VECTORS, or 1 for
// what is left of a head.
template <int V, class K> inline void step_values(const K* value, const K*, Sums* column) {
    for (int64_t i = 0; i < V; ++i) column[i] = lanes(value + i * LANES);
}
template <int V> inline void step_pairs(const uint16_t* value, const uint16_t* next, Sums* column) {
    if constexpr (V == 1) {
        column[0] = (Sums)((Steps)lanes(next) | (Steps)lanes(value) >> 16);
    } else {
#if defined(__AVX512F__)
        const __m512i a = _mm512_loadu_si512(value), b = _mm512_loadu_si512(next);
        column[0] = (Sums)_mm512_unpacklo_epi16(a, b);
        column[1] = (Sums)_mm512_unpackhi_epi16(a, b);
#else
        for (int64_t d = 0; d < OUTPUTS; ++d)       // in the order of those instructions
            column[d % 8 / 4][d / 8 * 4 + d % 4] = single(static_cast<uint32_t>(next[d]) << 16 | value[d]);
#endif
    }
}

// mix [R, size] += weights [R, n] of values at n positions, V vectors at once; rows of weights are ROOM floats apart.
// apart: from a position's values to the next one's.  The last of an odd number is paired with itself, whose second
// weight is zero.
template <int R, int V, class A>
inline void mixed(const A& a, const float* weights, const typename A::Number* value, int64_t apart, int64_t n,
                  float* mix) {
    Sums own[R][V];
    for (int64_t r = 0; r < R; ++r)
        for (int64_t i = 0; i < V; ++i) own[r][i] = *reinterpret_cast<Loose*>(mix + r * a.state() + i * LANES);
    const uint32_t* const steps = reinterpret_cast<const uint32_t*>(weights);
    for (int64_t s = 0; s * A::PER_STEP < n; ++s, value += A::PER_STEP * apart) {
        Sums column[V];
        if constexpr (A::PAIRS) step_pairs<V>(value, 2 * s + 1 < n ? value + apart : value, column);
        else step_values<V>(value, value, column);
        for (int64_t i = 0; i < V; ++i) HELD(column[i]);
        for (int64_t r = 0; r < R; ++r) {
            Steps weight = Steps{} + steps[r * ROOM + s];
            HELD(weight);
            for (int64_t i = 0; i < V; ++i) own[r][i] = step<typename A::Product>(own[r][i], (Steps)column[i], weight);
        }
    }
    for (int64_t r = 0; r < R; ++r)
        for (int64_t i = 0; i < V; ++i) *reinterpret_cast<Loose*>(mix + r * a.state() + i * LANES) = own[r][i];
}
template <class A, int R>
void mix(const A& a, const float* weights, const typename A::Number* value, int64_t apart, int64_t n, float* state) {
    float* const mix = state + 2 * LANES;
    int64_t d = 0;
    for (; d + OUTPUTS <= a.size; d += OUTPUTS) mixed<R, VECTORS>(a, weights, value + d, apart, n, mix + d);
    for (; d < a.size; d += LANES) mixed<R, 1>(a, weights, value + d, apart, n, mix + d);
}
template <class A> using Mix = void (*)(const A&, const float*, const typename A::Number*, int64_t, int64_t, float*);
template <class A, int... R> Mix<A> mix_of(int64_t rows, std::integer_sequence<int, R...>) {
    static const Mix<A> all[] = {mix<A, R + 1>...};
    return all[rows - 1];
}

// LANES weights -> as they are multiplied with values, and as floats again.
inline Sums put_weights(Sums some, float* to) {
    *reinterpret_cast<Loose*>(to) = some;
    return some;
}
inline Sums put_weights(Sums some, uint16_t* to) {
    const Steps bits = bfloats(some);
    *reinterpret_cast<Bfloats*>(to) = __builtin_convertvector(bits >> 16, Bfloats);
    return (Sums)bits;
}

// Softmax of one row's scores [n] -> its state, and the weights in place of the scores; those of bfloat16 take half of
// the place.  n: a multiple of the lanes.  scale: of scores, in powers of two.
template <class P> __attribute__((noinline))
void soften(float* scores, P* weights, int64_t n, float scale, int64_t size, float* state) {
    Sums most = Sums{} + HIDDEN, total = {};
    for (int64_t p = 0; p < n; p += LANES) {
        const Sums some = *reinterpret_cast<const Loose*>(scores + p);
        most = some > most ? some : most;
    }
    float largest = HIDDEN;
    for (int64_t t = 0; t < LANES; ++t) largest = std::max(largest, most[t]);
    if (largest > HIDDEN) largest *= scale;
    for (int64_t p = 0; p < n; p += LANES) {
        const Sums some = *reinterpret_cast<const Loose*>(scores + p);
        const Sums weight = largest > HIDDEN ? power_of_two(fused(some, Sums{} + scale, Sums{} - largest)) : Sums{};
        total += put_weights(weight, weights + p);
    }
    *reinterpret_cast<Loose*>(state) = Sums{} + largest;
    *reinterpret_cast<Loose*>(state + LANES) = total;
    std::fill_n(state + 2 * LANES, size, 0.0f);
}

// What rows [from, to) of a key head mix over one chunk, and into what.
template <class A> struct Mixing {
    const A& a;
    float* weights;             // [rows, ROOM]; those of bfloat16 take half of a row
    const typename A::Cached* values;
    typename A::Number* room;   // for rows of values that are opened
    int64_t begin, from, to;    // the chunk's first position, and the rows
    float* states;              // [rows, state]

    // The values of n columns from one on.
    NumberRows<typename A::Number> opened(int64_t column, int64_t n) const {
        return numbers_of(values + column * a.v_row, a.v_row, n, a.size, room);
    }

    // A row's weight of a position, from which on the others follow.
    typename A::Product* weight(int64_t row, int64_t position) const {
        return reinterpret_cast<typename A::Product*>(weights + (row - from) * ROOM) + position - begin;
    }
    float* state(int64_t row) const { return states + (row - from) * a.state(); }
};

// Where a row's query lies among its head's: its first step, and how far apart its steps are.
struct Place { int64_t first, apart; };

// Scores and mixes by vectors.
template <class A> struct VectorRows {
    static constexpr int64_t MOST = MOST_ROWS;                  // rows of a block
    static constexpr int64_t AT_ONCE = A::PER_STEP;             // positions that are mixed in one step
    const A& a;
    const int64_t block;
    explicit VectorRows(const A& given) : a(given), block(given.block(MOST)) {}

    // Queries lie in blocks of rows [steps, rows].
    static int64_t query_steps(const A& a) { return a.steps(); }
    static Place query_place(const A& a, int64_t r) {
        const int64_t block = a.block(MOST), first = r / block * block;
        return {first * a.steps() + r - first, std::min(block, a.all() - first)};
    }
    // Scores of a block of rows with a tile of turned columns -> sums [rows, OUTPUTS].
    void scores(const uint32_t* q, int64_t rows, const float* tile, Soon soon, Sums* sums) const {
        tile_of<typename A::Product>(rows, std::make_integer_sequence<int, MOST_ROWS>())(
            q, reinterpret_cast<const uint32_t*>(tile), a.steps(), soon, sums);
    }
    // Positions [first, last), whose columns stand at them.
    void mix_shared(const Mixing<A>& m, int64_t first, int64_t last) const {
        for (int64_t c = first; c < last; c += MIXED) {
            const int64_t n = std::min(MIXED, last - c);
            const NumberRows<typename A::Number> some = m.opened(c, n);
            for (int64_t r = m.from; r < m.to; r += block)
                mix_of<A>(std::min(block, m.to - r), std::make_integer_sequence<int, MOST_ROWS>())(
                    a, reinterpret_cast<const float*>(m.weight(r, c)), some.first, some.apart, n, m.state(r));
        }
    }
    // Positions [first, last), some of whose columns are elsewhere.  values: of the columns from `rest` on.
    void mix_own(const Mixing<A>& m, NumberRows<typename A::Number> values, int64_t rest, int64_t first,
                 int64_t last) const {
        for (int64_t r = m.from; r < m.to; ++r) {
            const int64_t row = a.row(r);
            for (int64_t p = first; p < last; p += A::PER_STEP) {
                const auto* const value = a.value(values, rest, row, p);
                const auto* const next = A::PAIRS && p + 1 < last ? a.value(values, rest, row, p + 1) : nullptr;
                if (!value && !next) continue;
                const auto *const here = value ? value : next, *const there = next ? next : here;  // either weighs zero
                const float* const weights = reinterpret_cast<const float*>(m.weight(r, p));
                mix<A, 1>(a, weights, here, there - here, A::PER_STEP, m.state(r));
            }
        }
    }
};

// Rows [from, to) of a key head over one chunk -> their states.  Their queries: as `query_place` says.
template <template <class> class Rows, class A>
void read(const Rows<A>& by, int64_t head, const uint32_t* q, int64_t from, int64_t to, int64_t chunk, float* states) {
    typedef typename A::Cached K;
    typedef typename A::Number Number;
    const A& a = by.a;
    const int64_t padded = (a.steps() + LANES - 1) / LANES * LANES, block = by.block;
    const int64_t opened = std::max(MIXED, a.own + by.AT_ONCE);
    constexpr int64_t ALIGNED = std::max(LANES, Rows<A>::AT_ONCE);
    const int64_t rows_room = (to - from + by.MOST) * ROOM;      // tiles end in whole blocks
    float* const weights = scratch<1>(rows_room + OUTPUTS * padded + opened * a.size);
    float* const tile = weights + rows_room;
    Number* const room = reinterpret_cast<Number*>(tile + OUTPUTS * padded);    // of rows that are opened
    const K *const keys = a.k + head * a.k_head, *const values = a.v + head * a.v_head;
    const int64_t begin = chunk * CHUNK, stop = begin + CHUNK;
    int64_t first = stop, end = begin;
    for (int64_t row = a.row(from); row <= a.row(to - 1); ++row) {
        first = std::min(first, a.first[row]);
        end = std::max(end, std::min(stop, a.end(row)));
    }
    const int64_t start = begin + std::max<int64_t>(0, first - begin) / ALIGNED * ALIGNED;
    const int64_t shared = std::max(start, std::min(end, a.shared())), own = std::max(begin, a.shared());
    // Scores with columns [c, last), handed over as [rows, OUTPUTS] from row r on.
    const auto scored = [&](int64_t c, int64_t last, auto&& take) {
        // The next keys, and the values of these positions, which are mixed afterwards.
        const Soon soon{keys + (c + OUTPUTS) * a.k_row, values + c * a.v_row};
        const int64_t columns = std::min(OUTPUTS, last - c);
        turn<A::PAIRS>(numbers_of(keys + c * a.k_row, a.k_row, columns, a.size, room), columns, a.steps(), tile);
        for (int64_t r = from; r < to; r += block) {
            Sums sums[Rows<A>::MOST * VECTORS];
            const int64_t rows = std::min(block, to - r);
            by.scores(q + r * by.query_steps(a), rows, tile, r == from ? soon : Soon{}, sums);
            for (int64_t i = 0; i < rows; ++i) take(r + i, reinterpret_cast<const float*>(sums + i * VECTORS));
        }
    };
    const auto mine = [&](int64_t r) { return weights + (r - from) * ROOM - begin; };      // by position
    for (int64_t c = start; c < shared; c += OUTPUTS)
        scored(c, shared, [&](int64_t r, const float* sums) { std::copy_n(sums, OUTPUTS, mine(r) + c); });
    const int64_t full = begin + (end - begin + ALIGNED - 1) / ALIGNED * ALIGNED;
    for (int64_t r = from; r < to; ++r) {
        const int64_t seen = std::max(start, std::min(a.end(a.row(r)), shared));
        std::fill(mine(r) + shared, mine(r) + std::max(shared, full), HIDDEN);
        std::fill(mine(r) + start, mine(r) + std::max(start, std::min(a.first[a.row(r)], shared)), HIDDEN);
        std::fill(mine(r) + seen, mine(r) + shared, HIDDEN);
    }
    for (int64_t j = 0; own < end && j < a.own; j += OUTPUTS)
        scored(a.prefix + j, a.prefix + a.own, [&](int64_t r, const float* sums) {
            const int64_t row = a.row(r);
            for (int64_t p = own; p < end; ++p)
                if (const int64_t column = a.column(row, p) - j; 0 <= column && column < OUTPUTS)
                    mine(r)[p] = sums[column];
        });
    const Mixing<A> mixing{a, weights, values, room, begin, from, to, states};
    for (int64_t r = from; r < to; ++r)
        soften(mine(r) + start, mixing.weight(r, start), std::max<int64_t>(0, full - start), a.scale * LOG2_E, a.size,
               mixing.state(r));
    // Positions that all rows share, up to a whole step of them where own columns follow.
    const int64_t whole = own < end ? own / by.AT_ONCE * by.AT_ONCE : shared;
    by.mix_shared(mixing, start, std::min(whole, shared));
    if (own >= end) return;
    // The last positions of the prefix, if they are mixed with own columns, and all of these.
    const int64_t rest = std::min(whole, a.prefix);
    by.mix_own(mixing, mixing.opened(rest, a.prefix + a.own - rest), rest, std::max(start, whole), end);
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

// By vectors or by tiles, of which each thread has its own.
template <template <class> class Rows, class A> void attend_by(const A& a, int threads) {
    typedef typename A::Product P;
    typedef typename A::Query T;
    const int64_t block = a.block(Rows<A>::MOST), steps = Rows<A>::query_steps(a);
    const int64_t blocks = (a.all() + block - 1) / block, groups = (blocks + TOGETHER - 1) / TOGETHER;
    const int64_t together = (blocks + groups - 1) / groups * block;            // rows of a group, evenly
    const int64_t room = blocks * block;                                        // rows of a head, in whole blocks
    int64_t lowest = a.prefix + a.own, last = 0;
    for (int64_t i = 0; i < a.rows; ++i) {
        lowest = std::min(lowest, a.first[i]);
        last = std::max(last, a.end(i));
    }
    const int64_t from = lowest / CHUNK, chunks = (last + CHUNK - 1) / CHUNK - from;
    // Where there are few rows, threads read chunks of their own, and their states are merged afterwards.
    const int64_t parts = a.heads * groups < 4 * threads ? chunks : 1;
    // [heads, parts, room, state]
    float* const states = scratch(a.heads * room * (steps + parts * a.state()));
    uint32_t* const queries = reinterpret_cast<uint32_t*>(states + a.heads * parts * room * a.state());
    std::fill_n(queries, a.heads * room * steps, 0);
    for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t r = 0; r < a.all(); ++r) {
            const T* const q = a.q + (head * a.group + r % a.group) * a.q_head + a.row(r) * a.q_row;
            const Place place = Rows<A>::query_place(a, r);
            uint32_t* const to = queries + head * room * steps + place.first;
            for (int64_t s = 0; s < a.steps(); ++s) {
                P some[A::PER_STEP];
                for (int64_t i = 0; i < A::PER_STEP; ++i) store(single(q[s * A::PER_STEP + i]), some + i);
                __builtin_memcpy(to + s * place.apart, some, sizeof some);
            }
        }
    parallel::loop(a.heads * groups * parts, threads, [&](int64_t task) {
        const int64_t part = task % parts, first = task / parts % groups * together, head = task / parts / groups;
        const int64_t end = std::min(a.all(), first + together);
        float* const state = states + ((head * parts + part) * room + first) * a.state();
        const Rows<A> by(a);
        for (int64_t c = parts > 1 ? part : 0; c < (parts > 1 ? part + 1 : chunks); ++c) {
            float* const to = parts > 1 || c == 0 ? state : scratch<2>(together * a.state());
            read(by, head, queries + head * room * steps, first, end, from + c, to);
            for (int64_t r = 0; to != state && r < end - first; ++r)
                merge(a.state(), state + r * a.state(), to + r * a.state());
        }
    });
    for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t r = 0; r < a.all(); ++r) {
            float* const state = states + (head * parts * room + r) * a.state();
            for (int64_t part = 1; part < parts; ++part) merge(a.state(), state, state + part * room * a.state());
            float sum = 0.0f;
            for (int64_t t = 0; t < LANES; ++t) sum += state[LANES + t];
            T* const out = a.out + ((a.row(r) * a.heads + head) * a.group + r % a.group) * a.size;
            for (int64_t d = 0; d < a.size; ++d)
                store(sum > 0.0f ? state[2 * LANES + a.place(d)] / sum : 0.0f, out + d);
        }
}

}  // namespace
