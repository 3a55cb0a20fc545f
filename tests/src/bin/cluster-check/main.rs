//! Checks Weir on a real cluster; see `tests/cluster/check`.
//!
//! Each check runs under an open loop of 50 requests a second through the gateway, each on a connection of its own. Progress is
//! printed to stderr, and at the end one JSON object to stdout.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod checks;
mod full_node;
mod gpu;
mod kubectl;
mod load;
mod options;
mod soak;
mod suites;
mod world;

use std::process::ExitCode;
use std::time::Instant;

use checks::{Checks, Finding, NAMES};
use options::{Options, USAGE};
use serde_json::json;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}\nchecks: {}", NAMES.join(", "));
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(&arguments, &NAMES) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("check: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let only = options.only.clone();
    let mut checks = match Checks::new(options) {
        Ok(checks) => checks,
        Err(error) => {
            eprintln!("check: {error:#}");
            return ExitCode::from(2);
        }
    };
    let mut all = Vec::new();
    for name in NAMES {
        if !only.is_empty() && !only.iter().any(|own| own == name) {
            continue;
        }
        eprintln!("{name} …");
        let begin = Instant::now();
        let found = checks.run(name).await.unwrap_or_else(|error| Finding {
            passed: Some(false),
            requests: 0,
            failed: 0,
            note: format!("{error:#}"),
        });
        let seconds = (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let word = match found.passed {
            Some(true) => "passed",
            Some(false) => "FAILED",
            None => "not tried",
        };
        eprintln!(
            "{name}: {word} ({seconds} s, {} requests, {} failed): {}",
            found.requests, found.failed, found.note
        );
        all.push(json!({
            "name": name, "passed": found.passed, "seconds": seconds,
            "requests": found.requests, "failed": found.failed, "note": found.note,
        }));
    }
    let has_failed = all.iter().any(|check| check["passed"] == false);
    println!("{}", json!({"checks": all}));
    ExitCode::from(u8::from(has_failed))
}
