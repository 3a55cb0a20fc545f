//! The model-server binary; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    model_server::main_with_arguments(std::env::args_os())
}
