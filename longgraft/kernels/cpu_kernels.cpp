// Products, norms and attention of a pass: the large operands (weights, keys, values) are read once.
// Compiled for the machine it runs on; the compiler splits vectors wider than the machine's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "experts.h"
#include "gates.h"
#include "parallel.h"
#include "products.h"
#include "tiled_attention.h"
#include "tiles.h"
#include "vectors.h"

namespace {

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
                write_row(k + from, w.size, keys + head * p.k_head + to * p.k_row);
                write_row(v + from, w.size, values + head * p.v_head + to * p.v_row);
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
    gated(gate, up, n * w.gate.out, Gate{w.tanh ? TANH : SILU, 0.0f, 0.0f}, threads);
    products<T>(gate, n, {{&w.down, states}}, threads);
    add(y, w.after_gate);
}

// Calls action(T, K): of a model's numbers and of its cache's.  half: the model's are bfloat16; cached: 0 for those of the
// model, 1 for bfloat16, 2 for rows of bytes (`cached_rows.h`).
template <class Action> void by_type(int half, int cached, const Action& action) {
    if (half && cached == 2) action(uint16_t{}, int8_t{});
    else if (half) action(uint16_t{}, uint16_t{});
    else if (cached == 2) action(float{}, int8_t{});
    else if (cached) action(float{}, uint16_t{});
    else action(float{}, float{});
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
    sizes[4] = sizeof(Experts);
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

// y [n, hidden]: what a mixture's experts make of x [n, hidden].  ids, shares [n, chosen]: each row's experts, and their
// shares of its sum; half: x, y and biases are bfloat16.
int longgraft_experts(const Experts* of, const void* x, const int64_t* ids, const float* shares, void* y, int64_t n,
                      int64_t chosen, int half, int threads) {
    return tried([&] {
        const Choices choices{ids, shares, n, chosen};
        if (half) mixture(*of, static_cast<const uint16_t*>(x), choices, static_cast<uint16_t*>(y), threads);
        else mixture(*of, static_cast<const float*>(x), choices, static_cast<float*>(y), threads);
    });
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
// and values are written to the buffers [kv heads, capacity, row] from the prefix on.  half, cached: as of `by_type`.
int longgraft_layer(const Layer* of, const void* x, void* y, const void* cos, const void* sin, void* queries,
                    const Part* parts, int64_t count, int half, int cached, int threads) {
    return tried([&] {
        by_type(half, cached, [&](auto type, auto row) {
            layer<decltype(type), decltype(row)>(*of, x, y, cos, sin, queries, parts, count, threads);
        });
    });
}

// sizes: heads, group, rows, size (a multiple of the lanes), prefix, slots, own columns, then six strides; half, cached:
// as of `by_type`.
int longgraft_attention(const void* q, const void* k, const void* v, void* out, const int64_t* first,
                        const int32_t* order, const int64_t* sizes, float scale, int half, int cached,
                        int threads) {
    const auto run = [&](auto type, auto row) {
        typedef decltype(type) T;
        typedef decltype(row) K;
        attend(Attention<T, K>{static_cast<const T*>(q), static_cast<const K*>(k), static_cast<const K*>(v),
                               static_cast<T*>(out), first, order, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                               sizes[5], sizes[6], sizes[7], sizes[8], sizes[9], sizes[10], sizes[11], sizes[12], scale},
               threads);
    };
    return tried([&] { by_type(half, cached, run); });
}

}
