//! Random mutations of seed inputs, to find inputs on which a parser panics.
//!
//! Each test runs for four seconds, or for `WEIR_MUTATION_SECONDS`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const SECONDS: u64 = 4;
/// Number of inputs tried between two checks of the time.
const BATCH: u32 = 500;
/// Tokens that are meaningful to one parser or another.
const TOKENS: [&str; 32] = [
    "{{",
    "}}",
    "{{-",
    "-}}",
    "(",
    ")",
    "|",
    "\"",
    "`",
    "\\",
    "\n",
    "=",
    ".",
    "$",
    "if",
    "else",
    "end",
    "range",
    ":",
    ",",
    "{",
    "}",
    "[",
    "]",
    "null",
    "-1",
    "1e400",
    "18446744073709551616",
    "\u{0}",
    "é",
    "9999999999",
    "::",
];

#[derive(Debug, Clone)]
enum Change {
    Delete(usize, usize),
    Insert(usize, usize),
    Repeat(usize, usize, usize),
    Replace(usize, char),
    Splice(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0_usize..10_000;
    prop_oneof![
        (at.clone(), 1_usize..40).prop_map(|(at, length)| Change::Delete(at, length)),
        (at.clone(), 0..TOKENS.len()).prop_map(|(at, token)| Change::Insert(at, token)),
        (at.clone(), 1_usize..40, 2_usize..50)
            .prop_map(|(at, length, times)| Change::Repeat(at, length, times)),
        (at.clone(), any::<char>()).prop_map(|(at, c)| Change::Replace(at, c)),
        (at, 0_usize..100).prop_map(|(at, seed)| Change::Splice(at, seed)),
    ]
}

fn apply(text: &str, change: &Change, seeds: &[String]) -> String {
    let chars: Vec<char> = text.chars().collect();
    let place = |at: usize| at % (chars.len() + 1);
    let (before, after) = match change {
        Change::Delete(at, _)
        | Change::Insert(at, _)
        | Change::Repeat(at, ..)
        | Change::Replace(at, _)
        | Change::Splice(at, _) => chars.split_at(place(*at)),
    };
    let piece: Vec<char> = match change {
        Change::Delete(_, length) => after[after.len().min(*length)..].to_vec(),
        Change::Insert(_, token) => TOKENS[*token]
            .chars()
            .chain(after.iter().copied())
            .collect(),
        Change::Repeat(_, length, times) => {
            let (repeated, rest) = after.split_at(after.len().min(*length));
            [&repeated.repeat(*times), rest].concat()
        }
        Change::Replace(_, c) => std::iter::once(*c)
            .chain(after.iter().skip(1).copied())
            .collect(),
        Change::Splice(_, seed) => {
            let other: Vec<char> = seeds[seed % seeds.len()].chars().collect();
            other[place(other.len()).min(other.len())..].to_vec()
        }
    };
    before.iter().copied().chain(piece).collect()
}

/// Returns the seeds of a folder of `tests/corpus`.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn seeds(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(folder);
    let entries = fs::read_dir(&folder).expect("a folder of the corpus");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| fs::read_to_string(file).expect("a seed"))
        .collect()
}

/// Runs `target` on the seeds, and on mutated ones until the time is up. Returns the number of inputs.
///
/// # Panics
/// If `target` panics, with the smallest input found for which it does.
pub fn run(seeds: &[String], target: impl Fn(&str) + std::panic::RefUnwindSafe) -> u32 {
    let seconds = std::env::var("WEIR_MUTATION_SECONDS")
        .ok()
        .and_then(|value| value.parse().ok());
    let span = Duration::from_secs(seconds.unwrap_or(SECONDS));
    for seed in seeds {
        target(seed);
    }
    let begin = Instant::now();
    let mut tried = 0;
    // Each batch continues the random sequence of the one before.
    let mut runner = TestRunner::new(Config {
        cases: BATCH,
        failure_persistence: None,
        ..Config::default()
    });
    while begin.elapsed() < span {
        let input = (0..seeds.len(), prop::collection::vec(change(), 0..12));
        let outcome = runner.run(&input, |(seed, changes)| {
            let mut text = seeds[seed].clone();
            for change in &changes {
                text = apply(&text, change, seeds);
                text.truncate(text.floor_char_boundary(64 * 1024));
            }
            std::panic::catch_unwind(|| target(&text))
                .map_err(|_| TestCaseError::fail(format!("{text:?}")))
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
        tried += BATCH;
    }
    tried
}
