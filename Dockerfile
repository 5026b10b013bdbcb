# Builds the operator's image with Docker. `./x image --release` builds the same image without it.
FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/target \
    target="$(uname -m)-unknown-linux-gnu" && \
    RUSTFLAGS="-C target-feature=+crt-static" CARGO_TARGET_DIR=/target \
    cargo build --locked --release --package stateward --target "$target" && \
    cp "/target/$target/release/stateward" /stateward

FROM scratch
COPY --from=build /stateward /stateward
USER 65532:65532
ENTRYPOINT ["/stateward"]
