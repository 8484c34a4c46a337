// Products, norms and attention of a pass: the large operands (weights, keys, values) are read once.
// Compiled for the machine it runs on; the compiler splits vectors wider than the machine's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#if defined(__AVX512BF16__)
#include <immintrin.h>
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

// 2^x for x <= 0, within 2e-7 of it; 0 below 2^-126.  The polynomial is Cephes' exp2f.
template <int L> inline typename Of<L>::Vector power_of_two(typename Of<L>::Vector x) {
    typedef typename Of<L>::Vector Vector;
    typedef typename Of<L>::Whole Whole;
    const Whole vanishes = x < -126.0f;
    x = vanishes ? x * 0.0f : x;
    const Whole whole = __builtin_convertvector(x - 0.5f, Whole);
    const Vector rest = x - __builtin_convertvector(whole, Vector);
    Vector y = rest * 1.535336188319500e-4f + 1.339887440266574e-3f;
    y = y * rest + 9.618437357674640e-3f;
    y = y * rest + 5.550332471162809e-2f;
    y = y * rest + 2.402264791363012e-1f;
    y = y * rest + 6.931472028550421e-1f;
    y = y * rest + 1.0f;
    const Whole bits = (whole + 127) << 23;
    Vector scale;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return vanishes ? Vector{} : y * scale;
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

template <class T> inline Sums step(Sums sum, Steps weights, Steps row);
template <> inline Sums step<float>(Sums sum, Steps weights, Steps row) { return sum + (Sums)weights * (Sums)row; }
template <> inline Sums step<uint16_t>(Sums sum, Steps weights, Steps row) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)row);
#else
    sum += (Sums)(weights << 16) * (Sums)(row << 16);
    return sum + (Sums)(weights & 0xffff0000u) * (Sums)(row & 0xffff0000u);
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
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < out; o += OUTPUTS)
        for (int64_t first = 0; first < n; first += most) {
            Sums sums[MOST_ROWS * VECTORS];
            const int64_t rows = std::min(most, n - first);
            // One or two rows wait for memory in any case, and the hardware reads ahead for them.
            tile_of<T>(rows, std::make_integer_sequence<int, MOST_ROWS>())(
                turned + first * steps, packed + o * steps, steps, n > 2 && first + rows == n, sums);
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t t = 0; t < std::min(OUTPUTS, out - o); ++t)
                    store(sums[r * VECTORS + t / LANES][t % LANES] + (bias ? single(bias[o + t]) : 0.0f),
                          y + (first + r) * out + o + t);
        }
}

// Attention, summed in float32.  What a row gets is the same bits in any pass: its columns stand at their positions, in
// chunks that begin at fixed ones, and a score, a sum of weights and a mix of values each have one order.  An ancestor
// in a tree, whose column is elsewhere, is put in the place of its position.

constexpr int64_t CHUNK = 512;                  // positions whose weights have one largest score
constexpr int64_t ROOM = CHUNK + OUTPUTS;       // scores are written by tiles
constexpr int64_t TOGETHER = 4;                 // blocks of rows that read a chunk while it is near
constexpr int PACK = MOST_ROWS / 3;             // rows whose values are mixed together
constexpr float HIDDEN = -1e30f;                // the score of what a row does not see
typedef Of<LANES>::Loose Loose;
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

inline Sums lanes(const float* x) { return *reinterpret_cast<const Loose*>(x); }
inline Sums lanes(const uint16_t* x) {
    return (Sums)(__builtin_convertvector(*reinterpret_cast<const Halves*>(x), Steps) << 16);
}

// Rows of one pass, which columns they see, and strides.  The rows of one key head follow query head by query head.
template <class T> struct Attention {
    const T *q, *k, *v;
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
template <int R, int V, class T>
inline void mixed(const Attention<T>& a, const float* weights, const T* value, int64_t n, float* mix) {
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
            for (int64_t i = 0; i < V; ++i) own[r][i] += weight * column[i];
        }
    }
    for (int64_t r = 0; r < R; ++r)
        for (int64_t i = 0; i < V; ++i) *reinterpret_cast<Loose*>(mix + r * a.state() + i * LANES) = own[r][i];
}
template <class T, int R>
void mix(const Attention<T>& a, const float* weights, const T* value, int64_t n, float* state) {
    float* const mix = state + 2 * LANES;
    int64_t d = 0;
    for (; d + 4 * LANES <= a.size; d += 4 * LANES) mixed<R, 4>(a, weights, value + d, n, mix + d);
    for (; d < a.size; d += LANES) mixed<R, 1>(a, weights, value + d, n, mix + d);
}
template <class T> using Mix = void (*)(const Attention<T>&, const float*, const T*, int64_t, float*);
template <class T, int... R> Mix<T> mix_of(int64_t rows, std::integer_sequence<int, R...>) {
    static const Mix<T> all[] = {mix<T, R + 1>...};
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
        some = largest > HIDDEN ? power_of_two<LANES>(some - largest) : Sums{};
        total += some;
    }
    *reinterpret_cast<Loose*>(state) = Sums{} + largest;
    *reinterpret_cast<Loose*>(state + LANES) = total;
    std::fill_n(state + 2 * LANES, size, 0.0f);
}

// Rows [from, to) of a key head over one chunk -> their states.  q: blocks of rows [size, rows], scaled.
template <class T>
void read(const Attention<T>& a, int64_t head, const float* q, int64_t from, int64_t to, int64_t chunk, float* states) {
    float* const weights = scratch<1>((to - from) * ROOM + OUTPUTS * a.size);
    float* const tile = weights + (to - from) * ROOM;
    const T *const keys = a.k + head * a.k_head, *const values = a.v + head * a.v_head;
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
        mix_of<T>(rows, std::make_integer_sequence<int, PACK>())(
            a, mine(r) + start, values + start * a.v_row, shared - start, states + (r - from) * a.state());
    }
    for (int64_t r = from; r < to; ++r)
        for (int64_t p = own; p < end; ++p)
            if (const int64_t column = a.column(r % a.rows, p); column >= 0)
                mix<T, 1>(a, mine(r) + p, values + (a.prefix + column) * a.v_row, 1, states + (r - from) * a.state());
}

// A row's state over some chunks, and over the next one -> over both.  Compiled once: it rounds one way.
__attribute__((noinline)) void merge(int64_t floats, float* state, const float* next) {
    if (next[0] <= HIDDEN) return;
    const Sums both = lanes(state) > lanes(next) ? lanes(state) : lanes(next);
    const Sums mine = power_of_two<LANES>(lanes(state) - both), theirs = power_of_two<LANES>(lanes(next) - both);
    *reinterpret_cast<Loose*>(state) = both;
    for (int64_t d = LANES; d < floats; d += LANES)
        *reinterpret_cast<Loose*>(state + d) = lanes(state + d) * mine + lanes(next + d) * theirs;
}

template <class T> void attend(const Attention<T>& a, int threads) {
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
    #pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < a.heads * groups * parts; ++task) {
        const int64_t part = task % parts, first = task / parts % groups * together, head = task / parts / groups;
        const int64_t end = std::min(a.all(), first + together);
        float* const state = states + ((head * parts + part) * a.all() + first) * a.state();
        for (int64_t c = parts > 1 ? part : 0; c < (parts > 1 ? part + 1 : chunks); ++c) {
            float* const to = parts > 1 || c == 0 ? state : scratch<2>((end - first) * a.state());
            read(a, head, turned + head * a.all() * a.size, first, end, from + c, to);
            for (int64_t r = 0; to != state && r < end - first; ++r)
                merge(a.state(), state + r * a.state(), to + r * a.state());
        }
    }
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

}  // namespace

extern "C" {

int64_t longgraft_lanes() { return LANES; }
int64_t longgraft_outputs() { return OUTPUTS; }

// y [n, out] = x [n, in] weight [out, in]^T + bias.  packed: the weight as [tiles, steps, OUTPUTS], where what the last
// tile and the last step lack are zeros; bias may be null; half: all are bfloat16.
void longgraft_product(const void* x, const void* packed, const void* bias, void* y, int64_t n, int64_t in, int64_t out,
                      int half, int threads) {
    const uint32_t* const weights = static_cast<const uint32_t*>(packed);
    if (half)
        product(static_cast<const uint16_t*>(x), weights, static_cast<const uint16_t*>(bias), static_cast<uint16_t*>(y),
                n, in, out, threads);
    else
        product(static_cast<const float*>(x), weights, static_cast<const float*>(bias), static_cast<float*>(y), n, in,
                out, threads);
}

// y [n, size] = weight [size] * x / sqrt(mean(x^2) + epsilon), row by row; all contiguous.
void longgraft_norm(const float* x, const float* weight, float* y, int64_t n, int64_t size, float epsilon) {
    constexpr int64_t WIDE = 16;
    for (int64_t r = 0; r < n; ++r, x += size, y += size) {
        Of<WIDE>::Vector part = {};
        const int64_t whole = size / WIDE * WIDE;
        for (int64_t i = 0; i < whole; i += WIDE) {
            const Of<WIDE>::Vector xi = *reinterpret_cast<const Of<WIDE>::Loose*>(x + i);
            part += xi * xi;
        }
        float squares = 0.0f;
        for (int64_t t = 0; t < WIDE; ++t) squares += part[t];
        for (int64_t i = whole; i < size; ++i) squares += x[i] * x[i];
        const float share = 1.0f / std::sqrt(squares / static_cast<float>(size) + epsilon);
        for (int64_t i = 0; i < size; ++i) y[i] = weight[i] * (x[i] * share);
    }
}

// sizes: heads, group, rows, size (a multiple of the lanes), prefix, slots, own columns, then six strides; half: q, k, v
// and out are bfloat16.
void longgraft_attention(const void* q, const void* k, const void* v, void* out, const int64_t* first,
                        const int32_t* order, const int64_t* sizes, float scale, int half, int threads) {
    const auto run = [&](auto type) {
        typedef decltype(type) T;
        attend(Attention<T>{static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                            static_cast<T*>(out), first, order, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                            sizes[5], sizes[6], sizes[7], sizes[8], sizes[9], sizes[10], sizes[11], sizes[12], scale},
               threads);
    };
    if (half) run(uint16_t{});
    else run(float{});
}

}
