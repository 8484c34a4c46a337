"""LongBench's scores: known texts have known scores."""

from __future__ import annotations

import sys

import pytest

from longgraft.eval.scores import edit_similarity, rouge_l, score


def test_rouge_l_is_f1_over_the_longest_common_subsequence_and_the_best_answer_counts():
    # 3 of 4 said words in order, 3 of 6 wanted words: precision 3/4, recall 1/2.
    assert rouge_l("the cat really sat", ["the cat sat on a mat"]) == pytest.approx(2 * 0.75 * 0.5 / 1.25)
    assert rouge_l("the cat", ["a dog", "The cat!"]) == 1.0
    assert rouge_l("sat cat the", ["the cat sat"]) == pytest.approx(1 / 3)  # the order counts
    assert rouge_l("runs", ["run"]) == 0.0  # no stemming
    assert rouge_l("", ["a"]) == rouge_l("a", []) == 0.0


def test_edit_similarity_is_of_the_first_line_of_code():
    assert edit_similarity("\n\n# a comment\n```python\nx = 1\ny = 2", ["x = 1"]) == 1.0
    assert edit_similarity("// c\nx = 1", ["y = 2", "x = 1"]) == 1.0
    assert edit_similarity("abcd", ["abxd"]) == pytest.approx(0.75)  # 2 of 8 letters are inserted or deleted
    assert edit_similarity("    x", ["x"]) < 1.0  # indentation counts
    assert edit_similarity("# only\n// comments", ["x = 1"]) == 0.0


def test_each_suite_has_longbenchs_metric_and_others_have_none():
    assert score("qmsum", "yes", ["yes"]) == ("ROUGE-L", 1.0) == score("gov_report", "yes", ("no", "yes"))
    assert score("lcc", "x = 1\nmore", ["x = 1"]) == ("edit similarity", 1.0) == score("repobench-p", "a", ["a"])
    assert score("spec_bench", "yes", ["yes"]) is None and score("qmsum", "yes", ()) is None


@pytest.mark.parametrize(("measure", "package"), [(rouge_l, "rouge_score"), (edit_similarity, "rapidfuzz")])
def test_a_missing_package_says_what_to_install(monkeypatch, measure, package):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'longgraft\[eval\]'"):
        measure("a", ["a"])
