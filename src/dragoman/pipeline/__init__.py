"""The stages: one file is one stage, one command, one section of `params.yaml` and one folder of `results/`."""
