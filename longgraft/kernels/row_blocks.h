// A block of rows in bytes, as the products of integers read it.

#pragma once

#include <cstdint>

namespace {

// One block of rows, as weights of one type are multiplied with them.
struct RowBlock {
    const int8_t* codes;        // [spans, rows, SPAN]
    const float* scales;        // [spans, rows]
    const int32_t* starts;      // [groups, rows]: what the codes' zero adds to the sum of a group
    const float* totals;        // [groups, rows]: the sum of a group's numbers, which its low is multiplied with
    int64_t rows;
};

}  // namespace
