// Products of many rows with weights in blocks of integers, on the tile unit, with the bits of a row alone: the sums of
// a group are exact integers, and the groups are summed as in `integer_tile`.
//
// A tile of rows holds a span.  Two groups of 16 share one: each has a tile of weights with zeros in the other's place.

#pragma once

#include "integer_weights.h"
#include "row_blocks.h"
#include "tile_unit.h"

#if defined(TILES)
namespace {

constexpr int64_t TILED_FROM = 13;      // rows; up to twelve are faster without tiles (measured on a Xeon of 2023)
constexpr int64_t TILED_ROWS = 64;      // of a block: four tiles of rows for each tile of weights
constexpr int64_t TILED_GROUPS = 4;     // groups whose sums are made before they are added up as floats
constexpr int64_t SPAN_STEPS = SPAN / 4; // of four inputs
constexpr int64_t ADDED_ROWS = 8;       // rows whose float sums stay in registers meanwhile
static_assert(LANES == TILE_ROWS, "a tile of weights has an output in each lane");

// Tiles 0 and 1: sums of 16 rows; 2: of the rows that are left; 4, 5 and 6: those rows; 3 and 7: weights.  Two of each
// kind, so that a product does not wait for the one before.
inline TileShapes shapes_of(int64_t rows) {
    TileShapes shapes;
    const int64_t left = rows % TILE_ROWS ? rows % TILE_ROWS : TILE_ROWS;
    const uint8_t whole = static_cast<uint8_t>(rows < TILE_ROWS ? left : TILE_ROWS);
    for (int tile : {0, 1, 2}) {
        shapes.rows[tile] = tile == 2 ? static_cast<uint8_t>(left) : whole;
        shapes.bytes[tile] = TILE_BYTES;
    }
    for (int tile : {4, 5, 6}) {
        shapes.rows[tile] = tile == 6 ? static_cast<uint8_t>(left) : whole;
        shapes.bytes[tile] = SPAN;
    }
    for (int tile : {3, 7}) {
        shapes.rows[tile] = SPAN_STEPS;
        shapes.bytes[tile] = TILE_BYTES;
    }
    return shapes;
}

// A group's codes less the code of zero: the tile unit multiplies signed bytes.
template <int64_t TYPE> inline void unpack_signed(const Steps* packed, Steps* codes) {
    constexpr Form FORM = form_of(TYPE);
    unpack_group<TYPE>(packed, codes);
    if constexpr (FORM.zero > 0 && !(FORM.width() == 8 && CENTRE)) {
        typedef int8_t Bytes __attribute__((vector_size(4 * LANES), may_alias));
        for (int64_t s = 0; s < FORM.group / 4; ++s)
            codes[s] = (Steps)((Bytes)codes[s] - static_cast<int8_t>(FORM.zero));
    }
}

// The sums of some rows with some groups of one tile of outputs.
struct GroupSums {
    alignas(64) int32_t of[TILED_ROWS / TILE_ROWS][TILED_GROUPS][TILE_ROWS * LANES];
};

// What a tile of outputs needs of its groups and rows to add their sums up.
struct AddedGroups {
    const GroupSums& sums;
    const Sums *scale, *low;            // [groups]
    const float *row_scales, *totals;   // of the first group: [spans, rows], [groups, rows]
    int64_t groups, rows;
};

// R rows from row `first` on: sums [rows] += the groups, in order.
template <int64_t TYPE, int R> inline void add_groups(const AddedGroups& a, int64_t first, Sums* sums) {
    constexpr Form FORM = form_of(TYPE);
    constexpr int64_t PARTS = SPAN / FORM.group;
    Sums own[R];
    for (int r = 0; r < R; ++r) own[r] = sums[first + r];
    for (int64_t g = 0; g < a.groups; ++g) {
        const Integers* const found = reinterpret_cast<const Integers*>(a.sums.of[first / TILE_ROWS][g])
            + first % TILE_ROWS;
        const float* const row_scales = a.row_scales + g / PARTS * a.rows + first;
        const float* const totals = a.totals + g * a.rows + first;
        for (int r = 0; r < R; ++r) {
            own[r] = fused(__builtin_convertvector(found[r], Sums), a.scale[g] * row_scales[r], own[r]);
            if constexpr (FORM.lows) own[r] = fused(-a.low[g], all_lanes(totals[r]), own[r]);
        }
    }
    for (int r = 0; r < R; ++r) sums[first + r] = own[r];
}

// Macros, because tiles are named by literals.
#define STORE_PRODUCT(SUMS, ROWS, WEIGHTS, TO) \
    do {                                       \
        TILE_ZERO(SUMS);                       \
        TILE_MULTIPLY(SUMS, ROWS, WEIGHTS);    \
        TILE_STORE(SUMS, TO, TILE_BYTES);      \
    } while (false)
// Group i, which has a span of its own.
#define STORE_GROUP(SUMS, ROWS, WEIGHTS)                         \
    do {                                                         \
        TILE_LOAD(WEIGHTS, weights[i], TILE_BYTES);              \
        for (int64_t b = 0; b < whole; ++b) {                    \
            TILE_LOAD(ROWS, row + b * TILE_ROWS * SPAN, SPAN);   \
            STORE_PRODUCT(SUMS, ROWS, WEIGHTS, found.of[b][i]);  \
        }                                                        \
        if (left) {                                              \
            TILE_LOAD(6, row + whole * TILE_ROWS * SPAN, SPAN);  \
            STORE_PRODUCT(2, 6, WEIGHTS, found.of[whole][i]);    \
        }                                                        \
    } while (false)

// The sums of a block's rows with `count` groups.  row: of the first group's span.
template <int64_t PARTS>
void multiply_groups(int64_t rows, const int8_t* row, const Steps (*weights)[SPAN_STEPS], int64_t count,
                     GroupSums& found) {
    const int64_t whole = rows / TILE_ROWS;
    const bool left = rows % TILE_ROWS > 0;
    written_before_tiles();
    for (int64_t i = 0; i < count; i += PARTS, row += rows * SPAN) {
        if constexpr (PARTS == 1) {
            if (i % 2) STORE_GROUP(1, 5, 3);
            else STORE_GROUP(0, 4, 7);
        } else {
            TILE_LOAD(3, weights[i], TILE_BYTES);
            TILE_LOAD(7, weights[i + 1], TILE_BYTES);
            for (int64_t b = 0; b < whole; ++b) {
                TILE_LOAD(4, row + b * TILE_ROWS * SPAN, SPAN);
                STORE_PRODUCT(0, 4, 3, found.of[b][i]);
                STORE_PRODUCT(1, 4, 7, found.of[b][i + 1]);
            }
            if (left) {
                TILE_LOAD(6, row + whole * TILE_ROWS * SPAN, SPAN);
                STORE_PRODUCT(2, 6, 3, found.of[whole][i]);
                STORE_PRODUCT(2, 6, 7, found.of[whole][i + 1]);
            }
        }
    }
}

// A block of at most TILED_ROWS rows and one tile of outputs -> sums [rows].  The thread's tiles have `shapes_of` these.
template <int64_t TYPE> void tiled_outputs(const RowBlock& block, const Weight& w, int64_t tile, Sums* sums) {
    constexpr Form FORM = form_of(TYPE);
    constexpr int64_t STEPS = FORM.group / 4, PARTS = SPAN / FORM.group, WORDS = FORM.group * FORM.bits / 32;
    constexpr int64_t CODE_BYTES = FORM.group * FORM.bits * LANES / 8;
    static_assert(TILED_GROUPS % PARTS == 0, "groups that are added together share no span with others");
    const int64_t rows = block.rows, groups = (w.in + SPAN - 1) / SPAN * PARTS;
    const Steps* const codes = static_cast<const Steps*>(w.data) + tile * groups * WORDS;
    GroupSums found;
    alignas(64) Steps weights[TILED_GROUPS][SPAN_STEPS] = {};
    Sums scale[TILED_GROUPS], low[TILED_GROUPS];
    for (int64_t r = 0; r < rows; ++r) sums[r] = Sums{};
    for (int64_t first = 0; first < groups; first += TILED_GROUPS) {
        const int64_t count = std::min(TILED_GROUPS, groups - first);
        for (int64_t i = 0; i < count; ++i) {
            prefetch<CODE_BYTES>(codes + (first + i) * WORDS, AHEAD);
            unpack_signed<TYPE>(codes + (first + i) * WORDS, weights[i] + i % PARTS * STEPS);
            const BlockScales<TYPE> scales(w, tile * (groups / FORM.groups) + (first + i) / FORM.groups);
            scale[i] = scales.scale((first + i) % FORM.groups);
            low[i] = scales.low((first + i) % FORM.groups);
        }
        multiply_groups<PARTS>(rows, block.codes + first / PARTS * rows * SPAN, weights, count, found);
        const AddedGroups added{found, scale, low, block.scales + first / PARTS * rows,
                                FORM.lows ? block.totals + first * rows : block.scales, count, rows};
        int64_t r = 0;
        for (; r + ADDED_ROWS <= rows; r += ADDED_ROWS) add_groups<TYPE, ADDED_ROWS>(added, r, sums);
        for (; r < rows; ++r) add_groups<TYPE, 1>(added, r, sums);
    }
}

}  // namespace
#endif
