//! softgpu's programs in one multi-call executable, selected by the name of the call; installed by the tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    softgpu::run_as(&name, arguments).unwrap_or(ExitCode::FAILURE)
}
