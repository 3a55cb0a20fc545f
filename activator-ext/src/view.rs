//! What the data role knows of the cluster: revisions and the addresses of their pods. Nothing here knows Kubernetes; a
//! [`source`](crate::source) makes views.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use annotations::LenientSettings;
use proxy::timeouts::TimeLimits;

/// A revision's name and its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RevisionName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for RevisionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A function: the revisions of a namespace that give the same answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FunctionName {
    /// The namespace.
    pub namespace: String,
    /// `weir.dev/function`; else the revision's name.
    pub name: String,
    /// `weir.dev/version`, which may be empty; `None` where `weir.dev/function` is not set.
    pub version: Option<String>,
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        match self.version.as_deref() {
            None | Some("") => Ok(()),
            Some(version) => write!(f, "@{version}"),
        }
    }
}

/// A revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Revision {
    /// Its name.
    pub name: RevisionName,
    /// The Knative Service's name; may be empty.
    pub service: String,
    /// The Configuration's name; may be empty.
    pub configuration: String,
    /// What its annotations ask for, and what cannot be used of them.
    pub settings: LenientSettings,
    /// Requests at a user container at once; `None`: no limit.
    pub container_concurrency: Option<u32>,
    /// How long a request may take.
    pub timeout: Duration,
    /// Until the head of its answer; `None`: no such limit.
    pub response_start_timeout: Option<Duration>,
    /// Between two bytes of its answer; `None`: no such limit.
    pub idle_timeout: Option<Duration>,
    /// Kubernetes' own word on readiness counts, since the pod has probes that Knative's proxy does not run.
    pub needs_readiness: bool,
    /// Its pods, by address.
    pub pods: BTreeMap<SocketAddr, Pod>,
}

/// A pod of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    /// Kubernetes takes it for ready.
    pub is_ready: bool,
}

impl Revision {
    /// Returns the function of which it is a variant.
    #[must_use]
    pub(crate) fn function(&self) -> FunctionName {
        let explicit = self.settings.function.as_ref();
        FunctionName {
            namespace: self.name.namespace.clone(),
            name: explicit.unwrap_or(&self.name.name).clone(),
            version: explicit.map(|_| self.settings.version.clone()),
        }
    }

    /// Returns the name under which metrics count it: `weir.dev/function`, else the Knative Service's name, else the
    /// Configuration's, so that a roll-out begins no new series.
    #[must_use]
    pub(crate) fn label(&self) -> &str {
        let names = [&*self.service, &self.configuration];
        self.settings.label(names, &self.name.name)
    }

    /// Returns how many requests may be at an instance at once: Knative's bound, else Weir's.
    #[must_use]
    pub(crate) fn concurrency(&self) -> Option<u32> {
        self.settings.concurrency(self.container_concurrency)
    }

    /// Returns how long a request may take.
    #[must_use]
    pub(crate) const fn time_limits(&self) -> TimeLimits {
        TimeLimits {
            request: self.timeout,
            response_start: self.response_start_timeout,
            idle: self.idle_timeout,
            text: "activator request timeout",
        }
    }
}

/// All revisions, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct View {
    /// The revisions.
    pub revisions: BTreeMap<RevisionName, Arc<Revision>>,
}
