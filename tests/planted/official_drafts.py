"""Errors that `test_official_drafts.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "drafted levels are one position late",
        "Eagle3Cache.expand",
        "torch.full((b,), committed + depth,",
        "torch.full((b,), committed + depth + 1,",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "tokens fed to a drafter are one position late",
        "Eagle3Cache._read",
        "torch.arange(self.cache.length, self.cache.length + n,",
        "torch.arange(self.cache.length + 1, self.cache.length + 1 + n,",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "drafted siblings see one another",
        "beams:beam",
        "torch.eye(k, dtype=torch.bool, device=gains.device)",
        "torch.ones(k, k, dtype=torch.bool, device=gains.device)",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "drafted nodes do not see their ancestors",
        "beams:beam",
        "[visible[above], itself]",
        "[torch.zeros_like(visible[above]), itself]",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "the beam goes by gain",
        "beams:beam",
        "sums.topk(",
        "gains.flatten().topk(",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "the beam goes on from the first states",
        "Eagle3Drafter._next",
        "states[:, above], visible",
        "states[:, :len(best)], visible",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "the worst candidates make the tree",
        "Eagle3Drafter._best",
        "scores.sort(descending=True, stable=True)",
        "scores.sort(descending=False, stable=True)",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "features are in the wrong order",
        "Observation.features",
        "for layer in layers]",
        "for layer in layers[::-1]]",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
    Mutation(
        "a drafter is fed each token instead of the next one",
        "Eagle3Cache._columns",
        "feature_layers), seen.following",
        "feature_layers), seen.kept",
        "test_official_drafts.py::test_first_draft_trees_are_the_official_ones",
    ),
)
