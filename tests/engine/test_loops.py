"""An answer loops if over half of it repeats itself."""

from __future__ import annotations

import random

from longgraft.engine.repetition import loops

DRAW = random.Random(3)


def fresh(count: int) -> list[int]:
    """Returns tokens that occur only once."""
    return DRAW.sample(range(1000, 100_000), count)


def test_short_and_long_periods_are_loops_and_text_without_repeats_is_not():
    for period in (1, 2, 7, 8, 15, 16, 30, 50):
        assert loops((fresh(period) * 160)[:160]), period
        assert loops(fresh(40) + (fresh(period) * 160)[:160]), period
    assert not loops(fresh(160)) and not loops([]) and not loops([1, 2, 3])


def test_a_loop_covers_over_half_of_the_answer():
    turn = fresh(20)
    # All turns except the first are repeats: 80 of 160 tokens, and 81 of 161.
    assert not loops(fresh(60) + turn * 5) and loops(fresh(60) + turn * 5 + turn[:1])


def test_the_phrase_that_covers_most_counts_and_not_the_most_frequent_one():
    # Eleven overlapping occurrences of eight times 5 cover 18 tokens; ten of the phrase cover 80, at uneven distances.
    phrase = fresh(8)
    spread = [token for count in range(10) for token in phrase + fresh(3 + count % 4)]
    assert loops([5] * 18 + spread) and not loops([5] * 18 + [t for t in spread if t not in phrase] + fresh(80))


def test_a_frequent_token_makes_no_loop():
    # Three of four tokens equal the token four places before, and no eight in a row do.
    assert not loops([token for new in fresh(40) for token in (7, 7, 7, new)])


def test_a_short_text_without_repeats_is_no_loop():
    assert not any(loops(fresh(count)) for count in range(1, 20))


def test_a_long_period_is_a_loop_from_its_third_turn_on():
    turn = fresh(20)
    assert not loops(turn * 2) and loops(turn * 2 + turn[:1])


def test_repeated_stretches_of_eight_tokens_count_and_shorter_ones_do_not():
    for length, wanted in ((8, True), (7, False)):
        phrases = [fresh(length) for _ in range(4)]
        assert loops([token for phrase in phrases for _ in range(3) for token in phrase + fresh(1)]) == wanted


def test_a_phrase_counts_up_to_the_very_end():
    phrase = fresh(8)
    spread = [token for gap in (3, 4, 5, 6) for token in phrase + fresh(gap)] + phrase
    assert loops(fresh(21) + spread) and not loops(fresh(22) + spread)  # 40 of 79 and of 80 tokens
