"""Errors that `test_tiled_attention.py` must notice."""

from planted.mutation import Mutation

_EQUALS = "test_tiled_attention.py::test_attention_equals_float64s"
_BITS = "test_tiled_attention.py::test_a_rows_attention_has_the_same_bits_alone_in_a_chunk_and_in_a_tree"

MUTATIONS = (
    Mutation(
        "the last numbers of a head are not multiplied",
        "tiled_attention.h",
        "s < steps; s += TILE_ROWS",
        "s + TILE_ROWS <= a.steps(); s += TILE_ROWS",
        _EQUALS,
    ),
    Mutation("values behind the end are mixed", "tiled_attention.h", "i < n ? value(i) : nullptr", "value(i)", _EQUALS),
    Mutation(
        "all rows see the first one's path",
        "tiled_attention.h",
        "a.value(values, rest, a.row(r), first + k)",
        "a.value(values, rest, a.row(m.from), first + k)",
        _EQUALS,
    ),
    Mutation(
        "all pairs of values have the first ones' weights",
        "tiled_attention.h",
        "mix_paired(m.weight(r, c), count",
        "mix_paired(m.weight(r, first), count",
        _EQUALS,
    ),
    Mutation(
        "the fourth part of a head is the third",
        "tiled_attention.h",
        "values(s, part + 3)",
        "values(s, part + 2)",
        _EQUALS,
    ),
    Mutation(
        "a row that is split between blocks is mixed once",
        "tiled_attention.h",
        "mix_paired(m.weight(begin, first), last - first",
        "mix_paired(m.weight(r, first), last - first",
        _EQUALS,
    ),
    Mutation(
        "products of values begin where a window does",
        "attention.h",
        "ALIGNED = std::max(LANES, Rows<A>::AT_ONCE)",
        "ALIGNED = LANES",
        _BITS,
    ),
    Mutation(
        "one row is not attended by tiles",
        "tiled_attention.h",
        "if (tiles_allowed()) return",
        "if (tiles_allowed() && a.rows > 1) return",
        _BITS,
    ),
    Mutation(
        "attention uses tiles that the system refused",
        "tiled_attention.h",
        "if (tiles_allowed()) return attend_by",
        "return attend_by",
        _EQUALS,
    ),
    Mutation(
        "the stand-in adds products one by one",
        "tile_unit.h",
        "float& own = apart[i];",
        "float& own = apart[0];",
        "test_tiled_attention.py::test_tiles_sum_even_and_odd_numbers_of_a_score_apart",
    ),
    Mutation(
        "the stand-in multiplies subnormal numbers",
        "tile_unit.h",
        "return no_subnormal(single(bfloat));",
        "return single(bfloat);",
        "test_tiled_attention.py::test_tiles_take_subnormal_numbers_as_zeros",
    ),
)
