"""From samples to policies: one flat file per method."""
