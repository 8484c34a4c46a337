"""The target model: an unmodified transformers model that verifies drafts."""
