"""dragoman trains a compact proxy between a retriever and a language model, neither of which it changes."""

import os

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "1",
}
"""No dependency may report home. Each reads its switch at import time, so they are set before any other import."""
for _switch, _value in {**QUIET, "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(_switch, _value)

__version__ = "0.1.0"
