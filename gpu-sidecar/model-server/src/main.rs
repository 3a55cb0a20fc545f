//! The model-server binary; see the library of the same name.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|word| word == "load") {
        arguments.remove(1);
        return model_server::load::main(arguments);
    }
    model_server::main_with_arguments(arguments)
}
