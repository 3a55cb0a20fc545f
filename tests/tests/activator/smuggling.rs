use peers::revision::Revision;
use tests::app::App;

use crate::{activator, at, echoing, get};

/// Heads which two parsers may read differently.
const AMBIGUOUS: [&str; 9] = [
    "Content-Length: 4\r\nTransfer-Encoding: xchunked",
    "Content-Length: 4\r\nContent-Length: 5",
    "Content-Length: +4",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    "Transfer-Encoding : chunked",
    "Host: other",
    "X: y\r\n Transfer-Encoding: chunked",
    "Content-Length: 4\0",
];

fn paths(pod: &App) -> Vec<String> {
    let served = pod.log.served().into_iter();
    served.map(|request| request.target().to_owned()).collect()
}

#[tokio::test]
async fn ambiguous_requests_do_not_reach_a_pod() {
    let pod = echoing().await;
    let mut revision = Revision::new("f-00001");
    revision.concurrency = 100;
    revision.pods = vec![at(&pod)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    for head in AMBIGUOUS {
        let mut client = activator.connect().await;
        let inner = get("f-00001", "/smuggled");
        let outer = get("f-00001", "/outer").replace("\r\n\r\n", &format!("\r\n{head}\r\n\r\n"));
        client.send(format!("{outer}0\r\n\r\n{inner}")).await;
        let status = client.response().await.status();
        assert!([400, 501].contains(&status), "{head:?}: {status}");
    }
    assert!(paths(&pod).is_empty(), "{:?}", paths(&pod));
    // The activator serves as before.
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/host")).await.status(), 200);
    assert!(!activator.stderr().contains("panicked"));
}
