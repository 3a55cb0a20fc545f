use std::fs;
use std::time::Instant;

use peers::api::{ApiServer, Resource};
use peers::revision::Revision;
use rustls::version::TLS13;
use serde_json::json;
use tests::PATIENCE;
use tests::activator::{Activator, Builder};
use tests::app::App;
use tests::proxy::{self, Proxy};
use tests::tls::{Certificate, NAME};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{QUEUE_PROXY, activator, get};

/// Starts a queue-proxy with this certificate.
async fn pod(app: &App, certificate: &Certificate) -> Proxy {
    let builder = proxy::Builder::new(QUEUE_PROXY, app.port).concurrency(1);
    certificate.write(&builder.certificates());
    builder.start().await
}

/// Returns a builder of an activator with a certificate of its own, which trusts this one for pods.
fn trusting(authority: &Certificate) -> Builder {
    let builder = activator();
    let folder = builder.certificates();
    Certificate::new().write(&folder);
    fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
    builder
}

async fn before(builder: Builder, pod: &Proxy) -> Activator {
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    let activator = builder.revision(&revision).start().await;
    // Probes are sent without TLS.
    activator.has_instances(1).await;
    activator
}

#[tokio::test]
async fn requests_to_pods_use_tls_and_probes_do_not() {
    let app = App::saying("by tls").await;
    let certificate = Certificate::new();
    let pod = pod(&app, &certificate).await;
    let activator = before(trusting(&certificate), &pod).await;
    let mut client = activator.connect().await;
    for _ in 0..3 {
        let answer = client.request(get("f-00001", "/")).await;
        assert_eq!((answer.status(), answer.text()), (200, "by tls".to_owned()));
    }
}

#[tokio::test]
async fn a_pod_with_another_certificate_gets_no_request() {
    // For another namespace; without the name that every pod has; signed by an untrusted authority.
    for (shown, is_trusted) in [
        (Certificate::of(&[NAME, "kn-user-other"]), true),
        (Certificate::of(&["kn-user-default"]), true),
        (Certificate::new(), false),
    ] {
        let app = App::saying("in vain").await;
        let pod = pod(&app, &shown).await;
        let other = Certificate::new();
        let authority = if is_trusted { &shown } else { &other };
        let activator = before(trusting(authority), &pod).await;
        let mut client = activator.connect().await;
        let answer = client.request(get("f-00001", "/")).await;
        assert_eq!(answer.status(), 502);
        assert_eq!(app.log.count(), 0);
    }
}

#[tokio::test]
async fn a_trust_bundle_is_trusted_besides_the_authority() {
    let app = App::saying("by tls").await;
    let certificate = Certificate::new();
    let pod = pod(&app, &certificate).await;
    let builder = trusting(&Certificate::new());
    let bundles = builder.certificates().with_file_name("bundles");
    fs::create_dir(&bundles).unwrap();
    fs::write(bundles.join("corporate.pem"), certificate.pem()).unwrap();
    let activator = before(builder, &pod).await;
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/")).await.text(), "by tls");
}

fn set_internal_tls(api: &ApiServer, value: &str) {
    let map = json!({
        "metadata": {"namespace": "knative-serving", "name": "config-network"},
        "data": {"system-internal-tls": value},
    });
    api.apply(&Resource::new("v1", "configmaps"), map);
}

#[tokio::test]
async fn certificates_alone_enable_no_tls_to_pods_and_a_changed_setting_ends_the_process() {
    let api = ApiServer::start().await;
    let app = App::saying("plain").await;
    // A pod without a certificate, as all pods while the setting is off.
    let pod = proxy::Builder::new(QUEUE_PROXY, app.port)
        .concurrency(1)
        .start()
        .await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    for (resource, object) in revision.objects() {
        api.apply(&resource, object);
    }
    set_internal_tls(&api, "Disabled");
    let mut activator = trusting(&Certificate::new())
        .kubernetes(&api)
        .arguments(&["--quiet", "0"])
        .start()
        .await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/")).await.text(), "plain");
    drop(client);
    set_internal_tls(&api, "enabled");
    assert_eq!(activator.exit_code(PATIENCE).await, Some(0));
}

#[tokio::test]
async fn a_config_map_labelled_as_trust_bundle_is_trusted() {
    let api = ApiServer::start().await;
    let app = App::saying("by tls").await;
    let certificate = Certificate::new();
    let pod = pod(&app, &certificate).await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    for (resource, object) in revision.objects() {
        api.apply(&resource, object);
    }
    set_internal_tls(&api, "Enabled");
    let activator = trusting(&Certificate::new()).kubernetes(&api).start().await;
    activator.has_instances(1).await;
    let status = async |label: &str, text: String, wanted: u16| {
        let map = json!({
            "kind": "ConfigMap",
            "metadata": {
                "namespace": "knative-serving",
                "name": "corporate",
                "labels": {"networking.knative.dev/trust-bundle": label},
            },
            "data": {"ca.pem": text},
        });
        api.apply(&Resource::new("v1", "configmaps"), map);
        let begin = Instant::now();
        loop {
            let mut client = activator.connect().await;
            let status = client.request(get("f-00001", "/")).await.status();
            if status == wanted {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{status}: {}",
                activator.stderr()
            );
        }
    };
    status("false", certificate.pem(), 502).await;
    status("true", certificate.pem(), 200).await;
    // An unusable bundle changes nothing.
    status("true", "nothing".to_owned(), 200).await;
    let name = "weir_certificate_reload_failures_total";
    activator.has(name, &[], |value| value == 1.0).await;
    status("true", "nothing".to_owned(), 200).await;
}

#[tokio::test]
async fn accepts_tls_if_it_has_a_certificate() {
    let app = App::saying("hello").await;
    let pod = proxy::Builder::new(QUEUE_PROXY, app.port)
        .concurrency(1)
        .start()
        .await;
    let builder = activator();
    let certificate = Certificate::new();
    // Without an authority, requests to pods stay without TLS.
    certificate.write(&builder.certificates());
    let activator = before(builder, &pod).await;
    let mut secure = activator.address();
    secure.set_port(8112);
    let mut stream = certificate
        .connect(secure, &[&TLS13], &[b"http/1.1"])
        .await
        .unwrap();
    let head = get("f-00001", "/").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello"),
        "{answer}"
    );
}

#[tokio::test]
async fn unusable_certificates_end_the_process_with_exit_code_2() {
    let builder = activator();
    let folder = builder.certificates();
    Certificate::new().write(&folder);
    fs::write(folder.join("tls.key"), "no key").unwrap();
    let (status, stderr) = builder.run_to_end(PATIENCE).await;
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("certs/tls.key: "), "{stderr}");
    let builder = trusting(&Certificate::new());
    fs::write(builder.certificates().join("ca.crt"), "no certificate").unwrap();
    let (status, stderr) = builder.run_to_end(PATIENCE).await;
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("certs/ca.crt: contains no certificate"),
        "{stderr}"
    );
}
