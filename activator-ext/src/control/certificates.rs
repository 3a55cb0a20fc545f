//! Certificates for the connections between Weir's own programs and for the API server's calls: an authority, and a
//! pair under it for each program.
//!
//! | object | content |
//! |---|---|
//! | Secret `weir-ca` in Weir's namespace | the authority that signs (`ca.crt`, `ca.key`), the next one (`next.crt`, `next.key`, `next.published`), the previous one (`previous.crt`) |
//! | Secret `weir-certificates` in each namespace with programs of Weir | `tls.crt`, `tls.key`, and in `ca.crt` all trusted authorities |
//! | ConfigMap `weir-ca` in Weir's namespace | `ca.crt`, for all clients |
//! | `caBundle` of the webhooks | the same |
//!
//! The manifests create these objects; this module fills them. `policy::certificates` decides which step is due when.

mod authority;

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watcher;
use kube::{Client, Resource};
use mutual_tls::{Pem, name_of};
use policy::certificates::{Authorities, Step, next_step};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Notify;

use super::config::ControlConfig;
use super::lease::Candidate;
use super::names::{AUTHORITY, CERTIFICATES, WEBHOOK_SERVICE, WEBHOOKS};
use crate::source::kubernetes::watch_config;
use authority::{MakeError, Pair, authority, is_usable, pair, usable_authority, validity};

/// Time in seconds until a published authority is trusted wherever certificates are checked: the kubelet renews mounted
/// ConfigMaps and Secrets within two minutes. It is less where authorities live for less than nine times as long.
const SPREAD_SECS: i64 = 3_600;
/// Ratio of an authority's life to that of the pairs under it.
const PAIRS_PER_AUTHORITY: i64 = 6;
/// Period at which all objects are checked, since other clients may have changed them.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// Delay before a retry after an error.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Largest number of steps about authorities in a row.
const STEPS_MAX: usize = 8;

/// The key of the second at which the next authority was published.
const PUBLISHED: &str = "next.published";

/// The reason why certificates could not be maintained. It is retried after [`RETRY_AFTER`].
#[derive(Debug, thiserror::Error)]
enum CertificateError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error(
        "there is no {kind} {name} in {namespace}: it is part of the manifests; apply them again"
    )]
    Missing {
        kind: &'static str,
        name: &'static str,
        namespace: String,
    },
    #[error("the object was changed concurrently")]
    Contended,
}

/// A pair of a program: the namespace of its Secret, and its DNS names.
#[derive(Debug)]
struct ProgramSecret {
    namespace: String,
    names: Vec<String>,
}

/// Maintains certificates.
#[derive(Debug)]
pub(crate) struct Keeper {
    namespace: String,
    kept: Vec<ProgramSecret>,
    /// Validity of an authority in seconds.
    life: i64,
    /// Notified when this program's Secret has been written, by any process.
    written: Notify,
}

impl Keeper {
    pub(crate) fn new(config: &ControlConfig) -> Self {
        let namespace = &config.namespace;
        let service = format!("{WEBHOOK_SERVICE}.{namespace}.svc");
        let kept = [
            (namespace, vec![service, name_of("control")]),
            (&config.system_namespace, vec![name_of("activator")]),
            (&config.agent_namespace, vec![name_of("agent")]),
        ];
        Self {
            namespace: namespace.clone(),
            kept: kept
                .map(|(namespace, names)| ProgramSecret {
                    namespace: namespace.clone(),
                    names,
                })
                .into(),
            life: i64::try_from(config.authority_life.as_secs()).unwrap_or(i64::MAX),
            written: Notify::new(),
        }
    }

    /// Waits until this process leads, and then maintains certificates; never returns.
    pub(crate) async fn run(&self, client: &Client, candidate: &Candidate) {
        candidate.elected().await;
        let mut failures = 0_u64;
        loop {
            let now = Timestamp::now().as_second();
            let pause = match self.look(client, candidate, now).await {
                Ok(until) => {
                    failures = 0;
                    let left = u64::try_from(until.saturating_sub(now)).unwrap_or(0);
                    Duration::from_secs(left.max(1)).min(LOOK_PERIOD)
                }
                Err(CertificateError::Contended) => RETRY_AFTER,
                Err(error) => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, failures, "cannot maintain the certificates");
                    }
                    RETRY_AFTER
                }
            };
            let _look = tokio::time::timeout(pause, self.written.notified()).await;
        }
    }

    /// Calls `take` with this program's certificate, key and authorities whenever they change. Returns only if the
    /// watch ends.
    pub(crate) async fn follow(&self, client: Client, take: impl Fn(Pem)) {
        let secrets: Api<Secret> = Api::namespaced(client, &self.namespace);
        let one = watch_config(None).fields(&format!("metadata.name={CERTIFICATES}"));
        let objects = watcher(secrets, one).default_backoff().applied_objects();
        let mut objects = pin!(objects);
        let mut before = None;
        loop {
            match objects.try_next().await {
                Ok(Some(secret)) => {
                    self.written.notify_one();
                    let current = pem_in(&secret);
                    if let Some(pem) = current.filter(|pem| before.as_ref() != Some(pem)) {
                        take(pem.clone());
                        before = Some(pem);
                    }
                }
                Ok(None) => return,
                Err(error) => tracing::info!(%error, "the watch of certificates is restarted"),
            }
        }
    }

    /// Takes all steps that are due at the second `now`. Returns the second of the next step.
    async fn look(
        &self,
        client: &Client,
        candidate: &Candidate,
        now: i64,
    ) -> Result<i64, CertificateError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        let mut secret = existing(&secrets, AUTHORITY, &self.namespace, "Secret").await?;
        let mut authorities = AuthoritySet::read(&secret);
        let until = authorities.settle(now, self.life)?;
        if authorities != AuthoritySet::read(&secret) {
            authorities.write(&mut secret);
            replace(&secrets, AUTHORITY, &secret, candidate).await?;
        }
        let bundle = authorities.bundle();
        let Some(current) = &authorities.current else {
            return Ok(now);
        };
        let (own, others): (Vec<_>, Vec<_>) = self
            .kept
            .iter()
            .partition(|kept| kept.namespace == self.namespace);
        for kept in own {
            self.keep(client, candidate, kept, current, &bundle, now)
                .await?;
        }
        publish(client, candidate, &self.namespace, &bundle).await?;
        call_with::<ValidatingWebhookConfiguration>(client, candidate, &bundle).await?;
        call_with::<MutatingWebhookConfiguration>(client, candidate, &bundle).await?;
        for kept in others {
            let outcome = self.keep(client, candidate, kept, current, &bundle, now);
            match outcome.await {
                // A component that is not installed has no Secret, and role control no right to write it.
                Err(CertificateError::Missing { .. }) => {}
                Err(CertificateError::Api(kube::Error::Api(status))) if status.code == 403 => {}
                other => other?,
            }
        }
        Ok(until)
    }

    async fn keep(
        &self,
        client: &Client,
        candidate: &Candidate,
        kept: &ProgramSecret,
        current: &Pair,
        bundle: &str,
        now: i64,
    ) -> Result<(), CertificateError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &kept.namespace);
        let mut secret = existing(&secrets, CERTIFICATES, &kept.namespace, "Secret").await?;
        let own = pair_in(&secret, "tls.crt", "tls.key");
        let is_good = own.is_some_and(|own| is_usable(&own, bundle, &kept.names, now));
        let trusted = text_in(&secret, "ca.crt");
        if is_good && trusted.as_deref() == Some(bundle) {
            return Ok(());
        }
        let data = secret.data.get_or_insert_default();
        if !is_good {
            let life = (self.life / PAIRS_PER_AUTHORITY).max(1);
            let new = pair(current, &kept.names, now, life)?;
            put(data, "tls.crt", new.certificate);
            put(data, "tls.key", new.key);
            tracing::info!(namespace = kept.namespace, names = ?kept.names, "created a certificate");
        }
        put(data, "ca.crt", bundle.to_owned());
        replace(&secrets, CERTIFICATES, &secret, candidate).await
    }
}

/// The authorities, as stored in the Secret `weir-ca`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct AuthoritySet {
    current: Option<Pair>,
    next: Option<(Pair, i64)>,
    previous: Option<String>,
}

impl AuthoritySet {
    /// Reads the authorities; those that cannot be used are treated as missing.
    fn read(secret: &Secret) -> Self {
        let pair = |certificate, key| {
            pair_in(secret, certificate, key).filter(|pair| usable_authority(pair).is_some())
        };
        let published = text_in(secret, PUBLISHED).and_then(|text| text.trim().parse().ok());
        Self {
            current: pair("ca.crt", "ca.key"),
            next: pair("next.crt", "next.key").zip(published),
            previous: text_in(secret, "previous.crt").filter(|pem| validity(pem).is_some()),
        }
    }

    fn write(&self, secret: &mut Secret) {
        let data = secret.data.get_or_insert_default();
        data.clear();
        if let Some(current) = &self.current {
            put(data, "ca.crt", current.certificate.clone());
            put(data, "ca.key", current.key.clone());
        }
        if let Some((next, published)) = &self.next {
            put(data, "next.crt", next.certificate.clone());
            put(data, "next.key", next.key.clone());
            put(data, PUBLISHED, published.to_string());
        }
        if let Some(previous) = &self.previous {
            put(data, "previous.crt", previous.clone());
        }
    }

    /// Creates, publishes, promotes and drops authorities. Returns the second of the next step.
    fn settle(&mut self, now: i64, life: i64) -> Result<i64, CertificateError> {
        let spread = SPREAD_SECS.min(life / 9);
        for _ in 0..STEPS_MAX {
            let next = self.next.as_ref();
            let view = Authorities {
                current: self.current.as_ref().and_then(usable_authority),
                next: next.and_then(|(next, at)| Some((usable_authority(next)?, *at))),
                previous: self.previous.as_deref().and_then(validity),
            };
            match next_step(now, &view, spread) {
                Step::Create => {
                    self.current = Some(authority(now, life)?);
                    tracing::info!("created an authority: there was no usable one");
                }
                Step::Publish => self.next = Some((authority(now, life)?, now)),
                Step::Promote => {
                    self.previous = self.current.take().map(|pair| pair.certificate);
                    self.current = self.next.take().map(|(pair, _)| pair);
                    tracing::info!(
                        "promoted the next authority; the previous one is trusted until it expires"
                    );
                }
                Step::Drop => self.previous = None,
                Step::Rest(until) => return Ok(until),
            }
        }
        Ok(now)
    }

    /// Returns all trusted authorities as one PEM bundle.
    fn bundle(&self) -> String {
        let current = self.current.as_ref().map(|pair| &*pair.certificate);
        let next = self.next.as_ref().map(|(pair, _)| &*pair.certificate);
        let all = [current, next, self.previous.as_deref()];
        all.into_iter().flatten().collect()
    }
}

fn put(data: &mut BTreeMap<String, ByteString>, key: &str, text: String) {
    data.insert(key.to_owned(), ByteString(text.into_bytes()));
}

fn text_in(secret: &Secret, key: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.0.clone()).ok()
}

fn pair_in(secret: &Secret, certificate: &str, key: &str) -> Option<Pair> {
    Some(Pair {
        certificate: text_in(secret, certificate)?,
        key: text_in(secret, key)?,
    })
}

fn pem_in(secret: &Secret) -> Option<Pem> {
    let Pair { certificate, key } = pair_in(secret, "tls.crt", "tls.key")?;
    Some(Pem {
        certificate: certificate.into_bytes(),
        key: key.into_bytes(),
        authorities: text_in(secret, "ca.crt")?.into_bytes(),
    })
}

async fn existing<K>(
    api: &Api<K>,
    name: &'static str,
    namespace: &str,
    kind: &'static str,
) -> Result<K, CertificateError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = api.get_opt(name).await?;
    found.ok_or_else(|| CertificateError::Missing {
        kind,
        name,
        namespace: namespace.to_owned(),
    })
}

/// Writes an object in place of the one that was read.
async fn replace<K>(
    api: &Api<K>,
    name: &str,
    object: &K,
    candidate: &Candidate,
) -> Result<(), CertificateError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    if !candidate.leads() {
        return Err(CertificateError::Contended);
    }
    match api.replace(name, &PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            Err(CertificateError::Contended)
        }
        Err(error) => Err(error.into()),
    }
}

async fn publish(
    client: &Client,
    candidate: &Candidate,
    namespace: &str,
    bundle: &str,
) -> Result<(), CertificateError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut map = existing(&maps, AUTHORITY, namespace, "ConfigMap").await?;
    let data = map.data.get_or_insert_default();
    if data.get("ca.crt").map(String::as_str) == Some(bundle) {
        return Ok(());
    }
    data.insert("ca.crt".to_owned(), bundle.to_owned());
    replace(&maps, AUTHORITY, &map, candidate).await
}

/// Sets the trusted authorities in the configurations by which the API server calls webhooks.
async fn call_with<K>(
    client: &Client,
    candidate: &Candidate,
    bundle: &str,
) -> Result<(), CertificateError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let api: Api<K> = Api::all(client.clone());
    let Some(found) = api.get_opt(WEBHOOKS).await? else {
        return Ok(());
    };
    let found = serde_json::to_value(&found).unwrap_or_default();
    let wanted = json!(ByteString(bundle.as_bytes().to_vec()));
    let hooks = found["webhooks"].as_array();
    let mut operations = Vec::new();
    for (position, hook) in hooks.into_iter().flatten().enumerate() {
        if hook["clientConfig"]["caBundle"] != wanted {
            let at = format!("/webhooks/{position}");
            operations
                .push(json!({ "op": "test", "path": format!("{at}/name"), "value": hook["name"] }));
            let path = format!("{at}/clientConfig/caBundle");
            operations.push(json!({ "op": "add", "path": path, "value": wanted }));
        }
    }
    if operations.is_empty() {
        return Ok(());
    }
    if !candidate.leads() {
        return Err(CertificateError::Contended);
    }
    let patch = serde_json::from_value(json!(operations));
    let Ok(patch) = patch else {
        return Err(CertificateError::Contended);
    };
    let patch: Patch<()> = Patch::Json(patch);
    match api.patch(WEBHOOKS, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        // The list of webhooks was changed concurrently.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {
            Err(CertificateError::Contended)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: i64 = 9_000;

    #[test]
    fn authorities_survive_being_written_and_read() {
        let mut kin = AuthoritySet::default();
        let begin = 1_800_000_000;
        let mut secret = Secret::default();
        let mut bundles = Vec::new();
        for now in (begin..begin + 3 * LIFE).step_by(500) {
            kin.settle(now, LIFE).unwrap();
            kin.write(&mut secret);
            assert_eq!(AuthoritySet::read(&secret), kin);
            bundles.push(kin.bundle());
        }
        bundles.dedup();
        // Each authority starts as the next one, becomes the current one, and ends as the previous one.
        assert!(bundles.len() >= 6, "{}", bundles.len());
    }

    #[test]
    fn a_secret_with_invalid_contents_is_treated_as_empty() {
        let mut secret = Secret::default();
        let data = secret.data.get_or_insert_default();
        for key in ["ca.crt", "ca.key", "next.crt", "next.key", "previous.crt"] {
            data.insert(key.to_owned(), ByteString(vec![0xff, 0]));
        }
        assert_eq!(AuthoritySet::read(&secret), AuthoritySet::default());
    }
}
