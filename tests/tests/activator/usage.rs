use std::net::TcpListener;

use tests::PATIENCE;

use crate::activator;

#[tokio::test]
async fn unusable_settings_are_one_sentence_with_exit_code_2() {
    let manifest =
        "kind: Revision\nmetadata: {namespace: a, name: b}\nspec:\n  timeoutSeconds: soon\n";
    let taken = activator();
    let _listener = TcpListener::bind((taken.ip(), 8013)).unwrap();
    let port = format!("cannot listen on {}:8013: ", taken.ip());
    for (builder, expected) in [
        (
            activator().manifest("bad", manifest),
            "bad.yaml: line 4: \"timeoutSeconds: soon\": ",
        ),
        (taken, &*port),
        (
            activator().arguments(&["--nonsense"]),
            "unexpected argument '--nonsense'",
        ),
        (
            activator().arguments(&["--waiting", "0"]),
            "allowed: a whole number from 1 to 1000000",
        ),
        (
            activator().arguments(&["--autoscaler", "http://x"]),
            "a URL ws://HOST:PORT/ is needed",
        ),
        (
            activator().set("WEIR_BIND", "lo"),
            "WEIR_BIND=\"lo\": allowed: an IP address such as 127.0.0.7",
        ),
        (
            activator().set("WEIR_DISABLED", "maybe"),
            "WEIR_DISABLED=\"maybe\": allowed: ",
        ),
    ] {
        let (status, stderr) = builder.run_to_end(PATIENCE).await;
        assert_eq!(status.code(), Some(2), "{expected}: {stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        assert!(stderr.starts_with("activator-ext: "), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}
