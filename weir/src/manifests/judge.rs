//! What admission says of a document.

use annotations::review::{objective, review};
use serde_json::Value;

use super::document::{Document, Template};

/// A liveness probe is to give up no sooner, in seconds, where a model may be evicted (design §4.7).
const LIVENESS_MIN_SECS: u64 = 30;

/// What there is to say of a line.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) line: u64,
    pub(super) text: String,
    /// It would be refused; else it is a warning.
    pub(super) is_refusal: bool,
}

/// Returns all that there is to say of a document.
pub(super) fn judge(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, (line, _)) in &document.own {
        if key.starts_with(annotations::PREFIX) {
            let kind = &document.kind;
            findings.push(Finding {
                line: *line,
                text: format!(
                    "{key} on the {kind} itself reaches no revision: put it on spec.template.metadata.annotations"
                ),
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
    let (settings, mut refusals) = review(texts);
    refusals.extend(objective(&settings, template.container_concurrency));
    for refusal in refusals {
        let line = template
            .annotations
            .get(&refusal.key)
            .map_or(1, |(line, _)| *line);
        refuse(line, refusal.sentence);
    }
    let may_be_evicted = settings.uses_gpu() && settings.evict == annotations::Evict::Host;
    for &(line, seconds) in &template.liveness {
        if may_be_evicted && seconds < LIVENESS_MIN_SECS {
            findings.push(Finding {
                line,
                text: format!(
                    "the liveness probe gives up after {seconds} s (timeoutSeconds × failureThreshold): while its model is evicted \
                     a process may not answer; allowed: {LIVENESS_MIN_SECS} s and more, or weir.dev/evict: never"
                ),
                is_refusal: false,
            });
        }
    }
}
