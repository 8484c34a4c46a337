// Products of rows with the weights of linear modules, in floats or in blocks of integers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "integer_products.h"
#include "parallel.h"
#include "tiles.h"
#include "vectors.h"

namespace {

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

}  // namespace
