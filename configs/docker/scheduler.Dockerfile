# The image of a scheduled reconcile: docker build -f configs/docker/scheduler.Dockerfile -t reexport-scheduler .
FROM python:3.12-slim-bookworm

# the versions that reexport was tested with, and nothing newer
COPY configs/constraints.txt /tmp/constraints.txt
COPY . /src
RUN pip install --no-cache-dir -c /tmp/constraints.txt "/src" \
    && rm -rf /src /tmp/constraints.txt \
    && useradd --uid 10001 --create-home reexport

ENV REEXPORT_CACHE_DIR=/cache \
    PYTHONUNBUFFERED=1
RUN mkdir /cache && chown 10001 /cache
VOLUME /cache

USER 10001
WORKDIR /home/reexport
ENTRYPOINT ["reexport"]
CMD ["--help"]
