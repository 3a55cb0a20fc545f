//! A Kubernetes API server that keeps objects of any kind in memory.
//!
//! JSON only; `get`, `list` with pages and selectors, `watch` with bookmarks, `create`, `update` with a check of
//! `resourceVersion`, `patch` by merge (RFC 7386) or by operations (RFC 6902), by apply as if it were by merge, `delete` with
//! preconditions and finalizers; TokenReview, SubjectAccessReview and `/version`. A dry run is answered with the request's
//! object. Streaming lists (`sendInitialEvents`) are refused with 422, as by a server before 1.32. Objects are not validated, and
//! requests are not authenticated.

mod selector;
mod server;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use store::{Store, Written};

/// A resource: its group and version as in `apiVersion`, and its plural.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// Group and version: `v1`, or `group/version`.
    pub api_version: String,
    /// Plural as in paths: `endpointslices`.
    pub plural: String,
}

impl Resource {
    /// Returns the resource of a group, version and plural.
    #[must_use]
    pub fn new(api_version: &str, plural: &str) -> Self {
        Self {
            api_version: api_version.to_owned(),
            plural: plural.to_owned(),
        }
    }
}

/// Fault injected into a write over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The write succeeds as usual.
    None,
    /// The write is refused with 409 and changes nothing.
    Conflict,
    /// The connection is closed, and nothing is changed.
    CutBefore,
    /// The write succeeds, and then the connection is closed.
    CutAfter,
}

/// Decides on the fault of a write by its method and path.
type Faults = Box<dyn FnMut(&str) -> Fault + Send>;

pub(crate) struct Shared {
    faults: Mutex<Option<Faults>>,
    store: Mutex<Store>,
    /// Last version that watches deliver.
    delivered: watch::Sender<u64>,
    /// Number of times that all watches were ended.
    epoch: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<String>,
    tokens: BTreeMap<String, Bearer>,
    /// Users allowed everything by SubjectAccessReviews.
    users: BTreeSet<String>,
    is_failing: bool,
    /// Path of which all reads fail.
    unreadable: Option<String>,
    lag: Duration,
}

/// User and audience of a token.
#[derive(Debug, Clone)]
pub(crate) struct Bearer {
    user: String,
    /// Audience of the token; `None` for the API itself.
    audience: Option<String>,
}

/// An API server, stopped when dropped.
#[derive(Debug)]
pub struct ApiServer {
    /// Address on which the server listens, without TLS.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ApiServer {
    /// Starts a server on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If there is none.
    pub async fn start() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// Starts a server on a free port of an address.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn at(ip: IpAddr) -> Self {
        let listener = TcpListener::bind((ip, 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            faults: Mutex::default(),
            store: Mutex::default(),
            delivered: watch::Sender::new(0),
            epoch: watch::Sender::new(0),
            state: Mutex::default(),
        });
        let task = tokio::spawn(server::serve(listener, Arc::clone(&shared)));
        Self {
            address,
            shared,
            task,
        }
    }

    /// Returns a kubeconfig with this server as current context.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "fake", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        })
        .to_string()
    }

    /// Creates an object, or replaces that with its name and namespace.
    ///
    /// # Panics
    /// If it has no `metadata.name`.
    pub fn apply(&self, resource: &Resource, object: Value) {
        let written = lock(&self.shared.store).apply(resource, object);
        self.shared
            .publish(&written.expect("an object with a name"));
    }

    /// Deletes an object, if it exists. `namespace` is empty for one without.
    pub fn delete(&self, resource: &Resource, namespace: &str, name: &str) {
        let written = lock(&self.shared.store).delete(resource, namespace, name);
        if let Some(written) = written {
            self.shared.publish(&written);
        }
    }

    /// Returns an object; `namespace` is empty for one without.
    #[must_use]
    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        lock(&self.shared.store).get(resource, namespace, name)
    }

    /// Returns all objects of a resource in a namespace, or in all if it is empty, by namespace and name.
    #[must_use]
    pub fn list(&self, resource: &Resource, namespace: &str) -> Vec<Value> {
        let store = lock(&self.shared.store);
        let all = store.list(resource, namespace);
        all.map(|(_, object)| object.clone()).collect()
    }

    /// Deletes an object as a client does: one with finalizers is marked and stays. Returns whether it existed.
    pub fn delete_as_client(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        let place = (namespace, name);
        let written = lock(&self.shared.store).delete_if(resource, place, &Value::Null);
        written.is_ok_and(|written| {
            self.shared.publish(&written);
            true
        })
    }

    /// Waits for a write after `version`; returns the version then.
    pub async fn changed(&self, version: u64) -> u64 {
        let mut delivered = self.shared.delivered.subscribe();
        // The sender lives as long as this server.
        let now = delivered.wait_for(|now| *now > version).await;
        now.map_or(version, |now| *now)
    }

    /// Sets `faults` to decide, by method and path, on the fault of each further write over HTTP.
    pub fn set_faults(&self, faults: impl FnMut(&str) -> Fault + Send + 'static) {
        *lock(&self.shared.faults) = Some(Box::new(faults));
    }

    /// Lets all further writes succeed.
    pub fn clear_faults(&self) {
        *lock(&self.shared.faults) = None;
    }

    /// Drops the history of changes: a watch from an older version gets 410.
    pub fn compact(&self) {
        lock(&self.shared.store).compact();
    }

    /// Ends all current watches, so that clients must start new ones.
    pub fn end_watches(&self) {
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Sets the path of which all further reads are answered with 500, or none.
    pub fn set_unreadable(&self, path: Option<&str>) {
        lock(&self.shared.state).unreadable = path.map(str::to_owned);
    }

    /// Sets whether all further requests are answered with 503.
    pub fn set_failing(&self, is_failing: bool) {
        lock(&self.shared.state).is_failing = is_failing;
    }

    /// Sets the delay from a change to its delivery by watches.
    pub fn set_lag(&self, lag: Duration) {
        lock(&self.shared.state).lag = lag;
    }

    /// Makes TokenReviews authenticate this token of a user, for an audience or for the API itself.
    pub fn allow_token(&self, token: &str, user: &str, audience: Option<&str>) {
        let bearer = Bearer {
            user: user.to_owned(),
            audience: audience.map(str::to_owned),
        };
        lock(&self.shared.state)
            .tokens
            .insert(token.to_owned(), bearer);
    }

    /// Makes SubjectAccessReviews allow this user everything.
    pub fn allow_user(&self, user: &str) {
        lock(&self.shared.state).users.insert(user.to_owned());
    }

    /// Returns all requests so far: method, path and query.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.state).requests.clone()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    /// Makes watches deliver a written object, after the lag.
    fn publish(self: &Arc<Self>, written: &Written) {
        let version = written.version;
        let lag = lock(&self.state).lag;
        let deliver = move |shared: &Self| {
            let raise = |delivered: &mut u64| *delivered = (*delivered).max(version);
            shared.delivered.send_modify(raise);
        };
        if lag.is_zero() {
            deliver(self);
            return;
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(lag).await;
            deliver(&shared);
        });
    }
}
