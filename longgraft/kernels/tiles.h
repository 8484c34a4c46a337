// Products of rows with one tile of outputs, which the products of floats and attention's scores are made of.

#pragma once

#include <cstdint>
#include <utility>

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

}  // namespace
