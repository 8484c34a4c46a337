"""Training of the embedded pair: corpus, schedules, target and drafter.  Imports nothing by itself."""
