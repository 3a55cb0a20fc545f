//! The gpu-sidecar binary; see the library `gpu_sidecar`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpu_sidecar::main()
}
