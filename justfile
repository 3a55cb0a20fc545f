# Commands of a maintainer's day. `just` lists them.

default:
    @just --list

# Formatting, lints, unit tests, tidy
check:
    .ci/run fast

# Tests of one crate, as `just test queue-proxy` or `just test tests --test contract`
test crate *arguments:
    cargo test -p {{crate}} {{arguments}}

# Everything that is checked before a change lands
all:
    .ci/run

# A real trace against Knative's settings and Weir's
demo *arguments:
    cargo run --release -p weir -- demo {{arguments}}

# Benchmarks of decisions and of the way through the gate
bench:
    cargo bench -p policy
    cargo bench -p queue-proxy --features bench

# Documentation of all crates, private items included
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items

# Files which are written from others
write:
    cargo run -p dashboards -- write
    manifests/render
