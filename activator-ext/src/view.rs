//! The data role's view of the cluster: revisions and the addresses of their pods. It is independent of Kubernetes; a
//! [`source`](crate::source) makes views.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use annotations::LenientSettings;
use proxy::timeouts::TimeLimits;

/// A revision's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RevisionName {
    /// Namespace of the revision.
    pub namespace: String,
    /// Name of the revision, without its namespace.
    pub name: String,
}

impl fmt::Display for RevisionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The name of a function: the revisions of a namespace that give the same answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FunctionName {
    /// Namespace of the function.
    pub namespace: String,
    /// Value of `weir.dev/function`, or the revision's name without one.
    pub name: String,
    /// Value of `weir.dev/version`, which may be empty; `None` where `weir.dev/function` is not set.
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

/// A revision with its settings and pods.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Revision {
    /// Namespace and name of the revision.
    pub name: RevisionName,
    /// Name of the Knative Service; may be empty.
    pub service: String,
    /// Name of the Configuration; may be empty.
    pub configuration: String,
    /// Settings from the revision's annotations, and the problems of invalid ones.
    pub settings: LenientSettings,
    /// Largest number of requests at a user container at a time; `None`: no limit.
    pub container_concurrency: Option<u32>,
    /// Longest duration of a request.
    pub timeout: Duration,
    /// Longest time until the head of the answer; `None`: no limit.
    pub response_start_timeout: Option<Duration>,
    /// Longest time between two bytes of the answer; `None`: no limit.
    pub idle_timeout: Option<Duration>,
    /// Whether Kubernetes' readiness counts, since the pod has probes that Knative's queue-proxy does not run.
    pub needs_readiness: bool,
    /// Pods of the revision, by the address to which requests are sent.
    pub pods: BTreeMap<SocketAddr, Pod>,
}

/// The state of a pod of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    /// Whether Kubernetes considers the pod ready.
    pub is_ready: bool,
}

impl Revision {
    /// Returns the function of which the revision is a variant.
    #[must_use]
    pub(crate) fn function(&self) -> FunctionName {
        let explicit = self.settings.function.as_ref();
        FunctionName {
            namespace: self.name.namespace.clone(),
            name: explicit.unwrap_or(&self.name.name).clone(),
            version: explicit.map(|_| self.settings.version.clone()),
        }
    }

    /// Returns the label `function` of metrics: `weir.dev/function`, or the Knative Service's name, or the
    /// Configuration's, so that a roll-out starts no new series.
    #[must_use]
    pub(crate) fn label(&self) -> &str {
        let names = [&*self.service, &self.configuration];
        self.settings.label(names, &self.name.name)
    }

    /// Returns the largest number of requests at an instance at a time: Knative's bound, or Weir's; `None`: no limit.
    #[must_use]
    pub(crate) fn concurrency(&self) -> Option<u32> {
        self.settings.concurrency(self.container_concurrency)
    }

    /// Returns the time limits of a request.
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

/// All revisions of the cluster, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct View {
    /// Revisions with their settings and pods, by namespace and name.
    pub revisions: BTreeMap<RevisionName, Arc<Revision>>,
}
