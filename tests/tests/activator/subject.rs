//! Activator under test: Weir's, or Knative's if `KNATIVE_ACTIVATOR` names it.

use std::net::{IpAddr, SocketAddr};

use peers::autoscaler::Autoscaler;
use peers::knative::{ACTIVATOR_VARIABLE, KnativeActivator};
use peers::revision::Revision;
use tests::activator::Activator;
use tests::app::App;

use crate::{Pod, activator};

/// Name of the subject's revision.
pub(crate) const REVISION: &str = "f-00001";

/// An activator with one revision, and its autoscaler.
pub(crate) enum Subject {
    Own(Box<Activator>, Autoscaler),
    Knative(Box<KnativeActivator>),
}

impl Subject {
    /// Starts Weir's activator with [`REVISION`], which has no pods.
    pub(crate) async fn own() -> Self {
        let autoscaler = Autoscaler::start().await;
        let own = activator()
            .revision(&Revision::new(REVISION))
            .arguments(&["--autoscaler", &autoscaler.url()])
            .start()
            .await;
        Self::Own(Box::new(own), autoscaler)
    }

    /// Starts Knative's activator likewise. Returns `None`, with a message, if it is not given or cannot run here, as without
    /// root.
    #[expect(clippy::print_stderr, reason = "reports a skipped test")]
    pub(crate) async fn knative() -> Option<Self> {
        let Some(binary) = std::env::var_os(ACTIVATOR_VARIABLE) else {
            eprintln!("skipped: {ACTIVATOR_VARIABLE} is not set");
            return None;
        };
        match KnativeActivator::start(&binary, &Revision::new(REVISION)).await {
            Ok(activator) => Some(Self::Knative(Box::new(activator))),
            Err(error @ peers::knative::StartError::Network(_)) => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("Knative's activator: {error}"),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Own(own, _) => own.address(),
            Self::Knative(knative) => knative.address(),
        }
    }

    pub(crate) const fn autoscaler(&self) -> &Autoscaler {
        match self {
            Self::Own(_, autoscaler) => autoscaler,
            Self::Knative(knative) => &knative.autoscaler,
        }
    }

    pub(crate) fn set_revision(&self, revision: &Revision) {
        match self {
            Self::Own(own, _) => own.set_revision(revision),
            Self::Knative(knative) => knative.set_revision(revision),
        }
    }

    /// Starts a pod at an address that this activator reaches.
    pub(crate) async fn pod(&self) -> Pod {
        let ip = match self {
            Self::Own(..) => None,
            Self::Knative(knative) => {
                let address = knative.network.another_outside();
                Some(IpAddr::from(address.expect("an address")))
            }
        };
        Pod::build(App::delaying().await, ip).await
    }

    /// Waits until this many instances are ready. Knative's activator does not report it.
    pub(crate) async fn has_instances(&self, count: u32) {
        if let Self::Own(own, _) = self {
            own.has_instances(count).await;
        }
    }
}
