// Products, norms and attention of a pass: the large operands (weights, keys, values) are read once.
// Compiled for the machine it runs on; the compiler splits vectors wider than the machine's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "integer_products.h"
#include "parallel.h"
#include "vectors.h"

namespace {

// A product.  Outputs are the lanes: weights lie packed tile by tile, step by step, so that a tile is read from one
// address on, and what a row has at a step is one number for all lanes.  A step is four bytes: a float, two bfloat16.
// Each output is one sum over the steps in their order, whatever the number of rows, blocks and threads.

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

// Memory that is read soon, brought nearer step by step meanwhile, or null.
struct Soon { const void *first, *second; };

// R rows [steps, R] of one tile [steps, OUTPUTS] -> sums [R, OUTPUTS].
template <class T, int R>
void tile(const uint32_t* rows, const uint32_t* weights, int64_t steps, Soon soon, Sums* sums) {
    Sums own[R][VECTORS] = {};
    for (int64_t i = 0; i < steps; ++i, weights += OUTPUTS, rows += R) {
        if (soon.first) prefetch<OUTPUTS * 4>(soon.first, i * OUTPUTS * 4);
        if (soon.second) prefetch<OUTPUTS * 4>(soon.second, i * OUTPUTS * 4);
        Steps weight[VECTORS];
        for (int64_t v = 0; v < VECTORS; ++v) {
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

typedef void (*Tile)(const uint32_t*, const uint32_t*, int64_t, Soon, Sums*);
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
            // The processor itself reads ahead of one or two rows of floats.
            const bool fetch = n > 2 || sizeof(T) < 4;
            const uint32_t* const weights = packed + o * steps;
            tile_of<T>(rows, std::make_integer_sequence<int, MOST_ROWS>())(
                turned + first * steps, weights, steps, {fetch ? weights + AHEAD / 8 : nullptr, nullptr}, sums);
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t v = 0; v < VECTORS; ++v)
                    store_row(sums[r * VECTORS + v], bias, y + (first + r) * out, o + v * LANES, out);
        }
    });
}

// y_i [n, out_i] = x [n, in] w_i^T + bias_i, of several weights.
template <class T>
void products(const T* x, int64_t n, std::initializer_list<std::pair<const Weight*, T*>> all, int threads) {
    RoundedRows rows{};
    for (const auto& [w, y] : all) {
        if (w->type == FLOATS) {
            product(x, static_cast<const uint32_t*>(w->data), static_cast<const T*>(w->bias), y, n, w->in, w->out,
                    threads);
            continue;
        }
        if (!rows.codes) rows = rounded_rows(x, n, w->in);
        integer_product(rows, *w, y, threads);
    }
}

// Attention, summed in float32.  What a row gets is the same bits in any pass: its columns stand at their positions, in
// chunks that begin at fixed ones, and a score, a sum of weights and a mix of values each have one order.  An ancestor
// in a tree, whose column is elsewhere, is put in the place of its position.

constexpr int64_t CHUNK = 512;                  // positions whose weights have one largest score
constexpr int64_t ROOM = CHUNK + OUTPUTS;       // scores are written by tiles
constexpr int64_t TOGETHER = 4;                 // blocks of rows that read a chunk while it is near
constexpr int64_t MIXED = 64;                   // positions whose values stay in the first cache, for all rows
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
            Sums weight = all_lanes(weights[r * ROOM + c]);
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
    for (; d + OUTPUTS <= a.size; d += OUTPUTS) mixed<R, VECTORS>(a, weights, value + d, n, mix + d);
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
        // The next keys, and the values of these positions, which are mixed afterwards.
        const Soon soon{keys + (c + OUTPUTS) * a.k_row, values + c * a.v_row};
        turn(keys, a.k_row, c, last, a.size, tile);
        for (int64_t r = from; r < to; r += a.block()) {
            Sums sums[MOST_ROWS * VECTORS];
            const int64_t rows = std::min(a.block(), to - r);
            tile_of<float>(rows, std::make_integer_sequence<int, MOST_ROWS>())(
                reinterpret_cast<const uint32_t*>(q + r * a.size), reinterpret_cast<const uint32_t*>(tile), a.size,
                r == from ? soon : Soon{}, sums);
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
    for (int64_t c = start; c < shared; c += MIXED)
        for (int64_t r = from; r < to; r += a.block()) {
            const int64_t rows = std::min(a.block(), to - r);
            mix_of<A>(rows, std::make_integer_sequence<int, MOST_ROWS>())(
                a, mine(r) + c, values + c * a.v_row, std::min(MIXED, shared - c), states + (r - from) * a.state());
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
        const int64_t i = vector * LANES, some = std::min(LANES, count - i);
        T padded[2][LANES] = {};
        const T *own = gate + i, *other = up + i;
        if (some < LANES) {
            own = std::copy_n(own, some, padded[0]) - some;
            other = std::copy_n(other, some, padded[1]) - some;
        }
        const Sums x = lanes(own);
        store_row<T>((tanh ? gelu(x) : silu(x)) * lanes(other), nullptr, gate, i, count);
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

// 0, or -1 where the system had no memory for a buffer.
template <class Action> int tried(const Action& action) {
    try {
        action();
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
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

// All that follow return 0, or -1 where the system had no memory for a buffer.

// y [n, out] = x [n, in] weight^T + bias; half: x, bias, y and a weight that has no codes are bfloat16.
int longgraft_product(const void* x, const Weight* weight, void* y, int64_t n, int half, int threads) {
    return tried([&] {
        if (half) products(static_cast<const uint16_t*>(x), n, {{weight, static_cast<uint16_t*>(y)}}, threads);
        else products(static_cast<const float*>(x), n, {{weight, static_cast<float*>(y)}}, threads);
    });
}

// Rows of a GGUF file's blocks into a weight's tiles, from its first on.
int longgraft_pack_blocks(const Weight* weight, const uint8_t* raw, int64_t rows, int64_t row_bytes, int threads) {
    return tried([&] { pack_blocks(*weight, raw, rows, row_bytes, threads); });
}

// y [n, in]: rows `ids` [n] of a weight in integers, as floats.
int longgraft_integer_rows(const Weight* weight, const int64_t* ids, int64_t n, float* y) {
    return tried([&] { integer_rows(*weight, ids, n, y); });
}

// y [n, size] = (weight + plus) [size] * x / sqrt(mean(x^2) + epsilon), row by row; all contiguous.
int longgraft_norm(const void* x, const Norm* norm, void* y, int64_t n, int64_t size, int half) {
    return tried([&] {
        if (half) normed(static_cast<const uint16_t*>(x), *norm, static_cast<uint16_t*>(y), n, size, 1);
        else normed(static_cast<const float*>(x), *norm, static_cast<float*>(y), n, size, 1);
    });
}

// A decoder layer over n new tokens: x [n, hidden] -> y [n, hidden].  cos, sin [n, size] of x's dtype; queries: null, or
// room for the rotated ones [n, heads, size]; parts: the sequences whose tokens these are, one after another; their keys
// and values are written to the buffers [kv heads, capacity, size] from the prefix on.
int longgraft_layer(const Layer* of, const void* x, void* y, const void* cos, const void* sin, void* queries,
                    const Part* parts, int64_t count, int half, int half_cache, int threads) {
    const auto run = half ? layer<uint16_t, uint16_t> : half_cache ? layer<float, uint16_t> : layer<float, float>;
    return tried([&] { run(*of, x, y, cos, sin, queries, parts, count, threads); });
}

// sizes: heads, group, rows, size (a multiple of the lanes), prefix, slots, own columns, then six strides; half: all are
// bfloat16; half_cache: k and v are.
int longgraft_attention(const void* q, const void* k, const void* v, void* out, const int64_t* first,
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
    return tried([&] {
        if (half) run(uint16_t{}, uint16_t{});
        else if (half_cache) run(float{}, uint16_t{});
        else run(float{}, float{});
    });
}

}
