# syntax=docker/dockerfile:1
FROM rust:1.95-slim-bookworm AS build
# zstd and ring bring C sources.
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY Cargo.toml Cargo.lock ./
COPY src src
# Cargo wants every target that the manifest names to exist, also those that are not built here.
COPY benches benches
COPY tests tests
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/target \
    CARGO_TARGET_DIR=/target cargo build --locked --release --bin runtime \
    && cp /target/release/runtime /usr/local/bin/runtime

FROM debian:bookworm-slim
RUN useradd --system --user-group --uid 10001 --home-dir /var/lib/distributary --no-create-home distributary \
    && install --directory --owner=distributary --group=distributary /var/lib/distributary /var/lib/distributary/data /var/lib/distributary/state
COPY --from=build /usr/local/bin/runtime /usr/local/bin/runtime
COPY --chown=root:root topologies /topologies
USER distributary
WORKDIR /var/lib/distributary
# Tables and checkpoint stores with relative paths land here: mount something that lasts.
VOLUME ["/var/lib/distributary/data", "/var/lib/distributary/state"]
# Inside a container loopback would be out of reach: /metrics, /live, /ready and /version on all interfaces, whatever the
# topology says.
ENV RUNTIME_TELEMETRY=0.0.0.0:9464
EXPOSE 9464
# Alive and ready, or the reasons why not. Restart by `runtime health --live` alone: a broker that is away is no reason.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s CMD ["runtime", "health"]
# SIGTERM drains: a last checkpoint, everything settled, then the end.
STOPSIGNAL SIGTERM
ENTRYPOINT ["runtime"]
CMD ["--help"]
