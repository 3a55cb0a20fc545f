use std::time::Duration;

use peers::revision::Revision;
use tests::{PATIENCE, eventually};

use crate::{Pod, activator, get};

#[tokio::test]
async fn the_kubelet_gets_200_until_sigterm_and_500_from_then_on() {
    let mut activator = activator().arguments(&["--quiet", "1"]).start().await;
    let mut client = activator.connect().await;
    let probe = "GET / HTTP/1.1\r\nHost: t\r\nUser-Agent: kube-probe/1.34\r\n\r\n";
    assert_eq!(client.request(probe).await.status(), 200);
    activator.terminate();
    let mut status = 200;
    while status == 200 {
        let mut client = activator.connect().await;
        status = client.request(probe).await.status();
    }
    assert_eq!(status, 500);
    assert_eq!(activator.exit_code(PATIENCE).await, Some(0));
}

#[tokio::test]
async fn an_ingress_gets_its_hash_and_the_autoscaler_the_word_activator() {
    let activator = activator().start().await;
    let mut client = activator.connect().await;
    let probe = "K-Network-Probe: probe\r\nK-Network-Hash: 7a6b\r\n";
    let answer = client.get_with("/healthz", probe).await;
    assert_eq!(
        (answer.status(), answer.header("k-network-hash")),
        (200, Some("7a6b"))
    );
    // As the autoscaler's probe before it scales to zero, with its double slash.
    let mut client = activator.connect().await;
    let autoscaler = "User-Agent: Knative-Autoscaling-Probe\r\nK-Network-Probe: activator\r\n";
    let answer = client.get_with("//healthz", autoscaler).await;
    assert_eq!(
        (answer.status(), answer.text()),
        (200, "activator".to_owned())
    );
    let mut client = activator.connect().await;
    let answer = client.get_with("/", "K-Network-Probe: else\r\n").await;
    assert_eq!(answer.status(), 400);
    assert_eq!(
        answer.text().trim_end(),
        "unexpected probe header value: \"else\""
    );
}

#[tokio::test]
async fn a_request_that_is_open_at_sigterm_is_answered() {
    let pod = Pod::start().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    let mut activator = activator()
        .arguments(&["--quiet", "0"])
        .revision(&revision)
        .start()
        .await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/1500")).await;
    eventually("the request is at the pod", || pod.app.log.count() > 0).await;
    activator.terminate();
    assert_eq!(client.response().await.status(), 200);
    assert_eq!(activator.exit_code(Duration::from_secs(20)).await, Some(0));
}

#[tokio::test]
async fn functions_are_described_on_loopback() {
    let pod = Pod::start().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let address = std::net::SocketAddr::new(activator.ip, 9475);
    let mut client = tests::client::Client::connect(address).await;
    let page: serde_json::Value =
        serde_json::from_str(&client.get("/v1/functions").await.text()).unwrap();
    let function = &page["functions"][0];
    assert_eq!(function["function"], "f-00001");
    assert_eq!(
        function["instances"][0]["address"],
        pod.address().to_string()
    );
    let origin = client
        .get_with("/v1/functions", "Origin: http://x\r\n")
        .await;
    assert_eq!(origin.status(), 403);
}
