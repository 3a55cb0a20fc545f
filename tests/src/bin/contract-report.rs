//! Runs the contract tests against a queue-proxy and reports the result of each item.
//!
//! `cargo run -p tests --bin contract-report [-- BINARY]`: tests Weir's own queue-proxy, or the named binary, which may be
//! Knative's. A binary that listens on all interfaces gets a network namespace for each test (with `unshare` and `ip`, as root or
//! where user namespaces are allowed); without namespaces the tests run one after another.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, bail};
use tests::proxy::BINARY_VARIABLE;

const USAGE: &str = "usage: contract-report [BINARY]\n\
    BINARY: the queue-proxy to test; Weir's own unless given";
/// Number of concurrent tests: most of them wait.
const PARALLEL: usize = 12;
/// Setup of a test's namespaces: loopback, and a folder for certificates.
const ISOLATE: &str = "ip link set lo up && mount -t tmpfs tmpfs /var/lib && exec \"$0\" \"$@\"";

/// Results of the tests of one item.
#[derive(Debug, Default)]
struct Item {
    claims: Vec<String>,
    failed: Vec<String>,
    /// Whether one of the item's tests is in the table of differences from Knative.
    differs: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let binary = match &arguments[..] {
        [] => None,
        [binary] if !binary.starts_with('-') => Some(PathBuf::from(binary)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match report(binary.as_deref()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("contract-report: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn report(binary: Option<&Path>) -> anyhow::Result<bool> {
    let binary = binary
        .map(|binary| {
            binary
                .canonicalize()
                .with_context(|| binary.display().to_string())
        })
        .transpose()?;
    let suite = built_suite()?;
    let tests = contract_tests(&suite)?;
    let isolated = binary.is_some() && can_isolate();
    let parallel = if binary.is_none() || isolated {
        PARALLEL
    } else {
        eprintln!("network namespaces are not available: the tests run one after another");
        1
    };
    let differing = differing_tests()?;
    let queue = Mutex::new(tests.iter());
    let outcomes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..parallel {
            scope.spawn(|| {
                while let Some(test) = next(&queue) {
                    let passed = run(&suite, test, binary.as_deref(), isolated)
                        .is_ok_and(|output| output.status.success());
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.insert(test.clone(), passed);
                    }
                }
            });
        }
    });
    let Ok(outcomes) = outcomes.into_inner() else {
        bail!("a test could not be run");
    };
    let mut items: BTreeMap<u32, Item> = BTreeMap::new();
    for (test, passed) in outcomes {
        let Some((number, claim)) = item_of(&test) else {
            continue;
        };
        let item = items.entry(number).or_default();
        item.claims.push(claim);
        item.differs |= differing.contains(&test);
        if !passed {
            item.failed.push(test);
        }
    }
    // The differences are between Weir and Knative, so they excuse only a named binary.
    let excused = if binary.is_some() {
        differing
    } else {
        BTreeSet::new()
    };
    Ok(print(&items, &excused))
}

fn next<'a>(queue: &Mutex<std::slice::Iter<'a, String>>) -> Option<&'a String> {
    queue.lock().ok()?.next()
}

fn print(items: &BTreeMap<u32, Item>, differing: &BTreeSet<String>) -> bool {
    let (mut pass, mut differs, mut fail) = (0, 0, 0);
    for (number, item) in items {
        let unexpected = item.failed.iter().any(|test| !differing.contains(test));
        let verdict = if unexpected {
            fail += 1;
            "fail"
        } else if !item.failed.is_empty() {
            differs += 1;
            "differs knowingly"
        } else {
            pass += 1;
            if item.differs {
                "pass, where Knative's own differs"
            } else {
                "pass"
            }
        };
        println!("{number:>4}  {verdict:<33}  {}", item.claims.join("; "));
        for test in item.failed.iter().filter(|_| unexpected) {
            println!("      failed: {test}");
        }
    }
    println!("{pass} pass, {differs} differ knowingly, {fail} fail");
    fail == 0
}

/// Builds the contract tests and returns the path of their executable.
fn built_suite() -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "-p", "tests", "--test", "contract", "--no-run"])
        .args(["--message-format", "json"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cargo test --no-run")?;
    if !output.status.success() {
        bail!("the contract tests cannot be built");
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "contract")
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    executable.context("cargo reports no executable of the contract tests")
}

fn contract_tests(suite: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new(suite)
        .args(["--list", "--format", "terse"])
        .output()?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|test| item_of(test).is_some())
        .map(str::to_owned)
        .collect())
}

/// Returns the item that a test checks, and its claim.
fn item_of(test: &str) -> Option<(u32, String)> {
    let (_, name) = test.split_once("::")?;
    let (number, claim) = name.strip_prefix("item_")?.split_once('_')?;
    Some((number.parse().ok()?, claim.replace('_', " ")))
}

/// Returns the tests in the table of differences.
fn differing_tests() -> anyhow::Result<BTreeSet<String>> {
    let path = root().join("docs/queue-proxy-differences.md");
    let table = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(table
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| line.trim_end_matches([' ', '|']).rsplit('|').next())
        .flat_map(|tests| tests.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect())
}

fn run(suite: &Path, test: &str, binary: Option<&Path>, isolated: bool) -> std::io::Result<Output> {
    let mut command = if isolated {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--map-root-user", "sh", "-c", ISOLATE]);
        command.arg(suite);
        command
    } else {
        Command::new(suite)
    };
    command.args(["--exact", test]).stdin(Stdio::null());
    if let Some(binary) = binary {
        command.env(BINARY_VARIABLE, binary);
    }
    command.output()
}

fn can_isolate() -> bool {
    let tried = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            ISOLATE,
            "true",
        ])
        .output();
    tried.is_ok_and(|output| output.status.success())
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}
