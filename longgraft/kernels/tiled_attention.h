// Attention over bfloat16 on the tile unit, where the processor has one and the system allows it.
//
// The rows of a key head are the rows of a tile.  Keys are turned and values paired once for all rows that read a chunk
// together.  Every row goes by tiles, also a single one: a product of tiles sums in another order than `step`.
//
// A row's bits do not depend on its tile: a product adds a sum over 32 numbers of a head to a score, or over the 32
// positions from a multiple of 32 on to a mix.  What is behind the end of a head or of what a row sees is a zero.

#pragma once

#include "attention.h"
#include "tile_unit.h"

namespace {

#if defined(TILES)
constexpr int64_t TILE_WORDS = TILE_ROWS * LANES;

// Tiles 0 to 3: sums of a block of rows; 4: their queries or weights; 6 and 7: keys or values.
inline TileShapes shapes_of_rows(int64_t rows) {
    TileShapes shapes;
    for (int tile : {0, 1, 2, 3, 4, 6, 7}) {
        shapes.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : TILE_ROWS);
        shapes.bytes[tile] = TILE_BYTES;
    }
    return shapes;
}

// Tile 4 holds the weights.  A macro, because tiles are named by literals.
#define ADD_VALUES(SUMS, VALUES, TILE)          \
    do {                                        \
        TILE_LOAD(VALUES, TILE, TILE_BYTES);    \
        TILE_MULTIPLY_BFLOATS(SUMS, 4, VALUES); \
    } while (false)

// Scores and mixes by tiles; has the thread's tiles.
template <class A> struct TiledRows {
    static constexpr int64_t MOST = TILE_ROWS;          // rows of a block
    static constexpr int64_t AT_ONCE = 2 * TILE_ROWS;   // positions that are mixed in one step
    const A& a;
    const int64_t block, parts;     // rows of a block, vectors of a head
    const TileScope scope;

    explicit TiledRows(const A& given)
        : a(given), block(given.block(MOST)), parts(given.size / LANES), scope(shapes_of_rows(block)),
          some(scratch<6>(MOST * a.size + a.size + CHUNK * a.size / 2)),
          none(reinterpret_cast<uint16_t*>(some + MOST * a.size)),
          paired(reinterpret_cast<uint32_t*>(some + (MOST + 1) * a.size)) {
        std::fill_n(none, a.size, 0);
    }

    // Queries lie row by row, each in whole tiles.
    static int64_t query_steps(const A& a) { return (a.steps() + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS; }
    static Place query_place(const A& a, int64_t r) { return {r * query_steps(a), 1}; }

    // Scores of a block of rows with a tile of turned columns -> sums [rows, OUTPUTS].
    void scores(const uint32_t* q, int64_t, const float* tile, Soon soon, Sums* sums) const {
        constexpr int64_t APART = OUTPUTS * sizeof(float);
        const int64_t steps = query_steps(a);
        for (int64_t s = 0; soon.first && s < a.steps(); ++s) {
            prefetch<APART>(soon.first, s * APART);
            prefetch<APART>(soon.second, s * APART);
        }
        written_before_tiles();
        TILE_ZERO(0);
        TILE_ZERO(1);
        for (int64_t s = 0; s < steps; s += TILE_ROWS) {
            TILE_LOAD(4, q + s, steps * sizeof *q);
            TILE_LOAD(6, tile + s * OUTPUTS, APART);
            TILE_MULTIPLY_BFLOATS(0, 4, 6);
            TILE_LOAD(7, tile + s * OUTPUTS + LANES, APART);
            TILE_MULTIPLY_BFLOATS(1, 4, 7);
        }
        TILE_STORE(0, sums, APART);
        TILE_STORE(1, sums + 1, APART);
    }

    // Positions [first, last), whose columns stand at them.
    void mix_shared(const Mixing<A>& m, int64_t first, int64_t last) const {
        const int64_t together = m.to - m.from > block ? CHUNK : MIXED;
        for (int64_t c = first; c < last; c += together) {
            const int64_t count = std::min(together, last - c);
            for (int64_t i = 0; i < count; i += MIXED) {
                const int64_t n = std::min(MIXED, count - i);
                const NumberRows<uint16_t> some = m.opened(c + i, n);
                pair_values(i, n, [&](int64_t k) { return some.first + k * some.apart; });
            }
            for (int64_t r = m.from; r < m.to; r += block)
                mix_paired(m.weight(r, c), count, m.state(r) + 2 * LANES, a.state());
        }
    }

    // Positions [first, last), some of whose columns are elsewhere: all query heads of a row see the same ones.
    // values: of the columns from `rest` on.
    void mix_own(const Mixing<A>& m, NumberRows<uint16_t> values, int64_t rest, int64_t first, int64_t last) const {
        for (int64_t r = m.from, until; r < m.to; r = until) {
            until = std::min(m.to, (a.row(r) + 1) * a.group);
            pair_values(0, last - first, [&](int64_t k) { return a.value(values, rest, a.row(r), first + k); });
            for (int64_t begin = r; begin < until; begin += block) {
                const int64_t rows = std::min(block, until - begin);
                for (int64_t i = 0; i < rows; ++i)
                    std::copy_n(m.state(begin + i) + 2 * LANES, a.size, some + i * a.size);
                mix_paired(m.weight(begin, first), last - first, some, a.size);
                for (int64_t i = 0; i < rows; ++i)
                    std::copy_n(some + i * a.size, a.size, m.state(begin + i) + 2 * LANES);
            }
        }
    }

private:
    // Of this thread:
    float* const some;              // the mixes of a block of rows
    uint16_t* const none;           // zeros for a position without a value
    uint32_t* const paired;         // the values of a chunk

    // The values of n positions -> tiles [steps, parts, TILE_ROWS, LANES], a pair of positions in a word.
    // first: the first one's place in them, a multiple of AT_ONCE; value(i): those of position i, or null.
    template <class Value> void pair_values(int64_t first, int64_t n, const Value& value) const {
        const auto found = [&](int64_t i) -> const uint16_t* {
            const uint16_t* const own = i < n ? value(i) : nullptr;
            return own ? own : none;
        };
        uint32_t* const tiles = paired + first / AT_ONCE * parts * TILE_WORDS;
        for (int64_t i = 0; i < (n + AT_ONCE - 1) / AT_ONCE * AT_ONCE; i += 2) {
            const uint16_t *const even = found(i), *const odd = found(i + 1);
            uint32_t* const to = tiles + i / AT_ONCE * parts * TILE_WORDS + i / 2 % TILE_ROWS * LANES;
            for (int64_t part = 0; part < parts; part += VECTORS) {
                Sums pairs[VECTORS];
                const int64_t left = std::min(VECTORS, parts - part);
                if (left == VECTORS) step_pairs<VECTORS>(even + part * LANES, odd + part * LANES, pairs);
                else step_pairs<1>(even + part * LANES, odd + part * LANES, pairs);
                for (int64_t v = 0; v < left; ++v)
                    *reinterpret_cast<Steps*>(to + (part + v) * TILE_WORDS) = (Steps)pairs[v];
            }
        }
    }

    // mix [block, size] += weights [block, count] of the paired values.  apart: floats from a row's mix to the next.
    void mix_paired(const uint16_t* weights, int64_t count, float* mix, int64_t apart) const {
        const int64_t steps = (count + AT_ONCE - 1) / AT_ONCE, bytes = apart * sizeof(float);
        const auto values = [&](int64_t step, int64_t part) { return paired + (step * parts + part) * TILE_WORDS; };
        int64_t part = 0;
        written_before_tiles();
        for (; part + 4 <= parts; part += 4) {
            float* const to = mix + part * LANES;
            TILE_LOAD(0, to, bytes);
            TILE_LOAD(1, to + LANES, bytes);
            TILE_LOAD(2, to + 2 * LANES, bytes);
            TILE_LOAD(3, to + 3 * LANES, bytes);
            for (int64_t s = 0; s < steps; ++s) {
                TILE_LOAD(4, weights + s * AT_ONCE, ROOM * sizeof(float));
                ADD_VALUES(0, 6, values(s, part));
                ADD_VALUES(1, 7, values(s, part + 1));
                ADD_VALUES(2, 6, values(s, part + 2));
                ADD_VALUES(3, 7, values(s, part + 3));
            }
            TILE_STORE(0, to, bytes);
            TILE_STORE(1, to + LANES, bytes);
            TILE_STORE(2, to + 2 * LANES, bytes);
            TILE_STORE(3, to + 3 * LANES, bytes);
        }
        for (; part < parts; ++part) {
            TILE_LOAD(0, mix + part * LANES, bytes);
            for (int64_t s = 0; s < steps; ++s) {
                TILE_LOAD(4, weights + s * AT_ONCE, ROOM * sizeof(float));
                ADD_VALUES(0, 6, values(s, part));
            }
            TILE_STORE(0, mix + part * LANES, bytes);
        }
    }
};
#endif

template <class A> void attend(const A& a, int threads) {
#if defined(TILES)
    if constexpr (A::PAIRS)
        if (tiles_allowed()) return attend_by<TiledRows>(a, threads);
#endif
    attend_by<VectorRows>(a, threads);
}

}  // namespace
