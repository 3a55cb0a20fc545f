//! APIs of Weir's programs, as role `control` sees them: with certificates issued by it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use mutual_tls::{Identity, Pem};
use tokio::net::TcpListener;

use crate::control::{Cluster, resource};
use crate::eventually;

/// Serves the `answer` for each path at this address, with the certificate of the programs in this namespace, once it exists.
///
/// # Panics
/// If it does not exist in time, or the address is taken.
pub async fn serve(
    cluster: &Cluster,
    namespace: &str,
    address: SocketAddr,
    answer: impl Fn(&str) -> String + Send + Sync + 'static,
) {
    eventually("the certificate exists", || {
        pem(cluster, namespace).is_some()
    })
    .await;
    let identity = Arc::<Identity>::default();
    let pem = pem(cluster, namespace).expect("a certificate");
    identity.set(pem).expect("a valid certificate");
    let listener = TcpListener::bind(address).await.expect("a free port");
    tokio::spawn(run(listener, identity, Arc::new(answer)));
}

async fn run(
    listener: TcpListener,
    identity: Arc<Identity>,
    answer: Arc<dyn Fn(&str) -> String + Send + Sync>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(stream) = identity.accept(stream).await else {
            continue;
        };
        let answer = Arc::clone(&answer);
        let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let target = request.uri().path_and_query().map(|it| it.as_str());
            let body = Full::new(Bytes::from(answer(target.unwrap_or_default())));
            async { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(serving);
    }
}

/// Returns the certificate and key of the programs in this namespace; `None` if they do not exist yet.
#[must_use]
pub fn pem(cluster: &Cluster, namespace: &str) -> Option<Pem> {
    let secrets = resource("secrets");
    let secret = cluster.api.get(&secrets, namespace, "weir-certificates")?;
    let part = |key: &str| {
        let bytes = secret["data"].get(key)?.clone();
        let ByteString(bytes) = serde_json::from_value(bytes).ok()?;
        Some(bytes)
    };
    Some(Pem {
        certificate: part("tls.crt")?,
        key: part("tls.key")?,
        authorities: part("ca.crt")?,
    })
}
