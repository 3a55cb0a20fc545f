//! The admission webhooks for objects about to be written (`admission.k8s.io/v1`), on port 9443.

pub(crate) mod pod;
mod template;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use json_patch::diff;
use kube::api::DynamicObject;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, ConvertAdmissionReviewError, Operation,
};
use proxy::body::ProxyBody;
use proxy::connection::{Client, Handler};
use proxy::listen::ListenError;
use proxy::process::Servers;
use proxy::tls::{Settings, Tls, TlsError};
use proxy::{listen, respond};
use serde_json::json;
use tokio::net::TcpListener;

use super::cluster::Cluster;
use super::metrics::Metrics;
use pod::{Delivery, deliver};

/// The port on which the API server calls the webhooks.
pub(crate) const WEBHOOK_PORT: u16 = 9443;
/// Largest review in bytes: it contains an object twice, each of which the API limits to 3 MiB.
const BYTES_MAX: usize = 8 << 20;
/// Largest number of warnings in an answer.
const WARNINGS_MAX: usize = 16;

/// Answers admission reviews.
#[derive(Debug)]
pub(crate) struct Webhook {
    pub(crate) metrics: Metrics,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) delivery: Delivery,
    /// The runtime class of pods with a GPU that name none, used if the cluster has it.
    pub(crate) runtime_class: Option<String>,
}

/// The outcome of a review, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Patched,
    Refused,
    Malformed,
}

impl Outcome {
    /// All outcomes, for the export of zeros.
    pub(crate) const ALL: [Self; 4] =
        [Self::Allowed, Self::Patched, Self::Refused, Self::Malformed];

    /// Returns the value of the metric label `outcome`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Refused => "refused",
            Self::Malformed => "malformed",
        }
    }
}

/// The kinds of reviews, by path.
#[derive(Debug, Clone, Copy)]
enum ReviewKind {
    /// `/templates`: a Knative Service, Configuration or Revision.
    Template,
    /// `/pods`: a pod.
    Pod,
}

impl Webhook {
    fn answer(&self, kind: ReviewKind, body: &[u8]) -> (Outcome, AdmissionResponse) {
        let review: Result<AdmissionReview<DynamicObject>, _> = serde_json::from_slice(body);
        let request = review.map_err(|error| error.to_string());
        let request: Result<AdmissionRequest<_>, _> = request.and_then(|it| {
            it.try_into()
                .map_err(|error: ConvertAdmissionReviewError| error.to_string())
        });
        let request = match request {
            Ok(request) => request,
            Err(why) => return (Outcome::Malformed, AdmissionResponse::invalid(why)),
        };
        let response = AdmissionResponse::from(&request);
        let Some(object) = request
            .object
            .as_ref()
            .filter(|_| matches!(request.operation, Operation::Create | Operation::Update))
        else {
            return (Outcome::Allowed, response);
        };
        match kind {
            ReviewKind::Template => {
                let kind = &request.kind.kind;
                let verdict = template::judge(kind, request.old_object.as_ref(), object);
                let mut response = response;
                if !verdict.warnings.is_empty() {
                    let warnings = verdict.warnings.into_iter().take(WARNINGS_MAX);
                    response.warnings = Some(warnings.collect());
                }
                if verdict.refusals.is_empty() {
                    return (Outcome::Allowed, response);
                }
                (
                    Outcome::Refused,
                    refuse(response, &verdict.refusals.join("; ")),
                )
            }
            ReviewKind::Pod => self.pod(object, response),
        }
    }

    fn pod(
        &self,
        object: &DynamicObject,
        response: AdmissionResponse,
    ) -> (Outcome, AdmissionResponse) {
        let runtime_class = self.runtime_class.clone();
        let has_class = |name: &String| self.cluster.has_runtime_class(name);
        let delivery = Delivery {
            runtime_class: runtime_class.filter(has_class),
            ..self.delivery.clone()
        };
        let spec = match deliver(object, &delivery) {
            Ok(Some(spec)) => spec,
            Ok(None) => return (Outcome::Allowed, response),
            Err(why) => return (Outcome::Refused, refuse(response, &why)),
        };
        let before = json!({ "spec": object.data.get("spec") });
        let patch = diff(&before, &json!({ "spec": spec }));
        match response.with_patch(patch) {
            Ok(response) => (Outcome::Patched, response),
            Err(error) => (
                Outcome::Malformed,
                AdmissionResponse::invalid(error.to_string()),
            ),
        }
    }
}

fn refuse(response: AdmissionResponse, why: &str) -> AdmissionResponse {
    let mut response = response.deny(why);
    "Invalid".clone_into(&mut response.result.reason);
    response.result.code = StatusCode::UNPROCESSABLE_ENTITY.as_u16();
    response
}

impl Handler for Webhook {
    type Slot = ();

    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        let kind = match request.uri().path() {
            "/templates" => ReviewKind::Template,
            "/pods" => ReviewKind::Pod,
            _ => return respond::not_found(),
        };
        if request.method() != Method::POST {
            let mut answer = respond::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            let allowed = HeaderValue::from_static("POST");
            answer.headers_mut().insert(ALLOW, allowed);
            return answer;
        }
        let body = Limited::new(request.into_body(), BYTES_MAX).collect().await;
        let begin = Instant::now();
        let body = match body {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                let text = format!("allowed: bodies of up to {BYTES_MAX} bytes");
                return respond::error(StatusCode::PAYLOAD_TOO_LARGE, &text);
            }
            Err(error) => return respond::error(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let (outcome, response) = self.answer(kind, &body);
        let text = serde_json::to_vec(&response.into_review());
        let source = match kind {
            ReviewKind::Template => "template",
            ReviewKind::Pod => "pod",
        };
        self.metrics.webhook(source, outcome, begin.elapsed());
        match text {
            Ok(text) => {
                let mut answer = Response::new(ProxyBody::full(Bytes::from(text)));
                let kind = HeaderValue::from_static("application/json");
                answer.headers_mut().insert(CONTENT_TYPE, kind);
                answer
            }
            Err(error) => respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

/// The webhooks' port, which is served once there is a certificate.
#[derive(Debug)]
pub(crate) struct Port {
    /// The listener until there is a certificate. The API server does not connect before, since the process is not
    /// ready.
    listener: Mutex<Option<TcpListener>>,
    servers: Arc<Servers>,
    webhook: Arc<Webhook>,
    tls: OnceLock<Arc<Tls>>,
}

impl Port {
    /// Binds the port, without serving it yet.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be bound.
    pub(crate) fn new(
        bind: IpAddr,
        servers: Arc<Servers>,
        webhook: Arc<Webhook>,
    ) -> Result<Self, ListenError> {
        Ok(Self {
            listener: Mutex::new(Some(listen::listen(bind, WEBHOOK_PORT)?)),
            servers,
            webhook,
            tls: OnceLock::new(),
        })
    }

    /// Returns whether the webhooks are served.
    pub(crate) fn is_open(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Sets the certificate and key. The first ones start the server.
    ///
    /// # Errors
    ///
    /// Fails if the first ones cannot be used.
    pub(crate) fn take(&self, certificate: Vec<u8>, key: Vec<u8>) -> Result<(), TlsError> {
        let contents = [certificate, key];
        if let Some(tls) = self.tls.get() {
            if tls.replace(contents) {
                tracing::info!("the webhooks' certificate was renewed");
            }
            return Ok(());
        }
        let tls = Tls::from_pem(contents, &Settings::default())?;
        let listener = self
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(listener) = listener {
            self.servers
                .serve(listener, Some(Arc::clone(&tls)), &self.webhook);
        }
        let _first = self.tls.set(tls);
        tracing::info!(port = WEBHOOK_PORT, "the webhooks are served");
        Ok(())
    }
}
