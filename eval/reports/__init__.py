"""Tables, figures, comparisons and projections of measured rows."""
