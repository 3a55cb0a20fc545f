//! The queue-proxy as a binary of this package, so that `cargo test` always builds the one it tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    queue_proxy::main()
}
