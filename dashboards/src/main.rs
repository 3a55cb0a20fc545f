//! `cargo run -p dashboards -- write` generates dashboards, rules, objects and `docs/metrics.md`; `check` reports
//! generated files that differ.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use std::path::Path;
use std::process::ExitCode;

use dashboards::outputs::{differences, outputs, write};

const USAGE: &str = "usage: dashboards write | check";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let outputs = match outputs() {
        Ok(outputs) => outputs,
        Err(error) => return fail(&error.to_string()),
    };
    match arguments[..] {
        ["write"] => match write(root, &outputs) {
            Ok(changed) => {
                for path in &changed {
                    println!("{path}");
                }
                println!("{} of {} files changed", changed.len(), outputs.len());
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error.to_string()),
        },
        ["check"] => {
            let all = differences(root, &outputs);
            if all.is_empty() {
                println!("{} files are up to date", outputs.len());
                return ExitCode::SUCCESS;
            }
            for sentence in &all {
                eprintln!("{sentence}");
            }
            fail("run: cargo run -p dashboards -- write")
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("dashboards: {text}");
    ExitCode::FAILURE
}
