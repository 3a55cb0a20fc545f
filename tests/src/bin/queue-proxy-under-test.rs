//! The queue-proxy as a binary of this package, so that `cargo test` always builds the one it tests.

use std::process::ExitCode;

/// Allocator of the shipped binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    queue_proxy::main_with_arguments(std::env::args_os().skip(1))
}
