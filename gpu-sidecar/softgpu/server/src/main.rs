//! The softgpu-server binary; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    softgpu_server::main(std::env::args_os().skip(1))
}
