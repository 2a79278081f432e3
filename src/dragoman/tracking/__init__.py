"""What happened, in MLflow: runs, single questions as traces, versions of models. Nothing else imports mlflow."""

from dragoman.tracking.runs import (
    git_revision,
    grouped,
    log_decision,
    log_evaluation,
    log_synthesis,
    log_training,
    log_validation,
)
from dragoman.tracking.store import EXPERIMENT, follow_folder, impatient, server, start, store_uri, unreachable
from dragoman.tracking.traces import finish, log_trace, show_feedback
from dragoman.tracking.versions import (
    StoredVersion,
    aliased,
    create_version,
    fetch_folder,
    keep_folder,
    model_versions,
    numbered,
    set_alias,
    tag_version,
)

__all__ = [
    "EXPERIMENT",
    "StoredVersion",
    "aliased",
    "create_version",
    "fetch_folder",
    "finish",
    "follow_folder",
    "git_revision",
    "grouped",
    "impatient",
    "keep_folder",
    "log_decision",
    "log_evaluation",
    "log_synthesis",
    "log_trace",
    "log_training",
    "log_validation",
    "model_versions",
    "numbered",
    "server",
    "set_alias",
    "show_feedback",
    "start",
    "store_uri",
    "tag_version",
    "unreachable",
]
