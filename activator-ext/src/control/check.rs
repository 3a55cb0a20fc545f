//! `activator-ext check`: reports what a cluster lacks before Weir's installation, and what is wrong after it. It
//! writes nothing.

mod finding;
mod functions;
mod knative;
mod programs;

use std::process::ExitCode;

use clap::Args;
use kube::Client;
use proxy::process::{complain, print};

use self::finding::Finding;
use super::config::{NAMESPACE, SYSTEM_NAMESPACE};
use crate::source::kubernetes;
use crate::{NAME, USAGE_ERROR};

/// The arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Checks the functions of this namespace only [default: of all namespaces].
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// Prints the findings as JSON.
    #[arg(long)]
    json: bool,
    /// Namespace of Weir's role control.
    #[arg(long, value_name = "NAME", default_value = NAMESPACE, value_parser = namespace)]
    weir_namespace: String,
    /// Namespace of Knative Serving.
    #[arg(long, value_name = "NAME", default_value = SYSTEM_NAMESPACE, value_parser = namespace)]
    system_namespace: String,
    /// Namespace of the agents.
    #[arg(long, value_name = "NAME", default_value = "weir-agent", value_parser = namespace)]
    agent_namespace: String,
}

fn namespace(text: &str) -> Result<String, String> {
    annotations::values::dns_label(text)
        .map(|()| text.to_owned())
        .map_err(|_| "the name of a namespace is needed, for example default".to_owned())
}

/// The cluster under check.
struct Subject {
    client: Client,
    arguments: CheckArguments,
}

/// Runs `check`. Returns exit code 0 if nothing is wrong, 1 if something is, and 2 if the cluster cannot be reached.
/// With 1 the first wrong finding is printed to standard error.
pub(crate) async fn check(arguments: CheckArguments) -> ExitCode {
    let client = match kubernetes::client().await {
        Ok(client) => client,
        Err(why) => return complain(NAME, USAGE_ERROR, [why]),
    };
    let subject = Subject { client, arguments };
    let findings = match subject.findings().await {
        Ok(findings) => findings,
        Err(error) => {
            let why = format!("the Kubernetes API cannot be queried: {error}");
            return complain(NAME, USAGE_ERROR, [why]);
        }
    };
    let page = if subject.arguments.json {
        finding::json(&findings)
    } else {
        finding::text(&findings)
    };
    let printed = print(&page);
    match findings.iter().find(|finding| finding.is_wrong()) {
        Some(first) => complain(NAME, 1, [first.line()]),
        None => printed,
    }
}

impl Subject {
    /// Returns all findings. Fails if the API does not report its version.
    async fn findings(&self) -> Result<Vec<Finding>, kube::Error> {
        // Without this answer there is no cluster to check.
        let mut findings = vec![self.kubernetes().await?];
        findings.extend(self.knative().await);
        match self.programs().await {
            Ok(None) => {
                findings.push(Finding::open(
                    "weir",
                    "Weir is not installed".to_owned(),
                    "docs/install.md: kubectl apply -f manifests/rendered/kourier.yaml, or softgpu.yaml, with your images",
                ));
                return Ok(findings);
            }
            Ok(Some(programs)) => findings.extend(programs),
            // A user of one namespace may not look there, but may look at functions.
            Err(error) => findings.push(Finding::unknown("weir", &error)),
        }
        match self.functions().await {
            Ok(functions) => findings.extend(functions),
            Err(error) => findings.push(Finding::unknown("revisions", &error)),
        }
        Ok(findings)
    }
}
