//! Checks a document as admission does.

use annotations::template::{self, misplaced_key, short_probe};
use serde_json::Value;

use super::document::{Document, Template};

/// A problem at a line of a manifest.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) line: u64,
    pub(super) text: String,
    /// Whether admission would refuse it; otherwise a warning.
    pub(super) is_refusal: bool,
}

/// Returns all findings on a document.
pub(super) fn judge(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, (line, _)) in &document.own {
        if key.starts_with(annotations::PREFIX) {
            findings.push(Finding {
                line: *line,
                text: misplaced_key(key, &document.kind),
                is_refusal: false,
            });
        }
    }
    if let Some(template) = &document.template {
        judge_template(template, &mut findings);
    }
    findings
}

fn judge_template(template: &Template, findings: &mut Vec<Finding>) {
    let mut refuse = |line, text| {
        findings.push(Finding {
            line,
            text,
            is_refusal: true,
        })
    };
    let mut texts = Vec::new();
    for (key, (line, value)) in &template.annotations {
        match value {
            Value::String(text) => texts.push((key.as_str(), text.as_str())),
            other if key.starts_with(annotations::PREFIX) => {
                refuse(
                    *line,
                    format!("{key}={other}: an annotation is a string: write it in quotes"),
                );
            }
            _ => {}
        }
    }
    let review = template::Template {
        annotations: texts,
        container_concurrency: template.container_concurrency,
        liveness: template
            .liveness
            .iter()
            .map(|(_, seconds)| *seconds)
            .collect(),
    }
    .review();
    for refusal in review.refusals {
        let line = template
            .annotations
            .get(&refusal.key)
            .map_or(1, |(line, _)| *line);
        refuse(line, refusal.sentence);
    }
    for &(line, seconds) in review
        .short_probes
        .iter()
        .filter_map(|&position| template.liveness.get(position))
    {
        findings.push(Finding {
            line,
            text: short_probe(seconds),
            is_refusal: false,
        });
    }
}
