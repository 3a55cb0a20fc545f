//! Errors of the command line, in one sentence.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, Error, Parser};

/// Exit code for unusable options.
const USAGE: u8 = 2;

/// Parses the command line. Returns the exit code after help or an error was printed.
pub(crate) fn parsed<P: Parser>() -> Result<P, ExitCode> {
    parsed_from(std::env::args_os())
}

/// Parses these words as [`parsed`] does; the first is the command.
pub(crate) fn parsed_from<P: Parser>(
    words: impl IntoIterator<Item = OsString>,
) -> Result<P, ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    P::try_parse_from(&words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed stdout is no error.
            let _printed = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _printed = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            let _written = writeln!(
                std::io::stderr(),
                "weir: {}; {} --help lists what is allowed",
                sentence(&error),
                command(&P::command(), &words)
            );
            ExitCode::from(USAGE)
        }
    })
}

/// Returns the full name of the command in the words, with its subcommands, such as "weir demo".
fn command(program: &Command, words: &[OsString]) -> String {
    let mut name = program.get_name().to_owned();
    let mut at = program;
    for word in words.iter().skip(1) {
        let Some(found) = at.find_subcommand(word) else {
            break;
        };
        at = found;
        name = format!("{name} {}", at.get_name());
    }
    name
}

/// Returns a clap error on one line: the cause, and the allowed or similar values.
fn sentence(error: &Error) -> String {
    let text = error.render().to_string();
    let mut sentence = String::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage: ") || line.starts_with("For more information") {
            break;
        }
        let line = line.strip_prefix("error: ").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        if let Some(tip) = line.strip_prefix("tip: ") {
            sentence.push_str("; ");
            sentence.push_str(tip);
        } else if sentence.is_empty() {
            sentence.push_str(line);
        } else {
            // A list has an item per line, the first after a colon.
            let between = if sentence.ends_with(':') || line.starts_with('[') {
                " "
            } else {
                ", "
            };
            sentence.push_str(between);
            sentence.push_str(line);
        }
    }
    whole_numbers(&sentence)
}

/// Rewrites "0 is not in 1..=100" as "a whole number from 1 to 100 is needed".
fn whole_numbers(text: &str) -> String {
    let Some((before, bounds)) = text.split_once(" is not in ") else {
        return text.to_owned();
    };
    let end = bounds.find([' ', ';']).unwrap_or(bounds.len());
    let (range, after) = bounds.split_at(end);
    let (Some((what, _)), Some((from, to))) = (before.rsplit_once(": "), range.split_once("..="))
    else {
        return text.to_owned();
    };
    format!("{what}: a whole number from {from} to {to} is needed{after}")
}

/// Returns a parser's error without the quoted lines of the file: its first line has the position, its last the cause.
pub(crate) fn on_one_line(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) => format!("{first}: {last}"),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arguments;

    fn error_text(line: &str) -> String {
        let words = std::iter::once("weir").chain(line.split(' '));
        sentence(&Arguments::try_parse_from(words).unwrap_err())
    }

    #[test]
    fn errors_are_one_sentence_with_cause_option_and_allowed_values() {
        for (line, expected) in [
            (
                "dmeo",
                "unrecognized subcommand 'dmeo'; a similar subcommand exists: 'demo'",
            ),
            (
                "demo --lod 1",
                "unexpected argument '--lod' found; a similar argument exists: '--load'",
            ),
            (
                "demo --load -1",
                "invalid value '-1' for '--load <L>': a number above 0, up to 100000, is needed",
            ),
            (
                "demo --seed 0",
                "invalid value '0' for '--seed <N>': a whole number from 1 to 1000000 is needed",
            ),
            (
                "simulate --seed 0",
                "invalid value '0' for '--seed <N>': a whole number from 1 to 1000000000 is needed",
            ),
            (
                "simulate --rate-scale -2",
                "invalid value '-2' for '--rate-scale <X>': a number from 0.001 to 1000000 is needed",
            ),
            (
                "simulate --sweep gpus=5..1",
                "invalid value 'gpus=5..1' for '--sweep <KEY=RANGE>': gpus=5..1 begins at 5 and ends at 1: a rising range is needed, such as gpus=1..5",
            ),
            (
                "demo --scenario share",
                "invalid value 'share' for '--scenario <SCENARIO>' [possible values: deadline, route, shares, evict, swap]; a similar value exists: 'shares'",
            ),
            (
                "live",
                "the following required arguments were not provided: --server <URL>, --token-file <FILE>, --ca <FILE>",
            ),
        ] {
            assert_eq!(error_text(line), expected, "{line}");
        }
    }

    #[test]
    fn errors_refer_to_the_help_of_the_subcommand() {
        let named = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            command(&<Arguments as clap::CommandFactory>::command(), &words)
        };
        assert_eq!(named("weir dmeo"), "weir");
        assert_eq!(named("weir demo --lod 1"), "weir demo");
        assert_eq!(named("weir softgpu path --gpus 0"), "weir softgpu path");
        assert_eq!(
            named("weir simulate experiment x"),
            "weir simulate experiment"
        );
    }
}
