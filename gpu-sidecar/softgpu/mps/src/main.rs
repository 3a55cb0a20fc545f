//! The program `nvidia-cuda-mps-control`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    softgpu_mps::main(std::env::args_os().collect())
}
