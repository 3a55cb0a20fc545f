//! The activator-ext binary; see the library of the same name.

use std::process::ExitCode;

/// Returns memory to the system after a flood of connections, which glibc's allocator keeps.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    activator_ext::main_with_arguments(std::env::args_os().skip(1))
}
