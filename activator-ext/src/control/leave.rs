//! Removal of Weir from a cluster: a finalizer keeps its own objects until every revision is detached.
//!
//! Among them are the objects that grant this process its account and rights: once one is deleted, the API refuses
//! further requests. So all requests that remove the finalizer are started together: their heads are sent and thereby
//! authorized, and only then their bodies.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http::{Method, Request, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::Frame;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DynamicObject, ListParams};
use kube::client::ConfigExt as _;
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

use super::cluster::Cluster;
use super::config::ControlConfig;
use super::names::{CONTROL, FINALIZER, MANAGED_BY, MANAGER, PUBLIC, SERVICE_TYPE, SKIP_MIRROR};
use super::nodes;
use crate::source::kubernetes::{self, resource, revision};

/// Period at which this process checks whether Weir is being removed.
const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// Number of refusals in a row after which the process's rights are considered deleted.
const REFUSALS_MAX: u32 = 10;
/// Time after which a request's head has been authorized.
const AUTHORISED_AFTER: Duration = Duration::from_millis(500);
/// Longest time for the API to report, at the end of the process, whether Weir is being removed.
const QUERY_MAX: Duration = Duration::from_secs(5);
/// Largest answer of the API in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Waits until Weir is being deleted and all revisions are detached, and then removes the finalizer from Weir's
/// objects. Every process does so, whether it leads or not: the Lease may be deleted by then. Returns as well when the
/// process has lost its rights, since another process has removed the finalizer.
pub(crate) async fn run(client: Client, cluster: &Cluster, config: &ControlConfig) {
    let mut failures = 0_u64;
    let mut refusals = 0;
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        if !cluster.is_leaving() {
            continue;
        }
        let done = async {
            if !is_detached(&client, cluster).await? {
                return Ok(false);
            }
            nodes::forget(&client).await?;
            let kept = kept(&client, config).await?;
            tracing::info!(
                objects = kept.len(),
                "all revisions are detached; removing the finalizer from Weir's objects"
            );
            remove_finalizers(kept).await.map_err(LeaveError::Release)?;
            Ok::<_, LeaveError>(true)
        };
        match done.await {
            Ok(true) => return,
            Ok(false) => refusals = 0,
            Err(error) => {
                refusals = if error.is_refusal() { refusals + 1 } else { 0 };
                if refusals >= REFUSALS_MAX {
                    tracing::info!(%error, "this process has lost its rights: another one has removed the finalizer");
                    return;
                }
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "Weir cannot be removed yet");
                }
            }
        }
    }
}

/// Returns whether Weir is being deleted, by a query to the API, since a watch may be late. Returns false if the API
/// does not answer.
pub(crate) async fn has_begun(client: &Client, config: &ControlConfig) -> bool {
    let query = async {
        let namespaces: Api<DynamicObject> =
            Api::all_with(client.clone(), &resource("", "Namespace"));
        let namespace = namespaces.get_opt(&config.namespace).await?;
        if namespace.is_some_and(|it| it.metadata.deletion_timestamp.is_some()) {
            return Ok(true);
        }
        let kept = kept(client, config).await?;
        Ok::<_, kube::Error>(kept.iter().any(|it| it.is_deleted))
    };
    let answer = tokio::time::timeout(QUERY_MAX, query).await;
    answer.is_ok_and(|answer| answer.unwrap_or(false))
}

/// The reason why Weir could not be removed. The removal is retried.
#[derive(Debug, thiserror::Error)]
enum LeaveError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("cannot remove the finalizer of an object: {0}")]
    Release(BoxError),
}

impl LeaveError {
    /// Returns whether the API refuses this process: its account or its rights are deleted.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if matches!(status.code, 401 | 403))
    }
}

/// Returns whether no revision is attached, by a query to the API.
async fn is_detached(client: &Client, cluster: &Cluster) -> Result<bool, kube::Error> {
    let own = ListParams::default()
        .labels(&format!("{MANAGED_BY}={MANAGER}"))
        .limit(1);
    let slices: Api<EndpointSlice> = Api::all(client.clone());
    if !slices.list_metadata(&own).await?.items.is_empty() {
        return Ok(false);
    }
    let labelled = format!("{SERVICE_TYPE}={PUBLIC},{SKIP_MIRROR}=true");
    let endpoints: Api<Endpoints> = Api::all(client.clone());
    let labelled = endpoints
        .list_metadata(&ListParams::default().labels(&labelled))
        .await?;
    let opted_in: std::collections::HashSet<_> = cluster
        .revisions
        .state()
        .iter()
        .filter(|object| revision(object).is_some_and(|it| it.settings.opted_in()))
        .map(|object| (object.namespace(), object.name_any()))
        .collect();
    let mut left = labelled.items.iter();
    Ok(!left.any(|it| opted_in.contains(&(it.namespace(), it.name_any()))))
}

/// An object with the finalizer: its path, and the finalizers of other controllers.
struct FinalizedObject {
    path: String,
    /// Whether the object is marked as deleted.
    is_deleted: bool,
    others: Vec<String>,
}

/// Returns Weir's own objects with the finalizer.
async fn kept(
    client: &Client,
    config: &ControlConfig,
) -> Result<Vec<FinalizedObject>, kube::Error> {
    let rbac = "rbac.authorization.k8s.io";
    let own = Some(config.namespace.as_str());
    let all = [
        (resource("apps", "Deployment"), own),
        (resource("", "ServiceAccount"), own),
        (resource(rbac, "Role"), own),
        (resource(rbac, "RoleBinding"), own),
        (resource(rbac, "ClusterRole"), None),
        (resource(rbac, "ClusterRoleBinding"), None),
    ];
    let mut kept = Vec::new();
    for (kind, namespace) in all {
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
            None => Api::all_with(client.clone(), &kind),
        };
        let Some(object) = api.get_opt(CONTROL).await? else {
            continue;
        };
        let (ours, others): (Vec<_>, Vec<_>) = object
            .finalizers()
            .iter()
            .cloned()
            .partition(|it| it == FINALIZER);
        if !ours.is_empty() {
            let folder = DynamicObject::url_path(&kind, namespace);
            kept.push(FinalizedObject {
                is_deleted: object.metadata.deletion_timestamp.is_some(),
                path: format!("{folder}/{CONTROL}"),
                others,
            });
        }
    }
    Ok(kept)
}

async fn remove_finalizers(kept: Vec<FinalizedObject>) -> Result<(), BoxError> {
    let config = kubernetes::config().await?;
    let connector = config.rustls_https_connector()?;
    let http = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(http);
    let go = watch::Sender::new(false);
    let requests = kept.into_iter().map(|object| {
        let request = release(object, go.subscribe());
        let mut service = service.clone();
        async move {
            let request = request?;
            let path = request.uri().path().to_owned();
            let response = service.ready().await?.call(request).await?;
            let status = response.status();
            let answer = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
            let answer = answer.collect().await?.to_bytes();
            if status.is_success() || status == StatusCode::NOT_FOUND {
                return Ok(());
            }
            let answer = String::from_utf8_lossy(&answer);
            Err(BoxError::from(format!("{path}: {status}: {answer}")))
        }
    });
    let begun = async {
        tokio::time::sleep(AUTHORISED_AFTER).await;
        go.send_replace(true);
    };
    let (answers, ()) = tokio::join!(join_all(requests), begun);
    answers.into_iter().collect()
}

/// Returns the request that removes the finalizer. Its body is sent once `go` is true.
fn release(
    object: FinalizedObject,
    mut go: watch::Receiver<bool>,
) -> Result<Request<Body>, BoxError> {
    let patch = json!({"metadata": {"finalizers": object.others}}).to_string();
    let body = stream::once(async move {
        // The sender lives until all requests are answered.
        let _said = go.wait_for(|&go| go).await;
        Ok::<_, BoxError>(Frame::data(Bytes::from(patch)))
    });
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(object.path)
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(StreamBody::new(body).boxed_unsync())?;
    Ok(request)
}
