//! The queue-proxy binary; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    queue_proxy::main()
}
