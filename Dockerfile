# memprof in a container: profiles processes of the host.
#
#   docker build -t memprof .
#   docker run --rm --privileged --pid=host --network=host \
#       -v /sys/kernel/debug:/sys/kernel/debug memprof --comm NAME
#
# Both base images are arguments, so that you can use local ones. The build stage needs Debian 12 or later with
# cargo on the PATH, the runtime stage the same Debian release.
ARG BUILD_BASE=docker.io/library/rust:1-bookworm
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BUILD_BASE} AS build
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        binutils clang gcc libc6-dev libelf-dev linux-libc-dev llvm make pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# The dependencies first, in a layer of their own, which stays cached until they change.
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY benches benches
COPY fuzz fuzz
COPY crates/memprof-sys/Cargo.toml crates/memprof-sys/
COPY crates/memprof-profile/Cargo.toml crates/memprof-profile/
COPY crates/memprof-code/Cargo.toml crates/memprof-code/
COPY crates/memprof-heap/Cargo.toml crates/memprof-heap/
COPY crates/memprof-recording/Cargo.toml crates/memprof-recording/
COPY crates/memprof-server/Cargo.toml crates/memprof-server/
COPY recorder/Cargo.toml recorder/
COPY recorder/benches recorder/benches
COPY tests/scenarios/main.rs tests/scenarios/main.rs
RUN mkdir src recorder/src \
    && echo 'fn main() {}' | tee src/main.rs build.rs crates/memprof-heap/build.rs >/dev/null \
    && touch src/lib.rs recorder/src/lib.rs recorder/src/main.rs \
    && for crate in crates/*; do mkdir $crate/src && touch $crate/src/lib.rs; done \
    && cargo build --release --locked --bin memprof \
    && rm -r src build.rs crates recorder
COPY . .
# Newer than the placeholders above, whatever times the copied files have.
RUN touch src/main.rs src/lib.rs build.rs crates/*/src/lib.rs crates/memprof-heap/build.rs && cargo build --release --locked --bin memprof

FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libelf1 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/memprof /usr/local/bin/memprof
COPY LICENSE-APACHE LICENSE-GPL-2.0 LICENSE-MIT /usr/share/doc/memprof/
EXPOSE 17832
# Ctrl-C and `docker stop` both end memprof cleanly.
STOPSIGNAL SIGINT
ENTRYPOINT ["memprof", "--listen", "0.0.0.0:17832", "--cors-origin", "*"]
