//! Findings of a check, and how they are printed.

use serde_json::{Value, json};

/// The finding about one checked item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The checked item, for example `revision default/f-00001`.
    name: String,
    /// Whether the checked item is in order; `None` if that is unknown or a matter of choice.
    is_good: Option<bool>,
    /// The state that was found.
    text: String,
    /// The remedy; empty where none is needed.
    remedy: String,
}

impl Finding {
    /// Returns a finding about an item that is in order.
    pub(super) fn good(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            is_good: Some(true),
            text: text.into(),
            remedy: String::new(),
        }
    }

    /// Returns a finding about an item that is wrong, with its remedy.
    pub(super) fn wrong(
        name: impl Into<String>,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            is_good: Some(false),
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns a finding about an item whose state is unknown or acceptable, with what would change it.
    pub(super) fn open(
        name: impl Into<String>,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            is_good: None,
            ..Self::wrong(name, text, remedy)
        }
    }

    /// Returns a finding about an item that could not be checked.
    pub(super) fn unknown(name: impl Into<String>, error: &kube::Error) -> Self {
        let remedy = match error {
            kube::Error::Api(status) if status.code == 403 => {
                "check as a cluster administrator, or with -n NAMESPACE as a user of that namespace"
            }
            _ => "check again",
        };
        Self::open(name, format!("cannot be checked: {error}"), remedy)
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.is_good == Some(false)
    }

    /// Returns the finding as one line of text, without its remedy.
    pub(super) fn line(&self) -> String {
        format!("{}: {}", self.name, self.text)
    }
}

/// Returns a line for each finding, with its remedy below.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut page = String::new();
    for finding in findings {
        let mark = match finding.is_good {
            Some(true) => '✓',
            Some(false) => '✗',
            None => '–',
        };
        page.push_str(&format!("{mark} {}\n", finding.line()));
        if !finding.remedy.is_empty() {
            page.push_str(&format!("    → {}\n", finding.remedy));
        }
    }
    page
}

/// Returns `{"checks":[{"name", "ok", "text", "remedy"}]}`; `ok` is null where it is unknown.
pub(super) fn json(findings: &[Finding]) -> String {
    let checks: Vec<Value> = findings
        .iter()
        .map(|finding| {
            json!({
                "name": finding.name,
                "ok": finding.is_good,
                "text": finding.text,
                "remedy": finding.remedy,
            })
        })
        .collect();
    let mut page = json!({ "checks": checks }).to_string();
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_printed_below_its_finding() {
        let findings = [
            Finding::good("kubernetes", "1.36"),
            Finding::wrong("webhook", "it does not answer", "kubectl logs x"),
            Finding::open("metrics", "not scraped", ""),
        ];
        assert_eq!(
            text(&findings),
            "✓ kubernetes: 1.36\n✗ webhook: it does not answer\n    → kubectl logs x\n– metrics: not scraped\n"
        );
        let page: Value = serde_json::from_str(&json(&findings)).unwrap();
        assert_eq!(page["checks"][1]["ok"], false);
        assert_eq!(page["checks"][2]["ok"], Value::Null);
        assert_eq!(page["checks"][1]["remedy"], "kubectl logs x");
    }
}
