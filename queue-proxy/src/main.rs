//! Binary of the queue-proxy; see the library of the same name.

use std::process::ExitCode;

/// Allocator that returns memory to the system after a burst of connections, unlike glibc's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    queue_proxy::main_with_arguments(std::env::args_os().skip(1))
}
