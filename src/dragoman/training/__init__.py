"""From samples to policies: a file for each warm-up, and in `algorithms` one for each way of stage `rl`; `gepa` trains prompts."""
