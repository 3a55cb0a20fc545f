//! The election of the leading process of role `control`. `policy::election` decides; this module reads and writes the
//! Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use policy::election::{Election, Holder, Record, Terms, Verdict};
use policy::{Span, Time};
use proxy::clock::Clock;
use tokio::sync::watch;
use tokio::time::timeout;

use super::hash;
use super::names::CONTROL;

/// A process that takes part in the election.
#[derive(Debug)]
pub(crate) struct Candidate {
    api: Api<Lease>,
    /// The process's name in the Lease, unique among processes at a time.
    identity: String,
    terms: Terms,
    clock: Clock,
    /// Time until which this process leads; `None` if it does not lead.
    leads_until: watch::Sender<Option<Time>>,
}

/// The kind of change to a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Acquire,
    Renew,
    /// The holder is cleared.
    Release,
}

impl Candidate {
    /// Returns a candidate that does not lead yet.
    pub(crate) fn new(api: Api<Lease>, identity: String, terms: Terms, clock: Clock) -> Self {
        Self {
            api,
            identity,
            terms,
            clock,
            leads_until: watch::Sender::new(None),
        }
    }

    /// Returns whether this process leads now. Call it before every write: the result is valid only as long as the
    /// process is not suspended.
    pub(crate) fn leads(&self) -> bool {
        let until = *self.leads_until.borrow();
        until.is_some_and(|until| self.clock.now() < until)
    }

    /// Waits until this process leads.
    pub(crate) async fn elected(&self) {
        // The sender lives as long as `self`.
        let mut leads_until = self.leads_until.subscribe();
        let _elected = leads_until.wait_for(Option::is_some).await;
    }

    /// Acquires the Lease and renews it. Returns once it is lost.
    pub(crate) async fn run(&self) {
        let mut election = Election::new(self.terms);
        let retry = duration(self.terms.retry);
        let mut failures = 0_u64;
        loop {
            let mut pause = retry;
            match timeout(retry.saturating_mul(2), self.turn(&mut election)).await {
                Ok(Ok(Verdict::Lost)) => return,
                Ok(Ok(Verdict::Follow(until))) => {
                    failures = 0;
                    pause = duration(until.since(self.clock.now()));
                }
                Ok(Ok(_)) => failures = 0,
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
                failed => {
                    let error = match failed {
                        Ok(error) => error.err().map(|error| error.to_string()),
                        Err(_) => None,
                    };
                    let error = error.unwrap_or_else(|| "timed out".to_owned());
                    failures += 1;
                    if failures.is_power_of_two() {
                        tracing::warn!(error, failures, "cannot read or write the lease");
                    }
                }
            }
            let now = self.clock.now();
            if self.leads_until.borrow().is_some() && !election.leads(now) {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Reads the Lease once, and acquires or renews it if that is due.
    async fn turn(&self, election: &mut Election) -> Result<Verdict, kube::Error> {
        let found = self.api.get_opt(CONTROL).await?;
        let now = self.clock.now();
        let verdict = election.evaluate(now, &self.record(found.as_ref()));
        let entry = match verdict {
            Verdict::Acquire => Entry::Acquire,
            Verdict::Renew => Entry::Renew,
            Verdict::Follow(_) | Verdict::Lost => return Ok(verdict),
        };
        let written = self.write(found, entry).await?;
        election.wrote(now, version(&written));
        self.leads_until.send_replace(election.leads_until());
        if entry == Entry::Acquire {
            tracing::info!(identity = self.identity, "this process leads");
        }
        Ok(verdict)
    }

    /// Releases the Lease if this process holds it, so that another process can lead at once.
    pub(crate) async fn release(&self) {
        if !self.leads() {
            return;
        }
        self.leads_until.send_replace(None);
        let release = async {
            let found = self.api.get_opt(CONTROL).await?;
            if self.record(found.as_ref()).holder == Holder::Own {
                self.write(found, Entry::Release).await?;
            }
            Ok::<_, kube::Error>(())
        };
        if let Ok(Err(error)) = timeout(duration(self.terms.retry), release).await {
            tracing::info!(%error, "cannot release the lease; it expires by itself");
        }
    }

    fn record(&self, lease: Option<&Lease>) -> Record {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Record {
            holder: match holder {
                None | Some("") => Holder::Vacant,
                Some(holder) if holder == self.identity => Holder::Own,
                Some(_) => Holder::Other,
            },
            version: lease.map_or(0, version),
            duration: seconds.map_or(self.terms.lease, Span::from_secs),
        }
    }

    /// Writes the Lease. Fails with a conflict if it was changed since it was read.
    async fn write(&self, found: Option<Lease>, entry: Entry) -> Result<Lease, kube::Error> {
        let is_new = found.is_none();
        let mut lease = found.unwrap_or_default();
        lease.metadata.name = Some(CONTROL.to_owned());
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let now = Some(MicroTime(Timestamp::now()));
        if entry == Entry::Acquire {
            spec.acquire_time = now.clone();
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(-1).saturating_add(1));
        }
        spec.renew_time = now;
        spec.holder_identity = Some(match entry {
            Entry::Release => String::new(),
            Entry::Acquire | Entry::Renew => self.identity.clone(),
        });
        // Rounded up to whole seconds, so that it is not shorter than the actual duration.
        let seconds = self.terms.lease.0.div_ceil(1_000_000_000);
        spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
        let parameters = PostParams::default();
        if is_new {
            self.api.create(&parameters, &lease).await
        } else {
            self.api.replace(CONTROL, &parameters, &lease).await
        }
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.0)
}

fn version(lease: &Lease) -> u64 {
    hash(
        lease
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or_default(),
    )
}
