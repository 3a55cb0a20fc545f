//! A Kubernetes API server that keeps objects of any kind in memory.
//!
//! JSON alone; `get`, `list` with pages and selectors, `watch` with bookmarks, `create`, `update` with a check of
//! `resourceVersion`, `patch` by merge (RFC 7386) or by operations (RFC 6902), by apply as if it were by merge, `delete` with
//! preconditions and finalizers; TokenReview, SubjectAccessReview and `/version`. A dry run is answered with what
//! was sent. Streaming lists (`sendInitialEvents`) are refused with 422, as by a server before 1.32. Nothing is validated, and who asks is not looked at.

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
    /// `v1`, or `group/version`.
    pub api_version: String,
    /// As in paths: `endpointslices`.
    pub plural: String,
}

impl Resource {
    /// The resource of this plural.
    #[must_use]
    pub fn new(api_version: &str, plural: &str) -> Self {
        Self {
            api_version: api_version.to_owned(),
            plural: plural.to_owned(),
        }
    }
}

/// What becomes of a write that comes by HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// What it asks for.
    None,
    /// It is refused with 409, and changes nothing.
    Conflict,
    /// The connection breaks off, and nothing is changed.
    CutBefore,
    /// It changes what it asks for, and then the connection breaks off.
    CutAfter,
}

/// Says what becomes of a write, by its method and path.
type Faults = Box<dyn FnMut(&str) -> Fault + Send>;

pub(crate) struct Shared {
    faults: Mutex<Option<Faults>>,
    store: Mutex<Store>,
    /// The last version that watches deliver.
    delivered: watch::Sender<u64>,
    /// Counts how often all watches were ended.
    epoch: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<String>,
    tokens: BTreeMap<String, Bearer>,
    /// Users whom SubjectAccessReviews allow all.
    users: BTreeSet<String>,
    is_failing: bool,
    lag: Duration,
}

/// Whose a token is.
#[derive(Debug, Clone)]
pub(crate) struct Bearer {
    user: String,
    /// `None`: the API itself.
    audience: Option<String>,
}

/// An API server. Stops when dropped.
#[derive(Debug)]
pub struct ApiServer {
    /// Where it listens, without TLS.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ApiServer {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If there is none.
    pub async fn start() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// Listens on a free port of an address.
    ///
    /// # Panics
    /// If there is none.
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

    /// A kubeconfig whose current context is this server.
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

    /// Creates an object, or replaces the one of its name and namespace.
    ///
    /// # Panics
    /// If it has no `metadata.name`.
    pub fn apply(&self, resource: &Resource, object: Value) {
        let written = lock(&self.shared.store).apply(resource, object);
        self.shared
            .publish(&written.expect("an object with a name"));
    }

    /// Deletes an object, if it is there. `namespace` is empty for one without.
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

    /// Deletes an object as a client does: one with finalizers is marked and stays. Returns whether it was there.
    pub fn delete_as_client(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        let place = (namespace, name);
        let written = lock(&self.shared.store).delete_if(resource, place, &Value::Null);
        written.is_ok_and(|written| {
            self.shared.publish(&written);
            true
        })
    }

    /// Waits until something is written after `version`; returns the version then.
    pub async fn changed(&self, version: u64) -> u64 {
        let mut delivered = self.shared.delivered.subscribe();
        // The sender lives as long as this does.
        let now = delivered.wait_for(|now| *now > version).await;
        now.map_or(version, |now| *now)
    }

    /// From now on `faults` says, by its method and path, what becomes of each write that comes by HTTP.
    pub fn set_faults(&self, faults: impl FnMut(&str) -> Fault + Send + 'static) {
        *lock(&self.shared.faults) = Some(Box::new(faults));
    }

    /// Writes do what they ask for again.
    pub fn clear_faults(&self) {
        *lock(&self.shared.faults) = None;
    }

    /// Forgets the history of changes: a watch from an older version gets 410.
    pub fn compact(&self) {
        lock(&self.shared.store).compact();
    }

    /// Ends all watches.
    pub fn end_watches(&self) {
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// From now on answers everything with 503, or no more.
    pub fn set_failing(&self, is_failing: bool) {
        lock(&self.shared.state).is_failing = is_failing;
    }

    /// From now on watches deliver a change so long after it was made.
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

    /// Makes SubjectAccessReviews allow this user all.
    pub fn allow_user(&self, user: &str) {
        lock(&self.shared.state).users.insert(user.to_owned());
    }

    /// Requests so far: method, path and query.
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
    /// Makes watches deliver what was written.
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
