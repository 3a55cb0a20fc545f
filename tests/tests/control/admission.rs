use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tests::control::{Cluster, Control, QUEUE_PROXY_IMAGE, resource};
use tests::eventually;
use tests::metrics::Metrics;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{BINARY, cluster, control};

/// Server name under which the API server calls the webhook.
const NAME: &str = "weir-webhook.weir-system.svc";

fn hooks(cluster: &Cluster) {
    let hook =
        |name: &str| json!({"name": name, "clientConfig": {"service": {"name": "weir-webhook"}}});
    for (plural, hooks) in [
        (
            "validatingwebhookconfigurations",
            json!([hook("templates.weir.dev")]),
        ),
        (
            "mutatingwebhookconfigurations",
            json!([hook("gpu.pods.weir.dev"), hook("queue.pods.weir.dev")]),
        ),
    ] {
        let object = json!({"metadata": {"name": "weir"}, "webhooks": hooks});
        cluster.api.apply(&resource(plural), object);
    }
}

/// Returns the authorities that the API server would trust when it calls a webhook.
fn trusted(cluster: &Cluster, plural: &str, position: usize) -> Option<String> {
    let found = cluster.api.get(&resource(plural), "", "weir")?;
    let bundle = found["webhooks"][position]["clientConfig"]["caBundle"].clone();
    let ByteString(bytes) = serde_json::from_value(bundle).ok()?;
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}

async fn send_review(control: &Control, bundle: &str, path: &str, review: &Value) -> (u16, Value) {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpStream::connect(SocketAddr::new(control.ip, 9443))
        .await
        .unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket);
    let stream = TokioIo::new(stream.await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(path)
        .header("Host", NAME)
        .body(Full::new(Bytes::from(review.to_string())))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn review(group: &str, kind: &str, object: &Value) -> Value {
    let of = json!({"group": group, "version": "v1", "kind": kind});
    let plural =
        json!({"group": group, "version": "v1", "resource": format!("{}s", kind.to_lowercase())});
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": of, "resource": plural, "name": "hello", "namespace": "default",
            "operation": "CREATE", "userInfo": {"username": "somebody"}, "object": object, "oldObject": null,
            "dryRun": false,
        },
    })
}

#[tokio::test]
async fn the_api_server_is_answered_by_a_certificate_that_it_trusts() {
    let cluster = cluster().await;
    hooks(&cluster);
    let control = control(&cluster);
    let all = [
        ("validatingwebhookconfigurations", 0),
        ("mutatingwebhookconfigurations", 0),
        ("mutatingwebhookconfigurations", 1),
    ];
    eventually("all webhooks are trusted", || {
        all.iter()
            .all(|(plural, position)| trusted(&cluster, plural, *position).is_some())
    })
    .await;
    let bundle = trusted(&cluster, all[0].0, 0).unwrap();
    let published = cluster
        .api
        .get(&resource("configmaps"), "weir-system", "weir-ca")
        .unwrap();
    assert_eq!(published["data"]["ca.crt"], *bundle);
    let bind = SocketAddr::new(control.ip, 9443);
    eventually("the webhooks are served", || {
        std::net::TcpStream::connect(bind).is_ok()
    })
    .await;

    let mut service = json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": "hello"},
        "spec": {"template": {
            "metadata": {"annotations": {"weir.dev/slo": "200ms", "weir.dev/late": "never"}},
            "spec": {"containerConcurrency": 1, "containers": []},
        }},
    });
    let asked = review("serving.knative.dev", "Service", &service);
    let (status, answer) = send_review(&control, &bundle, "/templates", &asked).await;
    assert_eq!(status, 200);
    let response = &answer["response"];
    assert_eq!(
        (&response["uid"], &response["allowed"]),
        (&json!("u-1"), &json!(false))
    );
    assert_eq!(
        response["status"]["message"],
        "weir.dev/late=\"never\": allowed: serve, shed"
    );
    service["spec"]["template"]["metadata"]["annotations"]["weir.dev/late"] = json!("shed");
    let asked = review("serving.knative.dev", "Service", &service);
    let (_, answer) = send_review(&control, &bundle, "/templates", &asked).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");

    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "hello-", "annotations": {"weir.dev/slo": "200ms"}},
        "spec": {"containers": [
            {"name": "user-container", "image": "hello"}, {"name": "queue-proxy", "image": "knative"},
        ]},
    });
    let (_, answer) = send_review(&control, &bundle, "/pods", &review("", "Pod", &pod)).await;
    let operations: Vec<u8> = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
    let operations: json_patch::Patch = serde_json::from_slice(&operations).unwrap();
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &operations).unwrap();
    let proxy = &patched["spec"]["containers"][1];
    assert_eq!(proxy["image"], QUEUE_PROXY_IMAGE);
    assert_eq!(
        proxy["env"],
        json!([{"name": "WEIR_SLO", "value": "200ms"}])
    );

    let (_, answer) = send_review(&control, &bundle, "/pods", &json!({"request": "none"})).await;
    assert_eq!(answer["response"]["allowed"], false, "{answer}");
    let (status, _) = send_review(&control, &bundle, "/elsewhere", &json!({})).await;
    assert_eq!(status, 404);
    let metrics = Metrics::scrape(SocketAddr::new(control.ip, 9476)).await;
    for labels in [
        ["outcome=\"refused\"", "source=\"template\""],
        ["outcome=\"allowed\"", "source=\"template\""],
        ["outcome=\"patched\"", "source=\"pod\""],
        ["outcome=\"malformed\"", "source=\"pod\""],
    ] {
        let count = metrics.value("weir_control_webhook_seconds_count", &labels);
        assert_eq!(count, Some(1.0), "{labels:?}");
    }
}

#[tokio::test]
async fn an_expiring_authority_stays_trusted_while_the_next_one_is_published() {
    let cluster = cluster().await;
    hooks(&cluster);
    // Valid from 1975 to 2040: long past two thirds.
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.not_after = rcgen::date_time_ymd(2040, 1, 1);
    let old = parameters.self_signed(&key).unwrap().pem();
    let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    cluster.change("secrets", "weir-system", "weir-ca", |secret| {
        secret["data"] = json!({"ca.crt": bytes(&old), "ca.key": bytes(&key.serialize_pem())});
    });
    let _control = cluster.control_with(BINARY, "weir-control-0", &["--authority-life", "15m"]);
    let plural = "validatingwebhookconfigurations";
    eventually("both are trusted", || {
        let bundle = trusted(&cluster, plural, 0).unwrap_or_default();
        bundle.starts_with(&old) && bundle.matches("BEGIN CERTIFICATE").count() == 2
    })
    .await;
    // An emptied Secret is filled again with the same authorities.
    let both = trusted(&cluster, plural, 0);
    cluster.change("secrets", "weir-system", "weir-certificates", |secret| {
        secret["data"] = json!({});
    });
    let filled = || {
        let secrets = resource("secrets");
        let secret = cluster
            .api
            .get(&secrets, "weir-system", "weir-certificates")?;
        let ByteString(bytes) = serde_json::from_value(secret["data"]["ca.crt"].clone()).ok()?;
        String::from_utf8(bytes).ok()
    };
    eventually("the Secret is filled again", || filled() == both).await;
}
