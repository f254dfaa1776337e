# `focoop serve` for one model. Build it in the repository's root (BuildKit, Docker's default):
#   docker build -f deploy/serve.Dockerfile -t focoop-serve .
FROM python:3.11-slim AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /src

FROM python:3.11-slim
# torch for processors alone is a fifth of the one with CUDA: give the extra index of your choice.
ARG PIP_EXTRA_INDEX_URL=""
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --no-cache-dir --compile "$(echo /wheel/*.whl)[serve,formats]" \
    && useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin focoop

# Nothing is written: images are answered from memory. Mount the model, and the file of keys.
USER 10001
WORKDIR /model
ENV FOCOOP_CACHE=/nonexistent PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/ready', timeout=4)"]
ENTRYPOINT ["focoop", "serve"]
CMD ["/model", "--host", "0.0.0.0", "--keys", "/keys/keys.txt"]
