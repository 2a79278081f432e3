"""When, where and how often the pipeline runs: Prefect flows, one file each. Nothing else imports prefect.

Four files are no flows: `commands` and `side_by_side` are what flows are made of, `tied` runs a command for them, and `deployments`
registers them.

DVC decides what is stale, so no task is cached here; a flow runs commands, and a person could type every one of them.
"""
