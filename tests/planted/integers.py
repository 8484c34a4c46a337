"""Errors that `test_integers.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a head beside integers keeps its floats", "head_of", 'if target.weights != "float" and target.kernels:', "if False:", "test_integers.py::test_a_head_beside_integers_is_in_bytes_and_drafts_as_well"),
    Mutation("upper bits of codes change places", "integer_weights.h", "upper << (4 - at) : upper >> (at - 4)", "upper << (4 - at) : upper >> 4", "test_integers.py::test_products_equal_those_of_dequantized_blocks"),
    Mutation("upper bits of packed blocks change places", "integer_weights.h", "<< (k / 4 * upper)", "<< (k % 4 * upper)", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("the zero of codes is forgotten", "integer_products.h", "starts[at] = start * sum;", "starts[at] = 0;", "test_integers.py::test_products_equal_those_of_dequantized_blocks"),
    Mutation("pairs overflow 16 bits", "integer_products.h", "BITS == 5 ? 4 : BITS == 6 ? 2 : 1", "BITS == 5 ? 8 : BITS == 6 ? 4 : 1", "test_integers.py::test_sums_of_the_largest_and_least_codes_are_exact"),
    Mutation("nibbles change places", "integer_weights.h", "(s < STEPS / 2 ? 0 : 4)", "(s < STEPS / 2 ? 4 : 0)", "test_integers.py::test_products_equal_those_of_dequantized_blocks"),
    Mutation("lows are left out", "integer_products.h", "fused(-low, all_lanes", "fused(-0.0f * low, all_lanes", "test_integers.py::test_products_equal_those_of_dequantized_blocks"),
    Mutation("rows of one pass share a scale", "integer_products.h", "row_scales[r], own[r]", "row_scales[0], own[r]", "test_integers.py::test_products_equal_those_of_dequantized_blocks"),
    Mutation("rounding to bytes truncates", "integers:rounded", ".round()", ".floor()", "test_integers.py::test_rounding_takes_the_nearest_of_255_steps"),
    Mutation("high bits of a block change places", "integer_weights.h", ">> at / 32 * 2 & 3", ">> (6 - at / 32 * 2) & 3", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("fifth bits of a block change places", "integer_weights.h", "high[i % 32] >> i / 32 & 1", "high[i % 32] >> (7 - i / 32) & 1", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("six-bit lows of a block lose their upper bits", "integer_weights.h", "six[g + 4] >> 4 | six[g] >> 6 << 4", "six[g + 4] >> 4", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("lows are scaled as the codes are", "integer_weights.h", "floats_of_halves(halves + LANES)", "floats_of_halves(halves)", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("all slabs are the first", "CpuKernels.packed_blocks", "first += len(raw)", "first += 0", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("a lookup takes rows of the next tile", "integer_weights.h", "ids[i] / LANES * blocks + b", "(ids[i] / LANES ? 0 : 1) * blocks + b", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("changed rows are taken in the file's order", "_Filler._slabs", "self.file)[order])", "self.file))", "test_integers.py::test_blocks_of_a_file_equal_its_dequantized_weights"),
    Mutation("prefix files do not tell blocks from floats", "Target.identity", 'of = {} if self.weights == "float" else', "of = {} if self else", "test_integers.py::test_blocks_of_a_file_equal_its_dequantized_weights"),
    Mutation("scales that are no numbers are decoded with", "_check_scales", "if not packed.scales.isfinite().all():", "if False:", "test_integers.py::test_a_damaged_file_is_not_decoded_in_its_blocks"),
    Mutation("a file without a tensor is decoded in blocks", "model_in_blocks", "if missing := sorted(", "if False and sorted(", "test_integers.py::test_a_damaged_file_is_not_decoded_in_its_blocks"),
    Mutation("rows that are left are those of the first tile", "tiled_products.h", "TILE_LOAD(6, row + whole * TILE_ROWS * SPAN, SPAN);", "TILE_LOAD(6, row, SPAN);", "test_integers.py::test_a_rows_product_has_the_same_bits_beside_any_other_rows"),
    Mutation("tiles multiply codes that are not centred", "tiled_products.h", "(Steps)((Bytes)codes[s] - static_cast<int8_t>(FORM.zero))", "(Steps)(Bytes)codes[s]", "test_integers.py::test_a_rows_product_has_the_same_bits_beside_any_other_rows"),
    Mutation("a value that codes stand for is another", "integer_weights.h", "-127, -104, -83, -65,", "-127, -104, -83, -64,", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("a float of four bits is another", "integer_weights.h", "{0, 1, 2, 3, 4, 6, 8, 12, 0,", "{0, 1, 2, 3, 4, 6, 8, 10, 0,", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("pairs of bits change places", "integer_weights.h", ">> (s / (STEPS / 4) * 2) &", ">> (6 - s / (STEPS / 4) * 2) &", "test_integers.py::test_products_equal_those_of_dequantized_blocks"),
    Mutation("third bits of a block change places", "integer_weights.h", "(raw[i % 32] >> i / 32 & 1) << 2", "(raw[i % 32] >> (7 - i / 32) & 1) << 2", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("upper bits of shares are another group's", "integer_weights.h", "(high >> 2 * g & 3) << 4", "(high >> g & 3) << 4", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("the least scale of a float block is zero", "integer_weights.h", "raw[0] < 2 ? 0x20 << raw[0]", "raw[0] < 2 ? 0", "test_integers.py::test_packed_weight_equals_dequantized_blocks"),
    Mutation("sums in 16 bits go past a group", "integer_products.h", "std::min(MOST, STEPS)", "MOST", "test_integers.py::test_products_equal_those_of_dequantized_blocks"),
)
