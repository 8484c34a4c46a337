"""Training of the embedded pair: corpus, schedules, target, drafter.  Imports nothing by itself."""
