//! `weir simulate experiment`: runs the papers' experiments and judges whether their claims hold.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use experiments::claims::{Claims, Judged};
use experiments::{self, ExperimentError, routing};
use simulator::report::{Part, Report, Section};

use super::interrupt::Interrupt;
use super::progress::Progress;
use super::{INTERRUPTED, result, text};
use crate::{date, output};

/// Arguments of `weir simulate experiment`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Experiment to run; see --list.
    #[arg(value_name = "ID", required_unless_present_any = ["all", "list"])]
    id: Option<String>,
    /// Run all of them, one after the other.
    #[arg(long, conflicts_with = "id")]
    all: bool,
    /// List the experiments and exit.
    #[arg(long, conflicts_with_all = ["id", "all", "json", "figures", "html", "seeds"])]
    list: bool,
    /// Number of seeds; a claim on an order needs ten.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    seeds: u32,
    /// Print one JSON object on a line for each claim.
    #[arg(long)]
    json: bool,
    /// Print one JSON object on a line for each rule, load and figure of runs of nodes as well.
    #[arg(long, requires = "json")]
    figures: bool,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let mut all = experiments::all();
    all.push(experiments::ExperimentInfo {
        id: routing::ID,
        about: routing::ABOUT.to_owned(),
    });
    if arguments.list {
        let line = |own: &experiments::ExperimentInfo| format!("{}  {}", own.id, own.about);
        let lines: Vec<String> = all.iter().map(line).collect();
        result::print(&lines.join("\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let ids: Vec<&str> = match &arguments.id {
        Some(id) => vec![id.as_str()],
        None => all.iter().map(|own| own.id).collect(),
    };
    if let Some(path) = &arguments.html {
        output::can_be_written(path)?;
    }
    let progress = Progress::new(!arguments.json);
    progress.begin(ids.len());
    let mut evidence = BTreeMap::new();
    let mut sections = Vec::new();
    let mut rows = Vec::new();
    // Experiments without claims are printed as they are.
    let mut plain = String::new();
    let mut interrupted = false;
    for (number, id) in ids.iter().enumerate() {
        let mut watch = |own: experiments::Progress| {
            progress.at(number, f64::from(own.done) / f64::from(own.of.max(1)));
            !interrupt.is_set()
        };
        let found = if *id == routing::ID {
            let jobs = crate::demo::routing_jobs()?;
            routing::run(arguments.seeds, &jobs, &mut watch)
        } else {
            experiments::run(id, arguments.seeds, &mut watch)
                .map_err(|error| with_routing(error, &all))?
        };
        if found.evidence.is_empty() {
            plain.push_str(&text::of(&found.sections));
        }
        sections.extend(found.sections);
        // Without claims the figures are the result.
        if arguments.figures || found.evidence.is_empty() {
            rows.extend(found.rows);
        }
        evidence.extend(found.evidence);
        interrupted = found.stopped || (interrupt.is_set() && number + 1 < ids.len());
        if interrupted {
            break;
        }
    }
    progress.end();
    let mut seeds: Vec<u64> = evidence
        .values()
        .flat_map(|own| own.run.by_seed.keys().copied())
        .collect();
    seeds.sort_unstable();
    seeds.dedup();
    let evidence_is_empty = evidence.is_empty();
    let judged = Claims::of_papers().judge(&evidence)?;
    if let Some(path) = &arguments.html {
        let page = page(&ids, &seeds, sections, &judged);
        output::whole_file(path, |to| Ok(to.write_all(page.as_bytes())?))?;
    }
    let text = if arguments.json {
        let mut text = judged.json_rows()?;
        for row in &rows {
            text.push_str(&serde_json::to_string(row)?);
            text.push('\n');
        }
        text
    } else {
        let claims = if evidence_is_empty {
            String::new()
        } else {
            judged.table()
        };
        plain + &claims
    };
    result::print(&text)?;
    if interrupted {
        result::warn("interrupted: these are the claims that were run by then");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if judged.headline().structural_wrong > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Replaces the allowed names in an unknown-experiment error by those of `all`.
fn with_routing(error: ExperimentError, all: &[experiments::ExperimentInfo]) -> ExperimentError {
    match error {
        ExperimentError::Unknown { found, .. } => ExperimentError::Unknown {
            found,
            allowed: all.iter().map(|own| own.id).collect::<Vec<_>>().join(", "),
        },
        other => other,
    }
}

fn page(ids: &[&str], seeds: &[u64], mut sections: Vec<Section>, judged: &Judged) -> String {
    sections.insert(
        0,
        Section {
            title: "Claims".to_owned(),
            text: "Each judged by a rule fixed before any run.".to_owned(),
            parts: vec![Part::Verdicts(judged.verdicts())],
        },
    );
    Report {
        title: "The papers' experiments".to_owned(),
        answer: Vec::new(),
        scenario: format!("{} in virtual time.", ids.join(", ")),
        date: date::now(),
        seeds: seeds.to_vec(),
        parameters: Vec::new(),
        sections,
        footer: String::new(),
    }
    .html()
}
