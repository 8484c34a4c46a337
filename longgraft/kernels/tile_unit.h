// The tile unit of Xeons since 2023 (AMX): eight tiles of at most 16 rows of 64 bytes, and their products of bytes or of
// bfloat16.
//
// A process asks the system for it, and each thread loads and releases its configuration.  Tests compile a stand-in,
// which keeps tiles in memory; with LONGGRAFT_STAND_IN=0 the system refuses them.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define TILE_INSTRUCTIONS
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#elif defined(LONGGRAFT_STAND_IN)
#define TILES
#endif

#if defined(TILES)
namespace {

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 64;

struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};        // of a row, by tile
    uint8_t rows[16] = {};
};

// What was written to memory is there: the load of a tile does not tell GCC 12 that it reads any.
inline void written_before_tiles() { __asm__ volatile("" ::: "memory"); }

#if defined(TILE_INSTRUCTIONS)
// Whether the system lets this process use tiles.  It refuses if a thread has a small alternate stack for signals.
inline bool tiles_allowed() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;        // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return allowed;
}
inline void load_shapes(const TileShapes& shapes) {
    __asm__ volatile("" ::"r"(&shapes) : "memory");     // GCC 12 does not know that the whole structure is read
    _tile_loadconfig(&shapes);
}
inline void release_tiles() { _tile_release(); }
#define TILE_ZERO(to) _tile_zero(to)
#define TILE_LOAD(to, from, apart) _tile_loadd(to, from, apart)
#define TILE_STORE(from, to, apart) _tile_stored(from, to, apart)
#define TILE_MULTIPLY(sums, rows, columns) _tile_dpbssd(sums, rows, columns)
#define TILE_MULTIPLY_BFLOATS(sums, rows, columns) _tile_dpbf16ps(sums, rows, columns)
#else
struct StandInTiles {
    TileShapes shapes;
    int8_t data[8][TILE_ROWS][TILE_BYTES];
};
inline StandInTiles& stand_in_tiles() {
    thread_local StandInTiles tiles;
    return tiles;
}
inline bool tiles_allowed() { return LONGGRAFT_STAND_IN; }
inline void load_shapes(const TileShapes& shapes) {
    if (!tiles_allowed()) __builtin_trap();
    stand_in_tiles() = StandInTiles{};
    stand_in_tiles().shapes = shapes;
}
inline void release_tiles() { stand_in_tiles().shapes.palette = 0; }
inline void stand_in_zero(int to) { std::memset(stand_in_tiles().data[to], 0, sizeof stand_in_tiles().data[to]); }
inline void stand_in_load(int to, const void* from, int64_t apart) {
    StandInTiles& tiles = stand_in_tiles();
    stand_in_zero(to);
    for (int64_t row = 0; row < tiles.shapes.rows[to]; ++row)
        std::memcpy(tiles.data[to][row], static_cast<const char*>(from) + row * apart, tiles.shapes.bytes[to]);
}
inline void stand_in_store(int from, void* to, int64_t apart) {
    const StandInTiles& tiles = stand_in_tiles();
    for (int64_t row = 0; row < tiles.shapes.rows[from]; ++row)
        std::memcpy(static_cast<char*>(to) + row * apart, tiles.data[from][row], tiles.shapes.bytes[from]);
}
// The processor refuses shapes that do not fit each other, and so does this.
inline void check_shapes(int sums, int rows, int columns) {
    const TileShapes& s = stand_in_tiles().shapes;
    if (s.palette != 1 || s.rows[sums] != s.rows[rows] || s.bytes[sums] != s.bytes[columns]
        || s.bytes[rows] != 4 * s.rows[columns]) __builtin_trap();
}
inline void stand_in_multiply(int sums, int rows, int columns) {
    StandInTiles& tiles = stand_in_tiles();
    const TileShapes& s = tiles.shapes;
    check_shapes(sums, rows, columns);
    for (int64_t row = 0; row < s.rows[sums]; ++row)
        for (int64_t column = 0; column < s.bytes[sums] / 4; ++column) {
            int32_t sum;
            std::memcpy(&sum, tiles.data[sums][row] + column * 4, sizeof sum);
            for (int64_t i = 0; i < s.bytes[rows]; ++i)
                sum += tiles.data[rows][row][i] * tiles.data[columns][i / 4][column * 4 + i % 4];
            std::memcpy(tiles.data[sums][row] + column * 4, &sum, sizeof sum);
        }
}
// Subnormal floats are zeros to the tile unit, as operands and as results.
inline float no_subnormal(float x) { return std::fabs(x) < 0x1p-126f ? x * 0.0f : x; }
inline float stand_in_bfloat(const int8_t* at) {
    uint16_t bfloat;
    std::memcpy(&bfloat, at, sizeof bfloat);
    return no_subnormal(single(bfloat));
}
// As Intel's manual defines TDPBF16PS: even and odd products have sums of their own, which are added to what is there.
// A product of two bfloat16 is exact in a float.
inline void stand_in_multiply_bfloats(int sums, int rows, int columns) {
    StandInTiles& tiles = stand_in_tiles();
    const TileShapes& s = tiles.shapes;
    check_shapes(sums, rows, columns);
    for (int64_t row = 0; row < s.rows[sums]; ++row)
        for (int64_t column = 0; column < s.bytes[sums] / 4; ++column) {
            float apart[2] = {}, sum;
            for (int64_t k = 0; k < s.bytes[rows] / 4; ++k)
                for (int64_t i = 0; i < 2; ++i) {
                    const float a = stand_in_bfloat(tiles.data[rows][row] + k * 4 + i * 2);
                    const float b = stand_in_bfloat(tiles.data[columns][k] + column * 4 + i * 2);
                    float& own = apart[i];
                    own = no_subnormal(a * b + own);
                }
            std::memcpy(&sum, tiles.data[sums][row] + column * 4, sizeof sum);
            sum = no_subnormal(no_subnormal(sum) + no_subnormal(apart[0] + apart[1]));
            std::memcpy(tiles.data[sums][row] + column * 4, &sum, sizeof sum);
        }
}
#define TILE_ZERO(to) stand_in_zero(to)
#define TILE_LOAD(to, from, apart) stand_in_load(to, from, apart)
#define TILE_STORE(from, to, apart) stand_in_store(from, to, apart)
#define TILE_MULTIPLY(sums, rows, columns) stand_in_multiply(sums, rows, columns)
#define TILE_MULTIPLY_BFLOATS(sums, rows, columns) stand_in_multiply_bfloats(sums, rows, columns)
#endif

// Shapes of this thread's tiles for a block's lifetime.
struct TileScope {
    explicit TileScope(const TileShapes& shapes) { load_shapes(shapes); }
    ~TileScope() { release_tiles(); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

}  // namespace
#endif
