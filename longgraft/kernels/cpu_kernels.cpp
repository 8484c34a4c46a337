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

constexpr int64_t TILE = 8;         // outputs or columns at once: enough independent sums for two a cycle
constexpr int64_t LINE = 16;        // floats of a cache line
constexpr float HIDDEN = -1e30f;    // the score of a masked column; its weight beside any real score is 0
constexpr float LOG2_E = 1.44269504088896341f;

template <int L> struct Of {
    typedef float Vector __attribute__((vector_size(4 * L)));
    typedef float Loose __attribute__((vector_size(4 * L), aligned(4), may_alias));      // at any address
    typedef int32_t Whole __attribute__((vector_size(4 * L)));
};

struct Free { void operator()(void* p) const { std::free(p); } };

// A buffer of that many floats, 64 bytes aligned and kept per thread: a pass requests one hundreds of times.
float* scratch(int64_t floats) {
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
// address on, and what a row has at a step is one number for all lanes.  A step is four bytes: a float, or two bfloat16.
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

// Attention of a few rows in float32.  The rows are the lanes: a key or a value is one number for all of them, so torch's
// own layout suffices, nothing is summed across lanes, and a softmax is the same few operations for every row.

// Rows of one pass, which columns they see, and strides.
struct Attention {
    const float *q, *k, *v;
    float* out;                 // [n, H, D]
    const int64_t* lowest;      // [n] the first column that a row sees
    const uint8_t* seen;        // [n, m] of the last m columns, those that it sees
    int64_t heads, group, rows, size, prefix, own;
    int64_t q_head, q_row, k_head, k_row, v_head, v_row;        // strides
    float scale;
};

// A partial softmax of L packed rows of one key head over some columns, which can be merged with others.
template <int L> struct Partial {
    typename Of<L>::Vector most, total;         // the largest score, the sum of weights
    typename Of<L>::Vector mix[];               // [D] the weighted values
    static int64_t floats(int64_t size) { return (2 + size) * L; }

    void merge(const Partial& other, int64_t size) {
        typedef typename Of<L>::Vector Vector;
        const Vector both = most > other.most ? most : other.most;
        const Vector mine = power_of_two<L>(most - both), theirs = power_of_two<L>(other.most - both);
        most = both;
        total = total * mine + other.total * theirs;
        for (int64_t d = 0; d < size; ++d) mix[d] = mix[d] * mine + other.mix[d] * theirs;
    }
};

// N times L packed rows of one key head.
template <int L, int N> struct Packed {
    typedef typename Of<L>::Vector Vector;
    typedef typename Of<L>::Whole Whole;
    const Attention& a;
    const float *keys, *values;
    Vector* const query;        // [D, N], scaled
    Whole* const sees;          // [m, N]
    Whole lowest[N];
    int64_t all = 0;            // every row sees the prefix columns from here on

    static int64_t floats(const Attention& a) { return (a.size + a.own) * L * N; }

    Packed(const Attention& a, int64_t head, int64_t first, float* room)
        : a(a), keys(a.k + head * a.k_head), values(a.v + head * a.v_head),
          query(reinterpret_cast<Vector*>(room)), sees(reinterpret_cast<Whole*>(room + a.size * L * N)) {
        for (int64_t r = 0; r < L * N; ++r) {
            const int64_t packed = std::min(first + r, a.group * a.rows - 1), i = packed % a.rows;
            const float* q = a.q + (head * a.group + packed / a.rows) * a.q_head + i * a.q_row;
            for (int64_t d = 0; d < a.size; ++d) query[d * N + r / L][r % L] = q[d] * (a.scale * LOG2_E);
            for (int64_t j = 0; j < a.own; ++j) sees[j * N + r / L][r % L] = a.seen[i * a.own + j] ? -1 : 0;
            lowest[r / L][r % L] = static_cast<int32_t>(a.lowest[i]);
            all = std::max(all, a.lowest[i]);
        }
    }

    // Columns [first, first + columns), at most TILE.  Prefetches the next operands line by line, beside the sums.
    void read(int64_t first, int64_t columns, Partial<L>* const* partials) const {
        const float *key[TILE], *value[TILE];
        for (int64_t t = 0; t < TILE; ++t) {
            const int64_t column = first + std::min(t, columns - 1);
            key[t] = keys + column * a.k_row;
            value[t] = values + column * a.v_row;
        }
        Vector weight[TILE][N] = {};
        for (int64_t begin = 0; begin < a.size; begin += LINE) {
            for (int64_t t = 0; t < TILE; ++t) __builtin_prefetch(value[t] + begin);
            for (int64_t d = begin; d < std::min(a.size, begin + LINE); ++d)
                for (int64_t t = 0; t < TILE; ++t)
                    for (int64_t s = 0; s < N; ++s) weight[t][s] += key[t][d] * query[d * N + s];
        }
        if (columns < TILE || first < all || first + columns > a.prefix) hide(first, columns, weight);
        Vector fade[N];
        for (int64_t s = 0; s < N; ++s) {
            Vector most = partials[s]->most, total = {};
            for (int64_t t = 0; t < TILE; ++t) most = weight[t][s] > most ? weight[t][s] : most;
            for (int64_t t = 0; t < TILE; ++t) total += weight[t][s] = power_of_two<L>(weight[t][s] - most);
            fade[s] = power_of_two<L>(partials[s]->most - most);
            partials[s]->most = most;
            partials[s]->total = partials[s]->total * fade[s] + total;
        }
        for (int64_t d = 0; d < a.size; d += TILE) {
            Vector mixed[TILE][N] = {};
            for (int64_t c = 0; c < columns; ++c) {
                const float* row = values + (first + c) * a.v_row + d;
                if (d % LINE == 0) __builtin_prefetch(keys + (first + TILE + c) * a.k_row + d);
                for (int64_t t = 0; t < TILE; ++t)
                    for (int64_t s = 0; s < N; ++s) mixed[t][s] += row[t] * weight[c][s];
            }
            for (int64_t t = 0; t < TILE; ++t)
                for (int64_t s = 0; s < N; ++s) partials[s]->mix[d + t] = partials[s]->mix[d + t] * fade[s] + mixed[t][s];
        }
    }

    void hide(int64_t first, int64_t columns, Vector (*weight)[N]) const {
        for (int64_t c = 0; c < TILE; ++c)
            for (int64_t s = 0; s < N; ++s) {
                const int64_t column = first + c;
                Whole seen = Whole{} - (c < columns);
                if (column < all) seen &= lowest[s] <= static_cast<int32_t>(column);
                if (c < columns && column >= a.prefix) seen &= sees[(column - a.prefix) * N + s];
                weight[c][s] = seen ? weight[c][s] : Vector{} + HIDDEN;
            }
    }
};

template <int L, int N> void attend(const Attention& a, int threads) {
    typedef typename Of<L>::Vector Vector;
    const int64_t packs = (a.group * a.rows + L * N - 1) / (L * N), end = a.prefix + a.own;
    const int64_t first = *std::min_element(a.lowest, a.lowest + a.rows);
    const int64_t blocks = (end - first + TILE - 1) / TILE, parts = std::min<int64_t>(threads, blocks);
    const int64_t floats = Partial<L>::floats(a.size), room = Packed<L, N>::floats(a);
    float* const buffer = scratch(a.heads * packs * parts * (N * floats + room));
    const auto partial = [&](int64_t task, int64_t s) {
        return reinterpret_cast<Partial<L>*>(buffer + (task * N + s) * floats);
    };
    float* const rooms = buffer + a.heads * packs * parts * N * floats;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t task = 0; task < a.heads * packs * parts; ++task) {
        const int64_t part = task % parts, pack = task / parts % packs, head = task / parts / packs;
        Partial<L>* mine[N];
        for (int64_t s = 0; s < N; ++s) {
            mine[s] = partial(task, s);
            mine[s]->most = Vector{} + HIDDEN;
            mine[s]->total = Vector{};
            std::fill_n(mine[s]->mix, a.size, Vector{});
        }
        const Packed<L, N> rows(a, head, pack * L * N, rooms + task * room);
        for (int64_t b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b)
            rows.read(first + b * TILE, std::min(TILE, end - first - b * TILE), mine);
    }
    for (int64_t which = 0; which < a.heads * packs * N; ++which) {
        const int64_t head = which / N / packs, begin = which % (packs * N) * L, s = which % N;
        Partial<L>& whole = *partial(which / N * parts, s);
        for (int64_t part = 1; part < parts; ++part) whole.merge(*partial(which / N * parts + part, s), a.size);
        const Vector share = 1.0f / whole.total;
        for (int64_t r = 0; r < std::min<int64_t>(L, a.group * a.rows - begin); ++r) {
            const int64_t query_head = head * a.group + (begin + r) / a.rows;
            float* out = a.out + ((begin + r) % a.rows * a.heads * a.group + query_head) * a.size;
            for (int64_t d = 0; d < a.size; ++d) out[d] = whole.mix[d][r] * share[r];
        }
    }
}

}  // namespace

extern "C" {

int64_t longgraft_outputs() { return OUTPUTS; }

// y [n, out] = x [n, in] weight [out, in]^T + bias.  packed: the weight as [tiles, steps, OUTPUTS], where the last tile's
// missing outputs and the last step's missing input are zeros; bias may be null; half: all are bfloat16.
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

// sizes: heads, group, rows, size, prefix, own, then six strides.
void longgraft_attention(const float* q, const float* k, const float* v, float* out, const int64_t* lowest,
                        const uint8_t* seen, const int64_t* sizes, float scale, int threads) {
    const Attention a{q, k, v, out, lowest, seen, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],
                      sizes[6], sizes[7], sizes[8], sizes[9], sizes[10], sizes[11], scale};
    const int64_t packed = a.group * a.rows;
    (packed <= 4 ? attend<4, 1> : packed <= 8 ? attend<8, 1> : packed <= 16 ? attend<16, 1> : attend<16, 2>)(
        a, threads);
}

}
