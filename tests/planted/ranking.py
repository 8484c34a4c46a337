"""Errors that `test_ranking.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "shares are learnt again of an older draft",
        "continuations.cpp",
        "        ranked.clear();\n        predicted.clear();\n    }",
        "    }",
        "test_ranking.py::test_a_draft_teaches_only_by_the_tokens_after_it",
    ),
    Mutation(
        "experts without a prediction have weights",
        "continuations.cpp",
        "        double text = 0.0;\n        if (known) {",
        "        double text = 0.1;\n        if (known) {",
        "test_ranking.py::test_a_draft_has_all_weight_where_neither_text_nor_row_predicts",
    ),
)
