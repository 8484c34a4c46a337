"""Errors that `test_chains.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a chain with a distribution is walked",
        "Verifier._rule_of",
        "return Rejection(self.rule.sampled)\n",
        "return self.rule\n",
        "test_chains.py::test_the_rejection_rule_accepts_more_than_a_walk_of_the_same_drafts",
    ),
    Mutation(
        "heads read the first kept token's state",
        "LastHidden.observe",
        "seen.final[-1:].clone()",
        "seen.final[:1].clone()",
        "test_chains.py::test_heads_read_the_state_that_the_root_was_drawn_from",
    ),
    Mutation(
        "the first of equally deep typical paths is taken",
        "Typical._best",
        "log_probability + logs[node - 1]",
        "0.0",
        "test_chains.py::test_typical_acceptance_takes_the_longest_probable_path_then_the_most_probable",
    ),
)
