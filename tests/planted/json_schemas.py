"""Errors that `test_json_schemas.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a wrong reference is not found",
        "_Examination._part",
        "referred(self._whole, reference)",
        'referred(self._whole, "#")',
        "test_json_schemas.py::test_all_wrong_places_are_found_also_behind_references",
    ),
    Mutation(
        "references are never followed",
        "_Examination.whole",
        "in (False, True)",
        "in (False, False)",
        "test_json_schemas.py::test_keywords_that_exclude_each_other_behind_a_reference_are_found",
    ),
    Mutation(
        "the whole of a wrong part is left out",
        "_Examination._without_problems",
        "followed = longer",
        "pass",
        "test_json_schemas.py::test_the_wrong_place_is_found_and_left_out",
    ),
    Mutation(
        "keywords that are not known are refused",
        "examined",
        "_Examination(followed, lenient)",
        "_Examination(followed, False)",
        "test_json_schemas.py::test_the_wrong_place_is_found_and_left_out",
    ),
)
