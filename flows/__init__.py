"""When, where and how often the pipeline runs: Prefect flows, one file each. Nothing else imports prefect.

DVC decides what is stale, so no task is cached here; a flow runs commands, and a person could type every one of them.
"""
