//! Access to functions on port 9475: role `control` by its certificate, pods and users by their tokens.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use mutual_tls::{Identity, Pem, name_of};
use peers::api::{ApiServer, Resource};
use peers::revision::Revision;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tests::PATIENCE;
use tests::activator::Activator;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::kubernetes::named;
use crate::{activator, at, get};

/// Weir's certificate authority of the cluster.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(parameters, key),
            pem,
        }
    }

    fn pem(&self, program: &str) -> Pem {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name_of(program)]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Pem {
            certificate: certificate.pem().into(),
            key: key.serialize_pem().into(),
            authorities: self.pem.clone().into(),
        }
    }
}

/// Sends a request with a token, or without one, and returns the status and body.
async fn request(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    token: Option<&str>,
) -> (u16, String) {
    let line = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let line = line.unwrap_or_default();
    let request =
        format!("GET /v1/functions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{line}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

struct Clients {
    authority: Authority,
    activator: Activator,
}

impl Clients {
    async fn stream(&self) -> TcpStream {
        TcpStream::connect((self.activator.ip, 9475)).await.unwrap()
    }

    /// Returns the answer to a program of Weir with a certificate.
    async fn program(&self, name: &str) -> (u16, String) {
        let identity = Identity::default();
        identity.set(self.authority.pem(name)).unwrap();
        let stream = self.stream().await;
        let stream = identity.connect(stream, &name_of("activator")).await;
        request(stream.unwrap(), None).await
    }

    /// Returns the answer to a client with this token.
    async fn token(&self, token: Option<&str>) -> (u16, String) {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.authority.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name_of("activator")).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, self.stream().await);
        request(stream.await.unwrap(), token).await
    }
}

/// Returns the namespaces of the functions in an answer.
fn namespaces(answer: &(u16, String)) -> Vec<String> {
    assert_eq!(answer.0, 200, "{}", answer.1);
    let described: Value = serde_json::from_str(&answer.1).unwrap();
    let functions = described["functions"].as_array().unwrap().iter();
    functions
        .map(|function| function["namespace"].as_str().unwrap().to_owned())
        .collect()
}

async fn start(api: &ApiServer) -> Clients {
    let revisions = Resource::new("serving.knative.dev/v1", "revisions");
    for namespace in ["a", "b"] {
        let revision = json!({
            "metadata": {
                "namespace": namespace, "name": "f-00001",
                "annotations": {"weir.dev/slo": "1s"},
            },
            "spec": {"containers": [{"image": "x"}]},
        });
        api.apply(&revisions, revision);
    }
    let authority = Authority::new();
    let builder = activator();
    let folder = builder.certificates();
    let pem = authority.pem("activator");
    for (name, text) in [
        ("tls.crt", &pem.certificate),
        ("tls.key", &pem.key),
        ("ca.crt", &pem.authorities),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    let builder = builder
        .set("WEIR_IDENTITY", folder.display())
        .set("WEIR_CERTIFICATES", "/nonexistent")
        .kubernetes(api);
    let activator = builder.start().await;
    let is_served = |value: f64| value == 2.0;
    activator.has("weir_revisions", &[], is_served).await;
    Clients {
        authority,
        activator,
    }
}

#[tokio::test]
async fn only_control_sees_all_by_its_certificate() {
    let api = ApiServer::start().await;
    let clients = start(&api).await;
    assert_eq!(namespaces(&clients.program("control").await), ["a", "b"]);
    // The certificates of other programs give no access here.
    assert_eq!(clients.program("agent").await.0, 401);
    assert_eq!(clients.token(None).await.0, 401);
    // Without TLS there is no answer.
    let mut stream = clients.stream().await;
    let request = "GET /v1/functions HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The connection may also be reset.
    drop(stream.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn a_pods_token_shows_its_namespace_and_a_users_all_if_allowed() {
    let api = ApiServer::start().await;
    let clients = start(&api).await;
    api.allow_token("pod", "system:serviceaccount:a:default", Some("weir.dev"));
    api.allow_token("reader", "ada", None);
    api.allow_token("stranger", "eve", None);
    api.allow_token("odd", "ada", Some("weir.dev"));
    api.allow_user("ada");
    // The pod's rights in the API make no difference.
    api.allow_user("system:serviceaccount:a:default");
    assert_eq!(namespaces(&clients.token(Some("pod")).await), ["a"]);
    assert_eq!(namespaces(&clients.token(Some("reader")).await), ["a", "b"]);
    let (status, text) = clients.token(Some("stranger")).await;
    assert_eq!(status, 403);
    assert!(
        text.contains("eve may not get gpufunctions.weir.dev"),
        "{text}"
    );
    assert_eq!(clients.token(Some("odd")).await.0, 403);
    assert_eq!(clients.token(Some("unknown")).await.0, 401);
}

#[tokio::test]
async fn a_token_review_is_cached_during_an_outage_of_the_api() {
    let api = ApiServer::start().await;
    let clients = start(&api).await;
    api.allow_token("pod", "system:serviceaccount:a:default", Some("weir.dev"));
    for _ in 0..5 {
        assert_eq!(namespaces(&clients.token(Some("pod")).await), ["a"]);
    }
    let is_review = |request: &&String| request.contains("tokenreviews");
    assert_eq!(api.requests().iter().filter(is_review).count(), 1);
    api.set_failing(true);
    assert_eq!(namespaces(&clients.token(Some("pod")).await), ["a"]);
    assert_eq!(clients.token(Some("other")).await.0, 503);
    // A failed review is repeated.
    api.set_failing(false);
    api.allow_token("other", "system:serviceaccount:b:default", Some("weir.dev"));
    assert_eq!(namespaces(&clients.token(Some("other")).await), ["b"]);
}

#[tokio::test]
async fn requests_that_count_for_the_objective_are_described() {
    let api = ApiServer::start().await;
    let clients = start(&api).await;
    let app = named("x").await;
    let mut revision = Revision::new("g-00001");
    revision.pods = vec![at(&app)];
    for (resource, object) in revision.objects() {
        api.apply(&resource, object);
    }
    let labels = ["namespace=\"default\"", "state=\"ready\""];
    clients
        .activator
        .has("weir_instances", &labels, |value| value == 1.0)
        .await;
    let mut client = clients.activator.connect().await;
    for _ in 0..3 {
        let answer = client.request(get("g-00001", "/")).await;
        assert_eq!(answer.status(), 200);
    }
    let described = || async {
        let (_, text) = clients.program("control").await;
        let described: Value = serde_json::from_str(&text).unwrap();
        let functions = described["functions"].as_array().unwrap().clone();
        let own = functions.into_iter().find(|it| it["function"] == "g-00001");
        own.unwrap()["variants"].clone()
    };
    let expected = json!([
        {"revision": "g-00001", "objective_ms": 10_000, "percentile": 98.0, "judged": 3, "in_time": 3},
    ]);
    // The last answer is counted after it was sent.
    let begin = Instant::now();
    loop {
        let last = described().await;
        if last == expected {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{last}");
    }
}
