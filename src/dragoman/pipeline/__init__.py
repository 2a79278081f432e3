"""The stages: a file with the name of a command is its stage, with a section of `params.yaml` and a folder of `results/`. Others serve several."""
