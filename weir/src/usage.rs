//! What is wrong with a command line, in one sentence.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, Error, Parser};

/// The exit code for options that cannot be used.
const USAGE: u8 = 2;

/// Returns what the command line says, or the exit code after its help or what is wrong with it was printed.
pub(crate) fn parsed<P: Parser>() -> Result<P, ExitCode> {
    parsed_from(std::env::args_os())
}

/// The same of these words, the first of which is the command.
pub(crate) fn parsed_from<P: Parser>(
    words: impl IntoIterator<Item = OsString>,
) -> Result<P, ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    P::try_parse_from(&words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Where stdout is closed nothing can be printed.
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
                "weir: {}; {} --help lists what there is",
                sentence(&error),
                command(&P::command(), &words)
            );
            ExitCode::from(USAGE)
        }
    })
}

/// Returns the command that the words name, with its subcommands.
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

/// Returns an error of clap's on one line: what is wrong, and what is allowed or nearly the same.
fn sentence(error: &Error) -> String {
    let text = error.render().to_string();
    let mut said = String::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage: ") || line.starts_with("For more information") {
            break;
        }
        let line = line.strip_prefix("error: ").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        if let Some(tip) = line.strip_prefix("tip: ") {
            said.push_str("; ");
            said.push_str(tip);
        } else if said.is_empty() {
            said.push_str(line);
        } else {
            // Of a list each item has a line, the first behind a colon.
            let between = if said.ends_with(':') || line.starts_with('[') {
                " "
            } else {
                ", "
            };
            said.push_str(between);
            said.push_str(line);
        }
    }
    whole_numbers(&said)
}

/// Returns a text with "0 is not in 1..=100" as "a whole number from 1 to 100 is needed".
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

/// Returns a parser's error without the lines of the file in it: the first says where, the last one what.
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

    fn said(line: &str) -> String {
        let words = std::iter::once("weir").chain(line.split(' '));
        sentence(&Arguments::try_parse_from(words).unwrap_err())
    }

    #[test]
    fn each_error_is_one_sentence_with_what_where_and_what_is_allowed() {
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
                "invalid value 'gpus=5..1' for '--sweep <KEY=RANGE>': gpus=5..1 begins at 5 and ends at 1: a range that rises is needed, as gpus=1..5",
            ),
            (
                "demo --scenario share",
                "invalid value 'share' for '--scenario <SCENARIO>' [possible values: deadline, route, shares]; a similar value exists: 'shares'",
            ),
            (
                "live",
                "the following required arguments were not provided: --server <URL>, --token-file <FILE>, --ca <FILE>",
            ),
        ] {
            assert_eq!(said(line), expected, "{line}");
        }
    }

    #[test]
    fn the_help_that_says_more_is_that_of_the_command() {
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
