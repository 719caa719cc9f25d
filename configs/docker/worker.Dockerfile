# The image of Beam workers on Dataflow and of the Flex Template's launcher:
#   docker build -f configs/docker/worker.Dockerfile -t reexport-worker .
# Its Beam, as the boot program's, is the version in configs/constraints.txt.
# Pin the launcher to a tag of your choice: --build-arg LAUNCHER=...
ARG LAUNCHER=gcr.io/dataflow-templates-base/python312-template-launcher-base:latest
# hadolint ignore=DL3006
FROM ${LAUNCHER} AS launcher

FROM python:3.12-slim-bookworm

COPY --from=apache/beam_python3.12_sdk:2.77.0 /opt/apache/beam /opt/apache/beam
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher

COPY configs/constraints.txt /tmp/constraints.txt
COPY . /src
RUN pip install --no-cache-dir -c /tmp/constraints.txt "/src[dataflow]" \
    && rm -rf /src /tmp/constraints.txt

COPY configs/schedules/dataflow/launch.py /template/launch.py
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/launch.py \
    REEXPORT_CACHE_DIR=/tmp/reexport-cache

ENTRYPOINT ["/opt/apache/beam/boot"]
