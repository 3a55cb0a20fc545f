//! softgpu's programs under one executable, told apart by the name it is called by: what the tests install.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    softgpu::run_as(&name, arguments).unwrap_or(ExitCode::FAILURE)
}
