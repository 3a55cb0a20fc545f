//! What was found, and how it is printed.

use serde_json::{Value, json};

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// What.
    name: String,
    /// Whether it is as it should be; `None`: it is not known, or is a matter of taste.
    is_good: Option<bool>,
    /// How it is.
    text: String,
    /// What to do about it; empty where nothing is to be done.
    remedy: String,
}

impl Finding {
    /// It is as it should be.
    pub(super) fn good(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            is_good: Some(true),
            text: text.into(),
            remedy: String::new(),
        }
    }

    /// It is not, and this is the remedy.
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

    /// It is not known, or may stay as it is; this would change it.
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

    /// It could not be looked at.
    pub(super) fn unknown(name: impl Into<String>, error: &kube::Error) -> Self {
        let remedy = match error {
            kube::Error::Api(status) if status.code == 403 => {
                "check as a cluster administrator, or with -n NAMESPACE as a user of that namespace"
            }
            _ => "check again",
        };
        Self::open(name, format!("cannot be looked at: {error}"), remedy)
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.is_good == Some(false)
    }

    /// Returns it in one line.
    pub(super) fn line(&self) -> String {
        format!("{}: {}", self.name, self.text)
    }
}

/// Returns a line for each, and the remedy below what is not good.
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

/// Returns `{"checks":[{"name", "ok", "text", "remedy"}]}`; `ok` is null where it is not known.
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
    fn a_remedy_stands_below_what_is_not_good() {
        let findings = [
            Finding::good("kubernetes", "1.36"),
            Finding::wrong("webhook", "it does not answer", "kubectl logs x"),
            Finding::open("metrics", "nobody reads them", ""),
        ];
        assert_eq!(
            text(&findings),
            "✓ kubernetes: 1.36\n✗ webhook: it does not answer\n    → kubectl logs x\n– metrics: nobody reads them\n"
        );
        let page: Value = serde_json::from_str(&json(&findings)).unwrap();
        assert_eq!(page["checks"][1]["ok"], false);
        assert_eq!(page["checks"][2]["ok"], Value::Null);
        assert_eq!(page["checks"][1]["remedy"], "kubectl logs x");
    }
}
