//! `weir manifests validate`: checks a directory of manifests as admission would, without a cluster.

mod document;
mod judge;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use document::Document;
use judge::{Finding, judge};

/// Largest number of files read.
const FILES_MAX: usize = 100_000;
/// Largest file, in bytes.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Arguments of `weir manifests`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the Knative Services, Configurations and Revisions in a directory as admission would.
    Validate {
        /// A directory, read with its subdirectories: files `*.yaml`, `*.yml` and `*.json`; or one such file.
        #[arg(value_name = "DIR")]
        path: PathBuf,
    },
}

/// Runs the command. Returns exit code 0 if nothing is refused, 2 if something is refused or unreadable.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let Command::Validate { path } = &arguments.command;
    let outcome = validate(path).unwrap_or_else(|why| Outcome {
        lines: vec![format!("weir: {why}")],
        is_refused: true,
        looked_at: 0,
    });
    let mut stderr = io::stderr().lock();
    for line in &outcome.lines {
        // A closed stderr is no error.
        let _written = writeln!(stderr, "{line}");
    }
    if outcome.is_refused {
        return ExitCode::from(2);
    }
    let text = format!(
        "{} revision templates: nothing would be refused",
        outcome.looked_at
    );
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[derive(Debug, Default)]
struct Outcome {
    lines: Vec<String>,
    is_refused: bool,
    /// Number of revision templates, with or without Weir's annotations.
    looked_at: usize,
}

fn validate(path: &Path) -> Result<Outcome, String> {
    let mut files = Vec::new();
    collect(path, &mut files)?;
    files.sort();
    let mut outcome = Outcome::default();
    for file in &files {
        let shown = file.display();
        let text = fs::read_to_string(file).map_err(|error| format!("{shown}: {error}"))?;
        let documents = match Document::read(&text) {
            Ok(documents) => documents,
            Err((line, why)) => {
                outcome.lines.push(format!("{shown}:{line}: {why}"));
                outcome.is_refused = true;
                continue;
            }
        };
        for document in &documents {
            outcome.looked_at += usize::from(document.template.is_some());
            for Finding {
                line,
                text,
                is_refusal,
            } in judge(document)
            {
                let word = if is_refusal { "" } else { "warning: " };
                outcome.lines.push(format!("{shown}:{line}: {word}{text}"));
                outcome.is_refused |= is_refusal;
            }
        }
    }
    Ok(outcome)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let wrong = |error| format!("{}: {error}", path.display());
    let data = fs::metadata(path).map_err(wrong)?;
    if data.is_file() {
        let is_larger = data.len() > BYTES_MAX;
        if is_larger || files.len() == FILES_MAX {
            let (what, max) = if is_larger {
                ("bytes", BYTES_MAX)
            } else {
                ("files", FILES_MAX as u64)
            };
            return Err(format!("{}: more than {max} {what}", path.display()));
        }
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let inner = entry.path();
        let kind = entry.file_type().map_err(wrong)?;
        let extension = inner.extension().and_then(|it| it.to_str());
        // Symbolic links are not followed: they may form a cycle.
        if kind.is_dir() || (kind.is_file() && matches!(extension, Some("yaml" | "yml" | "json"))) {
            collect(&inner, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validate_file(name: &str, text: &str) -> (Vec<String>, bool) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        let file = folder.path().join("inner").join(name);
        fs::write(&file, text).unwrap();
        fs::write(folder.path().join("notes.txt"), "weir.dev/slo: never").unwrap();
        let outcome = validate(folder.path()).unwrap();
        let prefix = format!("{}:", file.display());
        let lines = outcome.lines.iter();
        let lines = lines.map(|line| line.strip_prefix(&prefix).unwrap().to_owned());
        (lines.collect(), outcome.is_refused)
    }

    const SERVICE: &str = "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n---\napiVersion: serving.knative.dev/v1\nkind: Service\n\
        metadata:\n  name: f\n  annotations:\n    weir.dev/slo: 1s\nspec:\n  template:\n    metadata:\n      annotations:\n        \
        weir.dev/late: never\n        weir.dev/queue-depth: 7\n        weir.dev/slo: 1s\n    spec:\n      containers: [{}]\n";

    #[test]
    fn problems_are_reported_with_file_line_key_and_allowed_values() {
        let (lines, is_refused) = validate_file("f.yaml", SERVICE);
        assert!(is_refused);
        assert_eq!(
            lines,
            [
                "10: warning: weir.dev/slo on the Service itself reaches no revision: put it on spec.template.metadata.annotations",
                "16: weir.dev/queue-depth=7: an annotation is a string: write it in quotes",
                "15: weir.dev/late=\"never\": allowed: serve, shed",
                "17: weir.dev/slo needs containerConcurrency of at least 1, or weir.dev/concurrency",
            ]
        );
    }

    #[test]
    fn warns_of_a_liveness_probe_which_eviction_would_trip() {
        let revision = "{\"apiVersion\": \"serving.knative.dev/v1\", \"kind\": \"Revision\",\n\"metadata\": {\"name\": \"f\", \
            \"annotations\": {\n\"weir.dev/gpu-memory\": \"8Gi\"}},\n\"spec\": {\"containers\": [{\"livenessProbe\": \
            {\"timeoutSeconds\": 2, \"failureThreshold\": 5}}]}}";
        let (lines, is_refused) = validate_file("f.json", revision);
        assert!(!is_refused);
        let why = "4: warning: the liveness probe fails after 10 s (timeoutSeconds × failureThreshold): a process may not \
            answer while its model is evicted; allowed: 30 s and more, or weir.dev/evict: never";
        assert_eq!(lines, [why]);
    }

    #[test]
    fn invalid_yaml_is_refused_with_its_line_and_valid_files_are_accepted() {
        let (lines, is_refused) =
            validate_file("f.yml", "a: 1\n---\nkind: Service\napiVersion: [\n");
        assert!(is_refused);
        assert!(
            lines[0].starts_with("5:") || lines[0].starts_with("4:"),
            "{lines:?}"
        );
        let fine = SERVICE
            .replace("never", "shed")
            .replace(": 7", ": \"7\"")
            .replace(
                "      containers:",
                "      containerConcurrency: 1\n      containers:",
            )
            .replacen("    weir.dev/slo: 1s\n", "", 1);
        assert_eq!(validate_file("f.yaml", &fine), (Vec::new(), false));
    }
}
