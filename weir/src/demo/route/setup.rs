//! Setups of the runs: the rule by which an instance is chosen, and the program which applies it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use peers::knative::{ACTIVATOR_VARIABLE, QUEUE_PROXY_VARIABLE};
use peers::network::Network;
use peers::revision::Revision;
use policy::routing::Rule;

use super::super::children::{REVISION, Settings};

/// Queue depth of Knative's activator.
const KNATIVE_DEPTH: usize = 10_000;

/// Setup of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    /// Requests wait in the activator in order of arrival, and go to instances by Knative's rules; stock queue-proxies.
    Stock,
    /// A request goes at once to any instance, and waits there in order of deadline.
    QueueProxies,
    /// Requests wait in the activator in order of deadline.
    Weir,
    /// Knative's own activator and queue-proxies.
    Knative,
}

impl Setup {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::QueueProxies => "queue-proxies",
            Self::Weir => "weir",
            Self::Knative => "knative",
        }
    }

    pub(super) const fn rule(self) -> Rule {
        match self {
            Self::Stock | Self::Knative => Rule::Knative,
            Self::QueueProxies => Rule::Random,
            Self::Weir => Rule::LateBinding,
        }
    }

    /// Returns the revision's annotations. At least one is needed, or its requests would be left to Knative's own activator.
    fn annotations(self, slo: Duration) -> Vec<(&'static str, String)> {
        match self {
            Self::Stock | Self::Knative => vec![
                ("weir.dev/late", "serve".to_owned()),
                ("weir.dev/queue-depth", KNATIVE_DEPTH.to_string()),
            ],
            Self::QueueProxies | Self::Weir => vec![
                ("weir.dev/slo", format!("{}us", slo.as_micros())),
                ("weir.dev/late", "shed".to_owned()),
            ],
        }
    }

    pub(super) const fn pods(self, slo: Duration) -> Settings {
        match self {
            Self::Stock | Self::Knative => Settings::Stock,
            Self::QueueProxies | Self::Weir => Settings::Weir(slo),
        }
    }

    /// Returns the revision with these pods; `slo` is its longest objective.
    pub(super) fn revision(self, slo: Duration, pods: Vec<SocketAddr>) -> Revision {
        let mut revision = Revision::new(REVISION);
        let annotations = self.annotations(slo).into_iter();
        revision.annotations = annotations
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        revision.pods = pods;
        revision
    }
}

/// Paths of Knative's programs.
#[derive(Debug, Clone)]
pub(super) struct KnativePrograms {
    pub(super) activator: OsString,
    pub(super) queue_proxy: OsString,
}

impl KnativePrograms {
    /// Returns the paths from the environment, or the reason why the programs are not run.
    pub(super) fn from_environment() -> Result<Self, String> {
        let named = |variable: &str| {
            std::env::var_os(variable).ok_or_else(|| format!("{variable} is not set"))
        };
        let programs = Self {
            activator: named(ACTIVATOR_VARIABLE)?,
            queue_proxy: named(QUEUE_PROXY_VARIABLE)?,
        };
        // Network namespaces are needed: the programs listen on fixed ports of every address.
        Network::new(&[]).map_err(|error| error.to_string())?;
        Ok(programs)
    }
}
