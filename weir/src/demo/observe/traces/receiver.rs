//! A collector on loopback: receives OTLP/HTTP and writes one line of OTLP's JSON encoding (OpenTelemetry Protocol 1.x, "File
//! Exporter") per export.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::waterfall::Waterfall;

/// Largest export, in bytes.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Path of OTLP/HTTP for spans.
const PATH: &str = "/v1/traces";
/// Longest time from the last answer until all spans have arrived.
const COMPLETE_MAX: Duration = Duration::from_secs(10);

/// A span with the program which exported it.
#[derive(Debug, Clone)]
pub(super) struct ProgramSpan {
    /// Container name of the program.
    pub(super) program: String,
    /// Knative Service of the program's pod; empty if it has none.
    pub(super) service: String,
    pub(super) span: Span,
}

/// Receives spans until dropped.
#[derive(Debug)]
pub(in super::super) struct Receiver {
    path: PathBuf,
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Received {
    file: BufWriter<File>,
    /// Spans by trace ID.
    spans: HashMap<Vec<u8>, Vec<ProgramSpan>>,
    /// Error of the first failed write.
    failure: Option<String>,
}

impl Receiver {
    /// Listens on loopback and writes spans to a new file at `path`.
    ///
    /// # Errors
    /// The file cannot be created, or no port is free.
    pub(in super::super) async fn start(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("--traces {}: cannot be written", path.display()))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("no port is free for the receiver of spans")?;
        let address = listener.local_addr()?;
        let received = Arc::new(Mutex::new(Received {
            file: BufWriter::new(file),
            spans: HashMap::new(),
            failure: None,
        }));
        let server = tokio::spawn(serve(listener, Arc::clone(&received)));
        Ok(Self {
            path: path.to_owned(),
            address,
            received,
            server,
        })
    }

    /// Returns the environment variables which make a program send all of its spans here, without delay.
    pub(in super::super) fn environment(&self) -> [(&'static str, String); 2] {
        let address = self.address;
        let config = format!(
            r#"{{"tracing":{{"protocol":"http/protobuf","endpoint":"http://{address}{PATH}","samplingRate":1}}}}"#
        );
        [
            ("OBSERVABILITY_CONFIG", config),
            ("OTEL_BSP_SCHEDULE_DELAY", "200".to_owned()),
        ]
    }

    /// Waits for the spans of `requests` requests, and returns the waterfall of the one which missed its objective by most.
    ///
    /// # Errors
    /// Some have not arrived within 10 s, a trace is inconsistent, no request missed, or the file could not be written.
    pub(in super::super) async fn worst(&self, requests: usize) -> anyhow::Result<Waterfall> {
        let begin = Instant::now();
        loop {
            {
                let received = &mut *self.received.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(failure) = &received.failure {
                    bail!("--traces {}: {failure}", self.path.display());
                }
                let traces = Waterfall::complete(&received.spans);
                let count = traces.len();
                if count >= requests {
                    received
                        .file
                        .flush()
                        .with_context(|| format!("--traces {}", self.path.display()))?;
                    return Waterfall::worst(traces);
                }
                if begin.elapsed() > COMPLETE_MAX {
                    bail!("spans of only {count} of {requests} requests are complete");
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, received: Arc<Mutex<Received>>) {
    // Accepting on loopback fails only when this process has too many open files.
    while let Ok((stream, _)) = listener.accept().await {
        let received = Arc::clone(&received);
        let service = service_fn(move |request| {
            let received = Arc::clone(&received);
            async move { Ok::<_, Infallible>(answer(request, &received).await) }
        });
        tokio::spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A program closes the connection when it ends.
            let _ended = connection.await;
        });
    }
}

async fn answer(request: Request<Incoming>, received: &Mutex<Received>) -> Response<Full<Bytes>> {
    let status = if request.method() != Method::POST || request.uri().path() != PATH {
        StatusCode::NOT_FOUND
    } else {
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX)
            .collect()
            .await;
        let export = body
            .ok()
            .and_then(|body| ExportTraceServiceRequest::decode(body.to_bytes()).ok());
        match export {
            Some(export) => {
                let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = received.keep(export) {
                    received.failure = Some(error.to_string());
                }
                StatusCode::OK
            }
            None => StatusCode::BAD_REQUEST,
        }
    };
    // An empty message means full success: no span was rejected.
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

impl Received {
    fn keep(&mut self, export: ExportTraceServiceRequest) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.file, &export)?;
        self.file.write_all(b"\n")?;
        for resource in export.resource_spans {
            let attributes = resource
                .resource
                .map(|it| it.attributes)
                .unwrap_or_default();
            let program = text(&attributes, "container.name");
            let service = text(&attributes, "kn.service.name");
            let scopes = resource.scope_spans.into_iter();
            for span in scopes.flat_map(|scope| scope.spans) {
                let own = self.spans.entry(span.trace_id.clone()).or_default();
                own.push(ProgramSpan {
                    program: program.clone(),
                    service: service.clone(),
                    span,
                });
            }
        }
        Ok(())
    }
}

/// Returns the text of an attribute; empty if it is absent.
pub(super) fn text(attributes: &[KeyValue], key: &str) -> String {
    match value(attributes, key) {
        Some(Value::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

/// Returns the value of an attribute, if present.
pub(super) fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let own = attributes.iter().find(|own| own.key == key)?;
    own.value.as_ref()?.value.as_ref()
}
